//! Limits: what every algorithm is given and what it answers. `docs/algorithms.md` compares them.

pub mod calendar;
pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod sliding_log;
pub mod sliding_window;
pub mod standing;
pub mod token_bucket;

use std::fmt;

use crate::values::{error::Error, time::Duration, time::Timestamp, units::Rate};

use calendar::Calendar;
use fixed_window::Start;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Windows aligned to the clock, as the seed's minute. Admits at most the quota in each of them, and
    /// so up to twice the quota in a span of one window that lies across an edge.
    FixedWindow,
    /// Windows that begin with the first hit after the last one ended.
    FixedWindowFromFirstHit,
    /// Windows of the clock, the one before weighted by how much of it is still in sight.
    SlidingWindow,
    /// Every hit of the last window: exact in any span, for quotas up to [`sliding_log::MAX_QUOTA`].
    SlidingLog,
    /// A bucket of the quota that is refilled by the quota a window.
    TokenBucket,
    /// The same decisions from one number.
    Gcra,
    /// At most the quota of slots is held at once, each leased for a window: see [`concurrency`].
    Concurrency,
    /// Days, weeks, months or years. The rate's window is only how long they are about.
    Calendar(Calendar),
}

impl Algorithm {
    /// Those without parameters, by their names in policies, commands and stored keys.
    const PLAIN: [(&str, Self); 7] = [
        ("fixed-window", Self::FixedWindow),
        ("fixed-window-from-first-hit", Self::FixedWindowFromFirstHit),
        ("sliding-window", Self::SlidingWindow),
        ("sliding-log", Self::SlidingLog),
        ("token-bucket", Self::TokenBucket),
        ("gcra", Self::Gcra),
        ("concurrency", Self::Concurrency),
    ];

    /// What [`from_name`](Self::from_name) accepts, for messages.
    pub const EXPECTED: &str = "\"fixed-window\", \"fixed-window-from-first-hit\", \"sliding-window\", \"sliding-log\", \
                                \"token-bucket\", \"gcra\", \"concurrency\", or \"calendar-day\", \"-week\", \"-month\", \"-year\" with \
                                an offset such as \"calendar-day+05:30\"";

    /// The algorithm of that name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let plain = Self::PLAIN.into_iter().find(|(known, _)| *known == name).map(|(_, algorithm)| algorithm);
        plain.or_else(|| Calendar::from_name(name).map(Self::Calendar))
    }
}

impl fmt::Display for Algorithm {
    /// The name in policies, commands and stored keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calendar(calendar) => f.write_str(&calendar.name()),
            plain => f.write_str(Self::PLAIN.iter().find(|(_, known)| known == plain).map_or("", |(name, _)| name)),
        }
    }
}

/// A limit: an algorithm and its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// How it counts.
    pub algorithm: Algorithm,
    /// What it allows.
    pub rate: Rate,
}

/// What a limit remembers of one key. Kept by the keyspace, opaque to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// See [`fixed_window`]. Also of windows from the first hit, and of calendars.
    FixedWindow(fixed_window::State),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::State),
    /// See [`sliding_log`].
    SlidingLog(sliding_log::State),
    /// See [`token_bucket`].
    TokenBucket(token_bucket::State),
    /// See [`gcra`].
    Gcra(gcra::State),
    /// See [`concurrency`].
    Concurrency(concurrency::State),
}

/// What is asked of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Quota units; 0 looks.
    pub cost: u64,
    /// Who holds the slots of a concurrency limit.
    pub holder: Option<&'a [u8]>,
    /// Charge it whether it fits or not: what it is for has happened already. At most one quota is overdrawn.
    pub overdraws: bool,
}

impl Ask<'_> {
    /// The cost, of which no more is charged than [`Rate::most_used`] leaves where `used` is.
    fn within(&self, rate: Rate, used: u64) -> u64 {
        if self.overdraws { self.cost.min(rate.most_used().saturating_sub(used)) } else { self.cost }
    }
}

/// The answer to one request against one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Decision {
    /// Whether the cost fits.
    pub allowed: bool,
    /// Quota units left, after the charge when it is allowed: the largest cost that would pass now.
    pub remaining: u64,
    /// When the used quota is whole again.
    pub reset_at: Timestamp,
    /// On a refusal, the span until the first instant at which the same request would pass.
    pub retry_after: Option<Duration>,
}

