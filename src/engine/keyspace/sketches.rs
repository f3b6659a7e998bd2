//! `PFADD`, `PFCOUNT`, `PFMERGE`: HyperLogLogs, which are strings in Redis and here.

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::Bytes;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::rules::series::hyperloglog::{HyperLogLog, NotASketch};
use crate::values::time::Timestamp;

impl<R: Rows> Keyspace<R> {
    pub(super) fn pf_add(&mut self, now: Timestamp, key: &[u8], elements: &[Bytes]) -> Outcome {
        let stored = self.sketch(now, key)?;
        let mut changed = stored.is_none();
        let mut sketch = stored.unwrap_or_default();
        for element in elements {
            changed |= sketch.add(element);
        }
        if changed {
            self.put_sketch(now, key, &sketch)?;
        }
        Ok(Reply::from_bool(changed))
    }

    pub(super) fn pf_count(&mut self, now: Timestamp, keys: &[Bytes]) -> Outcome {
        Ok(Reply::from_count(self.union(now, keys)?.count()))
    }

    pub(super) fn pf_merge(&mut self, now: Timestamp, target: &Bytes, sources: &[Bytes]) -> Outcome {
        let mut union = self.sketch(now, target)?.unwrap_or_default();
        union.merge(&self.union(now, sources)?);
        self.put_sketch(now, target, &union)?;
        Ok(Reply::OK)
    }

    fn union(&mut self, now: Timestamp, keys: &[Bytes]) -> Result<HyperLogLog, CommandError> {
        let mut union = HyperLogLog::new();
        for key in keys {
            if let Some(sketch) = self.sketch(now, key)? {
                union.merge(&sketch);
            }
        }
        Ok(union)
    }

    fn sketch(&mut self, now: Timestamp, key: &[u8]) -> Result<Option<HyperLogLog>, CommandError> {
        match self.live(now, key)?.map(|row| &row.value) {
            None => Ok(None),
            Some(Value::String(bytes)) => HyperLogLog::from_bytes(bytes).map(Some).map_err(|error| {
                CommandError::new(match error {
                    NotASketch::Foreign => "WRONGTYPE Key is not a valid HyperLogLog string value.",
                    NotASketch::Corrupted => "INVALIDOBJ Corrupted HLL object detected",
                })
            }),
            Some(_) => Err(CommandError::wrong_type()),
        }
    }

    fn put_sketch(&mut self, now: Timestamp, key: &[u8], sketch: &HyperLogLog) -> Result<(), CommandError> {
        let expires = self.live(now, key)?.and_then(|row| row.expires);
        self.put(now, key, Row { value: Value::String(sketch.to_bytes()), expires })
    }
}
