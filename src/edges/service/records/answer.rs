//! The shards' rows, added up, and as JSON. Times are Unix milliseconds, UTC.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::query::{MAX_POINTS, Query};
use crate::engine::reply::Reply;
use crate::rules::series::hyperloglog::STANDARD_ERROR;
use crate::rules::series::record::{Counts, Outcome};
use crate::rules::series::top::first;
use crate::values::error::Error;
use crate::values::number::MAX_SAFE_INTEGER;
use crate::values::time::Timestamp;

/// What the shards said.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The rows of those that answered.
    pub(super) shards: Vec<(usize, Vec<Reply>)>,
    /// Those that did not.
    pub(super) failed: Vec<usize>,
}

impl Found {
    fn rows(&self) -> impl Iterator<Item = Result<Row, Error>> + '_ {
        self.shards.iter().flat_map(|(_, rows)| rows).map(|row| row.clone().into_array().map(Vec::into_iter).map(Row))
    }
}

/// The cells of a row, from the left.
pub(super) struct Row(std::vec::IntoIter<Reply>);

impl Row {
    pub(super) fn of(reply: Reply) -> Result<Self, Error> {
        Ok(Self(reply.into_array()?.into_iter()))
    }

    pub(super) fn count(&mut self) -> Result<u64, Error> {
        // JavaScript holds no larger number exactly.
        Ok(self.0.next().unwrap_or(Reply::Nil).into_count()?.min(MAX_SAFE_INTEGER))
    }

    pub(super) fn text(&mut self) -> Result<String, Error> {
        match self.0.next().unwrap_or(Reply::Nil) {
            Reply::Bulk(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            other => Err(other.unexpected("a string")),
        }
    }

    pub(super) fn counts(&mut self) -> Result<Counts, Error> {
        let mut counts = Counts::default();
        for outcome in Outcome::ALL {
            counts.add(outcome, self.count()?);
        }
        Ok(counts)
    }
}

/// The part that all answers have.
#[derive(Serialize)]
struct Head<'a> {
    since_ms: u64,
    until_ms: u64,
    rollup_ms: u64,
    /// Shards are missing: every number may be too low.
    partial: bool,
    failed_shards: &'a [usize],
}

impl<'a> Head<'a> {
    fn of(found: &'a Found, query: &Query) -> Self {
        Self {
            since_ms: query.range.start.as_millis(),
            until_ms: query.range.end.as_millis(),
            rollup_ms: query.level.step().as_millis(),
            partial: !found.failed.is_empty(),
            failed_shards: &found.failed,
        }
    }
}

/// One policy's one outcome over time.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) policy: String,
    pub(super) outcome: &'static str,
    pub(super) total: u64,
    /// A bucket's beginning, and its count. Every bucket of the range is there.
    pub(super) points: Vec<(u64, u64)>,
}

/// The series that are asked for.
pub(super) fn lines(found: &Found, query: &Query) -> Result<Vec<Line>, Error> {
    let mut sums = BTreeMap::<String, BTreeMap<Timestamp, Counts>>::new();
    for policy in query.known.iter().chain(&query.policies).filter(|policy| query.wants(policy)) {
        sums.entry(policy.clone()).or_default();
    }
    for row in found.rows() {
        let mut row = row?;
        let (at, policy) = (Timestamp::from_millis(row.count()?), row.text()?);
        if query.wants(&policy) {
            sums.entry(policy).or_default().entry(at).or_default().merge(&row.counts()?);
        }
    }
    let points = sums.len().saturating_mul(query.outcomes.len()).saturating_mul(query.buckets.len());
    if points > MAX_POINTS {
        return Err(Error::invalid(
            "policy",
            format_args!("a name: at most {MAX_POINTS} points are told, got {points}"),
        ));
    }
    let line = |(policy, counts): (&String, &BTreeMap<Timestamp, Counts>), outcome: Outcome| {
        let count = |at: &Timestamp| counts.get(at).map_or(0, |counts| counts.of(outcome));
        let points: Vec<_> = query.buckets.iter().map(|at| (at.as_millis(), count(at))).collect();
        let total = points.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        Line { policy: policy.clone(), outcome: outcome.name(), total, points }
    };
    Ok(sums.iter().flat_map(|sum| query.outcomes.iter().map(move |outcome| line(sum, *outcome))).collect())
}

