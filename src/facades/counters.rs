//! Time-series counters over any store: the seed's third and fourth recipes.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::command::{Bytes, Command, ExpireAt, ExpireCondition, TimeUnit};
use crate::engine::reply::Reply;
use crate::rules::series::layout::{Id, Layout, Model, Place};
use crate::rules::series::rollup::{Point, Range, Rollup, Rollups};
use crate::stores::store::Store;
use crate::values::error::{Error, ErrorKind};
use crate::values::number::{MAX_SAFE_INTEGER, parse_integer};
use crate::values::time::{Duration, Timestamp};

/// Whose counts a reply has, in its order: the id and the number of the bucket.
type Wanted = Vec<(Id, usize)>;

/// The most points that one question gives.
pub const MAX_POINTS: usize = 10_000;

/// The most buckets, each over all of its virtual nodes, that are listed for a top.
const MAX_LISTED: usize = 20_000;

/// How far a writer's clock may be ahead of the store's reader's.
const CLOCK_SLACK: Duration = Duration::from_secs(5);

/// Commands of one batch. A store takes 1,000.
const BATCH: usize = 960;

/// One count to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increment {
    /// What is counted.
    pub model: Model,
    /// Who or what it is counted of.
    pub id: Id,
    /// When it happened.
    pub at: Timestamp,
    /// How much is added, 1 to 2^53 - 1.
    pub count: u64,
}

/// An answer from which something may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Partial<T> {
    /// What there is.
    pub value: T,
    /// Why the rest is not there; empty when nothing is missing. With a failure, counts may be too low.
    pub failures: Vec<Error>,
}

impl<T> Partial<T> {
    /// Whether something is missing.
    pub const fn is_partial(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The value, if it is all there is.
    ///
    /// # Errors
    /// The first of the failures.
    pub fn complete(self) -> Result<T, Error> {
        self.failures.into_iter().next().map_or(Ok(self.value), Err)
    }
}

/// What [`Counters::get_range`] finds: each id with its points in the order of time. Buckets without a count are 0.
pub type Series = BTreeMap<Id, Vec<Point>>;

/// Counters in buckets of time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{Bounds, Counters, Id, MemoryStore, Model, Timestamp};
/// let now = Timestamp::from_millis(1_700_000_000_000);
/// let counters = Counters::new(MemoryStore::new(move || now, Bounds::default(), 7));
/// let (logins, user) = (Model::new(20), Id::from("user:1"));
/// counters.incr(now, logins, user.clone(), now, 2).await?;
/// let hour = Timestamp::from_millis(now.as_millis() - 3_600_000);
/// let sums = counters.get_sums(now, logins, &[user.clone()], hour, now, None).await?.complete()?;
/// assert_eq!(sums[&user], 2);
/// # Ok::<(), tollgate::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Counters<S> {
    store: S,
    layout: Layout,
    rollups: Rollups,
    tracks_distinct: bool,
}

impl<S: Store> Counters<S> {
    /// Counters in `store`, in the default [`Layout`] and the default [`Rollups`].
    pub fn new(store: S) -> Self {
        Self { store, layout: Layout::default(), rollups: Rollups::default(), tracks_distinct: false }
    }

    /// In another layout.
    #[must_use]
    pub fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// With other levels.
    #[must_use]
    pub fn with_rollups(self, rollups: Rollups) -> Self {
        Self { rollups, ..self }
    }

    /// With a sketch beside each bucket, so that [`distinct`](Self::distinct) can be asked.
    #[must_use]
    pub fn tracking_distinct(self) -> Self {
        Self { tracks_distinct: true, ..self }
    }

    /// The levels.
    pub const fn rollups(&self) -> &Rollups {
        &self.rollups
    }

    /// Adds `count` to the buckets of `at`, one at each level.
    ///
    /// # Errors
    /// As [`incr_multi`](Self::incr_multi).
    pub async fn incr(&self, now: Timestamp, model: Model, id: Id, at: Timestamp, count: u64) -> Result<(), Error> {
        self.incr_multi(now, &[Increment { model, id, at, count }]).await
    }

    /// Adds all of the items, each at every level that still has its bucket.
    ///
    /// It is one batch, or several when it takes more than 960 commands: 160 items at three levels. Where keys are spread
    /// over shards, each shard's part is atomic. In the default layout all levels of an id live on one shard, so they
    /// never disagree. A bucket expires counted from its own beginning, so a late write does not prolong it.
    ///
    /// # Errors
    /// Before anything is written: a time that is more than 5 s ahead of `now` or older than the coarsest level keeps; a
    /// count that is not 1 to 2^53 - 1; an id that is too long. While writing: the store's first failure, which says how
    /// many commands failed; what other shards have taken stays.
    pub async fn incr_multi(&self, now: Timestamp, items: &[Increment]) -> Result<(), Error> {
        items.iter().try_for_each(|item| self.check(now, item))?;
        // Each level takes an increment and an expiry, and as much again for the sketch.
        let of_item = if self.tracks_distinct { 4 } else { 2 };
        let of_item = self.rollups.levels().len().saturating_mul(of_item);
        for items in items.chunks(BATCH.checked_div(of_item).unwrap_or(1).max(1)) {
            self.write(&self.increments(now, items)?).await?;
        }
        Ok(())
    }

