//! `TG.LOCK`, `TG.RENEW`, `TG.UNLOCK`, `TG.LOCKINFO`, and whose turn it is.

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::{Bytes, LockRequest};
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Holder, Row, Value};
use crate::rules::wait_queue::Waiter;
use crate::values::time::{Duration, Timestamp};

/// How long a caller that waits counts as there without asking again, when it does not say.
const POLL: Duration = Duration::from_secs(1);

impl<R: Rows> Keyspace<R> {
    /// Grants the lock when it is free and nobody came earlier; else joins the queue if the caller waits.
    ///
    /// A caller that asks again with the token of the holder is the holder, whose reply was lost: it gets the
    /// same grant again, so that a retry neither waits for itself nor makes a second grant.
    pub(super) fn lock(&mut self, now: Timestamp, request: &LockRequest) -> Outcome {
        let LockRequest { key, token, ttl, label, wait, poll } = request;
        let holder = match self.live(now, key)? {
            None => None,
            Some(row) => Some((row.expires, row.value.clone())),
        };
        match holder {
            Some((_, Value::Lock(holder))) if holder.token == *token => return self.renew(now, key, token, *ttl),
            None if !self.waiters.is_behind_another(key, token, now) => {
                let reply = self.grant(now, key, token, label, *ttl)?;
                self.waiters.leave(key, token);
                return Ok(reply);
            }
            _ => {}
        }
        if let Some(wait) = wait {
            let waiter = Waiter {
                token: token.clone(),
                deadline: now.saturating_add(*wait),
                alive_until: now.saturating_add(poll.unwrap_or(POLL)),
            };
            self.waiters.join(key, waiter, now)?;
        }
        let expires = holder.and_then(|(expires, _)| expires);
        Ok(Reply::Array(vec![
            Reply::Integer(0),
            expires.map_or(Reply::Nil, |at| Reply::from_count(at.saturating_since(now).as_millis())),
            self.waiting(now, key),
        ]))
    }

    fn grant(&mut self, now: Timestamp, key: &Bytes, token: &Bytes, label: &Bytes, ttl: Duration) -> Outcome {
        let fencing = match self.fencing {
            Some(last) => last,
            None => self.rows.fencing()?,
        }
        .saturating_add(1);
        let expires = now.saturating_add(ttl);
        let holder = Holder { token: token.clone(), label: label.clone(), fencing };
        self.put(now, key, Row { value: Value::Lock(holder), expires: Some(expires) })?;
        self.fencing = Some(fencing);
        self.fencing_changed = self.is_stored;
        Ok(granted(fencing, expires))
    }

    pub(super) fn renew(&mut self, now: Timestamp, key: &[u8], token: &Bytes, ttl: Duration) -> Outcome {
        let Some(row) = self.live(now, key)? else { return Ok(Reply::Nil) };
        let fencing = match &row.value {
            Value::Lock(holder) if holder.token == *token => holder.fencing,
            _ => return Ok(Reply::Nil),
        };
        let expires = now.saturating_add(ttl);
        row.expires = Some(expires);
        self.note_expiry(Some(expires));
        self.mark(key);
        Ok(granted(fencing, expires))
    }

    pub(super) fn unlock(&mut self, now: Timestamp, key: &[u8], token: &Bytes) -> Outcome {
        self.waiters.leave(key, token);
        let owned = match self.live(now, key)?.map(|row| &row.value) {
            Some(Value::Lock(holder)) => holder.token == *token,
            _ => false,
        };
        Ok(Reply::from_bool(owned && self.remove(now, key)?))
    }

    pub(super) fn lock_info(&mut self, now: Timestamp, key: &[u8]) -> Outcome {
        let waiting = self.waiting(now, key);
        let Some(row) = self.live(now, key)? else { return Ok(Reply::Nil) };
        let (label, fencing) = match &row.value {
            Value::Lock(holder) => (Reply::Bulk(holder.label.clone()), Reply::from_count(holder.fencing)),
            // Somebody took the key with a plain SETNX, as the seed does: held, by nobody we know.
            _ => (Reply::Nil, Reply::Nil),
        };
        let left = row.expires.map_or(Reply::Nil, |at| Reply::from_count(at.saturating_since(now).as_millis()));
        Ok(Reply::Array(vec![label, fencing, left, waiting]))
    }

    fn waiting(&self, now: Timestamp, key: &[u8]) -> Reply {
        Reply::from_count(u64::try_from(self.waiters.len(key, now)).unwrap_or(u64::MAX))
    }

    /// The waiter of `key` whose turn it is, now that the lock is free; and those whose wait is over.
    pub fn turn(&mut self, now: Timestamp, key: &[u8]) -> Result<Turn, CommandError> {
        let over = self.waiters.prune(key, now);
        let is_free = self.live(now, key)?.is_none();
        let next = self.waiters.first(key).filter(|_| is_free).map(|waiter| waiter.token.clone());
        Ok(Turn { next, over })
    }

    /// The locks that somebody waits for.
    pub fn awaited_locks(&self) -> Vec<Bytes> {
        self.waiters.locks()
    }

    /// When to look at the queue of `key` again: its lock expires or a waiter gives up.
    pub fn next_turn(&mut self, now: Timestamp, key: &[u8]) -> Result<Option<Timestamp>, CommandError> {
        let Some(deadline) = self.waiters.next_deadline(key) else { return Ok(None) };
        // A key lives through the millisecond of its expiry.
        let free = self.live(now, key)?.and_then(|row| row.expires);
        let free = free.map(|at| at.saturating_add(Duration::from_millis(1)));
        Ok(Some(free.map_or(deadline, |at| at.min(deadline))))
    }
}

/// What [`Keyspace::turn`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The token of the waiter that may take the lock now.
    pub next: Option<Bytes>,
    /// The tokens of those who wait no longer.
    pub over: Vec<Bytes>,
}

/// Granted, the fencing number and the expiry in ms since the epoch.
fn granted(fencing: u64, expires: Timestamp) -> Reply {
    Reply::Array(vec![Reply::Integer(1), Reply::from_count(fencing), Reply::from_count(expires.as_millis())])
}
