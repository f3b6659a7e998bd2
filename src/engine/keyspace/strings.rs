//! `GET`, `SET`, `SETNX`, `DEL`, `DELEX`, `EXISTS` and the counters.

use super::expiry::{add_to_now, to_timestamp};
use super::{Keyspace, Outcome, Rows};
use crate::engine::command::{Bytes, Existence, SetExpiry};
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::values::number::parse_integer;
use crate::values::time::Timestamp;

impl<R: Rows> Keyspace<R> {
    /// The live string of `key`, or an error when it holds something else.
    fn string(&mut self, now: Timestamp, key: &[u8]) -> Result<Option<&Bytes>, CommandError> {
        match self.live(now, key)?.map(|row| &row.value) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(CommandError::wrong_type()),
        }
    }

    pub(super) fn get(&mut self, now: Timestamp, key: &[u8]) -> Outcome {
        Ok(Reply::from_option(self.string(now, key)?.cloned()))
    }

    pub(super) fn set(
        &mut self,
        now: Timestamp,
        key: &[u8],
        value: &Bytes,
        condition: Option<Existence>,
        expiry: SetExpiry,
        get: bool,
    ) -> Outcome {
        let at = match expiry {
            SetExpiry::At(at) => Some(add_to_now(now, at).ok_or_else(|| CommandError::invalid_expire("set"))?),
            SetExpiry::Never | SetExpiry::Keep => None,
        };
        let old = if get { self.string(now, key)?.cloned() } else { None };
        let kept = self.live(now, key)?.map(|row| row.expires);
        let wanted = match condition {
            None => true,
            Some(Existence::Absent) => kept.is_none(),
            Some(Existence::Present) => kept.is_some(),
        };
        if wanted {
            let expires = if expiry == SetExpiry::Keep { kept.flatten() } else { at.map(to_timestamp) };
            self.put(now, key, Row { value: Value::String(value.clone()), expires })?;
        }
        Ok(match (get, wanted) {
            (true, _) => Reply::from_option(old),
            (false, true) => Reply::OK,
            (false, false) => Reply::Nil,
        })
    }

    pub(super) fn set_nx(&mut self, now: Timestamp, key: &[u8], value: &Bytes) -> Outcome {
        let reply = self.set(now, key, value, Some(Existence::Absent), SetExpiry::Never, false)?;
        Ok(Reply::from_bool(reply == Reply::OK))
    }

    pub(super) fn del(&mut self, now: Timestamp, keys: &[Bytes]) -> Outcome {
        let mut deleted = 0;
        for key in keys {
            deleted = u64::saturating_add(deleted, self.remove(now, key)?.into());
        }
        Ok(Reply::from_count(deleted))
    }

    pub(super) fn del_if_equal(&mut self, now: Timestamp, key: &[u8], value: &Bytes) -> Outcome {
        let equal = self.string(now, key)? == Some(value);
        Ok(Reply::from_bool(equal && self.remove(now, key)?))
    }

    pub(super) fn exists(&mut self, now: Timestamp, keys: &[Bytes]) -> Outcome {
        let mut found = 0;
        for key in keys {
            found = u64::saturating_add(found, self.live(now, key)?.is_some().into());
        }
        Ok(Reply::from_count(found))
    }

    pub(super) fn incr_by(&mut self, now: Timestamp, key: &[u8], by: i64) -> Outcome {
        let old = match self.string(now, key)? {
            None => 0,
            Some(text) => parse_integer(text).ok_or_else(CommandError::not_an_integer)?,
        };
        let sum = old.checked_add(by).ok_or_else(overflow)?;
        let expires = self.live(now, key)?.and_then(|row| row.expires);
        self.put(now, key, Row { value: Value::String(sum.to_string().into_bytes()), expires })?;
        Ok(Reply::Integer(sum))
    }

    pub(super) fn incr_existing(&mut self, now: Timestamp, key: &[u8]) -> Outcome {
        if self.string(now, key)?.is_some() { self.incr_by(now, key, 1) } else { Ok(Reply::Nil) }
    }
}

/// "ERR increment or decrement would overflow"
pub(super) fn overflow() -> CommandError {
    CommandError::new("ERR increment or decrement would overflow")
}

pub(super) fn to_i64(now: Timestamp) -> i64 {
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