    /// The commands that add `items`.
    fn increments(&self, now: Timestamp, items: &[Increment]) -> Result<Vec<Command>, Error> {
        // Items of the same bucket and id are one increment.
        let mut sums = BTreeMap::<(usize, Place), (Timestamp, i64)>::new();
        let mut seen = BTreeMap::<(usize, Bytes), (Timestamp, BTreeSet<Bytes>)>::new();
        for item in items {
            let vnode = self.layout.vnode_of(&item.id)?;
            for (number, level) in
                self.rollups.levels().iter().enumerate().filter(|(_, level)| level.is_live(item.at, now))
            {
                let index = level.index(item.at);
                let place = self.layout.place(item.model, index, &item.id)?;
                let expires = level.expires(item.at);
                if self.tracks_distinct {
                    let name = place.field.clone().unwrap_or_else(|| place.key.clone());
                    let key = self.layout.distinct_key(item.model, index, vnode);
                    seen.entry((number, key)).or_insert_with(|| (expires, BTreeSet::new())).1.insert(name);
                }
                let (_, sum) = sums.entry((number, place)).or_insert((expires, 0));
                *sum = sum.saturating_add(i64::try_from(item.count).unwrap_or(i64::MAX));
            }
        }
        let increments = sums.into_iter().map(|((_, place), (expires, sum))| (place, expires, sum));
        Ok(with_expiries(increments, seen))
    }

    fn check(&self, now: Timestamp, item: &Increment) -> Result<(), Error> {
        if !(1..=MAX_SAFE_INTEGER).contains(&item.count) {
            return Err(Error::invalid("count", format_args!("1 to 2^53 - 1, got {}", item.count)));
        }
        let (at, latest) = (item.at.as_millis(), now.saturating_add(CLOCK_SLACK).as_millis());
        if at > latest {
            return Err(Error::invalid(
                "timestamp",
                format_args!("no later than {latest} ms, which is now, got {at} ms"),
            ));
        }
        if !self.rollups.coarsest().is_live(item.at, now) {
            let kept = self.rollups.coarsest().retention().as_millis();
            let oldest = now.as_millis().saturating_sub(kept);
            return Err(Error::invalid(
                "timestamp",
                format_args!("later than {oldest} ms, older ones are not kept, got {at} ms"),
            ));
        }
        Ok(())
    }

    async fn write(&self, batch: &[Command]) -> Result<(), Error> {
        let failures: Vec<_> = self.store.pipeline(batch).await.into_iter().filter_map(failure).collect();
        let Some(first) = failures.first() else { return Ok(()) };
        let message = format!("{} of {} commands failed: {}", failures.len(), batch.len(), first.message());
        Err(Error::new(first.kind(), message))
    }

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
        let level = self.level(now, start, rollup)?;
        let vnodes = usize::try_from(self.layout.vnodes()).unwrap_or(usize::MAX);
        let buckets = self.rollups.buckets(level, Range { start, end }, vnodes, MAX_LISTED)?;
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
        let level = self.level(now, start, rollup)?;
        let vnodes = usize::try_from(self.layout.vnodes()).unwrap_or(usize::MAX);
        let buckets = self.rollups.buckets(level, Range { start, end }, vnodes, MAX_LISTED)?;
        // An id has one virtual node, so theirs are different ids and the numbers add up.
        let sketches =
            |vnode| buckets.iter().map(|at| self.layout.distinct_key(model, level.index(*at), vnode)).collect();
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

/// The commands of each key, and after them its expiry.
fn with_expiries(
    increments: impl Iterator<Item = (Place, Timestamp, i64)>,
    seen: BTreeMap<(usize, Bytes), (Timestamp, BTreeSet<Bytes>)>,
) -> Vec<Command> {
    let mut keys = BTreeMap::<Bytes, (Timestamp, Vec<Command>)>::new();
    for (Place { key, field }, expires, by) in increments {
        let command = match field {
            Some(field) => Command::HIncrBy { key: key.clone(), field, by },
            None => Command::IncrBy { key: key.clone(), by },
        };
        keys.entry(key).or_insert_with(|| (expires, Vec::new())).1.push(command);
    }
    for ((_, key), (expires, elements)) in seen {
        let add = Command::PfAdd { key: key.clone(), elements: elements.into_iter().collect() };
        keys.entry(key).or_insert_with(|| (expires, Vec::new())).1.push(add);
    }
    let commands = |(key, (expires, mut commands)): (Bytes, (Timestamp, Vec<Command>))| {
        commands.push(expire_at(key, expires));
        commands
    };
    keys.into_iter().flat_map(commands).collect()
}

fn expire_at(key: Bytes, at: Timestamp) -> Command {
    let value = i64::try_from(at.as_millis().checked_div(1000).unwrap_or(0)).unwrap_or(i64::MAX);
    let at = ExpireAt { value, unit: TimeUnit::Seconds, absolute: true };
    Command::Expire { key, at, condition: ExpireCondition::default() }
}

fn failure(reply: Result<Reply, Error>) -> Option<Error> {
    match reply {
        Ok(Reply::Error(error)) => Some(error.into()),
        Ok(_) => None,
        Err(error) => Some(error),
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
