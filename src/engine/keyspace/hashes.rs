//! `HSET`, `HINCRBY`, `HGET`, `HMGET`, `HGETALL`, `HDEL`.

use super::strings::overflow;
use super::{Keyspace, Outcome, Rows};
use crate::engine::command::Bytes;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Fields, Row, Value, field_weight};
use crate::values::number::parse_integer;
use crate::values::time::Timestamp;

impl<R: Rows> Keyspace<R> {
    /// The live hash of `key`, or an error when it holds something else.
    fn hash(&mut self, now: Timestamp, key: &[u8]) -> Result<Option<&mut Fields>, CommandError> {
        match self.live(now, key)?.map(|row| &mut row.value) {
            None => Ok(None),
            Some(Value::Hash(fields)) => Ok(Some(fields)),
            Some(_) => Err(CommandError::wrong_type()),
        }
    }

    pub(super) fn h_set(&mut self, now: Timestamp, key: &[u8], pairs: &[(Bytes, Bytes)]) -> Outcome {
        // An upper bound: a field that is replaced counts as new. All of them fit, or none is set.
        let growth: usize = pairs.iter().map(|(field, value)| field_weight(field, value)).sum();
        self.check_growth(now, key, growth)?;
        let mut added = 0;
        for (field, value) in pairs {
            added = u64::saturating_add(added, self.set_field(now, key, field, value)?.into());
        }
        Ok(Reply::from_count(added))
    }

    pub(super) fn h_incr_by(&mut self, now: Timestamp, key: &[u8], field: &Bytes, by: i64) -> Outcome {
        let old = match self.hash(now, key)?.and_then(|fields| fields.get(field)) {
            None => 0,
            Some(text) => parse_integer(text).ok_or_else(|| CommandError::new("ERR hash value is not an integer"))?,
        };
        let sum = old.checked_add(by).ok_or_else(overflow)?;
        let text = sum.to_string().into_bytes();
        self.check_growth(now, key, field_weight(field, &text))?;
        self.set_field(now, key, field, &text)?;
        Ok(Reply::Integer(sum))
    }

    pub(super) fn h_get(&mut self, now: Timestamp, key: &[u8], field: &Bytes) -> Outcome {
        let value = self.hash(now, key)?.and_then(|fields| fields.get(field)).cloned();
        Ok(Reply::from_option(value))
    }

    pub(super) fn h_mget(&mut self, now: Timestamp, key: &[u8], wanted: &[Bytes]) -> Outcome {
        let mut budget = self.reply_budget();
        let fields = self.hash(now, key)?;
        let value = |field| Reply::from_option(fields.as_ref().and_then(|fields| fields.get(field)).cloned());
        let replies = wanted.iter().map(|field| match budget.spend(|| value(field)) {
            Reply::Error(error) => Err(error),
            reply => Ok(reply),
        });
        replies.collect::<Result<_, _>>().map(Reply::Array)
    }

    pub(super) fn h_get_all(&mut self, now: Timestamp, key: &[u8]) -> Outcome {
        let pairs = self.hash(now, key)?.into_iter().flatten();
        let words = pairs.flat_map(|(field, value)| [field.clone(), value.clone()]);
        Ok(Reply::Array(words.map(Reply::Bulk).collect()))
    }

    pub(super) fn h_del(&mut self, now: Timestamp, key: &[u8], unwanted: &[Bytes]) -> Outcome {
        let Some(fields) = self.hash(now, key)? else { return Ok(Reply::Integer(0)) };
        let gone: Vec<_> = unwanted.iter().filter_map(|field| fields.swap_remove_entry(field)).collect();
        let is_empty = fields.is_empty();
        if !gone.is_empty() {
            let freed = gone.iter().map(|(f, v)| field_weight(f, v)).sum();
            self.reserve(now, 0, freed, 0)?;
            self.mark(key);
        }
        if is_empty {
            self.remove(now, key)?;
        }
        Ok(Reply::from_count(u64::try_from(gone.len()).unwrap_or(u64::MAX)))
    }

    /// Sets one field in place; true when it is new. The hash is made when there is none.
    fn set_field(&mut self, now: Timestamp, key: &[u8], field: &Bytes, value: &Bytes) -> Result<bool, CommandError> {
        if self.hash(now, key)?.is_none() {
            self.put(now, key, Row { value: Value::Hash(Fields::default()), expires: None })?;
        }
        let old = self.hash(now, key)?.and_then(|fields| fields.get(field)).map(|old| field_weight(field, old));
        self.reserve(now, 0, old.unwrap_or(0), field_weight(field, value))?;
        if let Some(fields) = self.hash(now, key)? {
            fields.insert(field.clone(), value.clone());
        }
        self.mark(key);
        Ok(old.is_none())
    }

    /// Refuses fields that the hash or the shard has no room for.
    fn check_growth(&mut self, now: Timestamp, key: &[u8], growth: usize) -> Result<(), CommandError> {
        let (most, empty) = (self.bounds().value_bytes, Row { value: Value::Hash(Fields::default()), expires: None });
        let weight = self.hash(now, key)?.map(|fields| fields.iter().map(|(f, v)| field_weight(f, v)).sum::<usize>());
        let bytes = weight.unwrap_or(0).saturating_add(growth);
        if bytes > most {
            return Err(CommandError::new(format!("ERR hash of {bytes} bytes, at most {most} are taken")));
        }
        let new_row = if weight.is_none() { empty.weight().saturating_add(key.len()) } else { 0 };
        self.room(now, weight.is_none().into(), 0, growth.saturating_add(new_row)).map(drop)
    }
}
