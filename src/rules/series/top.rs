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
}

/// What is known of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its counts since it is watched: none of them is too high.
    pub counts: Counts,
    /// What it may have been counted before that, at most.
    pub error: u64,
}

impl Entry {
    /// The most that the key can have been counted.
    pub fn at_most(&self) -> u64 {
        self.counts.total().saturating_add(self.error)
    }
}

impl Default for Top {
    fn default() -> Self {
        Self {
            missed: 0,
            entries: IndexMap::with_hasher(foldhash::quality::FixedState::default()),
            lightest: 0,
            cursor: 0,
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
        let mut entry = Entry { counts: Counts::default(), error: self.missed };
        entry.counts.add(outcome, 1);
        self.entries.insert(label.to_vec(), entry);
    }

    /// Makes room for one more. The cursor goes once around before it must look for a new lightest weight, so this takes
    /// constant time on average.
    fn forget_lightest(&mut self) {
        let light =
            |top: &Self| top.entries.get_index(top.cursor).is_some_and(|(_, entry)| entry.at_most() <= top.lightest);
        while self.cursor < self.entries.len() && !light(self) {
            self.cursor = self.cursor.saturating_add(1);
        }
        if self.cursor >= self.entries.len() {
            self.lightest = self.entries.values().map(Entry::at_most).min().unwrap_or(0);
            self.cursor = self.entries.values().position(|entry| entry.at_most() <= self.lightest).unwrap_or(0);
        }
        if let Some((_, entry)) = self.entries.swap_remove_index(self.cursor) {
            self.missed = self.missed.max(entry.at_most());
        }
    }

    /// Adds the counts of another stream.
    pub fn merge(&mut self, other: &Self, capacity: usize) {
        for (label, entry) in &mut self.entries {
            if !other.entries.contains_key(label) {
                entry.error = entry.error.saturating_add(other.missed);
            }
        }
        for (label, entry) in &other.entries {
            let missed = self.missed;
            let mine = self.entries.entry(label.clone()).or_insert(Entry { counts: Counts::default(), error: missed });
            mine.counts.merge(&entry.counts);
            mine.error = mine.error.saturating_add(entry.error);
        }
        self.missed = self.missed.saturating_add(other.missed);
        (self.lightest, self.cursor) = (0, 0);
        self.shrink(capacity);
    }

    /// Watches no more than `capacity` keys from now on: the heaviest.
    pub fn shrink(&mut self, capacity: usize) {
        let Some(over) = self.entries.len().checked_sub(capacity).filter(|over| *over > 0) else { return };
        let weights = self.entries.iter().map(|(label, entry)| (Reverse(entry.at_most()), label.clone()));
        for (Reverse(weight), label) in first(weights, over) {
            self.entries.swap_remove(&label);
            self.missed = self.missed.max(weight);
        }
    }

    /// The `most` keys with the highest counts of `outcome`, or of all outcomes; the heaviest first, equals by name.
    pub fn heaviest(&self, outcome: Option<Outcome>, most: usize) -> Vec<(&Label, &Entry)> {
        let weight = |entry: &Entry| outcome.map_or_else(|| entry.counts.total(), |outcome| entry.counts.of(outcome));
        let weights = self.entries.iter().map(|(label, entry)| (weight(entry), Reverse(label)));
        let heaviest = first(weights.filter(|(weight, _)| *weight > 0), most);
        heaviest.into_iter().filter_map(|(_, Reverse(label))| Some((label, self.entries.get(label)?))).collect()
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
                part.iter().for_each(|key| *exact.entry(*key).or_default() += 1);
            }
            let total: u64 = exact.values().sum();
            for (key, count) in &exact {
                match merged.entries.get(&[*key][..]) {
                    Some(entry) => {
                        prop_assert!(entry.counts.total() <= *count && *count <= entry.at_most(), "{key}: {count}, {entry:?}");
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
        let names: Vec<_> =
            top.heaviest(None, 2).iter().map(|(label, entry)| (label[0], entry.counts.total())).collect();
        assert_eq!(names, [(b'c', 3), (b'a', 2)]);
        assert!(top.heaviest(Some(Outcome::Denied), 5).is_empty());
    }
}
