//! Sliding-window counter: two counts, the older one weighted by how much of its window is still in sight.
//!
//! Windows are those of the clock. At `elapsed` into the current one, the estimate is `previous * (W - elapsed) / W + current`; a
//! request passes while estimate and cost are at most the quota. Both sides are multiplied by `W`, so nothing is rounded
//! before the comparison (case B1: a quota of 1 works). The estimate takes the older hits as spread evenly over their window;
//! no window of the clock ever admits more than the quota.

use super::{Ask, Decision, Next, State as AnyState, times, units};
use crate::values::time::{Duration, Timestamp};
use crate::values::units::Rate;

/// The counts of two neighbouring windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The start of the current window.
    pub start: Timestamp,
    /// The window's length when it was counted: a policy may have changed since.
    pub window: Duration,
    /// Quota units used in the window before.
    pub previous: u64,
    /// Quota units used in the current one.
    pub current: u64,
}

impl State {
    /// The state as it stands at `now` under `rate`.
    fn at(stored: Option<Self>, rate: Rate, now: Timestamp) -> Self {
        let start = now.floor_to(rate.window);
        let fresh = Self { start, window: rate.window, previous: 0, current: 0 };
        let Some(stored) = stored else { return fresh };
        let moved = stored.moved_to(now);
        if stored.window == rate.window {
            return moved;
        }
        // The policy's window changed: what is still in sight counts as used now.
        Self { current: moved.estimate(now), ..fresh }
    }

    /// The same counts, seen from the window of `now`. A clock that goes back moves nothing: it mints nothing.
    fn moved_to(self, now: Timestamp) -> Self {
        let start = now.floor_to(self.window);
        if start <= self.start {
            return self;
        }
        let is_next = start == self.start.saturating_add(self.window);
        Self { start, previous: if is_next { self.current } else { 0 }, current: 0, ..self }
    }

    /// Milliseconds of the previous window that are still in sight at `now`.
    fn in_sight(&self, now: Timestamp) -> u64 {
        self.window.as_millis().saturating_sub(now.saturating_since(self.start).as_millis())
    }

    /// Units used, times the window in milliseconds.
    fn used_times_window(&self, now: Timestamp) -> u128 {
        let previous = times(self.previous, self.in_sight(now));
        previous.saturating_add(times(self.current, self.window.as_millis()))
    }

    /// Units used, rounded up.
    fn estimate(&self, now: Timestamp) -> u64 {
        units(self.used_times_window(now).div_ceil(u128::from(self.window.as_millis().max(1))))
    }

    /// When nothing of it is in sight any more.
    fn whole_at(&self) -> Timestamp {
        let windows: u64 = match (self.current, self.previous) {
            (0, 0) => 0,
            (0, _) => 1,
            _ => 2,
        };
        self.start.saturating_add(Duration::from_millis(self.window.as_millis().saturating_mul(windows)))
    }

    /// The first instant from `now` on at which `cost` fits, if nothing else comes.
    fn fits_at(&self, rate: Rate, cost: u64, now: Timestamp) -> Timestamp {
        let free = rate.quota.saturating_sub(cost);
        if let Some(room) = free.checked_sub(self.current) {
            return self.start.saturating_add(self.elapsed_until(self.previous, room));
        }
        let next = self.start.saturating_add(self.window);
        next.saturating_add(self.elapsed_until(self.current, free)).max(now)
    }

    /// How far into a window the one before, with its `count`, weighs no more than `room`.
    fn elapsed_until(&self, count: u64, room: u64) -> Duration {
        let window = self.window.as_millis();
        let in_sight = times(room, window).checked_div(u128::from(count)).unwrap_or_else(|| window.into());
        Duration::from_millis(window.saturating_sub(units(in_sight)))
    }
}

/// One step of the algorithm. The cost is at most the quota, unless it overdraws.
pub fn decide(rate: Rate, stored: Option<State>, ask: Ask<'_>, now: Timestamp) -> (Decision, Next) {
    let state = State::at(stored, rate, now);
    let cost = ask.within(rate, state.estimate(now));
    let whole = times(rate.quota, rate.window.as_millis());
    let used = state.used_times_window(now);
    let left =
        |used: u128| units(whole.saturating_sub(used).checked_div(u128::from(rate.window.as_millis())).unwrap_or(0));
    let wanted = used.saturating_add(times(cost, rate.window.as_millis()));
    let reset_at = state.whole_at().max(now);
    if cost > 0 && wanted > whole && !ask.overdraws {
        let retry_after = Some(state.fits_at(rate, cost, now).saturating_since(now));
        return (Decision { allowed: false, remaining: left(used), reset_at, retry_after }, Next::Keep);
    }
    if cost == 0 {
        return (Decision { allowed: true, remaining: left(used), reset_at, retry_after: None }, Next::Keep);
    }
    let state = State { current: state.current.saturating_add(cost), ..state };
    let decision = Decision { allowed: true, remaining: left(wanted), reset_at: state.whole_at(), retry_after: None };
    (decision, put(state))
}

/// Takes `amount` off the window whose charges were told to be whole again at `reset_at`.
pub fn refund(stored: State, amount: u64, reset_at: Timestamp) -> Next {
    let end = stored.start.saturating_add(stored.window);
    if amount == 0 {
        Next::Keep
    } else if reset_at == end.saturating_add(stored.window) {
        put(State { current: stored.current.saturating_sub(amount), ..stored })
    } else if reset_at == end {
        put(State { previous: stored.previous.saturating_sub(amount), ..stored })
    } else {
        Next::Keep
    }
}

/// Takes `amount` off what is used, off the newer window first: that one would count the longest.
pub fn reward(stored: State, rate: Rate, amount: u64, now: Timestamp) -> Next {
    let state = State::at(Some(stored), rate, now);
    let current = state.current.min(amount);
    let previous = state.previous.min(amount.saturating_sub(current));
    if current == 0 && previous == 0 {
        return Next::Keep;
    }
    let (current, previous) = (state.current.saturating_sub(current), state.previous.saturating_sub(previous));
    put(State { current, previous, ..state })
}

fn put(state: State) -> Next {
    // Never before a window that a refund may still name.
    let expires = state.start.saturating_add(Duration::from_millis(state.window.as_millis().saturating_mul(2)));
    Next::Put { state: AnyState::SlidingWindow(state), expires }
}
