//! `TG.SERIES`, `TG.TOP`, `TG.DISTINCT` and `TG.TOTALS`: questions about what was recorded.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{MERGE_FACTOR, no_records};
use crate::engine::command::{Bytes, Window};
use crate::engine::keyspace::{Keyspace, Outcome, Rows};
use crate::engine::reply::{CommandError, Reply};
use crate::rules::series::hyperloglog::HyperLogLog;
use crate::rules::series::record::{Counts, Outcome as Decided, Record, Stored};
use crate::rules::series::top::{Top, first};
use crate::values::time::Timestamp;

/// The most buckets that one question is about, and the most rows of its answer.
pub const MAX_BUCKETS: usize = 10_000;
const MAX_ROWS: usize = 20_000;

impl<R: Rows> Keyspace<R> {
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

    pub(in crate::engine::keyspace) fn series(&mut self, now: Timestamp, window: &Window) -> Outcome {
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

    pub(in crate::engine::keyspace) fn top(
        &mut self,
        now: Timestamp,
        window: &Window,
        most: usize,
        outcomes: &[Decided],
    ) -> Outcome {
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
                let ranked = Reverse((name.as_str(), label));
                (weight, ranked, entry.counts.in_order(), top.error(entry))
            })
        });
        let heaviest = first(rows, most.min(MAX_ROWS));
        let row = |(_, Reverse((name, label)), counts, error): (u64, Reverse<(&str, &Bytes)>, [u64; 4], u64)| {
            let mut row = vec![Reply::Bulk(name.as_bytes().to_vec()), Reply::Bulk(label.clone())];
            row.extend(counts.into_iter().chain([error]).map(Reply::from_count));
            Reply::Array(row)
        };
        Ok(Reply::Array(heaviest.into_iter().map(row).collect()))
    }

    pub(in crate::engine::keyspace) fn distinct(&mut self, now: Timestamp, window: &Window) -> Outcome {
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
    pub(in crate::engine::keyspace) fn totals(&mut self) -> Outcome {
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

fn count_replies(counts: &Counts) -> impl Iterator<Item = Reply> + use<> {
    counts.in_order().into_iter().map(Reply::from_count)
}
