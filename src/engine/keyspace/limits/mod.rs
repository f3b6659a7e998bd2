//! The limits' own commands: `TG.TAKE`, `TG.PEEK`, and what is done to a limit from outside.

mod adjust;
mod take;

use super::{Keyspace, Outcome, Rows};
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Metered, Row, Value};
use crate::rules::limit::standing::Standing;
use crate::rules::limit::{Decision, Limit, Next, State};
use crate::values::time::{Duration, Timestamp};

impl<R: Rows> Keyspace<R> {
    /// What is known of a limit's key. Its standing is that of `now`.
    fn metered(&mut self, now: Timestamp, key: &[u8]) -> Result<Metered, CommandError> {
        match self.live(now, key)?.map(|row| &row.value) {
            None => Ok(Metered::default()),
            Some(Value::Limit(Metered { state, standing })) => {
                let standing = standing.map(|standing| standing.at(now)).filter(|now| *now != Standing::default());
                Ok(Metered { state: state.clone(), standing })
            }
            Some(_) => Err(CommandError::wrong_type()),
        }
    }

    /// Stores a limit's next state beside its standing.
    fn put_next(
        &mut self,
        now: Timestamp,
        key: &[u8],
        standing: Option<Standing>,
        next: Next,
    ) -> Result<(), CommandError> {
        let Next::Put { state, expires } = next else { return Ok(()) };
        let expires = standing.map_or(expires, |standing| standing.forgotten_at.max(expires));
        let value = Value::Limit(Metered { state: Some(state), standing });
        self.put(now, key, Row { value, expires: Some(expires) })
    }

    /// Stores a limit's standing beside its state.
    fn put_standing(
        &mut self,
        now: Timestamp,
        key: &[u8],
        state: Option<State>,
        standing: Standing,
    ) -> Result<(), CommandError> {
        let before = self.live(now, key)?.and_then(|row| row.expires).unwrap_or(now);
        let value = Value::Limit(Metered { state, standing: Some(standing) });
        self.put(now, key, Row { value, expires: Some(standing.forgotten_at.max(before)) })
    }
}

/// One limit's part of an answer.
struct Answer {
    decision: Decision,
    more_at: Timestamp,
    granted: u64,
    is_blocked: bool,
}

impl Answer {
    /// What a look at the limit shows in this state.
    fn look(limit: &Limit, metered: &Metered, now: Timestamp) -> Result<Self, CommandError> {
        let (decision, _) = limit.decide(metered.state.as_ref(), 0, now)?;
        let more_at = now.saturating_add(limit.more_after(metered.state.as_ref(), decision.remaining, now));
        let answer = Self { decision, more_at, granted: 0, is_blocked: false };
        Ok(answer.blocked(metered.standing, now))
    }

    /// The same, when the key is blocked: nothing is left before the block ends.
    fn blocked(mut self, standing: Option<Standing>, now: Timestamp) -> Self {
        let Some(standing) = standing.filter(|standing| standing.blocked_for(now).is_some()) else { return self };
        let until = standing.blocked_until;
        self.decision.remaining = 0;
        self.decision.reset_at = self.decision.reset_at.max(until);
        self.more_at = self.more_at.max(until);
        self.is_blocked = true;
        self
    }

    /// Allowed, remaining, reset at (ms), retry after (ms or nil), more at (ms), granted, blocked.
    fn reply(&self) -> Reply {
        let Decision { allowed, remaining, reset_at, retry_after } = self.decision;
        Reply::Array(vec![
            Reply::from_bool(allowed),
            Reply::from_count(remaining),
            Reply::from_count(reset_at.as_millis()),
            retry_after.map_or(Reply::Nil, |span: Duration| Reply::from_count(span.as_millis())),
            Reply::from_count(self.more_at.as_millis()),
            Reply::from_count(self.granted),
            Reply::from_bool(self.is_blocked),
        ])
    }
}

#[cfg(test)]
mod tests;
