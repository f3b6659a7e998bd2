//! Asking counters.

use std::collections::BTreeMap;

use super::{BATCH, Counters, MAX_LISTED, MAX_POINTS, Partial, Series};
use crate::engine::command::{Bytes, Command};
use crate::engine::reply::Reply;
use crate::rules::series::hyperloglog::HyperLogLog;
use crate::rules::series::layout::{Id, Model, Place};
use crate::rules::series::rollup::{Point, Range, Rollup};
use crate::stores::store::Store;
use crate::values::error::{Error, ErrorKind};
use crate::values::number::parse_integer;
use crate::values::time::{Duration, Timestamp};

/// Whose counts a reply has, in its order: the id and the number of the bucket.
type Wanted = Vec<(Id, usize)>;

impl<S: Store> Counters<S> {
    /// The counts of `ids` from `start` to `end`, both in it, at `rollup`; if that is not given, at the finest level that
    /// still holds `start`.
    ///
    /// # Errors
    /// There is no such level; the range has more than 10,000 points, and the error names the level that would fit; or
    /// the store did not answer at all.
    pub async fn get_range(
        &self,
        now: Timestamp,
        model: Model,
        ids: &[Id],
        start: Timestamp,
        end: Timestamp,
        rollup: Option<Duration>,
    ) -> Result<Partial<Series>, Error> {
        let level = self.level(now, start, rollup)?;
        let buckets = self.rollups.buckets(level, Range { start, end }, ids.len(), MAX_POINTS)?;
        let mut series: Series =
            ids.iter().map(|id| (id.clone(), buckets.iter().map(|at| (*at, 0)).collect())).collect();
        let (commands, places) = self.reads(model, level, &buckets, series.keys())?;
        let mut failures = Vec::new();
        for (reply, wanted) in self.ask(commands).await?.into_iter().zip(places) {
            match reply.and_then(counts) {
                Ok(found) => {
                    for ((id, at), count) in wanted.iter().zip(found) {
                        if let Some((_, sum)) = series.get_mut(id).and_then(|points| points.get_mut(*at)) {
                            *sum = count;
                        }
                    }
                }
                Err(error) => failures.push(error),
            }
        }
        Ok(Partial { value: series, failures })
    }

