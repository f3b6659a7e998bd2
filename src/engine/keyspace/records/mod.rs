//! `TG.RECORD`, `TG.SERIES`, `TG.TOP`, `TG.DISTINCT`, `TG.TOTALS`: what the gate has seen on this shard.
//!
//! Records never count against the bounds of the keyspace: they must not make it refuse a limit. They are bounded by what
//! one bucket holds and by how long it is kept.

mod questions;
mod stored;

use std::collections::BTreeMap;

pub use questions::MAX_BUCKETS;

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::{Bytes, Tally};
use crate::engine::policy_key::parse_policy_key;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::rules::series::record::{ByPolicy, Counts, Outcome as Decided, Record, Stored};
use crate::rules::series::recorder::{Recorder, RunningSum};
use crate::rules::series::rollup::Rollup;
use crate::values::time::{Duration, Timestamp};

/// How many more keys are watched while buckets are added up than each of them watches.
const MERGE_FACTOR: usize = 4;

/// Bytes of stored buckets that are added up in one go, and the pause until the next: requests come in between.
const SUM_BYTES: usize = 128 << 10;
const SUM_PAUSE: Duration = Duration::from_millis(50);

/// What keys of stored buckets begin with: a byte that no policy's and no client's key has by accident. No command may
/// name one.
pub const RECORD_PREFIX: &[u8] = b"\0record:";

