//! Concurrency: at most the quota of slots is held at once.
//!
//! A slot is leased under a token for one window. Who is done releases it, who takes longer renews it, and one whose holder
//! died is free again when its lease ends: it is pruned by the next look.

use super::{Ask, Decision, Next, State as AnyState};
use crate::values::error::Error;
use crate::values::time::Timestamp;
use crate::values::units::Rate;

/// The largest quota: it bounds what a key remembers.
pub const MAX_QUOTA: u64 = 10_000;

/// The longest token, in bytes.
pub const MAX_TOKEN: usize = 64;

/// The slots that are held, those that end first in front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// One for each token.
    pub leases: Vec<Lease>,
}

/// Slots that one holder has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The holder's secret, by which it renews and releases.
    pub token: Vec<u8>,
    /// How many.
    pub slots: u64,
    /// From this instant on they are free again.
    pub until: Timestamp,
}

impl State {
    /// What of it is still held at `now`, without what `token` holds.
    fn others(stored: Option<&Self>, token: &[u8], now: Timestamp) -> Self {
        let leases = stored.map(|state| state.leases.iter()).into_iter().flatten();
        Self { leases: leases.filter(|lease| lease.until > now && lease.token != token).cloned().collect() }
    }

    fn held(&self) -> u64 {
        self.leases.iter().fold(0, |sum: u64, lease| sum.saturating_add(lease.slots))
    }

    /// When all of it is free again without a release.
    fn free_at(&self) -> Option<Timestamp> {
        self.leases.last().map(|lease| lease.until)
    }

    /// When so many leases have ended that `slots` more are free.
    fn frees_at(&self, slots: u64) -> Option<Timestamp> {
        let mut freed = 0u64;
        let ends = self.leases.iter().find(|lease| {
            freed = freed.saturating_add(lease.slots);
            freed >= slots
        });
        ends.map(|lease| lease.until)
    }

    fn with(mut self, lease: Lease) -> Self {
        let at = self.leases.partition_point(|held| held.until <= lease.until);
        self.leases.insert(at, lease);
        self
    }

    fn put(self, now: Timestamp) -> Next {
        let expires = self.free_at().unwrap_or(now);
        Next::Put { state: AnyState::Concurrency(self), expires }
    }
}

/// One step of the algorithm. `ask.cost` is at most the quota; the rate's window is the lease. The same token asking again
/// gets its slots for another lease, so a repeated request holds them once.
///
/// # Errors
/// A cost without a holder, or one whose token is too long.
pub fn decide(rate: Rate, stored: Option<&State>, ask: Ask<'_>, now: Timestamp) -> Result<(Decision, Next), Error> {
    let token = ask.holder.unwrap_or_default();
    if ask.cost > 0 && !(1..=MAX_TOKEN).contains(&token.len()) {
        let got = token.len();
        return Err(Error::invalid("token", format_args!("1 to {MAX_TOKEN} bytes for a slot, got {got}")));
    }
    let others = State::others(stored, token, now);
    let left = rate.quota.saturating_sub(others.held());
    let everything = State::others(stored, b"", now);
    let peek = Decision {
        allowed: true,
        remaining: rate.quota.saturating_sub(everything.held()),
        reset_at: everything.free_at().unwrap_or(now),
        retry_after: None,
    };
    if ask.cost > left {
        let over = others.held().saturating_add(ask.cost).saturating_sub(rate.quota);
        let retry_after = others.frees_at(over).map(|at| at.saturating_since(now));
        return Ok((Decision { allowed: false, retry_after, ..peek }, Next::Keep));
    }
    if ask.cost == 0 {
        return Ok((peek, Next::Keep));
    }
    let until = now.saturating_add(rate.window);
    let state = others.with(Lease { token: token.to_vec(), slots: ask.cost, until });
    let remaining = left.saturating_sub(ask.cost);
    let reset_at = state.free_at().unwrap_or(until);
    Ok((Decision { remaining, reset_at, ..peek }, state.put(now)))
}

/// Frees what `token` holds. Once it holds nothing, nothing changes.
pub fn release(stored: &State, token: &[u8], now: Timestamp) -> Next {
    if !stored.leases.iter().any(|lease| lease.token == token && lease.until > now) {
        return Next::Keep;
    }
    State::others(Some(stored), token, now).put(now)
}

