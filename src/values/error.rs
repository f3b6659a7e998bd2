//! The one error type. `docs/errors.md` has a line on each code.

use std::fmt;

/// What went wrong, as a value to match on. Its [`code`](ErrorKind::code) is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is out of its range or form; the message names it.
    InvalidArgument,
    /// A configuration field is unknown, missing or out of range; the message begins with its path.
    InvalidConfig,
    /// A command answered with an error of its own, in Redis's words.
    Command,
    /// The shard is at its bound of keys or bytes and nothing in it has expired.
    Full,
    /// The store did not answer, answered late or failed. Whether the batch was applied is not known.
    Unavailable,
    /// Workers KV refused the write: more than one a second to the same key.
    WriteConflict,
    /// The answer of a store could not be read.
    Protocol,
    /// The keys of one transaction live on different shards.
    CrossShard,
    /// Somebody else holds the lock.
    Locked,
    /// Somebody else held the lock until the wait ran out.
    WaitTimeout,
    /// The lock expired, was released or went to another owner.
    LockLost,
    /// The store cannot promise this, and the caller did not ask for best effort by name.
    BestEffortRequired,
    /// The counter expired between the two calls of the seed's memcached limiter.
    CounterExpired,
}

impl ErrorKind {
    /// The stable name of this kind.
    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid-argument",
            Self::InvalidConfig => "invalid-config",
            Self::Command => "command-error",
            Self::Full => "shard-full",
            Self::Unavailable => "store-unavailable",
            Self::WriteConflict => "write-conflict",
            Self::Protocol => "protocol-error",
            Self::CrossShard => "cross-shard",
            Self::Locked => "locked",
            Self::WaitTimeout => "wait-timeout",
            Self::LockLost => "lock-lost",
            Self::BestEffortRequired => "best-effort-required",
            Self::CounterExpired => "counter-expired",
        }
    }

    /// Whether the same call may succeed later without being changed.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Full | Self::Unavailable | Self::WriteConflict | Self::Locked | Self::WaitTimeout)
    }
}

/// An error: a kind, and a sentence for a person.
///
/// ```
/// use tollgate::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::Locked, "try again soon");
/// assert_eq!(error.to_string(), "try again soon (locked)");
/// assert!(error.kind().is_retryable());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An [`ErrorKind::InvalidArgument`] that names the argument and what was expected of it.
    pub fn invalid(field: &str, expected: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, format!("{field}: expected {expected}"))
    }

    /// What went wrong.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence alone, without the code.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.code())
    }
}

impl std::error::Error for Error {}
