//! The keyspace: the pure interpreter of commands.
//!
//! `apply(now, command) -> Reply`, with nothing in between. Expiry is decided when a key is looked at and never
//! by a timer. Live keys and bytes are bounded: when the bound is reached, what has expired goes first, and then
//! new keys are refused; a live lock or an exhausted counter is never forgotten to make room.

mod bounds;
mod document;
mod entries;
mod expiry;
mod hashes;
mod limits;
mod locks;
mod records;
mod rows;
mod sketches;
mod strings;

use std::collections::HashSet;

use foldhash::quality::FixedState;
use indexmap::IndexMap;

pub use bounds::Bounds;
pub use document::MAX_DOCUMENT;
pub use locks::Turn;
pub use records::{MAX_BUCKETS, RECORD_PREFIX};
pub use rows::{Changes, NoRows, Reclaimed, Rows, SharedRows, Usage};

use crate::engine::command::{Bytes, Command};
use crate::engine::reply::{CommandError, Reply, ReplyBudget};
use crate::engine::row::Row;
use crate::rules::series::recorder::Recorder;
use crate::rules::wait_queue::WaitQueue;
use crate::values::time::Timestamp;

type Outcome = Result<Reply, CommandError>;

/// A small Redis over a source of rows: [`NoRows`] in memory, SQLite in a Durable Object.
///
/// ```
/// use tollgate::{Bounds, Command, Keyspace, NoRows, Reply, Timestamp};
/// let mut keyspace = Keyspace::new(NoRows, Bounds::default(), 7);
/// let hit = Command::IncrBy { key: b"k".to_vec(), by: 1 };
/// assert_eq!(keyspace.apply(Timestamp::from_millis(0), &hit), Reply::Integer(1));
/// ```
#[derive(Debug)]
pub struct Keyspace<R: Rows = NoRows> {
    rows: R,
    is_stored: bool,
    bounds: Bounds,
    /// The keys in memory: all of them over [`NoRows`], else those that were asked for.
    entries: IndexMap<Bytes, Row, FixedState>,
    /// Keys whose row differs from the stored one; without an entry, the stored one is to go.
    dirty: HashSet<Bytes, FixedState>,
    /// Keys and bytes in memory and in the rows together. `None` until the rows were asked.
    usage: Option<Usage>,
    /// Bytes of the entries in memory, about.
    cached: usize,
    /// Where the sweep that goes along with writes stands.
    cursor: usize,
    /// Nothing can expire before this: a full keyspace does not sweep again until then.
    sweep_after: Timestamp,
    next_expiry: Option<Timestamp>,
    /// The fencing number of the last grant. `None` until the rows were asked.
    fencing: Option<u64>,
    fencing_changed: bool,
    waiters: WaitQueue,
    /// Where there is one, the decisions of policies are recorded.
    recorder: Option<Recorder>,
}

impl<R: Rows> Keyspace<R> {
    /// A keyspace over `rows`. `seed` should be random, so that nobody outside can choose keys that share a
    /// hash bucket.
    pub fn new(rows: R, bounds: Bounds, seed: u64) -> Self {
        Self {
            is_stored: rows.is_stored(),
            rows,
            bounds,
            entries: IndexMap::with_hasher(FixedState::with_seed(seed)),
            dirty: HashSet::with_hasher(FixedState::with_seed(seed)),
            usage: None,
            cached: 0,
            cursor: 0,
            sweep_after: Timestamp::default(),
            next_expiry: None,
            fencing: None,
            fencing_changed: false,
            waiters: WaitQueue::default(),
            recorder: None,
        }
    }

    /// Runs one command at `now`.
    pub fn apply(&mut self, now: Timestamp, command: &Command) -> Reply {
        self.bounds.check(command).and_then(|()| self.dispatch(now, command)).into()
    }

    /// Room for the replies of one batch.
    pub const fn reply_budget(&self) -> ReplyBudget {
        ReplyBudget::new(self.bounds.reply_bytes)
    }

