//! Adding to counters.

use std::collections::{BTreeMap, BTreeSet};

use super::{BATCH, CLOCK_SLACK, Counters, Increment};
use crate::engine::command::{Bytes, Command, ExpireAt, ExpireCondition, TimeUnit};
use crate::engine::reply::Reply;
use crate::rules::series::layout::{Id, Model, Place};
use crate::stores::store::Store;
use crate::values::error::Error;
use crate::values::number::MAX_SAFE_INTEGER;
use crate::values::time::Timestamp;

impl<S: Store> Counters<S> {
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