    /// One command for each key that is read, and whose counts its reply has: the id and the number of the bucket.
    fn reads<'a>(
        &self,
        model: Model,
        level: Rollup,
        buckets: &[Timestamp],
        ids: impl Iterator<Item = &'a Id> + Clone,
    ) -> Result<(Vec<Command>, Vec<Wanted>), Error> {
        let (mut commands, mut places) = (Vec::new(), Vec::new());
        for (number, at) in buckets.iter().enumerate() {
            let mut keys = BTreeMap::<Bytes, (Vec<Bytes>, Wanted)>::new();
            for id in ids.clone() {
                let Place { key, field } = self.layout.place(model, level.index(*at), id)?;
                let (fields, wanted) = keys.entry(key).or_default();
                fields.extend(field);
                wanted.push((id.clone(), number));
            }
            for (key, (fields, wanted)) in keys {
                commands.push(if fields.is_empty() { Command::Get(key) } else { Command::HMGet { key, fields } });
                places.push(wanted);
            }
        }
        Ok((commands, places))
    }

    /// The sum of each id from `start` to `end`.
    ///
    /// # Errors
    /// As [`get_range`](Self::get_range).
    pub async fn get_sums(
        &self,
        now: Timestamp,
        model: Model,
        ids: &[Id],
        start: Timestamp,
        end: Timestamp,
        rollup: Option<Duration>,
    ) -> Result<Partial<BTreeMap<Id, u64>>, Error> {
        let Partial { value, failures } = self.get_range(now, model, ids, start, end, rollup).await?;
        let sum = |points: Vec<Point>| points.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        Ok(Partial { value: value.into_iter().map(|(id, points)| (id, sum(points))).collect(), failures })
    }

    /// The `most` ids of a model with the highest sums from `start` to `end`, the heaviest first. It is exact, and
    /// reads every count of the range. In Sentry's layout, text ids are the MD5 that they were hashed to.
    ///
    /// # Errors
    /// The layout cannot list its ids; the range has too many buckets; or the store did not answer at all.
    pub async fn top(
        &self,
        now: Timestamp,
        model: Model,
        most: usize,
        start: Timestamp,
        end: Timestamp,
        rollup: Option<Duration>,
    ) -> Result<Partial<Vec<(Id, u64)>>, Error> {
        if !self.layout.lists_ids() {
            return Err(Error::invalid("layout", "one of hashes: the ids of a flat one cannot be listed"));
        }
        let (level, buckets) = self.whole_buckets(now, Range { start, end }, rollup)?;
        let keys = buckets.iter().flat_map(|at| (0..self.layout.vnodes()).map(move |vnode| (level.index(*at), vnode)));
        let commands = keys.map(|(index, vnode)| Command::HGetAll(self.layout.bucket_key(model, index, vnode)));
        let (mut sums, mut failures) = (BTreeMap::<Bytes, u64>::new(), Vec::new());
        for reply in self.ask(commands.collect()).await? {
            match reply.and_then(pairs) {
                Ok(pairs) => pairs.into_iter().for_each(|(name, count)| {
                    let sum = sums.entry(name).or_default();
                    *sum = sum.saturating_add(count);
                }),
                Err(error) => failures.push(error),
            }
        }
        let mut heaviest: Vec<_> = sums.into_iter().collect();
        heaviest.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
        heaviest.truncate(most);
        let value = heaviest.into_iter().map(|(name, sum)| (self.layout.id_of(&name), sum)).collect();
        Ok(Partial { value, failures })
    }

    /// About how many different ids of a model were counted from `start` to `end`, within 0.81 %.
    ///
    /// # Errors
    /// The counters do not [track them](Self::tracking_distinct); the range has too many buckets; or the store did not
    /// answer at all.
    pub async fn distinct(
        &self,
        now: Timestamp,
        model: Model,
        start: Timestamp,
        end: Timestamp,
        rollup: Option<Duration>,
    ) -> Result<Partial<u64>, Error> {
        if !self.tracks_distinct {
            return Err(Error::invalid("counters", "ones that track distinct ids: these were not told to"));
        }
        let (level, buckets) = self.whole_buckets(now, Range { start, end }, rollup)?;
        let sketch = |at: &Timestamp, vnode| self.layout.distinct_key(model, level.index(*at), vnode);
        if !self.layout.is_tagged() {
            // Its sketches may live apart: they come here and are joined here.
            let keys = buckets.iter().flat_map(|at| (0..self.layout.vnodes()).map(move |vnode| sketch(at, vnode)));
            return self.distinct_of(keys.map(Command::Get).collect()).await;
        }
        // An id has one virtual node, so theirs are different ids and the numbers add up.
        let sketches = |vnode| buckets.iter().map(|at| sketch(at, vnode)).collect();
        let commands = (0..self.layout.vnodes()).map(|vnode| Command::PfCount(sketches(vnode))).collect();
        let (mut value, mut failures) = (0u64, Vec::new());
        for reply in self.ask(commands).await? {
            match reply.and_then(Reply::into_count) {
                Ok(count) => value = value.saturating_add(count),
                Err(error) => failures.push(error),
            }
        }
        Ok(Partial { value, failures })
    }

    /// About how many different ids are in the sketches that the commands get.
    async fn distinct_of(&self, commands: Vec<Command>) -> Result<Partial<u64>, Error> {
        let (mut union, mut failures) = (HyperLogLog::new(), Vec::new());
        for reply in self.ask(commands).await? {
            match reply.and_then(sketch) {
                Ok(found) => found.iter().for_each(|found| union.merge(found)),
                Err(error) => failures.push(error),
            }
        }
        Ok(Partial { value: union.count(), failures })
    }

    /// The buckets of a range that are read with all of their virtual nodes, at the level that is asked for or else at the
    /// finest that still holds the range and has few enough.
    fn whole_buckets(
        &self,
        now: Timestamp,
        range: Range,
        rollup: Option<Duration>,
    ) -> Result<(Rollup, Vec<Timestamp>), Error> {
        let vnodes = usize::try_from(self.layout.vnodes()).unwrap_or(usize::MAX);
        let buckets = |level| self.rollups.buckets(level, range, vnodes, MAX_LISTED);
        let finest = self.level(now, range.start, rollup)?;
        let coarser = self.rollups.levels().iter().filter(|level| rollup.is_none() && level.step() > finest.step());
        let fitting = coarser.copied().find(|level| buckets(*level).is_ok());
        match (buckets(finest), fitting) {
            (Ok(found), _) => Ok((finest, found)),
            (Err(_), Some(level)) => buckets(level).map(|found| (level, found)),
            (Err(error), None) => Err(error),
        }
    }

    fn level(&self, now: Timestamp, start: Timestamp, rollup: Option<Duration>) -> Result<Rollup, Error> {
        rollup.map_or_else(|| Ok(self.rollups.get_live_rollup(start, now)), |step| self.rollups.of_step(step))
    }

    /// Asks for all of the commands, in as many batches as it takes. Fails only when every one of them does.
    async fn ask(&self, commands: Vec<Command>) -> Result<Vec<Result<Reply, Error>>, Error> {
        let mut answers: Vec<Option<Result<Reply, Error>>> = commands.iter().map(|_| None).collect();
        let mut waiting: Vec<usize> = (0..commands.len()).collect();
        while !waiting.is_empty() {
            let now: Vec<usize> = waiting.drain(..waiting.len().min(BATCH)).collect();
            let batch: Vec<Command> = now.iter().filter_map(|at| commands.get(*at).cloned()).collect();
            let replies = self.store.pipeline(&batch).await;
            let answered = replies.iter().any(|reply| !is_too_large(reply));
            let mut again = Vec::new();
            for (at, reply) in now.into_iter().zip(replies) {
                // The replies before it filled what a batch may answer with: it is asked again.
                if answered && is_too_large(&reply) {
                    again.push(at);
                } else if let Some(slot) = answers.get_mut(at) {
                    *slot = Some(reply.and_then(|reply| match reply {
                        Reply::Error(error) => Err(error.into()),
                        reply => Ok(reply),
                    }));
                }
            }
            again.append(&mut waiting);
            waiting = again;
        }
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        match answers.first() {
            Some(Err(error)) if answers.iter().all(Result::is_err) => Err(error.clone()),
            _ => Ok(answers),
        }
    }
}

