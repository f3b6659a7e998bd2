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
    /// The policy would have refused it, but only watches: the request passed.
    Shadowed,
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::Degraded, Self::Shadowed];

    /// The name in queries and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Degraded => "degraded",
            Self::Shadowed => "shadowed",
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
            Self::Shadowed => Model::SHADOWED,
        }
    }
}

/// A count for each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    allowed: u64,
    denied: u64,
    degraded: u64,
    shadowed: u64,
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
            Outcome::Shadowed => self.shadowed,
        }
    }

    const fn of_mut(&mut self, outcome: Outcome) -> &mut u64 {
        match outcome {
            Outcome::Allowed => &mut self.allowed,
            Outcome::Denied => &mut self.denied,
            Outcome::Degraded => &mut self.degraded,
            Outcome::Shadowed => &mut self.shadowed,
        }
    }

    /// The counts in the order of [`Outcome::ALL`].
    pub const fn in_order(&self) -> [u64; 4] {
        [self.allowed, self.denied, self.degraded, self.shadowed]
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
        let [allowed, denied, degraded, shadowed] = Outcome::ALL.map(|outcome| self.of(outcome).max(other.of(outcome)));
        Self { allowed, denied, degraded, shadowed }
    }
}

/// Longest name of a policy that is recorded, in bytes.
const MAX_NAME: usize = 64;

/// Most policies with counts in one bucket; what goes beyond is not recorded.
pub const MAX_POLICIES: usize = 512;

/// Most policies whose keys are watched; the others are counted only. It bounds a bucket to what a row holds.
pub const MAX_WATCHED: usize = 32;

/// Counters by the name of a policy.
pub type ByPolicy = BTreeMap<String, Counts>;

/// What happened in one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How many decisions of each policy went how.
    pub counts: ByPolicy,
    /// Whose they were, of the policies that are watched.
    pub watched: BTreeMap<String, Watched>,
}

/// The partition keys of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The heaviest.
    pub top: Top,
    /// How many different ones.
    pub distinct: HyperLogLog,
}

/// Whether a policy of that name is counted beside those that are `known`.
pub fn takes(known: &ByPolicy, name: &str) -> bool {
    known.contains_key(name) || (known.len() < MAX_POLICIES && (1..=MAX_NAME).contains(&name.len()))
}

impl Record {
    /// Counts decisions. False when there are too many policies already.
    pub fn add(&mut self, policy: &str, counts: &Counts) -> bool {
        let takes = takes(&self.counts, policy);
        match self.counts.get_mut(policy) {
            Some(known) => known.merge(counts),
            None if takes => {
                self.counts.insert(policy.to_owned(), *counts);
            }
            None => {}
        }
        takes
    }

    /// The keys of a policy that is to be watched, if there is room for it.
    pub fn watch(&mut self, policy: &str) -> Option<&mut Watched> {
        if !self.watched.contains_key(policy) && self.watched.len() < MAX_WATCHED {
            self.watched.insert(policy.to_owned(), Watched::default());
        }
        self.watched.get_mut(policy)
    }

    /// Adds what happened in another bucket. Of the policies that are watched in either, the first ones stay so.
    pub fn merge(&mut self, other: &Self, capacity: usize) {
        for (policy, counts) in &other.counts {
            self.add(policy, counts);
        }
        for (policy, theirs) in &other.watched {
            if let Some(mine) = self.watch(policy) {
                mine.top.merge(&theirs.top, capacity);
                mine.distinct.merge(&theirs.distinct);
            }
        }
    }

    /// Watches no more than `capacity` keys of each policy from now on.
    pub fn shrink(&mut self, capacity: usize) {
        self.watched.values_mut().for_each(|watched| watched.top.shrink(capacity));
    }
}

/// A bucket as it is stored. The counts come first: most questions need no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// What happened in it.
    pub record: Record,
    /// All decisions ever, by policy, when it was written: counters that never go down.
    pub totals: ByPolicy,
    /// Whether keys stand in it as they are.
    pub is_readable: bool,
}

