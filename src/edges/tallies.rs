//! Decisions that no shard could record: those on Workers KV, and those that a store failed to make.
//!
//! They are counted in the isolate and ride along with the next call to a shard, so they cost no call of their own. One
//! load is under way at a time. A call that fails may have been run all the same, so its load comes again to the same
//! shard under the same number, and is counted there once. Of an isolate that ends before that, it is lost.

use std::cell::{Cell, RefCell};

use crate::engine::command::{Command, Tally};
use crate::rules::series::record::Outcome;
use crate::values::number::MAX_SAFE_INTEGER;
use crate::values::time::{Duration, Timestamp};

/// How often they are sent on their own, where no policy asks a shard.
const SEND_EVERY: Duration = Duration::from_secs(10);

/// What is counted and not yet recorded.
#[derive(Debug, Default)]
pub struct Tallies {
    waiting: RefCell<Vec<Tally>>,
    load: RefCell<Option<Load>>,
    last_number: Cell<u64>,
    sent: Cell<Timestamp>,
}

#[derive(Debug)]
struct Load {
    number: u64,
    shard: u16,
    tallies: Vec<Tally>,
    is_under_way: bool,
}

impl Tallies {
    /// Tallies whose numbers begin at `seed`, which should be random: no two isolates may use the same.
    pub fn new(seed: u64) -> Self {
        Self { last_number: Cell::new(seed & MAX_SAFE_INTEGER), ..Self::default() }
    }

    /// Counts a decision.
    pub fn add(&self, policy: &str, outcome: Outcome) {
        let mut waiting = self.waiting.borrow_mut();
        let is_same = |known: &&mut Tally| known.policy == policy.as_bytes() && known.outcome == outcome;
        match waiting.iter_mut().find(is_same) {
            Some(known) => known.count = known.count.saturating_add(1),
            None => waiting.push(Tally { policy: policy.as_bytes().to_vec(), outcome, count: 1 }),
        }
    }

    /// What goes along with a call to `shard`, if there is anything: its number and the command.
    pub fn load(&self, shard: u16) -> Option<(u64, Command)> {
        let mut load = self.load.borrow_mut();
        match load.as_mut() {
            Some(load) if load.shard != shard || load.is_under_way => return None,
            Some(load) => load.is_under_way = true,
            None => {
                let tallies = self.waiting.take();
                if tallies.is_empty() {
                    return None;
                }
                // From 1 on: 0 is no number.
                let number = self.last_number.get().checked_rem(MAX_SAFE_INTEGER).unwrap_or(0).saturating_add(1);
                self.last_number.set(number);
                *load = Some(Load { number, shard, tallies, is_under_way: true });
            }
        }
        let Load { number, tallies, .. } = load.as_ref()?;
        Some((*number, Command::Record { number: *number, tallies: tallies.clone() }))
    }

    /// Notes that the load with that number arrived, or that nobody knows.
    pub fn settle(&self, number: u64, arrived: bool) {
        let mut load = self.load.borrow_mut();
        match load.as_mut().filter(|load| load.number == number) {
            Some(_) if arrived => *load = None,
            Some(load) => load.is_under_way = false,
            None => {}
        }
    }

    /// What is to be sent on its own at `now`: nothing when that was done a moment ago. Nobody hears whether it arrives.
    pub fn take_if_due(&self, now: Timestamp) -> Vec<Tally> {
        if now.saturating_since(self.sent.get()) < SEND_EVERY {
            return Vec::new();
        }
        self.sent.set(now);
        self.waiting.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(command: &Command) -> Vec<(Outcome, u64)> {
        let Command::Record { tallies, .. } = command else { panic!("{command:?}") };
        tallies.iter().map(|tally| (tally.outcome, tally.count)).collect()
    }

    #[test]
    fn a_load_comes_again_under_its_number_to_the_same_shard_until_it_arrived() {
        let tallies = Tallies::new(MAX_SAFE_INTEGER);
        assert_eq!(tallies.load(3), None);
        tallies.add("p", Outcome::Degraded);
        tallies.add("p", Outcome::Degraded);
        tallies.add("p", Outcome::Allowed);
        let (number, load) = tallies.load(3).unwrap();
        assert_eq!(counts(&load), [(Outcome::Degraded, 2), (Outcome::Allowed, 1)]);
        tallies.add("p", Outcome::Degraded);
        assert_eq!((tallies.load(3), tallies.load(4)), (None, None), "one at a time");
        tallies.settle(number, false);
        assert_eq!(tallies.load(4), None, "another shard would count it twice");
        assert_eq!(tallies.load(3), Some((number, load)));
        tallies.settle(number, true);
        let (next, load) = tallies.load(4).unwrap();
        assert_eq!(counts(&load), [(Outcome::Degraded, 1)]);
        assert_ne!(next, number);
    }

    #[test]
    fn they_are_sent_on_their_own_at_most_every_ten_seconds() {
        let (tallies, now) = (Tallies::default(), Timestamp::from_millis(1_000_000));
        tallies.add("p", Outcome::Degraded);
        assert_eq!(tallies.take_if_due(now).len(), 1);
        tallies.add("p", Outcome::Degraded);
        assert!(tallies.take_if_due(now.saturating_add(Duration::from_secs(9))).is_empty());
        assert_eq!(tallies.take_if_due(now.saturating_add(Duration::from_secs(10))).len(), 1);
    }
}