    fn dispatch(&mut self, now: Timestamp, command: &Command) -> Outcome {
        match command {
            Command::Ping(None) => Ok(Reply::Status("PONG")),
            Command::Ping(Some(message)) => Ok(Reply::Bulk(message.clone())),
            Command::Get(key) => self.get(now, key),
            Command::Set { key, value, condition, expiry, get } => self.set(now, key, value, *condition, *expiry, *get),
            Command::SetNx { key, value } => self.set_nx(now, key, value),
            Command::Del(keys) => self.del(now, keys),
            Command::DelIfEqual { key, value } => self.del_if_equal(now, key, value),
            Command::Exists(keys) => self.exists(now, keys),
            Command::IncrBy { key, by } => self.incr_by(now, key, *by),
            Command::IncrExisting(key) => self.incr_existing(now, key),
            Command::Expire { key, at, condition } => self.expire(now, key, *at, *condition),
            Command::ExpireIfEqual { key, ttl, value } => self.expire_if_equal(now, key, *ttl, value),
            Command::Ttl { key, unit } => self.ttl(now, key, *unit),
            Command::Persist(key) => self.persist(now, key),
            Command::HSet { key, pairs } => self.h_set(now, key, pairs),
            Command::HIncrBy { key, field, by } => self.h_incr_by(now, key, field, *by),
            Command::HGet { key, field } => self.h_get(now, key, field),
            Command::HMGet { key, fields } => self.h_mget(now, key, fields),
            Command::HGetAll(key) => self.h_get_all(now, key),
            Command::HDel { key, fields } => self.h_del(now, key, fields),
            Command::PfAdd { key, elements } => self.pf_add(now, key, elements),
            Command::PfCount(keys) => self.pf_count(now, keys),
            Command::PfMerge { target, sources } => self.pf_merge(now, target, sources),
            Command::Take(take) => self.take(now, take, true),
            Command::Peek(take) => self.take(now, take, false),
            Command::Settle { cost, actual, reset_at_ms, key, limit } => {
                self.settle(now, (*cost, *actual), Timestamp::from_millis(*reset_at_ms), key, limit)
            }
            Command::Penalty { amount, key, limit } => self.penalty(now, *amount, key, limit),
            Command::Reward { amount, key, limit } => self.reward(now, *amount, key, limit),
            Command::Reset(keys) => self.reset(now, keys),
            Command::Block { span, keys } => self.block(now, *span, keys),
            Command::Release { token, keys, record } => self.release(now, token, keys, *record),
            Command::Extend { token, limits } => self.extend(now, token, limits),
            Command::Policy { known } => self.policy(now, *known),
            Command::SetPolicy { expected, document } => self.set_policy(now, *expected, document),
            Command::Refund { amount, reset_at_ms, key, limit, record } => {
                self.refund(now, *amount, Timestamp::from_millis(*reset_at_ms), key, limit, *record)
            }
            Command::Record { number, tallies } => self.record_tallies(now, *number, tallies),
            Command::Series(window) => self.series(now, window),
            Command::Top { most, outcomes, window } => self.top(now, window, *most, outcomes),
            Command::Distinct(window) => self.distinct(now, window),
            Command::Totals => self.totals(),
            Command::Lock(request) => self.lock(now, request),
            Command::Renew { key, token, ttl } => self.renew(now, key, token, *ttl),
            Command::Unlock { key, token } => self.unlock(now, key, token),
            Command::LockInfo(key) => self.lock_info(now, key),
        }
    }

    /// What was changed since the last call of this or [`forget_changes`](Self::forget_changes), for a store
    /// to write in one step.
    pub fn take_changes(&mut self) -> Changes {
        let rows = self.dirty.drain().map(|key| {
            let row = self.entries.get(&key).cloned();
            (key, row)
        });
        let rows = rows.collect();
        Changes { rows, fencing: std::mem::take(&mut self.fencing_changed).then_some(self.fencing).flatten() }
    }

    /// Whether there is anything for [`take_changes`](Self::take_changes).
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || self.fencing_changed
    }

    /// Goes back to what the rows hold, after `changes` could not be written.
    pub fn forget_changes(&mut self, changes: &Changes) {
        for (key, _) in &changes.rows {
            self.entries.swap_remove(key);
        }
        self.usage = None;
        self.fencing = None;
    }

    /// Whether more rows are in memory than should be. Written rows can be let go of: see [`trim`](Self::trim).
    pub const fn is_over_cache(&self) -> bool {
        self.is_stored && self.cached > self.bounds.cache_bytes
    }

    /// Lets go of all entries that are as stored. They are loaded again when asked for.
    pub fn trim(&mut self) {
        let dirty = &self.dirty;
        self.entries.retain(|key, _| dirty.contains(key));
        self.entries.shrink_to_fit();
        self.cached = self.entries.iter().map(|(key, row)| key.len().saturating_add(row.weight())).sum();
        self.cursor = 0;
    }

    /// When something expires next, records too, as far as the last [`reclaim`](Self::reclaim) knows.
    pub const fn next_expiry(&self) -> Option<Timestamp> {
        self.next_expiry
    }

    /// The row source.
    pub const fn rows(&self) -> &R {
        &self.rows
    }

    /// The bounds this keyspace keeps.
    pub const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// How many keys there are, in memory and in the rows, expired ones that were not reclaimed yet included.
    pub fn usage(&mut self) -> Result<Usage, CommandError> {
        if let Some(usage) = self.usage {
            return Ok(usage);
        }
        let usage = self.count_changes(self.rows.usage()?)?;
        self.usage = Some(usage);
        Ok(usage)
    }
}

impl Clone for Keyspace<NoRows> {
    /// A copy of the keys and values. Nobody waits in the copy.
    fn clone(&self) -> Self {
        Self {
            rows: NoRows,
            is_stored: false,
            bounds: self.bounds,
            entries: self.entries.clone(),
            dirty: self.dirty.clone(),
            usage: self.usage,
            cached: self.cached,
            cursor: self.cursor,
            sweep_after: self.sweep_after,
            next_expiry: self.next_expiry,
            fencing: self.fencing,
            fencing_changed: self.fencing_changed,
            waiters: WaitQueue::default(),
            recorder: self.recorder.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
