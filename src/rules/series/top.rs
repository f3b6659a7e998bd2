//! The heaviest keys of a stream in bounded memory: Space-Saving, in the form that can be merged.
//!
//! Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005); the
//! merge is that of Agarwal et al., "Mergeable summaries" (2012). A key that has more than 1/capacity of all the counts is
//! always there, and each count is short by no more than its `error`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::rules::series::record::{Counts, Outcome};

/// How a key is shown: the key itself, or a pseudonym.
pub type Label = Vec<u8>;

/// The keys that may be the heaviest, at most `capacity` of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// What a key that is not here may have been counted at most.
    missed: u64,
    entries: IndexMap<Label, Entry, foldhash::quality::FixedState>,
    /// No entry is lighter than this, and those before `cursor` are heavier.
    #[serde(skip)]
    lightest: u64,
    #[serde(skip)]
    cursor: usize,
    /// What other streams may have counted of a key that they did not watch.
    #[serde(skip)]
    debt: u64,
}

/// What is known of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its counts since it is watched: none of them is too high.
    pub counts: Counts,
    /// What it may have been counted before that, at most.
    error: u64,
    /// The part of its owner's debt that it does not owe: see [`Top::merge`].
    #[serde(skip)]
    settled: u64,
}

impl Default for Top {
    fn default() -> Self {
        Self {
            missed: 0,
            entries: IndexMap::with_hasher(foldhash::quality::FixedState::default()),
            lightest: 0,
            cursor: 0,
            debt: 0,
        }
    }
}

impl Top {
    /// Counts a key. `capacity` is how many are watched.
    pub fn add(&mut self, label: &[u8], outcome: Outcome, capacity: usize) {
        if let Some(entry) = self.entries.get_mut(label) {
            return entry.counts.add(outcome, 1);
        }
        if self.entries.len() >= capacity {
            self.forget_lightest();
        }
        let mut entry = Entry { counts: Counts::default(), error: self.missed, settled: self.debt };
        entry.counts.add(outcome, 1);
        self.entries.insert(label.to_vec(), entry);
    }

    /// Makes room for one more. The cursor goes once around before it must look for a new lightest weight, so this takes
    /// constant time on average.
    fn forget_lightest(&mut self) {
        let is_light = |top: &Self, entry: &Entry| top.at_most(entry) <= top.lightest;
        while self.entries.get_index(self.cursor).is_some_and(|(_, entry)| !is_light(self, entry)) {
            self.cursor = self.cursor.saturating_add(1);
        }
        if self.cursor >= self.entries.len() {
            self.lightest = self.entries.values().map(|entry| self.at_most(entry)).min().unwrap_or(0);
            self.cursor = self.entries.values().position(|entry| is_light(self, entry)).unwrap_or(0);
        }
        if let Some((_, entry)) = self.entries.swap_remove_index(self.cursor) {
            self.missed = self.missed.max(self.at_most(&entry));
        }
    }

    /// By how much the counts of an entry may be too low.
    pub const fn error(&self, entry: &Entry) -> u64 {
        entry.error.saturating_add(self.debt.saturating_sub(entry.settled))
    }

    /// The most that the key of an entry can have been counted.
    fn at_most(&self, entry: &Entry) -> u64 {
        entry.counts.total().saturating_add(self.error(entry))
    }

    /// Adds the counts of another stream. It takes time by the size of the other one alone: what the other one may have
    /// missed is a debt of all entries, and those that are in both do not owe it.
    pub fn merge(&mut self, other: &Self, capacity: usize) {
        let (missed, debt) = (self.missed, self.debt);
        for (label, theirs) in &other.entries {
            let error = other.error(theirs);
            match self.entries.get_mut(label) {
                Some(mine) => {
                    mine.counts.merge(&theirs.counts);
                    mine.error = mine.error.saturating_add(error);
                    mine.settled = mine.settled.saturating_add(other.missed);
                }
                None => {
                    let error = missed.saturating_add(error);
                    let entry = Entry { counts: theirs.counts, error, settled: debt.saturating_add(other.missed) };
                    self.entries.insert(label.clone(), entry);
                }
            }
        }
        self.debt = debt.saturating_add(other.missed);
        self.missed = missed.saturating_add(other.missed);
        (self.lightest, self.cursor) = (0, 0);
        // Not at once: each time it is looked through whole.
        if self.entries.len() > capacity.saturating_mul(2) {
            self.shrink(capacity);
        }
    }