impl<R: Rows> Keyspace<R> {
    /// A keyspace that also records the decisions of policies.
    #[must_use]
    pub fn recording(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Records the decision about one policy's key.
    pub(super) fn record(&mut self, now: Timestamp, key: &[u8], outcome: Decided) {
        if let Some(recorder) = &mut self.recorder
            && let Some((policy, partition_key)) = parse_policy_key(key)
        {
            recorder.record(now, policy, partition_key, outcome);
        }
    }

    /// Records that a charge was given back.
    pub(super) fn record_refund(&mut self, key: &[u8]) {
        if let Some(recorder) = &mut self.recorder
            && let Some((policy, _)) = parse_policy_key(key)
        {
            recorder.take_back(policy);
        }
    }

    pub(super) fn record_tallies(&mut self, now: Timestamp, number: u64, tallies: &[Tally]) -> Outcome {
        let recorder = self.recorder.as_mut().ok_or_else(no_records)?;
        let counted = tallies.iter().map(|Tally { policy, outcome, count }| {
            let mut counts = Counts::default();
            counts.add(*outcome, *count);
            (String::from_utf8_lossy(policy), counts)
        });
        recorder.record_tallies(now, number, counted);
        Ok(Reply::OK)
    }

    /// When there is something to do about what was recorded, if there is.
    pub fn records_due(&self) -> Option<Timestamp> {
        self.recorder.as_ref()?.due()
    }

    /// Puts what was recorded into rows, for [`take_changes`](Self::take_changes), and goes on with the coarser levels.
    /// What is not due yet waits, unless `all` of it is asked for. Everything is put, or nothing.
    pub fn stage_records(&mut self, now: Timestamp, all: bool) -> Result<(), CommandError> {
        let Some(mut recorder) = self.recorder.take() else { return Ok(()) };
        let staged = self.stage(now, &mut recorder, all);
        self.recorder = Some(recorder);
        staged
    }

    /// Notes that what was staged is written, or that it is not.
    pub fn settle_records(&mut self, now: Timestamp, written: bool) {
        let Some(recorder) = &mut self.recorder else { return };
        if !written {
            return recorder.not_saved(now);
        }
        recorder.saved();
        if self.is_stored {
            // They are read rarely, and then from the rows.
            let dirty = &self.dirty;
            let is_record = |key: &Bytes, row: &Row| matches!(row.value, Value::Record(_)) && !dirty.contains(key);
            let gone = self.entries.iter().filter(|(key, row)| is_record(key, row));
            let freed: usize = gone.map(|(key, row)| key.len().saturating_add(row.weight())).sum();
            self.entries.retain(|key, row| !is_record(key, row));
            self.cached = self.cached.saturating_sub(freed);
        }
    }

    fn stage(&mut self, now: Timestamp, recorder: &mut Recorder, all: bool) -> Result<(), CommandError> {
        self.learn_totals(recorder)?;
        let levels = recorder.recording().rollups.levels().to_vec();
        let capacity = recorder.recording().capacity;
        let mut changed = BTreeMap::<(usize, Timestamp), Record>::new();
        let is_time = all || recorder.save_at().is_some_and(|at| at <= now);
        recorder.set_staged(is_time);
        for (start, delta) in recorder.unsaved().iter().filter(|_| is_time) {
            for (number, level) in levels.iter().enumerate() {
                let bucket = start.floor_to(level.step());
                let stored = self.stored_record(recorder, *level, bucket)?;
                // A clock that went back may come to a time that is added up already: then it is added there too.
                if number == 0 || stored.is_some() || changed.contains_key(&(number, bucket)) {
                    let record = changed.entry((number, bucket)).or_insert_with(|| stored.unwrap_or_default().record);
                    record.merge(delta, capacity);
                }
            }
        }
        for number in 1..levels.len() {
            if is_time && let Some(mut sum) = recorder.take_sum(number) {
                let late = recorder.unsaved().range(sum.start..sum.until);
                late.for_each(|(_, delta)| sum.record.merge(delta, capacity.saturating_mul(MERGE_FACTOR)));
                recorder.put_sum(number, sum);
            }
        }
        for ((number, start), record) in changed {
            if let Some(level) = levels.get(number) {
                self.write_record(recorder, &levels, *level, start, record);
            }
        }
        // What is put is right by itself: an error from here on only delays the sums.
        let flush = recorder.recording().flush;
        let pause = match self.go_on(now, recorder, &levels) {
            Ok(true) => None,
            Ok(false) => Some(SUM_PAUSE),
            Err(_) => Some(flush),
        };
        recorder.go_on_at(pause.map(|pause| now.saturating_add(pause)));
        Ok(())
    }

    /// Adds some more closed buckets to those of the coarser levels, and writes the ones that are over. True when there is
    /// nothing left to do.
    fn go_on(&mut self, now: Timestamp, recorder: &mut Recorder, levels: &[Rollup]) -> Result<bool, CommandError> {
        let mut budget = SUM_BYTES;
        for (number, (fine, coarse)) in (1..).zip(levels.iter().zip(levels.iter().skip(1))) {
            let mut sum = match recorder.take_sum(number) {
                Some(sum) => sum,
                None => match self.oldest_open(*fine, *coarse)? {
                    Some(start) => RunningSum { start, until: start, record: Record::default() },
                    None => continue,
                },
            };
            loop {
                let end = sum.start.saturating_add(coarse.step());
                let closed = now.floor_to(fine.step()).min(end);
                let is_whole = self.add_closed(recorder, *fine, &mut sum, closed, &mut budget)?;
                if !is_whole {
                    recorder.put_sum(number, sum);
                    return Ok(false);
                }
                if end > now.floor_to(coarse.step()) {
                    sum.until = sum.until.max(closed);
                    recorder.put_sum(number, sum);
                    break;
                }
                // Also where nothing could be read: else it would be found open again.
                self.write_record(recorder, levels, *coarse, sum.start, std::mem::take(&mut sum.record));
                // Times in which nothing happened are skipped.
                let Some(next) = self.oldest_open(*fine, *coarse)? else { break };
                sum = RunningSum { start: next, until: next, record: Record::default() };
            }
        }
        Ok(true)
    }

    /// Adds the stored buckets of a level from `sum.until` on and before `closed`. False when the budget is used up first.
    fn add_closed(
        &self,
        recorder: &Recorder,
        level: Rollup,
        sum: &mut RunningSum,
        closed: Timestamp,
        budget: &mut usize,
    ) -> Result<bool, CommandError> {
        let capacity = recorder.recording().capacity.saturating_mul(MERGE_FACTOR);
        for start in self.record_starts(level, sum.until, closed)? {
            if *budget == 0 {
                return Ok(false);
            }
            if let Some((stored, weight)) = self.weighed_record(recorder, level, start)? {
                *budget = budget.saturating_sub(weight);
                sum.record.merge(&stored.record, capacity);
            }
            sum.until = start.saturating_add(level.step());
        }
        Ok(true)
    }

    /// Where the oldest bucket of `coarse` begins that has some of `fine` in it and is not written.
    fn oldest_open(&self, fine: Rollup, coarse: Rollup) -> Result<Option<Timestamp>, CommandError> {
        let known = self.record_starts(coarse, Timestamp::default(), LAST)?;
        let starts = self.record_starts(fine, Timestamp::default(), LAST)?;
        Ok(starts.into_iter().map(|start| start.floor_to(coarse.step())).find(|bucket| !known.contains(bucket)))
    }

    /// The totals of this shard's lives before this one: the largest in the buckets that were written last. The clock
    /// may have gone back between two of them.
    fn learn_totals(&self, recorder: &mut Recorder) -> Result<(), CommandError> {
        const LOOKED_AT: usize = 8;
        if recorder.earlier_totals().is_some() {
            return Ok(());
        }
        let mut totals = ByPolicy::new();
        for level in recorder.recording().rollups.levels() {
            let starts = self.record_starts(*level, Timestamp::default(), LAST)?;
            for start in starts.iter().rev().take(LOOKED_AT) {
                let bytes = self.record_bytes(*level, *start)?;
                let stored = bytes.and_then(|bytes| Stored::counts_from_bytes(&bytes)).unwrap_or_default();
                for (policy, counts) in stored.totals {
                    let known = totals.entry(policy).or_default();
                    *known = known.max(counts);
                }
            }
        }
        recorder.set_earlier_totals(totals);
        Ok(())
    }
}

const LAST: Timestamp = Timestamp::from_millis(u64::MAX);

fn no_records() -> CommandError {
    CommandError::new("ERR nothing is recorded here")
}
