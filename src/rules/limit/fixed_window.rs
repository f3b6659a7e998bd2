//! Fixed window: one count for each window. Windows are those of the clock, begin at the first hit, or are calendar months and
//! the like; between two of them, up to twice the quota passes in a span of one window that lies across the edge.

use super::calendar::Calendar;
use super::{Ask, Decision, Next, State as AnyState};
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

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// At the multiples of their length since the epoch.
    Clock,
    /// At the first hit that finds none.
    FirstHit,
    /// With a day, week, month or year.
    Calendar(Calendar),
}

impl State {
    fn end(&self) -> Timestamp {
        self.start.saturating_add(self.window)
    }

    /// The state as it stands in the window of `now` under `rate`.
    fn current(stored: Option<Self>, rate: Rate, from: Start, now: Timestamp) -> Self {
        let (start, window) = match from {
            Start::Clock => (now.floor_to(rate.window), rate.window),
            Start::FirstHit => (now, rate.window),
            Start::Calendar(calendar) => calendar.window_of(now),
        };
        let fresh = Self { start, window, used: 0 };
        match (stored, from) {
            // It ends when the numbers that apply now say so.
            (Some(s), Start::FirstHit) if s.start.saturating_add(window) > now => Self { window, ..s },
            (Some(_), Start::FirstHit) | (None, _) => fresh,
            // The same window, or a later one seen before the clock went back: time that goes back mints nothing.
            (Some(s), _) if s.start >= start && (s.window == window || s.start > start) => s,
            // The policy's window changed while the old one is still open: what was used stays used.
            (Some(s), _) if s.window != window && s.end() > now => Self { used: s.used, ..fresh },
            (Some(_), _) => fresh,
        }
    }
}

/// One step of the algorithm. The cost is at most the quota, unless it overdraws.
pub fn decide(rate: Rate, from: Start, stored: Option<State>, ask: Ask<'_>, now: Timestamp) -> (Decision, Next) {
    let cost = ask.cost;
    let current = State::current(stored, rate, from, now);
    let left = rate.quota.saturating_sub(current.used);
    let reset_at = current.end();
    if cost > left && !ask.overdraws {
        let retry_after = Some(reset_at.saturating_since(now));
        return (Decision { allowed: false, remaining: left, reset_at, retry_after }, Next::Keep);
    }
    let decision = Decision { allowed: true, remaining: left.saturating_sub(cost), reset_at, retry_after: None };
    if cost == 0 {
        return (decision, Next::Keep);
    }
    (decision, put(State { used: current.used.saturating_add(cost).min(rate.most_used()), ..current }))
}

/// Takes `amount` off the count of the window that ends at `reset_at`, if that is the stored one.
pub fn refund(stored: State, amount: u64, reset_at: Timestamp) -> Next {
    if stored.end() != reset_at || amount == 0 {
        return Next::Keep;
    }
    put(State { used: stored.used.saturating_sub(amount), ..stored })
}

/// Takes `amount` off what is used in the window of `now`.
pub fn reward(stored: State, rate: Rate, from: Start, amount: u64, now: Timestamp) -> Next {
    let current = State::current(Some(stored), rate, from, now);
    if current.used.min(amount) == 0 {
        return Next::Keep;
    }
    put(State { used: current.used.saturating_sub(amount), ..current })
}

fn put(state: State) -> Next {
    Next::Put { state: AnyState::FixedWindow(state), expires: state.end() }
}
