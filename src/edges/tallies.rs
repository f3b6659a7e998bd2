//! Decisions that no shard could record: those on Workers KV, and those that a store failed to make.
//!
//! They are counted in the isolate and ride along with the next call to a shard, so they cost no call of their own. Of
//! an isolate that ends before that, they are lost.

use std::cell::{Cell, RefCell};

use crate::engine::command::Tally;
use crate::rules::series::record::Outcome;
use crate::values::time::{Duration, Timestamp};

/// How often they are sent on their own, where no policy asks a shard.
const SEND_EVERY: Duration = Duration::from_secs(10);

/// What is counted and not yet sent.
#[derive(Debug, Default)]
pub struct Tallies {
    waiting: RefCell<Vec<Tally>>,
    sent: Cell<Timestamp>,
}

impl Tallies {
    /// Counts a decision.
    pub fn add(&self, policy: &str, outcome: Outcome) {
        self.put_back(vec![Tally { policy: policy.as_bytes().to_vec(), outcome, count: 1 }]);
    }

    /// What is to be sent, which is then not waiting any more.
    pub fn take(&self) -> Vec<Tally> {
        self.waiting.take()
    }

    /// Counts again what could not be sent.
    pub fn put_back(&self, tallies: Vec<Tally>) {
        let mut waiting = self.waiting.borrow_mut();
        for tally in tallies {
            let is_same = |known: &&mut Tally| known.policy == tally.policy && known.outcome == tally.outcome;
            match waiting.iter_mut().find(is_same) {
                Some(known) => known.count = known.count.saturating_add(tally.count),
                None => waiting.push(tally),
            }
        }
    }

    /// What is to be sent on its own at `now`: nothing when that was done a moment ago.
    pub fn take_if_due(&self, now: Timestamp) -> Vec<Tally> {
        if now.saturating_since(self.sent.get()) < SEND_EVERY {
            return Vec::new();
        }
        self.sent.set(now);
        self.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_decisions_are_one_tally_and_come_back_when_they_were_not_sent() {
        let tallies = Tallies::default();
        tallies.add("p", Outcome::Degraded);
        tallies.add("p", Outcome::Degraded);
        tallies.add("p", Outcome::Allowed);
        let taken = tallies.take();
        let counts: Vec<_> = taken.iter().map(|tally| (tally.outcome, tally.count)).collect();
        assert_eq!(counts, [(Outcome::Degraded, 2), (Outcome::Allowed, 1)]);
        assert!(tallies.take().is_empty());
        tallies.put_back(taken);
        tallies.add("p", Outcome::Degraded);
        let now = Timestamp::from_millis(1_000_000);
        assert_eq!(tallies.take_if_due(now)[0].count, 3);
        tallies.add("p", Outcome::Degraded);
        assert!(tallies.take_if_due(now.saturating_add(Duration::from_secs(9))).is_empty());
        assert_eq!(tallies.take_if_due(now.saturating_add(Duration::from_secs(10))).len(), 1);
    }
}
