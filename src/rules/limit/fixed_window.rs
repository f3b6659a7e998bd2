//! Fixed window: one count for each window of the clock.

use super::{Decision, Next, State as AnyState};
use crate::values::{
    time::{Duration, Timestamp},
    units::Rate,
};

/// The window that was counted last, and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The start of the window.
    pub start: Timestamp,
    /// The window's length when it was counted: a policy may have changed since.
    pub window: Duration,
    /// Quota units used in it.
    pub used: u64,
}

impl State {
    fn end(&self) -> Timestamp {
        self.start.saturating_add(self.window)
    }

    /// The state as it stands in the window of `now` under `rate`.
    fn current(stored: Option<Self>, rate: Rate, now: Timestamp) -> Self {
        let start = now.floor_to(rate.window);
        let fresh = Self { start, window: rate.window, used: 0 };
        match stored {
            // The same window, or a later one seen before the clock went back: time that goes back mints nothing.
            Some(s) if s.window == rate.window && s.start >= start => s,
            // The policy's window changed while the old one is still open: what was used stays used.
            Some(s) if s.window != rate.window && s.end() > now => Self { used: s.used, ..fresh },
            _ => fresh,
        }
    }
}

/// One step of the algorithm. `cost` is at most the quota.
pub fn decide(rate: Rate, stored: Option<State>, cost: u64, now: Timestamp) -> (Decision, Next) {
    let current = State::current(stored, rate, now);
    let left = rate.quota.saturating_sub(current.used);
    let reset_at = current.end();
    if cost > left {
        let retry_after = Some(reset_at.saturating_since(now));
        return (Decision { allowed: false, remaining: left, reset_at, retry_after }, Next::Keep);
    }
    let decision = Decision { allowed: true, remaining: left.saturating_sub(cost), reset_at, retry_after: None };
    if cost == 0 {
        return (decision, Next::Keep);
    }
    (decision, put(State { used: current.used.saturating_add(cost), ..current }))
}

/// Takes `amount` off the count of the window that ends at `reset_at`, if that is the stored one.
pub fn refund(stored: State, amount: u64, reset_at: Timestamp) -> Next {
    if stored.end() != reset_at || amount == 0 {
        return Next::Keep;
    }
    put(State { used: stored.used.saturating_sub(amount), ..stored })
}

