//! `TG.RECORD`, `TG.SERIES`, `TG.TOP`, `TG.DISTINCT`, `TG.TOTALS`: what the gate has seen on this shard.

use std::collections::{BTreeMap, BTreeSet};

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::{Bytes, Tally, Window};
use crate::engine::policy_key::parse_policy_key;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::rules::series::record::{Counts, Outcome as Decided, PolicyRecord, Record, Stored, Totals};
use crate::rules::series::recorder::Recorder;
use crate::rules::series::rollup::Rollup;
use crate::rules::series::top::Top;
use crate::values::time::{Duration, Timestamp};

/// The largest bucket that is written, in bytes. A row of an object holds 2 MB.
const MAX_RECORD: usize = 1 << 20;

/// The most buckets of one policy that one reply tells of, and the most rows of all policies together.
const MAX_BUCKETS: u64 = 2000;
const MAX_ROWS: usize = 20_000;

/// How many more keys are watched while buckets are added up than each of them watches.
const MERGE_FACTOR: usize = 4;

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

    pub(super) fn record_tallies(&mut self, now: Timestamp, tallies: &[Tally]) -> Outcome {
        let recorder = self.recorder.as_mut().ok_or_else(no_records)?;
        for Tally { policy, outcome, count } in tallies {
            recorder.record_counts(now, &String::from_utf8_lossy(policy), *outcome, *count);
        }
        Ok(Reply::OK)
    }

    /// When what was recorded should be written, if anything is to be.
    pub fn records_due(&self) -> Option<Timestamp> {
        self.recorder.as_ref()?.due()
    }

    /// Puts what was recorded into rows, for [`take_changes`](Self::take_changes), and completes the coarser levels.
    pub fn stage_records(&mut self, now: Timestamp) -> Result<(), CommandError> {
        let Some(mut recorder) = self.recorder.take() else { return Ok(()) };
        let staged = self.stage(now, &mut recorder);
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
        if R::STORED {
            // They are read rarely, and then from the rows.
            let dirty = &self.dirty;
            let is_record = |key: &Bytes, row: &Row| matches!(row.value, Value::Record(_)) && !dirty.contains(key);
            let gone = self.entries.iter().filter(|(key, row)| is_record(key, row));
            let freed: usize = gone.map(|(key, row)| key.len().saturating_add(row.weight())).sum();
            self.entries.retain(|key, row| !is_record(key, row));
            self.cached = self.cached.saturating_sub(freed);
        }
    }

    fn stage(&mut self, now: Timestamp, recorder: &mut Recorder) -> Result<(), CommandError> {
        self.learn_totals(recorder)?;
        let (capacity, totals) = (recorder.recording().capacity, recorder.totals());
        let levels = recorder.recording().rollups.levels().to_vec();
        let Some(finest) = levels.first().copied() else { return Ok(()) };
        for (start, delta) in recorder.unsaved() {
            // A clock that went back may point into a time that is summed up already: what happened happens after it.
            let start = (1..levels.len()).map(|level| recorder.complete_until(level)).fold(*start, Timestamp::max);
            let mut record = self.stored_record(finest, start)?.map(|stored| stored.record).unwrap_or_default();
            record.merge(delta, capacity);
            self.put_record(now, finest, start, record, &totals, capacity)?;
        }
        self.complete_levels(now, recorder)
    }

    /// Writes the buckets of the coarser levels that are over, each once.
    fn complete_levels(&mut self, now: Timestamp, recorder: &mut Recorder) -> Result<(), CommandError> {
        let (capacity, totals) = (recorder.recording().capacity, recorder.totals());
        let levels = recorder.recording().rollups.levels().to_vec();
        for (number, (fine, coarse)) in (1..).zip(levels.iter().zip(levels.iter().skip(1))) {
            let until = now.floor_to(coarse.step());
            if recorder.complete_until(number) >= until {
                continue;
            }
            let mut sums = BTreeMap::<Timestamp, Record>::new();
            let known = self.record_starts(*coarse, Timestamp::default(), until)?;
            for start in self.record_starts(*fine, Timestamp::default(), until)? {
                let bucket = start.floor_to(coarse.step());
                if !known.contains(&bucket)
                    && let Some(stored) = self.stored_record(*fine, start)?
                {
                    sums.entry(bucket).or_default().merge(&stored.record, capacity.saturating_mul(MERGE_FACTOR));
                }
            }
            for (start, record) in sums {
                self.put_record(now, *coarse, start, record, &totals, capacity)?;
            }
            recorder.set_complete(number, until);
        }
        Ok(())
    }

    fn put_record(
        &mut self,
        now: Timestamp,
        level: Rollup,
        start: Timestamp,
        record: Record,
        totals: &Totals,
        mut capacity: usize,
    ) -> Result<(), CommandError> {
        let mut stored = Stored { record, totals: totals.clone() };
        stored.record.shrink(capacity);
        let mut bytes = stored.to_bytes();
        while bytes.len() > MAX_RECORD && capacity > 0 {
            capacity = capacity.checked_div(2).unwrap_or(0);
            stored.record.shrink(capacity);
            bytes = stored.to_bytes();
        }
        // A day longer than it is told of: the level above may be completed late.
        let expires = level.expires(start).saturating_add(Duration::from_secs(86_400));
        self.put(now, &record_key(level, start), Row { value: Value::Record(bytes), expires: Some(expires) })
    }

    /// The totals of this shard's lives before this one: those in the bucket that was written last.
    fn learn_totals(&self, recorder: &mut Recorder) -> Result<(), CommandError> {
        if recorder.earlier_totals().is_some() {
            return Ok(());
        }
        let mut totals = Totals::new();
        for level in recorder.recording().rollups.levels() {
            let starts = self.record_starts(*level, Timestamp::default(), Timestamp::from_millis(u64::MAX))?;
            let Some(last) = starts.last() else { continue };
            for (policy, counts) in self.stored_record(*level, *last)?.unwrap_or_default().totals {
                let known = totals.entry(policy).or_default();
                *known = known.max(counts);
            }
        }
        recorder.set_earlier_totals(totals);
        Ok(())
    }

    fn stored_record(&self, level: Rollup, start: Timestamp) -> Result<Option<Stored>, CommandError> {
        let key = record_key(level, start);
        let row = match self.entries.get(&key) {
            Some(row) => Some(row.clone()),
            None => self.rows.load(&key)?,
        };
        Ok(match row.map(|row| row.value) {
            Some(Value::Record(bytes)) => Stored::from_bytes(&bytes),
            _ => None,
        })
    }

    /// Where the buckets of a level that are stored begin, from `from` on and before `until`.
    fn record_starts(
        &self,
        level: Rollup,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<BTreeSet<Timestamp>, CommandError> {
        let (from, until) = (record_key(level, from), record_key(level, until));
        let mut keys = self.rows.keys(&from, &until)?;
        // In memory, and what is not written yet.
        let held = self.entries.keys().filter(|key| !R::STORED || self.dirty.contains(*key));
        keys.extend(held.filter(|key| (&from..&until).contains(key)).cloned());
        let start = |key: &Bytes| {
            let index: u64 = std::str::from_utf8(key.rsplit(|byte| *byte == b':').next()?).ok()?.parse().ok()?;
            index.checked_mul(level.step().as_millis()).map(Timestamp::from_millis)
        };
        Ok(keys.iter().filter_map(start).collect())
    }

    /// Tells `visit` of everything that happened in a window, by the beginning of the bucket it belongs to.
    fn visit_records(
        &self,
        now: Timestamp,
        window: &Window,
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
        if window.end < window.start || wide.is_none_or(|buckets| buckets > MAX_BUCKETS) {
            return Err(CommandError::new(format!("ERR range: expected 1 to {MAX_BUCKETS} buckets, start before end")));
        }
        let mut starts = Vec::with_capacity(levels.len());
        for level in levels {
            starts.push((*level, self.record_starts(*level, from, until)?));
        }
        for (number, (level, found)) in starts.iter().enumerate() {
            let coarser = starts.get(number.saturating_add(1)..).unwrap_or_default();
            for start in found {
                let is_in_coarser =
                    coarser.iter().any(|(coarse, known)| known.contains(&start.floor_to(coarse.step())));
                let is_told = level.step() != window.rollup || level.is_live(start.saturating_add(level.step()), now);
                if !is_in_coarser
                    && is_told
                    && let Some(stored) = self.stored_record(*level, *start)?
                {
                    visit(start.floor_to(window.rollup), &stored.record);
                }
            }
        }
        let unsaved = recorder.unsaved().iter().filter(|(start, _)| (from..until).contains(*start));
        unsaved.for_each(|(start, record)| visit(start.floor_to(window.rollup), record));
        Ok(())
    }

    pub(super) fn series(&mut self, now: Timestamp, window: &Window) -> Outcome {
        let mut counts = BTreeMap::<(Timestamp, String), Counts>::new();
        self.visit_records(now, window, |bucket, record| {
            for (name, policy) in record.policies(window.policy()) {
                counts.entry((bucket, name.to_owned())).or_default().merge(&policy.counts);
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

    pub(super) fn top(&mut self, now: Timestamp, window: &Window, most: usize, outcome: Option<Decided>) -> Outcome {
        let capacity = self.recorder.as_ref().ok_or_else(no_records)?.recording().capacity.saturating_mul(MERGE_FACTOR);
        let mut tops = BTreeMap::<String, Top>::new();
        self.visit_records(now, window, |_, record| {
            for (name, policy) in record.policies(window.policy()) {
                tops.entry(name.to_owned()).or_default().merge(&policy.top, capacity);
            }
        })?;
        let rows = tops.iter().flat_map(|(name, top)| {
            top.heaviest(outcome, most).into_iter().map(move |(label, entry)| {
                let mut row = vec![Reply::Bulk(name.as_bytes().to_vec()), Reply::Bulk(label.clone())];
                row.extend(count_replies(&entry.counts));
                row.push(Reply::from_count(entry.error));
                Reply::Array(row)
            })
        });
        Ok(Reply::Array(rows.take(MAX_ROWS).collect()))
    }

    pub(super) fn distinct(&mut self, now: Timestamp, window: &Window) -> Outcome {
        let mut unions = BTreeMap::<String, PolicyRecord>::new();
        self.visit_records(now, window, |_, record| {
            for (name, policy) in record.policies(window.policy()) {
                unions.entry(name.to_owned()).or_default().distinct.merge(&policy.distinct);
            }
        })?;
        let row = |(name, union): (String, PolicyRecord)| {
            Reply::Array(vec![Reply::Bulk(name.into_bytes()), Reply::from_count(union.distinct.count())])
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

fn count_replies(counts: &Counts) -> impl Iterator<Item = Reply> + use<'_> {
    Decided::ALL.iter().map(|outcome| Reply::from_count(counts.of(*outcome)))
}

fn no_records() -> CommandError {
    CommandError::new("ERR nothing is recorded here")
}

/// The key of a stored bucket. It begins with a byte that no policy and no client's key has by accident, and its number
/// has a fixed width: keys are in the order of time.
fn record_key(level: Rollup, start: Timestamp) -> Bytes {
    let (secs, index) = (level.step().as_secs_ceil(), level.index(start));
    format!("\0record:{secs}:{index:020}").into_bytes()
}
