//! What a gate's shard has seen and not yet written: it is counted in memory, and written a moment later.
//!
//! Only the finest level is written as decisions happen: one row each time, however many there were. A coarser bucket is
//! written once, when it is over, from the buckets below it; until then whoever asks adds those up.

use std::collections::BTreeMap;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::rules::series::record::{Counts, Outcome, Record, Totals};
use crate::rules::series::rollup::{Rollup, Rollups};
use crate::rules::series::top::Label;
use crate::values::error::Error;
use crate::values::key::hex;
use crate::values::time::{Duration, Timestamp};

/// Most buckets that wait to be written while that fails. The oldest go first.
const MAX_UNSAVED: usize = 60;

/// How partition keys are shown.
#[derive(Clone, Debug)]
pub enum Labels {
    /// As they are.
    Readable,
    /// By a keyed hash of 64 bits, in hexadecimal: the same key has the same pseudonym, and only who has the secret can
    /// tell whether a key he knows is behind one.
    Pseudonyms(Box<Hmac<Sha256>>),
}

impl Labels {
    /// Pseudonyms under a secret.
    pub fn pseudonyms(secret: &[u8]) -> Self {
        // An HMAC takes a key of any length. Its own label keeps these apart from whatever else the secret is for.
        let keyed = |key: &[u8]| <Hmac<Sha256> as Mac>::new_from_slice(key).ok();
        let derive = |mut mac: Hmac<Sha256>| {
            mac.update(b"tollgate partition-key pseudonyms");
            keyed(&mac.finalize().into_bytes())
        };
        keyed(secret).and_then(derive).map_or(Self::Readable, |mac| Self::Pseudonyms(Box::new(mac)))
    }

    /// How a partition key is shown.
    pub fn label(&self, partition_key: &[u8]) -> Label {
        let Self::Pseudonyms(mac) = self else { return partition_key.to_vec() };
        let mut mac = mac.clone();
        mac.update(partition_key);
        let digest = mac.finalize().into_bytes();
        hex(digest.get(..8).unwrap_or(&digest)).into_bytes()
    }
}

/// How decisions are recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The levels.
    pub rollups: Rollups,
    /// How many keys of a policy are watched in each bucket.
    pub capacity: usize,
    /// How late a decision may reach the disk.
    pub flush: Duration,
    /// How partition keys are shown.
    pub labels: Labels,
}

/// Refuses levels whose buckets would be gone before the level above is made of them.
pub fn check_retentions(rollups: &Rollups) -> Result<(), Error> {
    let levels = rollups.levels();
    for (fine, coarse) in levels.iter().zip(levels.iter().skip(1)) {
        if fine.retention() < coarse.step() {
            let (step, kept, needed) = (fine.step(), fine.retention(), coarse.step());
            let expected = format_args!(
                "the level of {} ms kept for the {} ms of the next one's buckets, got {} ms",
                step.as_millis(),
                needed.as_millis(),
                kept.as_millis(),
            );
            return Err(Error::invalid("rollups", expected));
        }
    }
    Ok(())
}

/// Counts decisions until they are written.
#[derive(Clone, Debug)]
pub struct Recorder {
    recording: Recording,
    /// What is not written yet, by the beginning of its bucket.
    unsaved: BTreeMap<Timestamp, Record>,
    unsaved_since: Option<Timestamp>,
    /// Counts since this recorder began.
    totals: Totals,
    /// The totals of those before it, once they were read.
    earlier: Option<Totals>,
    /// Charges that were given back: as many of the next ones are not counted, so that totals never go down.
    owed: BTreeMap<String, u64>,
    /// Until where each level but the finest is complete.
    complete: Vec<Timestamp>,
}

impl Recorder {
    /// A recorder that has seen nothing.
    pub fn new(recording: Recording) -> Self {
        let complete = vec![Timestamp::default(); recording.rollups.levels().len()];
        Self {
            recording,
            unsaved: BTreeMap::new(),
            unsaved_since: None,
            totals: Totals::new(),
            earlier: None,
            owed: BTreeMap::new(),
            complete,
        }
    }

    /// How it records.
    pub const fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Counts a decision.
    pub fn record(&mut self, now: Timestamp, policy: &str, partition_key: &[u8], outcome: Outcome) {
        if outcome == Outcome::Allowed && self.pays_debt(policy) {
            return;
        }
        let (label, capacity) = (self.recording.labels.label(partition_key), self.recording.capacity);
        if self.bucket(now).add(policy, &label, outcome, capacity) {
            self.count(policy, &Counts::one(outcome));
        }
    }

    /// Counts decisions that were made elsewhere.
    pub fn record_counts(&mut self, now: Timestamp, policy: &str, outcome: Outcome, count: u64) {
        let mut counts = Counts::default();
        counts.add(outcome, count);
        if self.bucket(now).add_counts(policy, &counts) {
            self.count(policy, &counts);
        }
    }

    /// Notes that a request which was let through was refused by another policy in the end.
    pub fn take_back(&mut self, policy: &str) {
        let owed = self.owed.entry(policy.to_owned()).or_default();
        *owed = owed.saturating_add(1);
    }

    fn count(&mut self, policy: &str, counts: &Counts) {
        // Names are looked up far more often than they are new.
        match self.totals.get_mut(policy) {
            Some(total) => total.merge(counts),
            None => {
                self.totals.insert(policy.to_owned(), *counts);
            }
        }
    }

