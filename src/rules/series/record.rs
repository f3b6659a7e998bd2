//! What a gate has seen in one bucket: for each policy, how its decisions went, for whom, and for how many.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rules::series::hyperloglog::HyperLogLog;
use crate::rules::series::layout::Model;
use crate::rules::series::top::Top;

/// How one decision of a policy went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request passed, and was charged.
    Allowed,
    /// The policy refused it.
    Denied,
    /// The policy's store failed, so it could not be counted.
    Degraded,
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Allowed, Self::Denied, Self::Degraded];

    /// The name in queries and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Degraded => "degraded",
        }
    }

    /// The outcome of that name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name().as_bytes() == name)
    }

    /// What it is among all that can be counted.
    pub const fn model(self) -> Model {
        match self {
            Self::Allowed => Model::ALLOWED,
            Self::Denied => Model::DENIED,
            Self::Degraded => Model::DEGRADED,
        }
    }
}

/// A count for each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    allowed: u64,
    denied: u64,
    degraded: u64,
}

impl Counts {
    /// One decision.
    pub fn one(outcome: Outcome) -> Self {
        let mut counts = Self::default();
        counts.add(outcome, 1);
        counts
    }

    /// The count of one outcome.
    pub const fn of(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Allowed => self.allowed,
            Outcome::Denied => self.denied,
            Outcome::Degraded => self.degraded,
        }
    }

    const fn of_mut(&mut self, outcome: Outcome) -> &mut u64 {
        match outcome {
            Outcome::Allowed => &mut self.allowed,
            Outcome::Denied => &mut self.denied,
            Outcome::Degraded => &mut self.degraded,
        }
    }

    /// All outcomes together.
    pub fn total(&self) -> u64 {
        Outcome::ALL.iter().fold(0, |sum: u64, outcome| sum.saturating_add(self.of(*outcome)))
    }

    /// Counts `count` more.
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        let counter = self.of_mut(outcome);
        *counter = counter.saturating_add(count);
    }

    /// Adds the other's counts.
    pub fn merge(&mut self, other: &Self) {
        Outcome::ALL.iter().for_each(|outcome| self.add(*outcome, other.of(*outcome)));
    }

    /// The larger count of each outcome: of two readings of a counter that only grows, the later one.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let [allowed, denied, degraded] = Outcome::ALL.map(|outcome| self.of(outcome).max(other.of(outcome)));
        Self { allowed, denied, degraded }
    }
}

/// Longest name of a policy that is recorded, in bytes.
const MAX_NAME: usize = 64;

/// Most policies with counts in one bucket; what goes beyond is not recorded.
const MAX_POLICIES: usize = 512;

/// Most policies whose keys are watched; the others are counted only. It bounds a bucket to what a row holds.
const MAX_WATCHED: usize = 32;

/// What happened in one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    policies: BTreeMap<String, PolicyRecord>,
}

/// What happened with one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Whether its keys are watched, or only its decisions counted.
    pub is_watched: bool,
    /// Its decisions.
    pub counts: Counts,
    /// Its heaviest partition keys.
    pub top: Top,
    /// Its different partition keys.
    pub distinct: HyperLogLog,
}

impl Record {
    /// Counts a decision about the partition key that is shown as `label`, and watches up to `capacity` of them. False
    /// when there are too many policies already.
    pub fn add(&mut self, policy: &str, label: &[u8], outcome: Outcome, capacity: usize) -> bool {
        let Some(record) = self.policy(policy) else { return false };
        record.counts.add(outcome, 1);
        if record.is_watched {
            record.top.add(label, outcome, capacity);
            record.distinct.add(label);
        }
        true
    }

    /// Counts decisions whose keys are not known. False when there are too many policies already.
    pub fn add_counts(&mut self, policy: &str, counts: &Counts) -> bool {
        self.policy(policy).map(|record| record.counts.merge(counts)).is_some()
    }

