//! The Workers KV store: read, apply, write. Best effort, and it says so.
//!
//! KV has no compare-and-set, reads may be 60 s old (misses too), a key takes one write a second, and a time to
//! live is at least 60 s. So racing writers lose updates and a counter here is a lower bound; the end of a window
//! or a lock is kept in the value, and KV's own expiry only cleans up after it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;

use sha2::{Digest, Sha256};

use crate::engine::command::{Bytes, Command};
use crate::engine::keyspace::{Bounds, Changes, Keyspace, Reclaimed, Rows, SharedRows, Usage};
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, decode, encode};
use crate::stores::store::{Capabilities, Store, check_batch};
use crate::values::error::Error;
use crate::values::key::hex;
use crate::values::time::{Duration, Timestamp};

/// KV refuses an expiry less than 60 s ahead of its own clock; ours may be a little behind it.
const SMALLEST_TTL_SECS: u64 = 60;
const CLOCK_SLACK_SECS: u64 = 5;

/// KV's bound on a key, in bytes.
const MAX_NAME: usize = 512;

/// The three calls of a KV namespace that the store makes.
pub trait Namespace {
    /// The value of `name`; `None` when there is none.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Vec<u8>>, Error>>;

    /// Stores `value` under `name`. `expiration` is in seconds since the epoch. The refusal of a second write
    /// within a second is [`ErrorKind::WriteConflict`](crate::ErrorKind::WriteConflict).
    fn put(&self, name: &str, value: Vec<u8>, expiration: Option<u64>) -> impl Future<Output = Result<(), Error>>;

    /// Removes `name`.
    fn delete(&self, name: &str) -> impl Future<Output = Result<(), Error>>;
}

/// A keyspace over a KV namespace.
#[derive(Debug)]
pub struct KvStore<N, C> {
    namespace: N,
    clock: C,
    bounds: Bounds,
    best_effort: bool,
}

impl<N: Namespace, C: Fn() -> Timestamp> KvStore<N, C> {
    /// A store that refuses locks.
    pub const fn new(namespace: N, clock: C, bounds: Bounds) -> Self {
        Self { namespace, clock, bounds, best_effort: false }
    }

    /// A store that takes locks too: the caller knows that two owners may hold one at the same time.
    #[must_use]
    pub fn best_effort(self) -> Self {
        Self { best_effort: true, ..self }
    }

    async fn read(&self, batch: &[Command], now: Timestamp) -> Result<Snapshot, Error> {
        let mut rows = HashMap::new();
        for key in batch.iter().flat_map(Command::keys) {
            if !rows.contains_key(key) {
                let row = self.namespace.get(&name_of(key)).await?.as_deref().map(decode).transpose()?;
                // An expired row is none. KV removes it by itself: a delete of ours would cost a write.
                rows.insert(key.to_vec(), row.filter(|row| !row.is_expired(now)));
            }
        }
        // Nothing here can hand out consecutive numbers. The clock keeps grants that do not race in order.
        Ok(Snapshot { rows, fencing: now.as_millis() })
    }

    async fn write(&self, changes: Changes, now: Timestamp) -> Result<(), Error> {
        for (key, row) in changes.rows {
            let name = name_of(&key);
            match row {
                Some(row) => self.namespace.put(&name, encode(&row), expiration(&row, now)).await?,
                None => self.namespace.delete(&name).await?,
            }
        }
        Ok(())
    }

    fn refuse_locks(&self, batch: &[Command]) -> Option<CommandError> {
        let refused = batch.iter().any(Command::is_lock);
        let refusal = self.capabilities().require_atomic("a lock", self.best_effort || !refused).err()?;
        Some(CommandError::new(format!("NOTATOMIC {}", refusal.message())))
    }
}

