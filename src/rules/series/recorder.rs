//! What a gate's shard has seen and not yet written: it is counted in memory, and written a moment later.
//!
//! Only the finest level is written as decisions happen: one row each time, however many there were. A coarser bucket is
//! added up in memory from the closed buckets below it, a few at a time, and written once, when it is over.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::rules::series::record::{ByPolicy, Counts, MAX_WATCHED, Outcome, Record, takes};
use crate::rules::series::rollup::{Rollup, Rollups};
use crate::rules::series::top::Label;
use crate::values::error::Error;
use crate::values::key::hex;
use crate::values::time::{Duration, Timestamp};

/// Most buckets that wait to be written while that fails. The oldest go first.
const MAX_UNSAVED: usize = 60;

/// How many numbers of tallies are remembered. A Worker's isolate has one under way at a time.
const MAX_SEEN: usize = 256;

/// How partition keys are shown.
#[derive(Clone, Debug)]
pub struct Labels {
    mac: Hmac<Sha256>,
    is_readable: bool,
}

impl Labels {
    /// By a keyed hash of 64 bits, in hexadecimal: the same key has the same pseudonym, and only who has the secret can
    /// tell whether a key he knows is behind one. An HMAC takes a secret of any length, so there always are.
    pub fn pseudonyms(secret: &[u8]) -> Option<Self> {
        let keyed = |key: &[u8]| <Hmac<Sha256> as Mac>::new_from_slice(key).ok();
        // A label of its own keeps these apart from whatever else the secret is for.
        let mut mac = keyed(secret)?;
        mac.update(b"tollgate partition-key pseudonyms");
        Some(Self { mac: keyed(&mac.finalize().into_bytes())?, is_readable: false })
    }

    /// As they are.
    #[must_use]
    pub fn readable(self) -> Self {
        Self { is_readable: true, ..self }
    }