/// One of the heaviest keys.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Key {
    pub(super) policy: String,
    pub(super) key: String,
    /// What was counted of it, for the outcomes asked for: at least this.
    pub(super) count: u64,
    /// And at most this.
    pub(super) at_most: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) degraded: u64,
    pub(super) shadowed: u64,
}

/// The keys that are asked for, the heaviest first.
pub(super) fn heaviest(found: &Found, query: &Query) -> Result<Vec<Key>, Error> {
    let mut sums = BTreeMap::<(String, String), (Counts, u64)>::new();
    for row in found.rows() {
        let mut row = row?;
        let (policy, key) = (row.text()?, row.text()?);
        if query.wants(&policy) {
            let (counts, error) = sums.entry((policy, key)).or_default();
            counts.merge(&row.counts()?);
            *error = error.saturating_add(row.count()?);
        }
    }
    let key = |((policy, key), (counts, error)): ((String, String), (Counts, u64))| {
        let count = query.outcomes.iter().fold(0, |sum: u64, outcome| sum.saturating_add(counts.of(*outcome)));
        let [allowed, denied, degraded, shadowed] = Outcome::ALL.map(|outcome| counts.of(outcome));
        Key { policy, key, count, at_most: count.saturating_add(error), allowed, denied, degraded, shadowed }
    };
    let keys = sums.into_iter().map(key).filter(|key| key.count > 0);
    // Of equal counts, the names in their order.
    let ranked = keys.map(|key| (key.count, Reverse((key.policy.clone(), key.key.clone())), key));
    Ok(first(ranked, query.limit).into_iter().map(|(.., key)| key).collect())
}

/// How many different keys a policy saw.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Clients {
    pub(super) policy: String,
    pub(super) keys: u64,
}

/// The numbers of keys that are asked for. A key lives on one shard, so the shards' numbers add up.
pub(super) fn clients(found: &Found, query: &Query) -> Result<Vec<Clients>, Error> {
    let mut sums = BTreeMap::<String, u64>::new();
    for policy in query.known.iter().chain(&query.policies).filter(|policy| query.wants(policy)) {
        sums.entry(policy.clone()).or_default();
    }
    for row in found.rows() {
        let mut row = row?;
        let policy = row.text()?;
        if query.wants(&policy) {
            let sum = sums.entry(policy).or_default();
            *sum = sum.saturating_add(row.count()?);
        }
    }
    Ok(sums.into_iter().map(|(policy, keys)| Clients { policy, keys }).collect())
}

pub(super) fn series(found: &Found, query: &Query) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: Head<'a>,
        series: Vec<Line>,
    }
    Ok(json(&Body { head: Head::of(found, query), series: lines(found, query)? }))
}

pub(super) fn top(found: &Found, query: &Query) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: Head<'a>,
        keys: Vec<Key>,
    }
    Ok(json(&Body { head: Head::of(found, query), keys: heaviest(found, query)? }))
}

pub(super) fn distinct(found: &Found, query: &Query) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: Head<'a>,
        /// The relative standard error of the numbers.
        standard_error: f64,
        distinct: Vec<Clients>,
    }
    let distinct = clients(found, query)?;
    Ok(json(&Body { head: Head::of(found, query), standard_error: STANDARD_ERROR, distinct }))
}

fn json(body: &impl Serialize) -> String {
    // Structs of numbers and texts: there is nothing in them that JSON cannot say.
    serde_json::to_string(body).unwrap_or_default()
}
