//! Calls to make, and what came back.

use crate::engine::headers::Body;
use crate::stores::durable_object::shard::Durability;
use crate::values::error::{Error, ErrorKind};

/// Where a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A batch for a shard.
    Shard {
        /// Which.
        shard: u16,
        /// When its counters reach the disk.
        durability: Durability,
    },
    /// A caller that may wait for a lock in a shard. The body holds two commands: the first try, and the one to run
    /// when it is the caller's turn.
    Lock {
        /// Which.
        shard: u16,
    },
    /// A caller that waits no longer. The body is its `TG.UNLOCK`.
    Leave {
        /// Which.
        shard: u16,
    },
    /// A batch for Workers KV.
    Kv {
        /// Locks are taken too.
        best_effort: bool,
    },
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Where it goes.
    pub target: Target,
    /// The encoded batch.
    pub body: Vec<u8>,
    /// How long to wait for the answer, in milliseconds. A call that takes longer has failed.
    pub timeout_ms: u64,
}

/// The answer to a call: encoded replies, or why there are none.
pub type Answer = Result<Vec<u8>, Error>;

/// A response that is made here, or what is added to the origin's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status; `None` forwards the request to the origin.
    pub status: Option<u16>,
    /// Header fields to add.
    pub headers: Vec<(&'static str, String)>,
    /// The body of a response made here.
    pub body: String,
}

impl Response {
    /// A response with a body.
    pub fn new(status: u16, body: Body) -> Self {
        let headers = vec![("content-type", body.media_type.to_owned()), ("cache-control", "no-store".to_owned())];
        Self { status: Some(status), headers, body: body.text }
    }

    /// A response whose body is JSON.
    pub fn json(status: u16, text: String) -> Self {
        Self::new(status, Body { media_type: "application/json", text })
    }

    /// With one more header field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make these calls, all at once, and come back with their answers in the same order.
    Calls(Vec<Call>),
    /// Done.
    Done {
        /// What to answer.
        response: Response,
        /// Calls that nobody waits for.
        afterwards: Vec<Call>,
    },
}

impl Step {
    /// Done, with nothing to do afterwards.
    pub const fn done(response: Response) -> Self {
        Self::Done { response, afterwards: Vec::new() }
    }
}

/// The failure of a call, from the code that its store gave.
pub fn failure(code: &str, message: &str) -> Error {
    let known = [
        ErrorKind::InvalidArgument,
        ErrorKind::Command,
        ErrorKind::Full,
        ErrorKind::WriteConflict,
        ErrorKind::Protocol,
        ErrorKind::BestEffortRequired,
    ];
    let kind = known.into_iter().find(|kind| kind.code() == code).unwrap_or(ErrorKind::Unavailable);
    Error::new(kind, message)
}
