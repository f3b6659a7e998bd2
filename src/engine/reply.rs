//! Replies, in Redis's own shapes and words.

use crate::values::error::{Error, ErrorKind};

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A status line such as `OK`.
    Status(&'static str),
    /// An integer.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
    /// The command failed; the others of its batch did not.
    Error(CommandError),
}

/// Why a command failed, in Redis's words: a code in capitals, then a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    text: String,
    discards_transaction: bool,
}

impl CommandError {
    /// An error with its whole text, code included.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), discards_transaction: false }
    }

    /// An error that Redis finds when a command is queued: it discards the transaction it stands in.
    pub fn malformed(text: impl Into<String>) -> Self {
        Self { text: text.into(), discards_transaction: true }
    }

    /// "ERR syntax error"
    pub fn syntax() -> Self {
        Self::new("ERR syntax error")
    }

    /// "ERR value is not an integer or out of range"
    pub fn not_an_integer() -> Self {
        Self::new("ERR value is not an integer or out of range")
    }

    /// "WRONGTYPE Operation against a key holding the wrong kind of value"
    pub fn wrong_type() -> Self {
        Self::new("WRONGTYPE Operation against a key holding the wrong kind of value")
    }

    /// "ERR invalid expire time in '...' command"
    pub fn invalid_expire(command: &str) -> Self {
        Self::new(format!("ERR invalid expire time in '{command}' command"))
    }

    /// Whether the command was not run because the replies before it were too large together: asked again in a batch
    /// of its own, it may fit.
    pub fn is_over_budget(&self) -> bool {
        self.text == OVER_BUDGET
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a transaction with this command in it is discarded.
    pub const fn discards_transaction(&self) -> bool {
        self.discards_transaction
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Full => "FULL",
            ErrorKind::Unavailable => "STORAGE",
            _ => "ERR",
        };
        Self::new(format!("{code} {}", error.message()))
    }
}

impl From<CommandError> for Error {
    /// The error a facade gives on. The code in capitals decides the kind.
    fn from(error: CommandError) -> Self {
        let kind = match error.text.split(' ').next() {
            Some("FULL") => ErrorKind::Full,
            Some("STORAGE") => ErrorKind::Unavailable,
            Some("CROSSSLOT") => ErrorKind::CrossShard,
            Some("NOTATOMIC") => ErrorKind::BestEffortRequired,
            _ => ErrorKind::Command,
        };
        Self::new(kind, error.text)
    }
}

impl Reply {
    /// `OK`
    pub const OK: Self = Self::Status("OK");

    /// 1 or 0.
    pub const fn from_bool(yes: bool) -> Self {
        Self::Integer(if yes { 1 } else { 0 })
    }

    /// An integer reply; counts above `i64::MAX` stop there.
    pub fn from_count(count: u64) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// A string, or nil.
    pub fn from_option(value: Option<Vec<u8>>) -> Self {
        value.map_or(Self::Nil, Self::Bulk)
    }

    /// The integer, or why there is none.
    pub fn into_integer(self) -> Result<i64, Error> {
        match self {
            Self::Integer(value) => Ok(value),
            other => Err(other.unexpected("an integer")),
        }
    }

    /// A count, or why there is none.
    pub fn into_count(self) -> Result<u64, Error> {
        u64::try_from(self.into_integer()?)
            .map_err(|_| Error::new(ErrorKind::Protocol, "expected a count, got a negative integer"))
    }

    /// The parts, or why there are none.
    pub fn into_array(self) -> Result<Vec<Self>, Error> {
        match self {
            Self::Array(parts) => Ok(parts),
            other => Err(other.unexpected("an array")),
        }
    }

    /// Bytes this reply takes, about.
    pub fn weight(&self) -> usize {
        let inner = match self {
            Self::Bulk(bytes) => bytes.len(),
            Self::Array(parts) => parts.iter().map(Self::weight).sum(),
            Self::Error(error) => error.text().len(),
            Self::Nil | Self::Status(_) | Self::Integer(_) => 0,
        };
        inner.saturating_add(16)
    }

    /// The error for a reply of another shape than `expected`: the command's own when it failed.
    pub fn unexpected(self, expected: &str) -> Error {
        match self {
            Self::Error(error) => error.into(),
            other => Error::new(ErrorKind::Protocol, format!("expected {expected} as reply, got {other:?}")),
        }
    }
}

const OVER_BUDGET: &str = "ERR the replies before this one are too large together: send fewer commands";

/// What is left of the bytes that a batch may answer with. A small batch can ask for a large value many times.
#[derive(Clone, Copy, Debug)]
pub struct ReplyBudget(usize);

impl ReplyBudget {
    /// A budget of so many bytes.
    pub const fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// Runs a command while there is something left; after that it is refused and not run.
    pub fn spend(&mut self, run: impl FnOnce() -> Reply) -> Reply {
        if self.0 == 0 {
            return Reply::Error(CommandError::new(OVER_BUDGET));
        }
        let reply = run();
        self.0 = self.0.saturating_sub(reply.weight());
        reply
    }
}

impl From<Result<Reply, CommandError>> for Reply {
    fn from(result: Result<Reply, CommandError>) -> Self {
        result.unwrap_or_else(Self::Error)
    }
}
