//! `EXPIRE` and its family, `TTL`, `PERSIST`.

use super::strings::to_i64;
use super::{Keyspace, Outcome, Rows};
use crate::engine::command::{Bytes, ExpireAt, ExpireCondition, TimeUnit};
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::Value;
use crate::values::time::{Duration, Timestamp};

impl<R: Rows> Keyspace<R> {
    pub(super) fn expire(&mut self, now: Timestamp, key: &[u8], at: ExpireAt, condition: ExpireCondition) -> Outcome {
        let when = add_to_now(now, at).ok_or_else(|| CommandError::invalid_expire(at.command_name()))?;
        let Some(row) = self.live(now, key)? else { return Ok(Reply::Integer(0)) };
        let old = row.expires.map(to_i64);
        let ExpireCondition { nx, xx, gt, lt } = condition;
        let refused = (nx && old.is_some())
            || (xx && old.is_none())
            // A key without expiry lives for ever: nothing is later than that, everything is earlier.
            || (gt && old.is_none_or(|old| when <= old))
            || (lt && old.is_some_and(|old| when >= old));
        if refused {
            return Ok(Reply::Integer(0));
        }
        if when <= to_i64(now) {
            self.remove(now, key)?;
        } else {
            row.expires = Some(to_timestamp(when));
            self.note_expiry(Some(to_timestamp(when)));
            self.mark(key);
        }
        Ok(Reply::Integer(1))
    }

    pub(super) fn expire_if_equal(&mut self, now: Timestamp, key: &[u8], ttl: Duration, value: &Bytes) -> Outcome {
        let Some(row) = self.live(now, key)? else { return Ok(Reply::Integer(0)) };
        match &row.value {
            Value::String(stored) if stored != value => return Ok(Reply::Integer(0)),
            Value::String(_) => row.expires = Some(now.saturating_add(ttl)),
            _ => return Err(CommandError::wrong_type()),
        }
        self.note_expiry(Some(now.saturating_add(ttl)));
        self.mark(key);
        Ok(Reply::Integer(1))
    }

    pub(super) fn ttl(&mut self, now: Timestamp, key: &[u8], unit: TimeUnit) -> Outcome {
        let Some(row) = self.live(now, key)? else { return Ok(Reply::Integer(-2)) };
        let Some(at) = row.expires else { return Ok(Reply::Integer(-1)) };
        let left = at.saturating_since(now).as_millis();
        Ok(Reply::from_count(match unit {
            TimeUnit::Millis => left,
            // Redis rounds to the nearest second.
            TimeUnit::Seconds => left.saturating_add(500).checked_div(1000).unwrap_or(0),
        }))
    }

    pub(super) fn persist(&mut self, now: Timestamp, key: &[u8]) -> Outcome {
        let Some(row) = self.live(now, key)? else { return Ok(Reply::Integer(0)) };
        let had_one = row.expires.take().is_some();
        if had_one {
            self.mark(key);
        }
        Ok(Reply::from_bool(had_one))
    }
}

/// The instant a command names, ms since the epoch; `None` when it is out of range.
pub(super) fn add_to_now(now: Timestamp, at: ExpireAt) -> Option<i64> {
    at.resolve(to_i64(now))
}

pub(super) fn to_timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
}