/// What becomes of the stored state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Next {
    /// Nothing changes.
    Keep,
    /// The new state, and when it may be forgotten.
    Put {
        /// What to store.
        state: State,
        /// After this instant the state means the same as none.
        expires: Timestamp,
    },
}

impl Limit {
    /// A limit, or an error when the algorithm cannot keep such a quota.
    pub fn new(algorithm: Algorithm, rate: Rate) -> Result<Self, Error> {
        let (most, what) = match algorithm {
            Algorithm::SlidingLog => (sliding_log::MAX_QUOTA, "a sliding log"),
            Algorithm::Concurrency => (concurrency::MAX_QUOTA, "concurrency"),
            _ => return Ok(Self { algorithm, rate }),
        };
        if rate.quota > most {
            return Err(Error::invalid("quota", format_args!("at most {most} with {what}, got {}", rate.quota)));
        }
        Ok(Self { algorithm, rate })
    }

    /// Decides one request of `cost` quota units. Cost 0 peeks: it is always allowed and changes nothing.
    ///
    /// # Errors
    /// A cost above the quota can never pass, so it is an error without a retry time, and charges nothing. So is a state
    /// that another algorithm counted.
    pub fn decide(&self, state: Option<&State>, cost: u64, now: Timestamp) -> Result<(Decision, Next), Error> {
        self.decide_for(state, Ask { cost, ..Ask::default() }, now)
    }

    /// The same, with all that can be asked.
    ///
    /// # Errors
    /// Those of [`decide`](Self::decide); and a slot that nobody holds, or one that overdraws.
    pub fn decide_for(&self, state: Option<&State>, ask: Ask<'_>, now: Timestamp) -> Result<(Decision, Next), Error> {
        let cost = ask.cost;
        if cost > self.rate.quota && !ask.overdraws {
            return Err(Error::invalid("cost", format_args!("at most the quota {}, got {cost}", self.rate.quota)));
        }
        let rate = self.rate;
        Ok(match (self.algorithm, state) {
            (Algorithm::SlidingWindow, None) => sliding_window::decide(rate, None, ask, now),
            (Algorithm::SlidingWindow, Some(State::SlidingWindow(s))) => {
                sliding_window::decide(rate, Some(*s), ask, now)
            }
            (Algorithm::SlidingLog, None) => sliding_log::decide(rate, None, ask, now),
            (Algorithm::SlidingLog, Some(State::SlidingLog(s))) => sliding_log::decide(rate, Some(s), ask, now),
            (Algorithm::TokenBucket, None) => token_bucket::decide(rate, None, ask, now),
            (Algorithm::TokenBucket, Some(State::TokenBucket(s))) => token_bucket::decide(rate, Some(*s), ask, now),
            (Algorithm::Gcra, None) => gcra::decide(rate, None, ask, now),
            (Algorithm::Gcra, Some(State::Gcra(s))) => gcra::decide(rate, Some(*s), ask, now),
            (Algorithm::Concurrency, _) if ask.overdraws => {
                return Err(Error::invalid("algorithm", "one that counts: nobody can be charged for a slot later"));
            }
            (Algorithm::Concurrency, None) => concurrency::decide(rate, None, ask, now)?,
            (Algorithm::Concurrency, Some(State::Concurrency(s))) => concurrency::decide(rate, Some(s), ask, now)?,
            (algorithm, state) => {
                let from = windows(algorithm).ok_or_else(|| self.foreign())?;
                let state = match state {
                    None => None,
                    Some(State::FixedWindow(s)) => Some(*s),
                    Some(_) => return Err(self.foreign()),
                };
                fixed_window::decide(rate, from, state, ask, now)
            }
        })
    }