    fn policy(&mut self, name: &str) -> Option<&mut PolicyRecord> {
        if !self.policies.contains_key(name) {
            if self.policies.len() >= MAX_POLICIES || name.is_empty() || name.len() > MAX_NAME {
                return None;
            }
            let is_watched = self.policies.len() < MAX_WATCHED;
            self.policies.insert(name.to_owned(), PolicyRecord { is_watched, ..PolicyRecord::default() });
        }
        self.policies.get_mut(name)
    }

    /// Adds what happened in another bucket.
    pub fn merge(&mut self, other: &Self, capacity: usize) {
        for (name, theirs) in &other.policies {
            if let Some(mine) = self.policy(name) {
                mine.counts.merge(&theirs.counts);
                if mine.is_watched {
                    mine.top.merge(&theirs.top, capacity);
                    mine.distinct.merge(&theirs.distinct);
                }
            }
        }
    }

    /// Watches no more than `capacity` keys of each policy from now on.
    pub fn shrink(&mut self, capacity: usize) {
        self.policies.values_mut().for_each(|policy| policy.top.shrink(capacity));
    }

    /// The policies by name, all or only one.
    pub fn policies<'a>(&'a self, only: Option<&'a str>) -> impl Iterator<Item = (&'a str, &'a PolicyRecord)> {
        let wanted = move |name: &str| only.is_none_or(|only| only == name);
        self.policies.iter().map(|(name, record)| (name.as_str(), record)).filter(move |(name, _)| wanted(name))
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }
}

/// Counters that never go down, by policy: since the shard began, not in some bucket.
pub type Totals = BTreeMap<String, Counts>;

/// A bucket as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// What happened in it.
    pub record: Record,
    /// The totals when it was written.
    pub totals: Totals,
}

/// The version this code writes. It reads this one only.
const VERSION: u8 = 1;

impl Stored {
    /// The stored form: a version, then postcard.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        // Writing to a Vec cannot fail; an empty bucket would be what it became.
        out.extend(postcard::to_allocvec(self).unwrap_or_default());
        out
    }

    /// Reads the stored form; `None` when it is of another version or no such thing.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&VERSION, rest) => postcard::from_bytes(rest).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_stored_form_does_not_drift() {
        let mut record = Record::default();
        record.add("p", b"k", Outcome::Allowed, 8);
        record.add("p", b"k", Outcome::Denied, 8);
        let totals = Totals::from([("p".to_owned(), Counts { allowed: 300, denied: 1, degraded: 0 })]);
        let stored = Stored { record, totals };
        let golden =
            "01 01 0170 01 010100 00 01 016b 010100 00 15 48594c4c010000000000000000000080 73a48c4c59 01 0170 ac020100";
        let bytes = stored.to_bytes();
        assert_eq!(crate::values::key::hex(&bytes), golden.replace(' ', ""));
        assert_eq!(Stored::from_bytes(&bytes), Some(stored));
        assert_eq!(Stored::from_bytes(&[2, 0, 0]), None, "a newer version is not guessed at");
        assert_eq!(Stored::from_bytes(&[]), None);
    }

    #[test]
    fn strangers_names_do_not_grow_it() {
        let mut record = Record::default();
        for n in 0..2000 {
            record.add(&format!("policy-{n}"), b"k", Outcome::Denied, 200);
        }
        record.add("", b"k", Outcome::Denied, 200);
        record.add(&"x".repeat(MAX_NAME + 1), b"k", Outcome::Denied, 200);
        assert_eq!(record.policies(None).count(), MAX_POLICIES);
        let watched = record.policies(None).filter(|(_, policy)| policy.distinct.count() > 0).count();
        assert_eq!(watched, MAX_WATCHED);
    }

    proptest! {
        #[test]
        fn odd_bytes_are_no_bucket_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stored::from_bytes(&[&[VERSION], bytes.as_slice()].concat());
        }
    }
}
