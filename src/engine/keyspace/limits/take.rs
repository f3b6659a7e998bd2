//! `TG.TAKE` and `TG.PEEK`: ask every limit, then charge all of them or none.

use super::{Answer, Keyspace, Outcome, Rows};
use crate::engine::command::{Charge, Take};
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Metered, Row, Value};
use crate::rules::limit::standing::Standing;
use crate::rules::limit::{Ask, Decision, Next};
use crate::rules::series::record::Outcome as Decided;
use crate::values::time::Timestamp;

/// One limit, before anything is charged.
struct Look<'a> {
    charge: &'a Charge,
    /// What is asked: the cost, or what is granted of it.
    cost: u64,
    before: Metered,
    decision: Decision,
    next: Next,
}

impl Look<'_> {
    const fn passes(&self) -> bool {
        self.decision.allowed || self.charge.shadow
    }

    /// Whether it would be charged, once all pass.
    const fn is_charged(&self) -> bool {
        self.decision.allowed && self.cost > 0
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        self.before.standing.is_some_and(|standing| standing.blocked_for(now).is_some())
    }
}

impl<R: Rows> Keyspace<R> {
    /// Asks every limit first, and charges only when all of them allow it and `is_take`.
    pub(in crate::engine::keyspace) fn take(&mut self, now: Timestamp, take: &Take, is_take: bool) -> Outcome {
        let looks = self.look(now, take)?;
        let passes = looks.iter().all(Look::passes);
        let charges = passes && is_take;
        if charges {
            self.charge(now, &looks)?;
        }
        let standings = self.strike(now, &looks)?;
        if take.record {
            self.record_takes(now, &looks, charges);
        }
        let answers = looks.iter().zip(standings).map(|(look, standing)| {
            let (limit, is_charged) = (&look.charge.limit, charges && look.is_charged());
            let after = match &look.next {
                Next::Put { state, .. } if is_charged => Some(state.clone()),
                _ => look.before.state.clone(),
            };
            // What is left is what a look at the limit shows, charged or not.
            let mut answer = Answer::look(limit, &Metered { state: after, standing }, now)?;
            answer.decision.allowed = look.decision.allowed;
            let own = look.decision.retry_after;
            let block = standing.and_then(|standing| standing.blocked_for(now));
            answer.decision.retry_after = if look.decision.allowed { None } else { own.max(block) };
            answer.granted = if is_charged { look.cost } else { 0 };
            Ok(answer.reply())
        });
        answers.collect::<Result<_, CommandError>>().map(Reply::Array)
    }

    fn look<'a>(&mut self, now: Timestamp, take: &'a Take) -> Result<Vec<Look<'a>>, CommandError> {
        let mut found: Vec<(&Charge, Metered)> = Vec::with_capacity(take.charges.len());
        for charge in &take.charges {
            if found.iter().any(|(earlier, _)| earlier.key == charge.key) {
                return Err(CommandError::new("ERR key: expected each limit under its own key, got one twice"));
            }
            let metered = self.metered(now, &charge.key)?;
            found.push((charge, metered));
        }
        let most = if take.partial { most_granted(&found, now)? } else { u64::MAX };
        let holder = take.token.as_deref();
        let looks = found.into_iter().map(|(charge, before)| {
            let cost = charge.cost.min(most);
            let ask = Ask { cost, holder, overdraws: false };
            let (mut decision, next) = charge.limit.decide_for(before.state.as_ref(), ask, now)?;
            let block = before.standing.and_then(|standing| standing.blocked_for(now));
            if cost > 0 && block.is_some() {
                decision.allowed = false;
            }
            Ok(Look { charge, cost, before, decision, next })
        });
        looks.collect()
    }

    fn charge(&mut self, now: Timestamp, looks: &[Look<'_>]) -> Result<(), CommandError> {
        let charged = || looks.iter().filter(|look| look.is_charged());
        for (index, look) in charged().enumerate() {
            if let Err(error) = self.put_next(now, &look.charge.key, look.before.standing, look.next.clone()) {
                // No room for this one: what was charged before it goes back.
                for earlier in charged().take(index) {
                    self.restore(now, &earlier.charge.key, &earlier.before)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn restore(&mut self, now: Timestamp, key: &[u8], before: &Metered) -> Result<(), CommandError> {
        if *before == Metered::default() {
            return self.remove(now, key).map(drop);
        }
        let expires = self.live(now, key)?.and_then(|row| row.expires);
        self.put(now, key, Row { value: Value::Limit(before.clone()), expires })
    }

    /// Counts refusals where that leads to a block, and says how each key stands now. Where there is no room for it, the
    /// refusal stands all the same.
    fn strike(&mut self, now: Timestamp, looks: &[Look<'_>]) -> Result<Vec<Option<Standing>>, CommandError> {
        let mut standings = Vec::with_capacity(looks.len());
        for look in looks {
            let mut standing = look.before.standing;
            if let Some(escalation) = look.charge.escalation.filter(|_| !look.decision.allowed && !look.is_blocked(now))
            {
                let struck = standing.unwrap_or_default().strike(&escalation, now);
                if self.put_standing(now, &look.charge.key, look.before.state.clone(), struck).is_ok() {
                    standing = Some(struck);
                }
            }
            standings.push(standing);
        }
        Ok(standings)
    }

    /// A limit that allows what another one refuses has decided nothing.
    fn record_takes(&mut self, now: Timestamp, looks: &[Look<'_>], charged: bool) {
        for look in looks.iter().filter(|look| look.cost > 0) {
            let outcome = match (look.decision.allowed, look.charge.shadow) {
                (true, _) if charged => Decided::Allowed,
                (false, false) => Decided::Denied,
                (false, true) if charged => Decided::Shadowed,
                _ => continue,
            };
            self.record(now, &look.charge.key, outcome);
        }
    }
}

/// As much of the cost as all limits have, or the cost when one of them has nothing: then it is refused as a whole.
fn most_granted(found: &[(&Charge, Metered)], now: Timestamp) -> Result<u64, CommandError> {
    let mut most = u64::MAX;
    for (charge, metered) in found.iter().filter(|(charge, _)| !charge.shadow) {
        let is_blocked = metered.standing.is_some_and(|standing| standing.blocked_for(now).is_some());
        let (look, _) = charge.limit.decide(metered.state.as_ref(), 0, now)?;
        most = most.min(if is_blocked { 0 } else { look.remaining });
    }
    let smallest = found.iter().map(|(charge, _)| charge.limit.rate.quota).min().unwrap_or(u64::MAX);
    Ok(if most == 0 { smallest } else { most })
}
