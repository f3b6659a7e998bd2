//! What is done to a limit beside taking from it: refund, settle, penalty, reward, reset, block, release, extend.

use super::{Answer, Keyspace, Outcome, Rows};
use crate::engine::command::Bytes;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::Metered;
use crate::rules::limit::{Algorithm, Ask, Limit, Next, State, concurrency};
use crate::values::time::{Duration, Timestamp};

impl<R: Rows> Keyspace<R> {
    pub(in crate::engine::keyspace) fn refund(
        &mut self,
        now: Timestamp,
        amount: u64,
        reset_at: Timestamp,
        key: &[u8],
        limit: &Limit,
        record: bool,
    ) -> Outcome {
        let Metered { state, standing } = self.metered(now, key)?;
        let next = limit.refund(state.as_ref(), amount, reset_at, now);
        let is_given = next != Next::Keep;
        self.put_next(now, key, standing, next)?;
        if record {
            self.record_refund(key);
        }
        Ok(Reply::from_bool(is_given))
    }

    pub(in crate::engine::keyspace) fn settle(
        &mut self,
        now: Timestamp,
        (cost, actual): (u64, u64),
        reset_at: Timestamp,
        key: &[u8],
        limit: &Limit,
    ) -> Outcome {
        let metered = self.metered(now, key)?;
        let next = match actual.checked_sub(cost) {
            None | Some(0) => limit.refund(metered.state.as_ref(), cost.saturating_sub(actual), reset_at, now),
            Some(more) => overdraw(limit, &metered, more, now)?,
        };
        self.adjust(now, key, limit, metered, next)
    }

    pub(in crate::engine::keyspace) fn penalty(
        &mut self,
        now: Timestamp,
        amount: u64,
        key: &[u8],
        limit: &Limit,
    ) -> Outcome {
        let metered = self.metered(now, key)?;
        let next = overdraw(limit, &metered, amount, now)?;
        self.adjust(now, key, limit, metered, next)
    }

    pub(in crate::engine::keyspace) fn reward(
        &mut self,
        now: Timestamp,
        amount: u64,
        key: &[u8],
        limit: &Limit,
    ) -> Outcome {
        let metered = self.metered(now, key)?;
        let next = limit.reward(metered.state.as_ref(), amount, now);
        self.adjust(now, key, limit, metered, next)
    }

    /// Stores what an adjustment made of the state, and answers with a look at it.
    fn adjust(&mut self, now: Timestamp, key: &[u8], limit: &Limit, metered: Metered, next: Next) -> Outcome {
        let standing = metered.standing;
        let state = match &next {
            Next::Keep => metered.state,
            Next::Put { state, .. } => Some(state.clone()),
        };
        let answer = Answer::look(limit, &Metered { state, standing }, now)?.reply();
        self.put_next(now, key, standing, next)?;
        Ok(answer)
    }

    pub(in crate::engine::keyspace) fn reset(&mut self, now: Timestamp, keys: &[Bytes]) -> Outcome {
        for key in keys {
            self.metered(now, key)?;
        }
        let mut known = 0u64;
        for key in keys {
            known = known.saturating_add(self.remove(now, key)?.into());
        }
        Ok(Reply::from_count(known))
    }

    pub(in crate::engine::keyspace) fn block(&mut self, now: Timestamp, span: Duration, keys: &[Bytes]) -> Outcome {
        for key in keys {
            self.metered(now, key)?;
        }
        for key in keys {
            let Metered { state, standing } = self.metered(now, key)?;
            if standing.is_none() && span == Duration::ZERO {
                continue;
            }
            self.put_standing(now, key, state, standing.unwrap_or_default().block(span, now))?;
        }
        Ok(Reply::OK)
    }

    pub(in crate::engine::keyspace) fn release(
        &mut self,
        now: Timestamp,
        token: &[u8],
        keys: &[Bytes],
        record: bool,
    ) -> Outcome {
        self.each_lease(now, keys.iter(), record, |_, slots| concurrency::release(slots, token, now))
    }

    pub(in crate::engine::keyspace) fn extend(
        &mut self,
        now: Timestamp,
        token: &[u8],
        limits: &[(Bytes, Limit)],
    ) -> Outcome {
        if limits.iter().any(|(_, limit)| limit.algorithm != Algorithm::Concurrency) {
            return Err(CommandError::new("ERR algorithm: expected \"concurrency\""));
        }
        let rate = |index: usize| limits.get(index).map(|(_, limit)| limit.rate);
        self.each_lease(now, limits.iter().map(|(key, _)| key), false, |index, slots| {
            rate(index).map_or(Next::Keep, |rate| concurrency::renew(rate, slots, token, now))
        })
    }

    fn each_lease<'a>(
        &mut self,
        now: Timestamp,
        keys: impl Iterator<Item = &'a Bytes>,
        record: bool,
        step: impl Fn(usize, &concurrency::State) -> Next,
    ) -> Outcome {
        let mut held = 0u64;
        for (index, key) in keys.enumerate() {
            let Metered { state, standing } = self.metered(now, key)?;
            let next = match &state {
                None => Next::Keep,
                Some(State::Concurrency(slots)) => step(index, slots),
                Some(_) => return Err(CommandError::new("ERR key: expected one that is counted by concurrency")),
            };
            if next != Next::Keep {
                held = held.saturating_add(1);
                if record {
                    self.record_refund(key);
                }
            }
            self.put_next(now, key, standing, next)?;
        }
        Ok(Reply::from_count(held))
    }
}

fn overdraw(limit: &Limit, metered: &Metered, amount: u64, now: Timestamp) -> Result<Next, CommandError> {
    let ask = Ask { cost: amount, holder: None, overdraws: true };
    Ok(limit.decide_for(metered.state.as_ref(), ask, now)?.1)
}
