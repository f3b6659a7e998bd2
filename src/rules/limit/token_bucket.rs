//! Token bucket: it holds the quota, and is refilled by the quota a window, all the time.
//!
//! What is missing is counted in tokens times the window in milliseconds. One millisecond refills exactly `quota` of these, so
//! no fraction of a token is lost or minted, at any rate and however often it is asked (case B11).

use super::{Ask, Decision, Next, State as AnyState, times, units};
use crate::values::time::{Duration, Timestamp};
use crate::values::units::Rate;

/// What is missing from the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The rate it was counted under: a policy may have changed since.
    pub rate: Rate,
    /// When that was. A later look at an earlier time refills nothing.
    pub at: Timestamp,
    /// Tokens times milliseconds of the window.
    pub missing: u128,
}

impl State {
    /// The state as it stands at `now` under `rate`.
    fn at(stored: Option<Self>, rate: Rate, now: Timestamp) -> Self {
        let Some(stored) = stored else { return Self { rate, at: now, missing: 0 } };
        let refilled = times(stored.rate.quota, now.saturating_since(stored.at).as_millis());
        let at = now.max(stored.at);
        let missing = stored.missing.saturating_sub(refilled);
        if stored.rate == rate {
            return Self { rate, at, missing };
        }
        // The numbers changed: the tokens that were used stay used.
        let used = Self { missing, ..stored }.used();
        Self { rate, at, missing: times(used, rate.window.as_millis()) }
    }

    /// Tokens that are missing, rounded up.
    fn used(&self) -> u64 {
        units(self.missing.div_ceil(u128::from(self.rate.window.as_millis().max(1))))
    }

    /// How long it takes until `missing` is refilled.
    fn refill_time(&self, missing: u128) -> Duration {
        Duration::from_millis(units(missing.div_ceil(u128::from(self.rate.quota.max(1)))))
    }

    fn whole_at(&self) -> Timestamp {
        self.at.saturating_add(self.refill_time(self.missing))
    }

    fn left(&self) -> u64 {
        let there = self.capacity().saturating_sub(self.missing);
        units(there.checked_div(u128::from(self.rate.window.as_millis())).unwrap_or(0))
    }

    fn capacity(&self) -> u128 {
        times(self.rate.quota, self.rate.window.as_millis())
    }
}

/// One step of the algorithm. The cost is at most the quota, unless it overdraws.
pub fn decide(rate: Rate, stored: Option<State>, ask: Ask<'_>, now: Timestamp) -> (Decision, Next) {
    let state = State::at(stored, rate, now);
    let cost = ask.within(rate, state.used());
    let wanted = state.missing.saturating_add(times(cost, rate.window.as_millis()));
    let reset_at = state.whole_at().max(now);
    if cost > 0 && wanted > state.capacity() && !ask.overdraws {
        let wait = state.refill_time(wanted.saturating_sub(state.capacity()));
        let retry_after = Some(state.at.saturating_add(wait).saturating_since(now));
        return (Decision { allowed: false, remaining: state.left(), reset_at, retry_after }, Next::Keep);
    }
    if cost == 0 {
        return (Decision { allowed: true, remaining: state.left(), reset_at, retry_after: None }, Next::Keep);
    }
    let state = State { missing: wanted, ..state };
    let decision = Decision { allowed: true, remaining: state.left(), reset_at: state.whole_at(), retry_after: None };
    (decision, put(state))
}

/// Puts `amount` back, but no more than is not refilled by itself of what was missing after the charge, which was to be
/// whole again at `reset_at`. Of several refunds within one refill, each is bounded by itself alone.
pub fn refund(stored: State, amount: u64, reset_at: Timestamp, now: Timestamp) -> Next {
    let state = State::at(Some(stored), stored.rate, now);
    let unrefilled = times(stored.rate.quota, reset_at.saturating_since(state.at).as_millis());
    let back = times(amount, stored.rate.window.as_millis()).min(unrefilled);
    if back == 0 || state.missing == 0 {
        return Next::Keep;
    }
    put(State { missing: state.missing.saturating_sub(back), ..state })
}

/// Puts `amount` back into what is missing at `now`.
pub fn reward(stored: State, rate: Rate, amount: u64, now: Timestamp) -> Next {
    let state = State::at(Some(stored), rate, now);
    if state.missing == 0 || amount == 0 {
        return Next::Keep;
    }
    put(State { missing: state.missing.saturating_sub(times(amount, rate.window.as_millis())), ..state })
}

fn put(state: State) -> Next {
    Next::Put { state: AnyState::TokenBucket(state), expires: state.whole_at() }
}
