//! GCRA, the generic cell rate algorithm (ITU-T I.371): the state is one number, the theoretical arrival time.
//!
//! It is the instant at which the whole quota would be there again. A request moves it on by its cost times the emission interval
//! `window / quota`, and passes while it stays within one window of now. It decides as a token bucket does on a clock that only goes
//! forward. Kept in units of `1 / quota` of a millisecond, so that any emission interval is a whole number (case B34).

use super::{Ask, Decision, Next, State as AnyState, times, units};
use crate::values::time::{Duration, Timestamp};
use crate::values::units::Rate;

/// The theoretical arrival time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The rate it was counted under: it gives the unit, and a policy may have changed since.
    pub rate: Rate,
    /// Milliseconds since the epoch, times the quota.
    pub arrival: u128,
}

impl State {
    /// The state as it stands at `now` under `rate`: no earlier than now.
    fn at(stored: Option<Self>, rate: Rate, now: Timestamp) -> Self {
        let present = times(rate.quota, now.as_millis());
        match stored {
            Some(stored) if stored.rate == rate => Self { rate, arrival: stored.arrival.max(present) },
            Some(stored) => {
                // The numbers changed: the units that were used stay used.
                let used = times(stored.used(now), rate.window.as_millis());
                Self { rate, arrival: present.saturating_add(used) }
            }
            None => Self { rate, arrival: present },
        }
    }

    /// Units that are used, rounded up.
    fn used(&self, now: Timestamp) -> u64 {
        let ahead = self.arrival.saturating_sub(times(self.rate.quota, now.as_millis()));
        units(ahead.div_ceil(u128::from(self.rate.window.as_millis().max(1))))
    }

    /// The arrival time in milliseconds, rounded up.
    fn whole_at(&self) -> Timestamp {
        Timestamp::from_millis(units(self.arrival.div_ceil(u128::from(self.rate.quota.max(1)))))
    }

    /// The latest arrival time that passes at `now`.
    fn horizon(&self, now: Timestamp) -> u128 {
        times(self.rate.quota, now.as_millis()).saturating_add(times(self.rate.quota, self.rate.window.as_millis()))
    }

    fn left(&self, now: Timestamp) -> u64 {
        let there = self.horizon(now).saturating_sub(self.arrival);
        units(there.checked_div(u128::from(self.rate.window.as_millis())).unwrap_or(0))
    }

    fn later_by(self, cost: u64) -> Self {
        Self { arrival: self.arrival.saturating_add(times(cost, self.rate.window.as_millis())), ..self }
    }
}

/// One step of the algorithm. The cost is at most the quota, unless it overdraws.
pub fn decide(rate: Rate, stored: Option<State>, ask: Ask<'_>, now: Timestamp) -> (Decision, Next) {
    let state = State::at(stored, rate, now);
    let cost = ask.within(rate, state.used(now));
    let next = state.later_by(cost);
    let peek = Decision { allowed: true, remaining: state.left(now), reset_at: state.whole_at(), retry_after: None };
    if cost > 0 && next.arrival > next.horizon(now) && !ask.overdraws {
        let passes_at = next.whole_at().as_millis().saturating_sub(rate.window.as_millis());
        let retry_after = Some(Duration::from_millis(passes_at.saturating_sub(now.as_millis())));
        return (Decision { allowed: false, retry_after, ..peek }, Next::Keep);
    }
    if cost == 0 {
        return (peek, Next::Keep);
    }
    (Decision { remaining: next.left(now), reset_at: next.whole_at(), ..peek }, put(next))
}

/// Moves the arrival time back by `amount`, but by no more than is still ahead of now of what was to be whole again at
/// `reset_at`.
pub fn refund(stored: State, amount: u64, reset_at: Timestamp, now: Timestamp) -> Next {
    let present = times(stored.rate.quota, now.as_millis());
    let unrefilled = times(stored.rate.quota, reset_at.saturating_since(now).as_millis());
    let back = times(amount, stored.rate.window.as_millis()).min(unrefilled);
    if back == 0 || stored.arrival <= present {
        return Next::Keep;
    }
    put(State { arrival: stored.arrival.saturating_sub(back).max(present), ..stored })
}

/// Moves the arrival time back by `amount`, to no earlier than now.
pub fn reward(stored: State, rate: Rate, amount: u64, now: Timestamp) -> Next {
    let present = times(rate.quota, now.as_millis());
    let state = State::at(Some(stored), rate, now);
    if state.arrival <= present || amount == 0 {
        return Next::Keep;
    }
    put(State { arrival: state.arrival.saturating_sub(times(amount, rate.window.as_millis())).max(present), ..state })
}

fn put(state: State) -> Next {
    Next::Put { state: AnyState::Gcra(state), expires: state.whole_at() }
}
