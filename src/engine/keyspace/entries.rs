//! Finding, storing and forgetting rows, within the bounds.

use super::{Keyspace, Rows, Usage};
use crate::engine::reply::CommandError;
use crate::engine::row::{Row, Value};
use crate::values::error::{Error, ErrorKind};
use crate::values::time::{Duration, Timestamp};

/// How many entries each insertion looks at for expired ones. Two find them faster than one key can be added.
const SWEEP_STEPS: usize = 2;

/// How soon a full keyspace looks again when nothing in it says when it expires.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

impl<R: Rows> Keyspace<R> {
    /// The live row of `key`. An expired one is forgotten on the way.
    pub(super) fn live(&mut self, now: Timestamp, key: &[u8]) -> Result<Option<&mut Row>, CommandError> {
        if self.is_stored
            && !self.entries.contains_key(key)
            && !self.dirty.contains(key)
            && let Some(row) = self.rows.load(key)?
        {
            self.cached = self.cached.saturating_add(key.len()).saturating_add(row.weight());
            self.entries.insert(key.to_vec(), row);
        }
        if self.entries.get(key).is_some_and(|row| row.is_expired(now)) {
            self.forget(key);
        }
        Ok(self.entries.get_mut(key))
    }

    /// Stores a row under `key`, over whatever is there.
    pub(super) fn put(&mut self, now: Timestamp, key: &[u8], row: Row) -> Result<(), CommandError> {
        let weight = row.weight();
        match self.live(now, key)?.map(|old| old.weight()) {
            Some(old) => self.reserve(now, 0, old, weight)?,
            None => self.reserve(now, 1, 0, weight.saturating_add(key.len()))?,
        }
        self.note_expiry(row.expires);
        self.entries.insert(key.to_vec(), row);
        self.mark(key);
        self.sweep_a_little(now);
        Ok(())
    }

    /// Removes the live row of `key`. False when there is none.
    pub(super) fn remove(&mut self, now: Timestamp, key: &[u8]) -> Result<bool, CommandError> {
        let lives = self.live(now, key)?.is_some();
        if lives {
            self.forget(key);
        }
        Ok(lives)
    }

    /// Notes when something expires: a full keyspace looks for room from then on.
    pub(super) fn note_expiry(&mut self, expires: Option<Timestamp>) {
        self.sweep_after = expires.map_or(self.sweep_after, |at| at.min(self.sweep_after));
    }

    /// Notes that the entry of `key` was changed.
    pub(super) fn mark(&mut self, key: &[u8]) {
        if self.is_stored {
            self.dirty.insert(key.to_vec());
        }
    }

    /// Makes room as [`room`](Self::room) does, and takes it.
    pub(super) fn reserve(
        &mut self,
        now: Timestamp,
        new_keys: usize,
        old: usize,
        new: usize,
    ) -> Result<(), CommandError> {
        let grows = new_keys > 0 || new > old;
        if grows || self.usage.is_some() {
            // Else it is counted when somebody needs to know: the count reads every stored row.
            self.usage = Some(self.room(now, new_keys, old, new)?);
        }
        self.cached = self.cached.saturating_sub(old).saturating_add(new);
        Ok(())
    }

    /// The usage after `new_keys` keys are added and a row grows from `old` to `new` bytes, or a refusal: what has
    /// expired goes first. What does not grow is never refused.
    pub(super) fn room(
        &mut self,
        now: Timestamp,
        new_keys: usize,
        old: usize,
        new: usize,
    ) -> Result<Usage, CommandError> {
        let grows = new_keys > 0 || new > old;
        let fits = |usage: Usage, bounds: &super::Bounds| {
            let keys = usage.keys.saturating_add(new_keys);
            let bytes = usage.bytes.saturating_sub(old).saturating_add(new);
            (!grows || (keys <= bounds.keys && bytes <= bounds.total_bytes)).then_some(Usage { keys, bytes })
        };
        let mut usage = self.usage()?;
        if fits(usage, &self.bounds).is_none() && now > self.sweep_after {
            usage = self.reclaim(now)?;
        }
        fits(usage, &self.bounds).ok_or_else(|| self.full().into())
    }

    fn full(&self) -> Error {
        let Usage { keys, bytes } = self.usage.unwrap_or_default();
        let message = format!("the shard holds {keys} keys in {bytes} bytes and none of them has expired");
        Error::new(ErrorKind::Full, message)
    }

    /// Forgets every expired key, stored ones included, and says what is left.
    pub fn reclaim(&mut self, now: Timestamp) -> Result<Usage, CommandError> {
        let (left, next_expiry) = if self.is_stored {
            let reclaimed = self.rows.reclaim(now)?;
            self.entries.retain(|_, row| !row.is_expired(now));
            (self.count_changes(reclaimed.left)?, reclaimed.next_expiry)
        } else {
            self.entries.retain(|_, row| !row.is_expired(now));
            let left = self.entries.iter().fold(Usage::default(), |sum, (key, row)| sum.plus(weigh(key, row)));
            (left, self.entries.values().filter_map(|row| row.expires).min())
        };
        self.usage = Some(left);
        let unflushed = self.dirty.iter().filter_map(|key| self.entries.get(key)?.expires).min();
        self.next_expiry = [next_expiry, unflushed].into_iter().flatten().min();
        self.sweep_after = self.next_expiry.unwrap_or_else(|| now.saturating_add(SWEEP_PAUSE)).max(now);
        Ok(left)
    }

    /// The stored usage, corrected by what was changed in memory since.
    pub(super) fn count_changes(&self, stored: Usage) -> Result<Usage, CommandError> {
        let mut usage = stored;
        for key in &self.dirty {
            if let Some(row) = self.rows.load(key)? {
                usage = usage.minus(weigh(key, &row));
            }
            if let Some(row) = self.entries.get(key) {
                usage = usage.plus(weigh(key, row));
            }
        }
        Ok(usage)
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some(row) = self.entries.swap_remove(key) {
            self.usage = self.usage.map(|usage| usage.minus(weigh(key, &row)));
            self.cached = self.cached.saturating_sub(key.len()).saturating_sub(row.weight());
            self.mark(key);
        }
    }

    /// Looks at a few entries beside each write, so that memory is given back without a timer.
    fn sweep_a_little(&mut self, now: Timestamp) {
        for _ in 0..SWEEP_STEPS {
            let Some((key, row)) = self.entries.get_index(self.cursor) else {
                self.cursor = 0;
                return;
            };
            if !row.is_expired(now) {
                self.cursor = self.cursor.saturating_add(1);
                continue;
            }
            let key = key.clone();
            if self.is_stored && !self.dirty.contains(&key) {
                // Its stored row is as expired as it is, and waits for the next clean-up.
                self.entries.swap_remove(&key);
            } else {
                self.forget(&key);
            }
        }
    }
}

/// What a row takes of the bounds. Records take nothing: they must not keep a limit from being counted.
fn weigh(key: &[u8], row: &Row) -> Usage {
    if matches!(row.value, Value::Record(_)) {
        return Usage::default();
    }
    Usage { keys: 1, bytes: row.weight().saturating_add(key.len()) }
}

impl Usage {
    fn plus(self, other: Self) -> Self {
        Self { keys: self.keys.saturating_add(other.keys), bytes: self.bytes.saturating_add(other.bytes) }
    }

    fn minus(self, other: Self) -> Self {
        Self { keys: self.keys.saturating_sub(other.keys), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}
