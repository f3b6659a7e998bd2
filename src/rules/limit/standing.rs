//! How a key stands beside its count: blocked, or on the way to it by being refused again and again.

use crate::values::error::Error;
use crate::values::time::{Duration, Timestamp};
use crate::values::units::MAX_WINDOW;

/// When refusals lead to a block, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Escalation {
    /// So many refusals lead to a block.
    pub after: u64,
    /// The first block.
    pub block: Duration,
    /// Each further one is so many times as long as the one before.
    pub factor: u64,
    /// None is longer.
    pub longest: Duration,
    /// A key that is not refused for so long after its last refusal or block begins anew.
    pub forget: Duration,
}

impl Escalation {
    /// An escalation within the bounds.
    ///
    /// # Errors
    /// Names the part that is outside of them.
    pub fn new(after: u64, block: Duration, factor: u64, longest: Duration, forget: Duration) -> Result<Self, Error> {
        let span = Duration::from_millis(1)..=MAX_WINDOW;
        if after == 0 {
            return Err(Error::invalid("after", format_args!("at least 1 refusal, got 0")));
        }
        if !(1..=1000).contains(&factor) {
            return Err(Error::invalid("factor", format_args!("1 to 1000, got {factor}")));
        }
        for (field, value) in [("block", block), ("longest", longest), ("forget", forget)] {
            if !span.contains(&value) {
                return Err(Error::invalid(field, format_args!("1 ms to 366 days, got {} ms", value.as_millis())));
            }
        }
        if longest < block {
            return Err(Error::invalid("longest", format_args!("at least the first block")));
        }
        Ok(Self { after, block, factor, longest, forget })
    }

    /// The block after `level` earlier ones.
    fn block_at(&self, level: u32) -> Duration {
        let factor = self.factor.saturating_pow(level);
        Duration::from_millis(self.block.as_millis().saturating_mul(factor)).min(self.longest)
    }
}

/// How a key stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standing {
    /// Refused until this instant.
    pub blocked_until: Timestamp,
    /// Refusals since the last block.
    pub strikes: u64,
    /// Blocks that came of refusals.
    pub level: u32,
    /// After this instant it means the same as none.
    pub forgotten_at: Timestamp,
}

impl Standing {
    /// The standing as it is at `now`.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Self {
        if self.forgotten_at < now { Self::default() } else { self }
    }

    /// How much longer it is blocked, if it is.
    pub fn blocked_for(&self, now: Timestamp) -> Option<Duration> {
        (self.blocked_until > now).then(|| self.blocked_until.saturating_since(now))
    }

    /// Blocked for `span` from `now` on, in place of any block there is; a span of none lifts it.
    #[must_use]
    pub fn block(self, span: Duration, now: Timestamp) -> Self {
        let blocked_until = if span == Duration::ZERO { Timestamp::default() } else { now.saturating_add(span) };
        Self { blocked_until, forgotten_at: self.forgotten_at.max(blocked_until), ..self }
    }

    /// Refused once more. What comes while it is blocked changes nothing: a block ends.
    #[must_use]
    pub fn strike(self, escalation: &Escalation, now: Timestamp) -> Self {
        if self.blocked_for(now).is_some() {
            return self;
        }
        let strikes = self.strikes.saturating_add(1);
        if strikes < escalation.after {
            let forgotten_at = now.saturating_add(escalation.forget).max(self.forgotten_at);
            return Self { strikes, forgotten_at, ..self };
        }
        let blocked_until = now.saturating_add(escalation.block_at(self.level));
        let forgotten_at = blocked_until.saturating_add(escalation.forget).max(self.forgotten_at);
        Self { blocked_until, strikes: 0, level: self.level.saturating_add(1), forgotten_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    #[test]
    fn blocks_grow_with_repeated_refusals_up_to_the_longest_and_are_forgotten() {
        let secs = Duration::from_secs;
        let escalation = Escalation::new(2, secs(10), 3, secs(60), secs(100)).unwrap();
        let (mut standing, mut now, mut blocks) = (Standing::default(), 0, Vec::new());
        for _ in 0..4 {
            standing = standing.at(at(now)).strike(&escalation, at(now));
            assert_eq!(standing.blocked_for(at(now)), None, "one refusal is not enough");
            standing = standing.at(at(now)).strike(&escalation, at(now));
            let block = standing.blocked_for(at(now)).unwrap();
            assert_eq!(standing.strike(&escalation, at(now + 1)), standing, "a block is not made longer by asking");
            blocks.push(block.as_secs_ceil());
            now += block.as_secs_ceil();
        }
        assert_eq!(blocks, [10, 30, 60, 60]);
        assert_eq!(standing.at(at(now + 100)).level, 4);
        assert_eq!(standing.at(at(now + 101)), Standing::default());
    }

    #[test]
    fn a_block_can_be_set_made_shorter_and_lifted() {
        let blocked = Standing::default().block(Duration::from_secs(50), at(0));
        assert_eq!(blocked.blocked_for(at(20)), Some(Duration::from_secs(30)));
        assert_eq!(blocked.block(Duration::from_secs(5), at(0)).blocked_for(at(4)), Some(Duration::from_secs(1)));
        assert_eq!(blocked.block(Duration::ZERO, at(1)).blocked_for(at(1)), None);
        assert_eq!(blocked.blocked_for(at(50)), None);
    }

    #[test]
    fn odd_numbers_are_refused_by_name_and_none_of_them_panics() {
        let ms = Duration::from_millis;
        for (after, block, factor, longest, forget, field) in [
            (0, 1, 1, 1, 1, "after"),
            (1, 0, 1, 1, 1, "block"),
            (1, 1, 0, 1, 1, "factor"),
            (1, 2, 1, 1, 1, "longest"),
            (1, 1, 1, 1, u64::MAX, "forget"),
        ] {
            let error = Escalation::new(after, ms(block), factor, ms(longest), ms(forget)).unwrap_err();
            assert!(error.message().starts_with(field), "{error}");
        }
        let escalation = Escalation::new(1, ms(1), 1000, MAX_WINDOW, MAX_WINDOW).unwrap();
        let worst = Standing { level: u32::MAX, strikes: u64::MAX, ..Standing::default() };
        let _ = worst.strike(&escalation, Timestamp::from_millis(u64::MAX));
        assert_eq!(worst.strike(&escalation, at(0)).blocked_for(at(0)), Some(MAX_WINDOW));
    }
}
