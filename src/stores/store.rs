//! The store abstraction: one method, and one that follows from it.

use std::future::Future;

use crate::engine::command::Command;
use crate::engine::reply::Reply;
use crate::values::error::{Error, ErrorKind};
use crate::values::time::Duration;

/// A place that runs batches of commands.
pub trait Store {
    /// Runs a batch: in order, nothing in between, one round trip. It is Redis's `MULTI ... EXEC`: a command that
    /// errs answers with its error and does not undo the others; a crash keeps the whole batch or none of it.
    ///
    /// # Errors
    /// The batch as a whole was refused or its outcome is not known. The errors of single commands are replies.
    fn exec(&self, batch: &[Command]) -> impl Future<Output = Result<Vec<Reply>, Error>>;

    /// Runs commands that have nothing to do with each other, and answers each on its own. Where keys are spread over
    /// shards, those of each shard are one batch, and the shards are asked in parallel: one that fails makes only its
    /// own commands fail. Everywhere else it is one [`exec`](Self::exec).
    fn pipeline(&self, commands: &[Command]) -> impl Future<Output = Vec<Result<Reply, Error>>> {
        async move {
            match self.exec(commands).await {
                Ok(replies) => replies.into_iter().map(Ok).collect(),
                Err(error) => commands.iter().map(|_| Err(error.clone())).collect(),
            }
        }
    }

    /// What this store can promise.
    fn capabilities(&self) -> Capabilities;
}

/// What a store promises, for callers that must not take less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A short name for messages.
    pub name: &'static str,
    /// Batches run one after the other. Without it, racing writers lose updates, so a lock or an exact limit is
    /// refused unless the caller asks for best effort by name.
    pub atomic: bool,
    /// What was acknowledged survives the end of the process.
    pub durable: bool,
    /// How old a value that was read may be; `None` where reads see every earlier write.
    pub staleness: Option<Duration>,
    /// The shortest time to live that the backend itself keeps. Shorter ones still expire on time: their end is
    /// stored with the value.
    pub smallest_ttl: Duration,
    /// Callers that wait for a lock get it in the order of arrival.
    pub fair_waiting: bool,
}

impl Capabilities {
    /// Refuses what needs atomic batches, unless the caller asked for best effort by name.
    pub fn require_atomic(&self, what: &str, best_effort: bool) -> Result<(), Error> {
        if self.atomic || best_effort {
            return Ok(());
        }
        let message = format!("{} cannot promise {what}: ask for best effort by name, or use another store", self.name);
        Err(Error::new(ErrorKind::BestEffortRequired, message))
    }
}

impl<S: Store> Store for &S {
    fn exec(&self, batch: &[Command]) -> impl Future<Output = Result<Vec<Reply>, Error>> {
        S::exec(self, batch)
    }

    fn pipeline(&self, commands: &[Command]) -> impl Future<Output = Vec<Result<Reply, Error>>> {
        S::pipeline(self, commands)
    }

    fn capabilities(&self) -> Capabilities {
        S::capabilities(self)
    }
}

impl<S: Store> Store for std::rc::Rc<S> {
    fn exec(&self, batch: &[Command]) -> impl Future<Output = Result<Vec<Reply>, Error>> {
        S::exec(self, batch)
    }

    fn pipeline(&self, commands: &[Command]) -> impl Future<Output = Vec<Result<Reply, Error>>> {
        S::pipeline(self, commands)
    }

    fn capabilities(&self) -> Capabilities {
        S::capabilities(self)
    }
}

/// Refuses a batch that is longer than `most` commands.
pub(crate) fn check_batch(length: usize, most: usize) -> Result<(), Error> {
    if length <= most {
        return Ok(());
    }
    Err(Error::invalid("batch", format_args!("at most {most} commands, got {length}")))
}