/// Gives what `token` holds another lease from `now` on. A lease that has ended is not given again: its slots may be others'.
pub fn renew(rate: Rate, stored: &State, token: &[u8], now: Timestamp) -> Next {
    let Some(lease) = stored.leases.iter().find(|lease| lease.token == token && lease.until > now) else {
        return Next::Keep;
    };
    // A clock that went back, or a shorter lease, takes nothing away that was promised.
    let until = now.saturating_add(rate.window).max(lease.until);
    State::others(Some(stored), token, now).with(Lease { until, ..lease.clone() }).put(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::{Algorithm, Limit};
    use crate::values::time::Duration;
    use proptest::prelude::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn state(next: Next) -> State {
        match next {
            Next::Put { state: AnyState::Concurrency(state), .. } => state,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_holders_slot_is_free_when_its_lease_ends_and_not_before() {
        let rate = Rate { quota: 1, window: Duration::from_millis(1000) };
        let ask = |token: &'static [u8]| Ask { cost: 1, holder: Some(token), overdraws: false };
        let held = state(decide(rate, None, ask(b"a"), at(0)).unwrap().1);
        let refused = decide(rate, Some(&held), ask(b"b"), at(400)).unwrap().0;
        assert_eq!((refused.allowed, refused.retry_after), (false, Some(Duration::from_millis(600))));
        assert!(!decide(rate, Some(&held), ask(b"b"), at(999)).unwrap().0.allowed);
        assert!(decide(rate, Some(&held), ask(b"b"), at(1000)).unwrap().0.allowed);
        assert_eq!(renew(rate, &held, b"a", at(1000)), Next::Keep, "it may be another's by now");
        let renewed = state(renew(rate, &held, b"a", at(900)));
        assert!(!decide(rate, Some(&renewed), ask(b"b"), at(1899)).unwrap().0.allowed);
        let again = decide(rate, Some(&held), ask(b"a"), at(500)).unwrap().0;
        assert!(again.allowed, "the same request once more holds its slot once");
        let released = state(release(&held, b"a", at(1)));
        assert_eq!((release(&released, b"a", at(1)), released.leases.len()), (Next::Keep, 0));
        let error = decide(rate, None, Ask { cost: 1, holder: None, overdraws: false }, at(0)).unwrap_err();
        assert_eq!(error.message(), "token: expected 1 to 64 bytes for a slot, got 0");
    }

    proptest! {
        /// The model is a map of who holds what until when.
        #[test]
        fn never_more_slots_are_held_than_the_quota(
            steps in prop::collection::vec((0u64..400, 0u8..5, 0u64..4, 0u8..4), 1..60), quota in 1u64..6
        ) {
            let rate = Rate { quota, window: Duration::from_millis(1000) };
            let limit = Limit::new(Algorithm::Concurrency, rate).unwrap();
            let mut model = std::collections::BTreeMap::<u8, (u64, u64)>::new();
            let (mut stored, mut now) = (None::<State>, 0);
            for (wait, holder, cost, operation) in steps {
                now += wait;
                model.retain(|_, (_, until)| *until > now);
                let token = [holder];
                let next = match operation {
                    0 => {
                        let held = model.remove(&holder).is_some();
                        let next = stored.as_ref().map_or(Next::Keep, |stored| release(stored, &token, at(now)));
                        prop_assert_eq!(next != Next::Keep, held);
                        next
                    }
                    1 => {
                        let lease = model.get_mut(&holder).map(|(_, until)| *until = now + 1000);
                        let next = stored.as_ref().map_or(Next::Keep, |stored| renew(rate, stored, &token, at(now)));
                        prop_assert_eq!(next != Next::Keep, lease.is_some());
                        next
                    }
                    _ if cost > quota => Next::Keep,
                    _ => {
                        let ask = Ask { cost, holder: Some(&token), overdraws: false };
                        let any = stored.clone().map(AnyState::Concurrency);
                        let (decision, next) = limit.decide_for(any.as_ref(), ask, at(now)).unwrap();
                        let others: u64 = model.iter().filter(|(who, _)| **who != holder).map(|(_, (n, _))| n).sum();
                        prop_assert_eq!(decision.allowed, others + cost <= quota || cost == 0);
                        if let Some(wait) = decision.retry_after {
                            let then = |span: u64| limit.decide_for(any.as_ref(), ask, at(now + span)).unwrap().0.allowed;
                            prop_assert!(then(wait.as_millis()) && !then(wait.as_millis() - 1));
                        }
                        if decision.allowed && cost > 0 {
                            model.insert(holder, (cost, now + 1000));
                        }
                        let held: u64 = model.values().map(|(slots, _)| slots).sum();
                        prop_assert_eq!(decision.remaining, quota - held);
                        next
                    }
                };
                if let Next::Put { state: AnyState::Concurrency(state), .. } = next {
                    stored = Some(state);
                }
                prop_assert!(model.values().map(|(slots, _)| slots).sum::<u64>() <= quota);
            }
        }
    }
}