fn put(state: State) -> Next {
    Next::Put { state: AnyState::FixedWindow(state), expires: state.end() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::{Algorithm, Limit};
    use proptest::prelude::*;

    fn limit(quota: u64, window_ms: u64) -> Limit {
        Limit { algorithm: Algorithm::FixedWindow, rate: Rate::new(quota, Duration::from_millis(window_ms)).unwrap() }
    }

    /// A limit and its state, driven through the public step.
    struct Key(Option<AnyState>);

    impl Key {
        fn take(&mut self, limit: Limit, cost: u64, now: u64) -> Decision {
            let (decision, next) = limit.decide(self.0, cost, Timestamp::from_millis(now)).unwrap();
            self.apply(next);
            decision
        }

        fn apply(&mut self, next: Next) {
            if let Next::Put { state, .. } = next {
                self.0 = Some(state);
            }
        }
    }

    #[test]
    fn table_of_decisions() {
        let mut key = Key(None);
        let ten_a_minute = limit(10, 60_000);
        // (now, cost) -> (allowed, remaining, reset_at, retry_after)
        for (now, cost, allowed, remaining, reset_at, retry) in [
            (120_000, 1, true, 9, 180_000, None),
            (120_000, 7, true, 2, 180_000, None),
            (150_000, 5, false, 2, 180_000, Some(30_000)), // case B19: the refused 5 takes nothing
            (150_000, 1, true, 1, 180_000, None),
            (150_000, 0, true, 1, 180_000, None),
            (119_999, 1, true, 0, 180_000, None), // the clock went back: same window
            (110_000, 1, false, 0, 180_000, Some(70_000)),
            (179_999, 1, false, 0, 180_000, Some(1)),
            (180_000, 10, true, 0, 240_000, None),
            (60_180_000, 1, true, 9, 60_240_000, None), // idle for 1,000 windows
        ] {
            let d = key.take(ten_a_minute, cost, now);
            let retry_ms = d.retry_after.map(Duration::as_millis);
            assert_eq!(
                (d.allowed, d.remaining, d.reset_at.as_millis(), retry_ms),
                (allowed, remaining, reset_at, retry),
                "at {now}, cost {cost}"
            );
        }
    }

    #[test]
    fn quota_one_works() {
        let mut key = Key(None);
        assert!(key.take(limit(1, 10_000), 1, 5).allowed);
        assert!(!key.take(limit(1, 10_000), 1, 9_999).allowed);
        assert!(key.take(limit(1, 10_000), 1, 10_000).allowed);
    }

    #[test]
    fn a_cost_above_the_quota_is_an_error_and_charges_nothing() {
        let error = limit(5, 1000).decide(None, 6, Timestamp::default()).unwrap_err();
        assert_eq!(error.message(), "cost: expected at most the quota 5, got 6");
    }

    #[test]
    fn changed_numbers_apply_at_once_and_usage_is_kept() {
        let mut key = Key(None);
        let _ = key.take(limit(100, 60_000), 50, 30_000);
        assert_eq!(key.take(limit(10, 60_000), 1, 30_001).remaining, 0, "lowered below the usage");
        assert_eq!(key.take(limit(200, 60_000), 1, 30_002).remaining, 149, "raised");
        assert_eq!(key.take(limit(200, 10_000), 1, 30_003).remaining, 148, "shorter window");
        assert_eq!(key.take(limit(200, 3_600_000), 1, 30_004).remaining, 147, "longer window");
    }

    #[test]
    fn refunds_stay_in_their_window_and_under_the_quota() {
        let (limit, mut key) = (limit(10, 1000), Key(None));
        let charged = key.take(limit, 4, 100).reset_at;
        key.apply(limit.refund(key.0, 3, charged));
        assert_eq!(key.take(limit, 0, 100).remaining, 9);
        key.apply(limit.refund(key.0, 100, charged));
        assert_eq!(key.take(limit, 0, 100).remaining, 10);
        let _ = key.take(limit, 4, 1100);
        key.apply(limit.refund(key.0, 4, charged));
        assert_eq!(key.take(limit, 0, 1100).remaining, 6, "another window");
        assert_eq!(limit.refund(None, 1, charged), Next::Keep);
    }

    proptest! {
        /// Against a plain list of admitted hits, on a clock that may stand still or go back.
        #[test]
        fn no_window_admits_more_than_the_quota(
            quota in 1u64..20, window in 1u64..500,
            steps in prop::collection::vec((-40i64..200, 0u64..5), 1..200),
        ) {
            let (limit, mut key, mut now) = (limit(quota, window), Key(None), 1_000u64);
            let (mut counted, mut used) = (0, 0);
            for (step, cost) in steps {
                now = now.saturating_add_signed(step);
                if cost > quota { continue; }
                let d = key.take(limit, cost, now);
                let in_window = if now / window > counted { 0 } else { used };
                prop_assert_eq!(d.allowed, in_window + cost <= quota);
                if d.allowed && cost > 0 { (counted, used) = (counted.max(now / window), in_window + cost); }
                let used = if now / window > counted { 0 } else { used };
                prop_assert_eq!(d.remaining, quota - used);
                if let Some(retry) = d.retry_after {
                    let at = |ms| limit.decide(key.0, cost, Timestamp::from_millis(ms)).unwrap().0.allowed;
                    prop_assert!(at(now + retry.as_millis()) && !at(now + retry.as_millis() - 1));
                }
            }
        }

        #[test]
        fn no_input_panics(quota: u64, window: u64, start: u64, old: u64, used: u64, cost: u64, now: u64) {
            if let Ok(rate) = Rate::new(quota, Duration::from_millis(window)) {
                let limit = Limit { algorithm: Algorithm::FixedWindow, rate };
                let window = Duration::from_millis(old);
                let state = AnyState::FixedWindow(State { start: Timestamp::from_millis(start), window, used });
                if let Ok((d, _)) = limit.decide(Some(state), cost, Timestamp::from_millis(now)) {
                    prop_assert!(d.remaining <= quota);
                    let _ = limit.refund(Some(state), cost, d.reset_at);
                }
            }
        }
    }
}
