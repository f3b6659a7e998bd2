//! Limits: what every algorithm is given and what it answers.

pub mod fixed_window;

use crate::values::{error::Error, time::Duration, time::Timestamp, units::Rate};

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Windows aligned to the clock, as the seed's minute. Admits at most the quota in each of them, and
    /// so up to twice the quota in a span of one window that lies across an edge.
    FixedWindow,
}

impl Algorithm {
    /// The name in policies, commands and stored keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
        }
    }

    /// The algorithm of that name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        (name == Self::FixedWindow.name().as_bytes()).then_some(Self::FixedWindow)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// See [`fixed_window`].
    FixedWindow(fixed_window::State),
}

/// The answer to one request against one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Decision {
    /// Whether the cost fits.
    pub allowed: bool,
    /// Quota units left, after the charge when it is allowed.
    pub remaining: u64,
    /// When the used quota is whole again.
    pub reset_at: Timestamp,
    /// On a refusal, the span until the first instant at which the same request would pass.
    pub retry_after: Option<Duration>,
}

/// What becomes of the stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Decides one request of `cost` quota units. Cost 0 peeks: it is always allowed and changes nothing.
    ///
    /// # Errors
    /// A cost above the quota can never pass, so it is an error without a retry time, and charges nothing.
    pub fn decide(&self, state: Option<State>, cost: u64, now: Timestamp) -> Result<(Decision, Next), Error> {
        if cost > self.rate.quota {
            return Err(Error::invalid("cost", format_args!("at most the quota {}, got {cost}", self.rate.quota)));
        }
        Ok(match self.algorithm {
            Algorithm::FixedWindow => fixed_window::decide(self.rate, state.map(|State::FixedWindow(s)| s), cost, now),
        })
    }

    /// Gives `amount` back to the window that ends at `reset_at`. A window that is over takes nothing back,
    /// and no refund lifts the remaining quota above the whole.
    pub fn refund(&self, state: Option<State>, amount: u64, reset_at: Timestamp) -> Next {
        match (self.algorithm, state) {
            (Algorithm::FixedWindow, Some(State::FixedWindow(s))) => fixed_window::refund(s, amount, reset_at),
            (Algorithm::FixedWindow, None) => Next::Keep,
        }
    }
}