    /// Whether keys are shown as they are.
    pub const fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// The pseudonym of a partition key.
    pub fn pseudonym(&self, partition_key: &[u8]) -> Label {
        let mut mac = self.mac.clone();
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
    /// Whether that is in the rows that are being written.
    is_staged: bool,
    /// The policies whose keys are watched: the first that were seen.
    watched: Vec<String>,
    /// Counts since this recorder began.
    totals: ByPolicy,
    /// The totals of those before it, once they were read.
    earlier: Option<ByPolicy>,
    /// Charges that were given back: as many of the next ones are not counted, so that totals never go down.
    owed: BTreeMap<String, u64>,
    /// Numbers of the tallies that came last: one that comes again was counted already.
    seen: VecDeque<u64>,
    /// How far the bucket of each coarser level is added up, and when to go on with that.
    sums: Vec<Option<RunningSum>>,
    go_on_at: Option<Timestamp>,
}

/// A coarser bucket on its way: what is in it so far.
#[derive(Clone, Debug, Default)]
pub struct RunningSum {
    /// Where it begins.
    pub start: Timestamp,
    /// Everything before this is in it.
    pub until: Timestamp,
    /// What happened.
    pub record: Record,
}

impl Recorder {
    /// A recorder that has seen nothing.
    pub fn new(recording: Recording) -> Self {
        let sums = vec![None; recording.rollups.levels().len()];
        Self {
            recording,
            unsaved: BTreeMap::new(),
            unsaved_since: None,
            is_staged: true,
            watched: Vec::new(),
            totals: ByPolicy::new(),
            earlier: None,
            owed: BTreeMap::new(),
            seen: VecDeque::new(),
            sums,
            go_on_at: None,
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
        if self.add(now, policy, &Counts::one(outcome)) && self.watches(policy) {
            let pseudonym = self.recording.labels.pseudonym(partition_key);
            let (is_readable, capacity) = (self.recording.labels.is_readable(), self.recording.capacity);
            if let Some(watched) = self.bucket(now).watch(policy) {
                watched.top.add(if is_readable { partition_key } else { &pseudonym }, outcome, capacity);
                // Always by the pseudonym, so that the number does not change with how keys are shown.
                watched.distinct.add(&pseudonym);
            }
        }
    }

    fn watches(&mut self, policy: &str) -> bool {
        let is_known = self.watched.iter().any(|known| known == policy);
        if !is_known && self.watched.len() < MAX_WATCHED {
            self.watched.push(policy.to_owned());
            return true;
        }
        is_known
    }

    /// Counts decisions that were made elsewhere, unless they came before under the same number; 0 is none.
    pub fn record_tallies<'a>(
        &mut self,
        now: Timestamp,
        number: u64,
        tallies: impl Iterator<Item = (Cow<'a, str>, Counts)>,
    ) {
        if number > 0 {
            if self.seen.contains(&number) {
                return;
            }
            if self.seen.len() >= MAX_SEEN {
                self.seen.pop_front();
            }
            self.seen.push_back(number);
        }
        tallies.for_each(|(policy, counts)| {
            self.add(now, &policy, &counts);
        });
    }

    /// Notes that a request which was let through was refused by another policy in the end.
    pub fn take_back(&mut self, policy: &str) {
        let owed = self.owed.entry(policy.to_owned()).or_default();
        *owed = owed.saturating_add(1);
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

    fn add(&mut self, now: Timestamp, policy: &str, counts: &Counts) -> bool {
        if !takes(&self.totals, policy) || !self.bucket(now).add(policy, counts) {
            return false;
        }
        // Names are looked up far more often than they are new.
        match self.totals.get_mut(policy) {
            Some(total) => total.merge(counts),
            None => {
                self.totals.insert(policy.to_owned(), *counts);
            }
        }
        true
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
    pub fn save_at(&self) -> Option<Timestamp> {
        self.unsaved_since.map(|since| since.saturating_add(self.recording.flush))
    }

    /// When there is something to do: to write, or to go on adding up.
    pub fn due(&self) -> Option<Timestamp> {
        [self.save_at(), self.go_on_at].into_iter().flatten().min()
    }

    /// Notes whether it is in the rows that are being written.
    pub const fn set_staged(&mut self, is_staged: bool) {
        self.is_staged = is_staged;
    }

    /// Notes that those rows were written.
    pub fn saved(&mut self) {
        if self.is_staged {
            self.unsaved.clear();
            self.unsaved_since = None;
        }
    }

    /// Notes that it could not be written: it is tried again one flush later, and what is stored is looked at anew.
    pub fn not_saved(&mut self, now: Timestamp) {
        self.unsaved_since = self.unsaved_since.map(|_| now);
        self.go_on_at = None;
        self.sums.iter_mut().for_each(|sum| *sum = None);
    }

    /// Sets when to go on adding up: never, when there is nothing left.
    pub const fn go_on_at(&mut self, at: Option<Timestamp>) {
        self.go_on_at = at;
    }

    /// The bucket of the level with that number that is being added up.
    pub fn sum(&self, level: usize) -> Option<&RunningSum> {
        self.sums.get(level)?.as_ref()
    }

    /// Takes it, to go on with it and put it back.
    pub fn take_sum(&mut self, level: usize) -> Option<RunningSum> {
        self.sums.get_mut(level)?.take()
    }

    /// Puts it back.
    pub fn put_sum(&mut self, level: usize, sum: RunningSum) {
        if let Some(slot) = self.sums.get_mut(level) {
            *slot = Some(sum);
        }
    }

    /// The totals of all recorders before this one, when they are known.
    pub const fn earlier_totals(&self) -> Option<&ByPolicy> {
        self.earlier.as_ref()
    }

    /// Sets the totals of all recorders before this one.
    pub fn set_earlier_totals(&mut self, totals: ByPolicy) {
        self.earlier = Some(totals);
    }

    /// All decisions ever, by policy.
    pub fn totals(&self) -> ByPolicy {
        let mut totals = self.earlier.clone().unwrap_or_default();
        for (policy, counts) in &self.totals {
            if takes(&totals, policy) {
                totals.entry(policy.clone()).or_default().merge(counts);
            }
        }
        totals
    }

    /// The levels from the finest to that of `step`, if there is one of it.
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
            labels: Labels::pseudonyms(b"secret").unwrap(),
        })
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn pseudonyms_hold_still_and_hide_the_key() {
        let label = |secret: &str, key: &str| {
            let labels = Labels::pseudonyms(secret.as_bytes()).unwrap();
            String::from_utf8(labels.pseudonym(key.as_bytes())).unwrap()
        };
        assert_eq!(label("a", "ip:198.18.0.1"), label("a", "ip:198.18.0.1"));
        assert_ne!(label("a", "ip:198.18.0.1"), label("b", "ip:198.18.0.1"));
        assert_ne!(label("a", "ip:198.18.0.1"), label("a", "ip:198.18.0.2"));
        assert_eq!(label("a", "").len(), 16);
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
        for _ in 0..2 {
            let three = [("q", Counts::one(Outcome::Degraded)); 3].map(|(policy, counts)| (policy.into(), counts));
            recorder.record_tallies(at(11_000), 7, three.into_iter());
        }
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
