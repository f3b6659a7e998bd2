//! Sliding log: every hit of the last window, so any span of one window admits at most the quota. Exact, for small quotas.

use std::collections::VecDeque;

use super::{Ask, Decision, Next, State as AnyState};
use crate::values::time::{Duration, Timestamp};
use crate::values::units::Rate;

/// The largest quota: it bounds what a key remembers.
pub const MAX_QUOTA: u64 = 10_000;

/// Hits in the order of time. Those of one millisecond are one entry, and their costs add up (case B7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// When, and how many quota units.
    pub hits: VecDeque<(Timestamp, u64)>,
}

impl State {
    /// What of it is in the window that ends at `now`. A hit is in for exactly one window (case B6: pruned before it is counted).
    fn at(stored: Option<&Self>, rate: Rate, now: Timestamp) -> Self {
        let hits = stored.map(|state| state.hits.iter().copied()).into_iter().flatten();
        Self { hits: hits.filter(|(at, _)| at.saturating_add(rate.window) > now).collect() }
    }

    fn used(&self) -> u64 {
        self.hits.iter().fold(0, |sum: u64, (_, cost)| sum.saturating_add(*cost))
    }

    fn whole_at(&self, window: Duration) -> Option<Timestamp> {
        self.hits.back().map(|(at, _)| at.saturating_add(window))
    }

    /// When so many hits have left that `units` are free again: not when the newest leaves (case B5).
    fn frees_at(&self, units: u64, window: Duration) -> Option<Timestamp> {
        let mut freed = 0u64;
        let leaves = self.hits.iter().find(|(_, cost)| {
            freed = freed.saturating_add(*cost);
            freed >= units
        });
        leaves.map(|(at, _)| at.saturating_add(window))
    }

    fn push(&mut self, now: Timestamp, cost: u64) {
        // A clock that went back: the hit counts for as long as the one before it.
        let at = self.hits.back().map_or(now, |(last, _)| now.max(*last));
        match self.hits.back_mut() {
            Some((last, sum)) if *last == at => *sum = sum.saturating_add(cost),
            _ => self.hits.push_back((at, cost)),
        }
    }
}

/// One step of the algorithm. The cost is at most the quota, unless it overdraws.
pub fn decide(rate: Rate, stored: Option<&State>, ask: Ask<'_>, now: Timestamp) -> (Decision, Next) {
    let mut state = State::at(stored, rate, now);
    let cost = ask.within(rate, state.used());
    let left = rate.quota.saturating_sub(state.used());
    let reset_at = state.whole_at(rate.window).unwrap_or(now).max(now);
    if cost > left && !ask.overdraws {
        let over = state.used().saturating_add(cost).saturating_sub(rate.quota);
        let retry_after = state.frees_at(over, rate.window).map(|at| at.saturating_since(now));
        return (Decision { allowed: false, remaining: left, reset_at, retry_after }, Next::Keep);
    }
    if cost == 0 {
        return (Decision { allowed: true, remaining: left, reset_at, retry_after: None }, Next::Keep);
    }
    state.push(now, cost);
    let reset_at = state.whole_at(rate.window).unwrap_or(now);
    let decision = Decision { allowed: true, remaining: left.saturating_sub(cost), reset_at, retry_after: None };
    (decision, Next::Put { state: AnyState::SlidingLog(state), expires: reset_at })
}

/// Takes `amount` off the hits that were to leave at `reset_at`.
pub fn refund(stored: &State, rate: Rate, amount: u64, reset_at: Timestamp) -> Next {
    let mut state = stored.clone();
    let Some(hit) = state.hits.iter_mut().find(|(at, _)| at.saturating_add(rate.window) == reset_at) else {
        return Next::Keep;
    };
    if amount == 0 {
        return Next::Keep;
    }
    hit.1 = hit.1.saturating_sub(amount);
    state.hits.retain(|(_, cost)| *cost > 0);
    let expires = state.whole_at(rate.window).unwrap_or(reset_at);
    Next::Put { state: AnyState::SlidingLog(state), expires }
}

/// Takes `amount` off the newest hits, those that would count the longest.
pub fn reward(stored: &State, rate: Rate, amount: u64, now: Timestamp) -> Next {
    let mut state = State::at(Some(stored), rate, now);
    let mut left = amount;
    for (_, cost) in state.hits.iter_mut().rev() {
        let back = left.min(*cost);
        (left, *cost) = (left.saturating_sub(back), cost.saturating_sub(back));
    }
    if left == amount {
        return Next::Keep;
    }
    state.hits.retain(|(_, cost)| *cost > 0);
    let expires = state.whole_at(rate.window).unwrap_or(now);
    Next::Put { state: AnyState::SlidingLog(state), expires }
}