impl<N: Namespace, C: Fn() -> Timestamp> Store for KvStore<N, C> {
    /// A write that KV refuses is [`ErrorKind::WriteConflict`](crate::ErrorKind::WriteConflict); what the batch
    /// wrote to other keys before it stays.
    async fn exec(&self, batch: &[Command]) -> Result<Vec<Reply>, Error> {
        check_batch(batch.len(), self.bounds.batch_commands)?;
        if let Some(error) = self.refuse_locks(batch) {
            return Err(error.into());
        }
        let now = (self.clock)();
        let snapshot = self.read(batch, now).await?;
        let snapshot: SharedRows = Rc::new(RefCell::new(snapshot));
        let keyspace = RefCell::new(Keyspace::new(snapshot, self.bounds, 0));
        let mut budget = keyspace.borrow().reply_budget();
        let replies = batch.iter().map(|command| budget.spend(|| keyspace.borrow_mut().apply(now, command))).collect();
        let changes = keyspace.borrow_mut().take_changes();
        self.write(changes, now).await?;
        Ok(replies)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "Workers KV",
            atomic: false,
            durable: true,
            staleness: Some(Duration::from_secs(60)),
            smallest_ttl: Duration::from_secs(SMALLEST_TTL_SECS),
            fair_waiting: false,
        }
    }
}

/// The KV name of a key: readable where it can be, else its SHA-256. KV counts UTF-8 bytes, the prefix with them.
fn name_of(key: &[u8]) -> String {
    let text = percent_encoding::percent_encode(key, percent_encoding::NON_ALPHANUMERIC);
    let name = format!("t:{text}");
    if name.len() <= MAX_NAME { name } else { format!("h:{}", hex(&Sha256::digest(key))) }
}

/// When KV may drop the row, in seconds since the epoch: never before the row's own end.
fn expiration(row: &Row, now: Timestamp) -> Option<u64> {
    let secs = |at: Timestamp| at.as_millis().div_ceil(1000);
    let soonest = secs(now).saturating_add(SMALLEST_TTL_SECS).saturating_add(CLOCK_SLACK_SECS);
    row.expires.map(|at| secs(at).saturating_add(1).max(soonest))
}

/// The rows a batch asks for, as they were read.
struct Snapshot {
    rows: HashMap<Bytes, Option<Row>>,
    fencing: u64,
}

impl Rows for Snapshot {
    fn is_stored(&self) -> bool {
        true
    }

    fn load(&self, key: &[u8]) -> Result<Option<Row>, Error> {
        Ok(self.rows.get(key).cloned().flatten())
    }

    fn keys(&self, _: &[u8], _: &[u8]) -> Result<Vec<Bytes>, Error> {
        Ok(Vec::new())
    }

    fn usage(&self) -> Result<Usage, Error> {
        Ok(Usage::default())
    }

    fn reclaim(&mut self, _: Timestamp) -> Result<Reclaimed, Error> {
        Ok(Reclaimed::default())
    }

    fn fencing(&self) -> Result<u64, Error> {
        Ok(self.fencing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::row::Value;

    #[test]
    fn names_fit_kv_and_do_not_collide() {
        assert_eq!(name_of(b"user:1"), "t:user%3A1");
        for odd in [&b""[..], b".", b"..", b"\xff\x00"] {
            assert!(name_of(odd).is_ascii() && name_of(odd).len() <= MAX_NAME);
        }
        let emoji = "😀".repeat(128);
        assert_eq!(name_of(emoji.as_bytes()).len(), 66, "1,536 bytes percent-encoded: hashed, not cut");
        assert_ne!(name_of(&[b'a'; 600]), name_of(&[b'a'; 601]));
    }

    #[test]
    fn short_lives_are_rounded_up_for_kv_only() {
        let now = Timestamp::from_millis(1_000_500);
        let row = |expires| Row { value: Value::String(Vec::new()), expires };
        assert_eq!(expiration(&row(None), now), None);
        assert_eq!(expiration(&row(Some(Timestamp::from_millis(1_010_000))), now), Some(1066));
        assert_eq!(expiration(&row(Some(Timestamp::from_millis(2_000_001))), now), Some(2002));
    }
}
