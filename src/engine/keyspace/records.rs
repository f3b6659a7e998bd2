//! `TG.RECORD`, `TG.SERIES`, `TG.TOP`, `TG.DISTINCT`, `TG.TOTALS`: what the gate has seen on this shard.
//!
//! Records never count against the bounds of the keyspace: they must not make it refuse a limit. They are bounded by what
//! one bucket holds and by how long it is kept.

use std::collections::{BTreeMap, BTreeSet};

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::{Bytes, Tally, Window};
use crate::engine::policy_key::parse_policy_key;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::rules::series::hyperloglog::HyperLogLog;
use crate::rules::series::record::{ByPolicy, Counts, Outcome as Decided, Record, Stored};
use crate::rules::series::recorder::{Recorder, RunningSum};
use crate::rules::series::rollup::Rollup;
use crate::rules::series::top::{Top, first};
use crate::values::time::{Duration, Timestamp};

/// The largest bucket that is written, in bytes. A row of an object holds 2 MB.
const MAX_RECORD: usize = 1 << 20;

/// The most buckets that one question is about, and the most rows of its answer.
pub const MAX_BUCKETS: usize = 10_000;
const MAX_ROWS: usize = 20_000;

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
        let is_done = self.go_on(now, recorder, &levels)?;
        recorder.go_on_at((!is_done).then(|| now.saturating_add(SUM_PAUSE)));
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
                if sum.record != Record::default() {
                    self.write_record(recorder, levels, *coarse, sum.start, std::mem::take(&mut sum.record));
                }
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

    fn write_record(
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

    fn record_bytes(&self, level: Rollup, start: Timestamp) -> Result<Option<Bytes>, CommandError> {
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

    fn stored_record(
        &self,
        recorder: &Recorder,
        level: Rollup,
        start: Timestamp,
    ) -> Result<Option<Stored>, CommandError> {
        Ok(self.weighed_record(recorder, level, start)?.map(|(stored, _)| stored))
    }

    /// A stored bucket, its keys shown as they are to be shown now, and how many bytes it has.
    fn weighed_record(
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
    fn record_starts(
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

    /// Tells `visit` of everything that happened in a window, by the beginning of the bucket it belongs to; of the counts
    /// alone, where no more is wanted.
    fn visit_records(
        &self,
        now: Timestamp,
        window: &Window,
        with_keys: bool,
        mut visit: impl FnMut(Timestamp, &Record),
    ) -> Result<(), CommandError> {
        let recorder = self.recorder.as_ref().ok_or_else(no_records)?;
        let Some(levels) = recorder.levels_up_to(window.rollup) else {
            let known = recorder.recording().rollups.of_step(window.rollup);
            return known.map(drop).map_err(CommandError::from);
        };
        let from = window.start.floor_to(window.rollup);
        let until = window.end.floor_to(window.rollup).saturating_add(window.rollup);
        let wide = until.saturating_since(from).as_millis().checked_div(window.rollup.as_millis());
        let fits = wide.and_then(|wide| usize::try_from(wide).ok()).is_some_and(|wide| wide <= MAX_BUCKETS);
        if window.end < window.start || !fits {
            return Err(CommandError::new(format!("ERR range: expected 1 to {MAX_BUCKETS} buckets, start before end")));
        }
        let sums: Vec<_> = (1..levels.len()).filter_map(|number| recorder.sum(number)).collect();
        let mut starts = Vec::with_capacity(levels.len());
        for level in levels {
            starts.push((*level, self.record_starts(*level, from, until)?));
        }
        for (number, (level, found)) in starts.iter().enumerate() {
            let coarser = starts.get(number.saturating_add(1)..).unwrap_or_default();
            for start in found {
                let is_in_coarser =
                    coarser.iter().any(|(coarse, known)| known.contains(&start.floor_to(coarse.step())));
                let is_added =
                    level.step() != window.rollup && sums.iter().any(|sum| (sum.start..sum.until).contains(start));
                let is_told = level.step() != window.rollup || level.is_live(start.saturating_add(level.step()), now);
                if is_in_coarser || is_added || !is_told {
                    continue;
                }
                let stored = if with_keys {
                    self.stored_record(recorder, *level, *start)?
                } else {
                    self.record_bytes(*level, *start)?.and_then(|bytes| Stored::counts_from_bytes(&bytes))
                };
                if let Some(stored) = stored {
                    visit(start.floor_to(window.rollup), &stored.record);
                }
            }
        }
        let told = sums.iter().filter(|sum| (from..until).contains(&sum.start));
        told.for_each(|sum| visit(sum.start.floor_to(window.rollup), &sum.record));
        let unsaved = recorder.unsaved().iter().filter(|(start, _)| (from..until).contains(*start));
        unsaved.for_each(|(start, record)| visit(start.floor_to(window.rollup), record));
        Ok(())
    }

    pub(super) fn series(&mut self, now: Timestamp, window: &Window) -> Outcome {
        let mut counts = BTreeMap::<(Timestamp, String), Counts>::new();
        self.visit_records(now, window, false, |bucket, record| {
            for (name, of_policy) in record.counts.iter().filter(|(name, _)| window.wants(name)) {
                counts.entry((bucket, name.clone())).or_default().merge(of_policy);
            }
        })?;
        if counts.len() > MAX_ROWS {
            let got = counts.len();
            return Err(CommandError::new(format!(
                "ERR range: expected at most {MAX_ROWS} counts, got {got}: name a policy"
            )));
        }
        let row = |((bucket, name), counts): ((Timestamp, String), Counts)| {
            let mut row = vec![Reply::from_count(bucket.as_millis()), Reply::Bulk(name.into_bytes())];
            row.extend(count_replies(&counts));
            Reply::Array(row)
        };
        Ok(Reply::Array(counts.into_iter().map(row).collect()))
    }

    pub(super) fn top(&mut self, now: Timestamp, window: &Window, most: usize, outcomes: &[Decided]) -> Outcome {
        let capacity = self.recorder.as_ref().ok_or_else(no_records)?.recording().capacity.saturating_mul(MERGE_FACTOR);
        let mut tops = BTreeMap::<String, Top>::new();
        self.visit_records(now, window, true, |_, record| {
            for (name, watched) in record.watched.iter().filter(|(name, _)| window.wants(name)) {
                tops.entry(name.clone()).or_default().merge(&watched.top, capacity);
            }
        })?;
        let outcomes = if outcomes.is_empty() { &Decided::ALL } else { outcomes };
        let rows = tops.iter().flat_map(|(name, top)| {
            top.weights(outcomes).map(move |(weight, label, entry)| {
                let ranked = std::cmp::Reverse((name.as_str(), label));
                (weight, ranked, entry.counts.in_order(), top.error(entry))
            })
        });
        let heaviest = first(rows, most.min(MAX_ROWS));
        let row = |(_, std::cmp::Reverse((name, label)), counts, error): (
            u64,
            std::cmp::Reverse<(&str, &Bytes)>,
            [u64; 3],
            u64,
        )| {
            let mut row = vec![Reply::Bulk(name.as_bytes().to_vec()), Reply::Bulk(label.clone())];
            row.extend(counts.into_iter().chain([error]).map(Reply::from_count));
            Reply::Array(row)
        };
        Ok(Reply::Array(heaviest.into_iter().map(row).collect()))
    }

    pub(super) fn distinct(&mut self, now: Timestamp, window: &Window) -> Outcome {
        let mut unions = BTreeMap::<String, HyperLogLog>::new();
        self.visit_records(now, window, true, |_, record| {
            for (name, watched) in record.watched.iter().filter(|(name, _)| window.wants(name)) {
                unions.entry(name.clone()).or_default().merge(&watched.distinct);
            }
        })?;
        let row = |(name, union): (String, HyperLogLog)| {
            Reply::Array(vec![Reply::Bulk(name.into_bytes()), Reply::from_count(union.count())])
        };
        Ok(Reply::Array(unions.into_iter().map(row).collect()))
    }

    /// Keys, bytes, and for each policy its name and its counts.
    pub(super) fn totals(&mut self) -> Outcome {
        let mut recorder = self.recorder.take().ok_or_else(no_records)?;
        let learnt = self.learn_totals(&mut recorder);
        let totals = recorder.totals();
        self.recorder = Some(recorder);
        learnt?;
        let usage = self.usage()?;
        let size = |number: usize| Reply::from_count(u64::try_from(number).unwrap_or(u64::MAX));
        let mut reply = vec![size(usage.keys), size(usage.bytes)];
        reply.extend(totals.into_iter().map(|(name, counts)| {
            let mut row = vec![Reply::Bulk(name.into_bytes())];
            row.extend(count_replies(&counts));
            Reply::Array(row)
        }));
        Ok(Reply::Array(reply))
    }
}

const LAST: Timestamp = Timestamp::from_millis(u64::MAX);

fn count_replies(counts: &Counts) -> impl Iterator<Item = Reply> + use<> {
    counts.in_order().into_iter().map(Reply::from_count)
}

fn no_records() -> CommandError {
    CommandError::new("ERR nothing is recorded here")
}

/// The key of a stored bucket. Its number has a fixed width: keys are in the order of time.
fn record_key(level: Rollup, start: Timestamp) -> Bytes {
    let (secs, index) = (level.step().as_secs_ceil(), level.index(start));
    [RECORD_PREFIX, format!("{secs}:{index:020}").as_bytes()].concat()
}