    /// Watches no more than `capacity` keys from now on: the heaviest.
    pub fn shrink(&mut self, capacity: usize) {
        let debt = std::mem::take(&mut self.debt);
        for entry in self.entries.values_mut() {
            entry.error = entry.error.saturating_add(debt.saturating_sub(std::mem::take(&mut entry.settled)));
        }
        let Some(over) = self.entries.len().checked_sub(capacity).filter(|over| *over > 0) else { return };
        let weights = self.entries.iter().map(|(label, entry)| (Reverse(self.at_most(entry)), label.clone()));
        for (Reverse(weight), label) in first(weights, over) {
            self.entries.swap_remove(&label);
            self.missed = self.missed.max(weight);
        }
    }

    /// The same under other names; keys that come to the same name are one.
    pub fn rename(&mut self, name: impl Fn(&[u8]) -> Label) {
        self.shrink(usize::MAX);
        let mut renamed = Self { missed: self.missed, ..Self::default() };
        for (label, entry) in &self.entries {
            let same = renamed.entries.entry(name(label)).or_default();
            same.counts.merge(&entry.counts);
            same.error = same.error.saturating_add(entry.error);
        }
        *self = renamed;
    }

    /// The keys that have any count of `outcomes`, each with the sum of these.
    pub fn weights<'a>(&'a self, outcomes: &'a [Outcome]) -> impl Iterator<Item = (u64, &'a Label, &'a Entry)> {
        let weight =
            |entry: &Entry| outcomes.iter().fold(0, |sum: u64, outcome| sum.saturating_add(entry.counts.of(*outcome)));
        self.entries.iter().map(move |(label, entry)| (weight(entry), label, entry)).filter(|(weight, ..)| *weight > 0)
    }
}

/// The largest `most` of some items, the largest first.
pub fn first<T: Ord>(items: impl Iterator<Item = T>, most: usize) -> Vec<T> {
    // A heap of those that are in, the smallest on top: it is the next to go.
    let mut heap = BinaryHeap::new();
    for item in items {
        heap.push(Reverse(item));
        if heap.len() > most {
            heap.pop();
        }
    }
    let mut found = Vec::with_capacity(heap.len());
    while let Some(Reverse(item)) = heap.pop() {
        found.push(item);
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn add_all(top: &mut Top, stream: &[u8], capacity: usize) {
        stream.iter().for_each(|key| top.add(&[*key], Outcome::Allowed, capacity));
    }

    proptest! {
        #[test]
        fn no_count_is_too_high_and_none_too_low_by_more_than_its_error(
            parts in prop::collection::vec(prop::collection::vec(0u8..30, 0..300), 1..5), capacity in 1usize..20,
        ) {
            let mut merged = Top::default();
            let mut exact = HashMap::<u8, u64>::new();
            for part in &parts {
                let mut top = Top::default();
                add_all(&mut top, part, capacity);
                merged.merge(&top, capacity);
                merged.shrink(capacity);
                part.iter().for_each(|key| *exact.entry(*key).or_default() += 1);
            }
            let total: u64 = exact.values().sum();
            for (key, count) in &exact {
                match merged.entries.get(&[*key][..]) {
                    Some(entry) => {
                        prop_assert!(entry.counts.total() <= *count && *count <= merged.at_most(entry), "{key}: {count}, {entry:?}");
                    }
                    None => prop_assert!(*count <= merged.missed, "{key} is missing with {count}"),
                }
            }
            prop_assert!(merged.missed <= total / capacity as u64, "missed {} of {total} over {capacity}", merged.missed);
            prop_assert!(merged.entries.len() <= capacity);
        }
    }

    #[test]
    fn within_its_capacity_it_is_exact() {
        let mut top = Top::default();
        add_all(&mut top, b"aabccc", 3);
        let heaviest =
            |top: &Top, most| first(top.weights(&Outcome::ALL).map(|(weight, label, _)| (weight, label[0])), most);
        assert_eq!(heaviest(&top, 2), [(3, b'c'), (2, b'a')]);
        assert_eq!(top.weights(&[Outcome::Denied]).count(), 0);
        top.rename(|label| if label == b"a" { b"c".to_vec() } else { label.to_vec() });
        assert_eq!(heaviest(&top, 1), [(5, b'c')]);
    }
}
