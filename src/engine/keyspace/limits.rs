//! `TG.TAKE`, `TG.PEEK` and `TG.REFUND`.

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::Bytes;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::rules::limit::{Decision, Limit, Next, State};
use crate::rules::series::record::Outcome as Decided;
use crate::values::time::{Duration, Timestamp};

/// What becomes of the answers.
#[derive(Clone, Copy)]
pub(super) struct Take {
    /// Charge the limits, when all of them allow it.
    pub(super) charge: bool,
    /// Record how it went.
    pub(super) record: bool,
}

impl<R: Rows> Keyspace<R> {
    /// Asks every limit first, and charges only when all of them allow it and it is a take.
    pub(super) fn take(&mut self, now: Timestamp, cost: u64, limits: &[(Bytes, Limit)], take: Take) -> Outcome {
        let mut decided = Vec::with_capacity(limits.len());
        for (index, (key, limit)) in limits.iter().enumerate() {
            if limits.iter().take(index).any(|(earlier, _)| earlier == key) {
                return Err(CommandError::new("ERR key: expected each limit under its own key, got one twice"));
            }
            let state = self.limit_state(now, key)?;
            decided.push((limit.decide(state.as_ref(), cost, now)?, state, limit));
        }
        let charges = take.charge && decided.iter().all(|((decision, _), ..)| decision.allowed);
        if charges {
            self.charge(now, limits, &decided)?;
        }
        if take.record && cost > 0 {
            self.record_all(
                now,
                charges,
                limits.iter().map(|(key, _)| key).zip(decided.iter().map(|((decision, _), ..)| decision)),
            );
        }
        let answers = decided.iter().map(|((decision, next), before, limit)| {
            // Where nothing was charged, what is left is what a look at the limit shows.
            let uncharged = || limit.decide(before.as_ref(), 0, now).map(|(peeked, _)| peeked.remaining);
            let remaining = if charges { decision.remaining } else { uncharged()? };
            let state = match next {
                Next::Put { state, .. } if charges => Some(state),
                _ => before.as_ref(),
            };
            let more_at = now.saturating_add(limit.more_after(state, remaining, now));
            Ok(answer(Decision { remaining, ..*decision }, more_at))
        });
        answers.collect::<Result<_, CommandError>>().map(Reply::Array)
    }

    /// A limit that allows what another one refuses has decided nothing.
    fn record_all<'a>(
        &mut self,
        now: Timestamp,
        charged: bool,
        decisions: impl Iterator<Item = (&'a Bytes, &'a Decision)>,
    ) {
        for (key, decision) in decisions {
            if !decision.allowed {
                self.record(now, key, Decided::Denied);
            } else if charged {
                self.record(now, key, Decided::Allowed);
            }
        }
    }

    fn charge(
        &mut self,
        now: Timestamp,
        limits: &[(Bytes, Limit)],
        decided: &[((Decision, Next), Option<State>, &Limit)],
    ) -> Result<(), CommandError> {
        for (index, ((key, _), ((_, next), ..))) in limits.iter().zip(decided).enumerate() {
            if let Err(error) = self.store_state(now, key, next.clone()) {
                // No room for this one: what was charged before it goes back.
                for ((key, _), (_, before, _)) in limits.iter().zip(decided).take(index) {
                    self.restore_state(now, key, before.clone())?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn refund(
        &mut self,
        now: Timestamp,
        amount: u64,
        reset_at: Timestamp,
        key: &[u8],
        limit: &Limit,
        record: bool,
    ) -> Outcome {
        let state = self.limit_state(now, key)?;
        let next = limit.refund(state.as_ref(), amount, reset_at, now);
        let is_given = next != Next::Keep;
        self.store_state(now, key, next)?;
        if record {
            self.record_refund(key);
        }
        Ok(Reply::from_bool(is_given))
    }

    fn limit_state(&mut self, now: Timestamp, key: &[u8]) -> Result<Option<State>, CommandError> {
        match self.live(now, key)?.map(|row| &row.value) {
            None => Ok(None),
            Some(Value::Limit(state)) => Ok(Some(state.clone())),
            Some(_) => Err(CommandError::wrong_type()),
        }
    }

    fn store_state(&mut self, now: Timestamp, key: &[u8], next: Next) -> Result<(), CommandError> {
        match next {
            Next::Keep => Ok(()),
            Next::Put { state, expires } => {
                self.put(now, key, Row { value: Value::Limit(state), expires: Some(expires) })
            }
        }
    }

    fn restore_state(&mut self, now: Timestamp, key: &[u8], before: Option<State>) -> Result<(), CommandError> {
        let expires = self.live(now, key)?.and_then(|row| row.expires);
        match before {
            Some(state) => self.put(now, key, Row { value: Value::Limit(state), expires }),
            None => self.remove(now, key).map(drop),
        }
    }
}

/// Allowed, remaining, reset at (ms), retry after (ms or nil), more at (ms).
fn answer(decision: Decision, more_at: Timestamp) -> Reply {
    Reply::Array(vec![
        Reply::from_bool(decision.allowed),
        Reply::from_count(decision.remaining),
        Reply::from_count(decision.reset_at.as_millis()),
        decision.retry_after.map_or(Reply::Nil, |span: Duration| Reply::from_count(span.as_millis())),
        Reply::from_count(more_at.as_millis()),
    ])
}
