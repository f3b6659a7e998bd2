//! Stored buckets: their keys, their rows, and how their clients are shown.

use std::collections::BTreeSet;

use super::RECORD_PREFIX;
use crate::engine::command::Bytes;
use crate::engine::keyspace::{Keyspace, Rows};
use crate::engine::reply::CommandError;
use crate::engine::row::{Row, Value};
use crate::rules::series::record::{Record, Stored};
use crate::rules::series::recorder::Recorder;
use crate::rules::series::rollup::Rollup;
use crate::values::time::Timestamp;

/// The largest bucket that is written, in bytes. A row of an object holds 2 MB.
const MAX_RECORD: usize = 1 << 20;

impl<R: Rows> Keyspace<R> {
    pub(super) fn write_record(
        &mut self,
        recorder: &Recorder,
        levels: &[Rollup],
        level: Rollup,
        start: Timestamp,
        record: Record,
    ) {
        let mut capacity = recorder.recording().capacity;
        let is_readable = recorder.recording().labels.is_readable();
        let mut stored = Stored { record, totals: recorder.totals(), is_readable };
        stored.record.shrink(capacity);
        let mut bytes = stored.to_bytes();
        while bytes.len() > MAX_RECORD && capacity > 0 {
            capacity = capacity.checked_div(2).unwrap_or(0);
            stored.record.shrink(capacity);
            bytes = stored.to_bytes();
        }
        // It stays until the level above can have been made of it, at the latest one of its buckets after the end.
        let above = levels.iter().map(|level| level.step()).find(|step| *step > level.step()).unwrap_or(level.step());
        let expires = level.expires(start).saturating_add(above).saturating_add(above);
        let (key, row) = (record_key(level, start), Row { value: Value::Record(bytes), expires: Some(expires) });
        // Not by `put`: it takes no room from the keys.
        self.cached = self.cached.saturating_add(key.len()).saturating_add(row.weight());
        if let Some(old) = self.entries.insert(key.clone(), row) {
            self.cached = self.cached.saturating_sub(key.len()).saturating_sub(old.weight());
        }
        self.mark(&key);
    }

    pub(super) fn record_bytes(&self, level: Rollup, start: Timestamp) -> Result<Option<Bytes>, CommandError> {
        let key = record_key(level, start);
        let row = match self.entries.get(&key) {
            Some(row) => Some(row.clone()),
            None => self.rows.load(&key)?,
        };
        Ok(match row.map(|row| row.value) {
            Some(Value::Record(bytes)) => Some(bytes),
            _ => None,
        })
    }

    pub(super) fn stored_record(
        &self,
        recorder: &Recorder,
        level: Rollup,
        start: Timestamp,
    ) -> Result<Option<Stored>, CommandError> {
        Ok(self.weighed_record(recorder, level, start)?.map(|(stored, _)| stored))
    }

    /// A stored bucket, its keys shown as they are to be shown now, and how many bytes it has.
    pub(super) fn weighed_record(
        &self,
        recorder: &Recorder,
        level: Rollup,
        start: Timestamp,
    ) -> Result<Option<(Stored, usize)>, CommandError> {
        let Some(bytes) = self.record_bytes(level, start)? else { return Ok(None) };
        let Some(mut stored) = Stored::from_bytes(&bytes) else { return Ok(None) };
        let labels = &recorder.recording().labels;
        if stored.is_readable && !labels.is_readable() {
            stored.record.watched.values_mut().for_each(|watched| watched.top.rename(|key| labels.pseudonym(key)));
        }
        Ok(Some((stored, bytes.len())))
    }

    /// Where the buckets of a level that are stored begin, from `from` on and before `until`.
    pub(super) fn record_starts(
        &self,
        level: Rollup,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<BTreeSet<Timestamp>, CommandError> {
        let (from, until) = (record_key(level, from), record_key(level, until));
        let mut keys = if from < until { self.rows.keys(&from, &until)? } else { Vec::new() };
        // In memory, and what is not written yet.
        let held = self.entries.keys().filter(|key| !self.is_stored || self.dirty.contains(*key));
        keys.extend(held.filter(|key| (&from..&until).contains(key)).cloned());
        let start = |key: &Bytes| {
            let index: u64 = std::str::from_utf8(key.rsplit(|byte| *byte == b':').next()?).ok()?.parse().ok()?;
            index.checked_mul(level.step().as_millis()).map(Timestamp::from_millis)
        };
        Ok(keys.iter().filter_map(start).collect())
    }
}

/// The key of a stored bucket. Its number has a fixed width: keys are in the order of time.
fn record_key(level: Rollup, start: Timestamp) -> Bytes {
    let (secs, index) = (level.step().as_secs_ceil(), level.index(start));
    [RECORD_PREFIX, format!("{secs}:{index:020}").as_bytes()].concat()
}