fn is_too_large(reply: &Result<Reply, Error>) -> bool {
    matches!(reply, Ok(Reply::Error(error)) if error.is_over_budget())
}

/// The counts of a reply to `HMGET` or `GET`.
fn counts(reply: Reply) -> Result<Vec<u64>, Error> {
    match reply {
        Reply::Array(parts) => parts.into_iter().map(count).collect(),
        one => count(one).map(|count| vec![count]),
    }
}

fn sketch(reply: Reply) -> Result<Option<HyperLogLog>, Error> {
    match reply {
        Reply::Nil => Ok(None),
        Reply::Bulk(bytes) => HyperLogLog::from_bytes(&bytes)
            .map(Some)
            .map_err(|_| Error::new(ErrorKind::Protocol, "expected a HyperLogLog, got something else")),
        other => Err(other.unexpected("a HyperLogLog")),
    }
}

fn count(reply: Reply) -> Result<u64, Error> {
    match reply {
        Reply::Nil => Ok(0),
        Reply::Bulk(text) => {
            let count = parse_integer(&text).and_then(|count| u64::try_from(count).ok());
            count.ok_or_else(|| Error::new(ErrorKind::Protocol, "expected a count in a bucket, got something else"))
        }
        other => Err(other.unexpected("a count")),
    }
}

fn pairs(reply: Reply) -> Result<Vec<(Bytes, u64)>, Error> {
    let mut parts = reply.into_array()?.into_iter();
    let mut pairs = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        match name {
            Reply::Bulk(name) => pairs.push((name, count(value)?)),
            other => return Err(other.unexpected("an id")),
        }
    }
    Ok(pairs)
}