    /// How long it takes from `now` until more is left than `remaining`, if nothing else comes: the draft's `t`. `state` is
    /// that after the decision. Zero when the whole quota is there.
    pub fn more_after(&self, state: Option<&State>, remaining: u64, now: Timestamp) -> Duration {
        let more = remaining.saturating_add(1);
        if let (Algorithm::Concurrency, Some(State::Concurrency(slots))) = (self.algorithm, state) {
            // By the next lease that ends: nobody knows when a holder is done.
            let ends = slots.leases.iter().map(|lease| lease.until).find(|until| *until > now);
            return ends.map(|until| until.saturating_since(now)).unwrap_or_default();
        }
        let refusal = self.decide(state, more, now).ok().and_then(|(decision, _)| decision.retry_after);
        refusal.unwrap_or_default()
    }

    /// The longest that [`more_after`](Self::more_after) can be.
    pub const fn longest_wait(&self) -> Duration {
        match self.algorithm {
            // A bucket that is overdrawn takes a window more.
            Algorithm::SlidingWindow | Algorithm::TokenBucket | Algorithm::Gcra => {
                Duration::from_millis(self.rate.window.as_millis().saturating_mul(2))
            }
            Algorithm::Calendar(_) => crate::values::units::MAX_WINDOW,
            _ => self.rate.window,
        }
    }

    /// The window as a number of milliseconds, where there is one that always has the same.
    pub const fn fixed_span(&self) -> Option<Duration> {
        match self.algorithm {
            Algorithm::Calendar(calendar) => calendar.fixed_span(),
            Algorithm::Concurrency => None,
            _ => Some(self.rate.window),
        }
    }

    fn foreign(&self) -> Error {
        Error::invalid("key", format_args!("one that is counted by {}, got one of another algorithm", self.algorithm))
    }

    /// Gives `amount` back of a charge that was to be whole again at `reset_at`. A window that is over takes nothing back,
    /// what a bucket has refilled by itself is not given twice, and no refund lifts the remaining quota above the whole.
    pub fn refund(&self, state: Option<&State>, amount: u64, reset_at: Timestamp, now: Timestamp) -> Next {
        match (self.algorithm, state) {
            (Algorithm::SlidingWindow, Some(State::SlidingWindow(s))) => sliding_window::refund(*s, amount, reset_at),
            (Algorithm::SlidingLog, Some(State::SlidingLog(s))) => sliding_log::refund(s, self.rate, amount, reset_at),
            (Algorithm::TokenBucket, Some(State::TokenBucket(s))) => token_bucket::refund(*s, amount, reset_at, now),
            (Algorithm::Gcra, Some(State::Gcra(s))) => gcra::refund(*s, amount, reset_at, now),
            (algorithm, Some(State::FixedWindow(s))) if windows(algorithm).is_some() => {
                fixed_window::refund(*s, amount, reset_at)
            }
            _ => Next::Keep,
        }
    }

    /// Gives `amount` back of whatever is used at `now`, but no more than that: for a key that has earned it. Slots of a
    /// concurrency limit are released instead.
    pub fn reward(&self, state: Option<&State>, amount: u64, now: Timestamp) -> Next {
        match (self.algorithm, state) {
            (Algorithm::SlidingLog, Some(State::SlidingLog(s))) => sliding_log::reward(s, self.rate, amount, now),
            (Algorithm::SlidingWindow, Some(State::SlidingWindow(s))) => {
                sliding_window::reward(*s, self.rate, amount, now)
            }
            (Algorithm::TokenBucket, Some(State::TokenBucket(s))) => token_bucket::reward(*s, self.rate, amount, now),
            (Algorithm::Gcra, Some(State::Gcra(s))) => gcra::reward(*s, self.rate, amount, now),
            (algorithm, Some(State::FixedWindow(s))) => {
                windows(algorithm).map_or(Next::Keep, |from| fixed_window::reward(*s, self.rate, from, amount, now))
            }
            _ => Next::Keep,
        }
    }
}

/// Where the windows of an algorithm begin that counts by fixed ones.
const fn windows(algorithm: Algorithm) -> Option<Start> {
    match algorithm {
        Algorithm::FixedWindow => Some(Start::Clock),
        Algorithm::FixedWindowFromFirstHit => Some(Start::FirstHit),
        Algorithm::Calendar(calendar) => Some(Start::Calendar(calendar)),
        _ => None,
    }
}

/// Two counts, multiplied without loss.
fn times(a: u64, b: u64) -> u128 {
    u128::from(a).saturating_mul(b.into())
}

/// The count, or the largest there is.
fn units(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