/// The version this code writes. It reads this one only.
const VERSION: u8 = 2;

/// What a stored bucket begins with.
#[derive(Serialize, Deserialize)]
struct Head {
    is_readable: bool,
    counts: ByPolicy,
    totals: ByPolicy,
}

impl Stored {
    /// The stored form: a version, then postcard.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Record { counts, watched } = &self.record;
        let head = Head { is_readable: self.is_readable, counts: counts.clone(), totals: self.totals.clone() };
        let mut out = vec![VERSION];
        // Writing to a Vec cannot fail; an empty bucket would be what it became.
        out.extend(postcard::to_allocvec(&head).unwrap_or_default());
        out.extend(postcard::to_allocvec(watched).unwrap_or_default());
        out
    }

    /// Reads the stored form; `None` when it is of another version or no such thing.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (Head { is_readable, counts, totals }, rest) = Self::head(bytes)?;
        let watched = postcard::from_bytes(rest).ok()?;
        Some(Self { record: Record { counts, watched }, totals, is_readable })
    }

    /// Reads it without the keys.
    pub fn counts_from_bytes(bytes: &[u8]) -> Option<Self> {
        let (Head { is_readable, counts, totals }, _) = Self::head(bytes)?;
        Some(Self { record: Record { counts, ..Record::default() }, totals, is_readable })
    }

    fn head(bytes: &[u8]) -> Option<(Head, &[u8])> {
        match bytes.split_first()? {
            (&VERSION, rest) => postcard::take_from_bytes(rest).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decide(record: &mut Record, policy: &str, label: &[u8], outcome: Outcome) {
        if record.add(policy, &Counts::one(outcome))
            && let Some(watched) = record.watch(policy)
        {
            watched.top.add(label, outcome, 8);
            watched.distinct.add(label);
        }
    }

    #[test]
    fn the_stored_form_does_not_drift() {
        let mut record = Record::default();
        decide(&mut record, "p", b"k", Outcome::Allowed);
        decide(&mut record, "p", b"k", Outcome::Denied);
        let totals = ByPolicy::from([("p".to_owned(), Counts { allowed: 300, denied: 1, ..Counts::default() })]);
        let stored = Stored { record, totals, is_readable: true };
        let golden = "02 01 01 0170 01010000 01 0170 ac02010000 01 0170 00 01 016b 01010000 00 15 48594c4c010000000000000000000080 73a48c4c59";
        let bytes = stored.to_bytes();
        assert_eq!(crate::values::key::hex(&bytes), golden.replace(' ', ""));
        let counts = Stored::counts_from_bytes(&bytes).unwrap();
        assert_eq!((&counts.record.counts, &counts.totals), (&stored.record.counts, &stored.totals));
        assert_eq!(Stored::from_bytes(&bytes), Some(stored));
        assert_eq!(Stored::from_bytes(&[3, 0, 0]), None, "a newer version is not guessed at");
        assert_eq!(Stored::from_bytes(&[]), None);
    }

    #[test]
    fn strangers_names_do_not_grow_it_and_the_watched_ones_stay_watched() {
        let mut record = Record::default();
        for n in (0..2000).rev() {
            decide(&mut record, &format!("policy-{n}"), b"k", Outcome::Denied);
        }
        decide(&mut record, "", b"k", Outcome::Denied);
        decide(&mut record, &"x".repeat(MAX_NAME + 1), b"k", Outcome::Denied);
        assert_eq!((record.counts.len(), record.watched.len()), (MAX_POLICIES, MAX_WATCHED));
        let mut stored = Record::default();
        stored.merge(&record, 8);
        stored.merge(&record, 8);
        assert_eq!(stored.watched.keys().collect::<Vec<_>>(), record.watched.keys().collect::<Vec<_>>());
        assert!(stored.watched.values().all(|watched| watched.distinct.count() == 1));
    }

    proptest! {
        #[test]
        fn odd_bytes_are_no_bucket_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stored::from_bytes(&[&[VERSION], bytes.as_slice()].concat());
        }
    }
}