    fn pays_debt(&mut self, policy: &str) -> bool {
        match self.owed.get_mut(policy) {
            None => false,
            Some(1) => self.owed.remove(policy).is_some(),
            Some(owed) => {
                *owed = owed.saturating_sub(1);
                true
            }
        }
    }

    fn bucket(&mut self, now: Timestamp) -> &mut Record {
        self.unsaved_since.get_or_insert(now);
        let start = now.floor_to(self.recording.rollups.finest().step());
        if self.unsaved.len() > MAX_UNSAVED {
            self.unsaved.pop_first();
        }
        self.unsaved.entry(start).or_default()
    }

    /// What is not written yet: each bucket's beginning and what to add to it.
    pub const fn unsaved(&self) -> &BTreeMap<Timestamp, Record> {
        &self.unsaved
    }

    /// When that should be written.
    pub fn due(&self) -> Option<Timestamp> {
        self.unsaved_since.map(|since| since.saturating_add(self.recording.flush))
    }

    /// Notes that it was written.
    pub fn saved(&mut self) {
        self.unsaved.clear();
        self.unsaved_since = None;
    }

    /// Notes that it could not be written: it is tried again one flush later, and what is stored is looked at anew.
    pub fn not_saved(&mut self, now: Timestamp) {
        self.unsaved_since = self.unsaved_since.map(|_| now);
        self.complete.iter_mut().for_each(|until| *until = Timestamp::default());
    }

    /// The totals of all recorders before this one, when they are known.
    pub const fn earlier_totals(&self) -> Option<&Totals> {
        self.earlier.as_ref()
    }

    /// Sets the totals of all recorders before this one.
    pub fn set_earlier_totals(&mut self, totals: Totals) {
        self.earlier = Some(totals);
    }

    /// All decisions ever, by policy.
    pub fn totals(&self) -> Totals {
        let mut totals = self.earlier.clone().unwrap_or_default();
        for (policy, counts) in &self.totals {
            totals.entry(policy.clone()).or_default().merge(counts);
        }
        totals
    }

    /// Until where the level with that number is complete.
    pub fn complete_until(&self, level: usize) -> Timestamp {
        self.complete.get(level).copied().unwrap_or_default()
    }

    /// Notes that the level with that number is complete until then.
    pub fn set_complete(&mut self, level: usize, until: Timestamp) {
        if let Some(complete) = self.complete.get_mut(level) {
            *complete = until;
        }
    }

    /// The levels from the finest to that of `step`, and its number.
    pub fn levels_up_to(&self, step: Duration) -> Option<&[Rollup]> {
        let levels = self.recording.rollups.levels();
        let at = levels.iter().position(|level| level.step() == step)?;
        levels.get(..=at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Recorder {
        Recorder::new(Recording {
            rollups: Rollups::default(),
            capacity: 10,
            flush: Duration::from_secs(10),
            labels: Labels::pseudonyms(b"secret"),
        })
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn pseudonyms_hold_still_and_hide_the_key() {
        let label = |secret: &str, key: &str| {
            String::from_utf8(Labels::pseudonyms(secret.as_bytes()).label(key.as_bytes())).unwrap()
        };
        assert_eq!(label("a", "ip:198.18.0.1"), label("a", "ip:198.18.0.1"));
        assert_ne!(label("a", "ip:198.18.0.1"), label("b", "ip:198.18.0.1"));
        assert_ne!(label("a", "ip:198.18.0.1"), label("a", "ip:198.18.0.2"));
        assert_eq!(label("a", "").len(), 16);
        assert_eq!(Labels::Readable.label(b"k"), b"k");
    }

    #[test]
    fn a_charge_that_was_given_back_is_not_counted_and_totals_never_go_down() {
        let mut recorder = recorder();
        recorder.record(at(0), "p", b"k", Outcome::Allowed);
        recorder.take_back("p");
        let before = recorder.totals();
        recorder.record(at(1), "p", b"k", Outcome::Allowed);
        assert_eq!(recorder.totals(), before);
        recorder.record(at(2), "p", b"k", Outcome::Allowed);
        recorder.record(at(2), "p", b"k", Outcome::Denied);
        assert_eq!(recorder.totals()["p"].of(Outcome::Allowed), 2);
        assert_eq!(recorder.totals()["p"].of(Outcome::Denied), 1);
    }

    #[test]
    fn it_is_due_one_flush_after_the_first_decision() {
        let mut recorder = recorder();
        assert_eq!(recorder.due(), None);
        recorder.record(at(5000), "p", b"k", Outcome::Allowed);
        recorder.record(at(9000), "p", b"k", Outcome::Allowed);
        recorder.record_counts(at(11_000), "q", Outcome::Degraded, 3);
        assert_eq!(recorder.due(), Some(at(15_000)));
        assert_eq!(recorder.unsaved().keys().copied().collect::<Vec<_>>(), [at(0), at(10_000)]);
        recorder.saved();
        assert_eq!((recorder.due(), recorder.unsaved().len()), (None, 0));
        assert_eq!(recorder.totals()["q"].of(Outcome::Degraded), 3);
    }

    #[test]
    fn levels_that_would_lose_buckets_are_refused() {
        let levels = |texts: [&str; 2]| Rollups::new(texts.map(|text| Rollup::parse(text).unwrap())).unwrap();
        assert!(check_retentions(&levels(["10s x 360", "1h x 2"])).is_ok());
        let error = check_retentions(&levels(["10s x 359", "1h x 2"])).unwrap_err();
        assert!(
            error.message().starts_with("rollups: expected the level of 10000 ms kept for the 3600000 ms"),
            "{error}"
        );
    }
}
