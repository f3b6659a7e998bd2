//! One shard: a keyspace over stored rows, its lock waiters, and when what is written.

use crate::engine::command::{Bytes, Command, LockRequest};
use std::cell::RefCell;
use std::rc::Rc;

use crate::engine::keyspace::{Bounds, Changes, Keyspace, Rows, SharedRows};
use crate::engine::reply::Reply;
use crate::engine::resp::{Argv, decode_batch, encode_replies};
use crate::rules::series::recorder::Recorder;
use crate::stores::store::check_batch;
use crate::values::error::{Error, ErrorKind};
use crate::values::time::{Duration, Timestamp};

/// Rows that can be written. All of `changes` is kept, or none.
pub trait StoredRows: Rows {
    /// Writes `changes` in one step and says how many rows that took.
    fn commit(&mut self, changes: &Changes) -> Result<usize, Error>;
}

/// When the counters of a batch reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Soon: several hits share a row, and a crash may lose the last moments. Locks are written at once all the same.
    Relaxed,
    /// Before the reply leaves.
    Strict,
}

/// The brain of a Durable Object.
pub struct Shard<R: StoredRows> {
    keyspace: Keyspace<SharedRows>,
    rows: Rc<RefCell<R>>,
    /// How late relaxed changes may be written.
    flush_after: Duration,
    /// When the first change was made that is not written yet.
    changed_at: Option<Timestamp>,
}

/// What a shard says to one request for a lock.
#[derive(Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// Answer now with this encoded reply.
    Now(Vec<u8>),
    /// Somebody else holds it: the caller is in the queue under its token.
    Queued,
}

impl<R: StoredRows + 'static> Shard<R> {
    /// A shard over `rows`.
    pub fn new(rows: R, bounds: Bounds, seed: u64) -> Self {
        let rows = Rc::new(RefCell::new(rows));
        let shared: SharedRows = rows.clone();
        let keyspace = Keyspace::new(shared, bounds, seed);
        Self { keyspace, rows, flush_after: Duration::from_secs(1), changed_at: None }
    }

    /// With another time after which relaxed changes are written.
    #[must_use]
    pub fn flushing_after(self, flush_after: Duration) -> Self {
        Self { flush_after, ..self }
    }

    /// A shard that records the decisions of policies.
    #[must_use]
    pub fn recording(self, recorder: Recorder) -> Self {
        Self { keyspace: self.keyspace.recording(recorder), ..self }
    }

    /// Runs an encoded batch and encodes its replies.
    ///
    /// # Errors
    /// The batch could not be read, or not be written: then nothing of it remains.
    pub fn exec(&mut self, now: Timestamp, batch: &[u8], durability: Durability) -> Result<Vec<u8>, Error> {
        let batch = decode_batch(batch)?;
        check_batch(batch.len(), self.keyspace.bounds().batch_commands)?;
        let mut must_write = durability == Durability::Strict;
        let mut budget = self.keyspace.reply_budget();
        let run = |argv| budget.spend(|| self.run(now, argv, &mut must_write));
        let replies: Vec<Reply> = batch.into_iter().map(run).collect();
        if must_write || self.keyspace.is_over_cache() {
            self.flush()?;
        }
        if self.keyspace.is_over_cache() {
            self.keyspace.trim();
        }
        if self.keyspace.has_changes() {
            self.changed_at.get_or_insert(now);
        }
        Ok(encode_replies(&replies))
    }

    fn run(&mut self, now: Timestamp, argv: Argv, must_write: &mut bool) -> Reply {
        match Command::parse(argv) {
            Ok(command) => {
                *must_write |= command.is_always_durable();
                self.keyspace.apply(now, &command)
            }
            Err(error) => Reply::Error(error),
        }
    }

    /// Acquires a lock for a caller that may wait. `body` holds two `TG.LOCK`: the first try, and the one for
    /// [`turn`](Self::turn).
    pub fn lock(&mut self, now: Timestamp, body: &[u8]) -> Result<LockAnswer, Error> {
        let command = waiting_commands(body)?.0;
        let reply = self.keyspace.apply(now, &command);
        self.flush()?;
        let is_held = matches!(&reply, Reply::Array(parts) if parts.first() == Some(&Reply::Integer(0)));
        let waits = matches!(&command, Command::Lock(LockRequest { wait: Some(_), .. }));
        Ok(if waits && is_held { LockAnswer::Queued } else { LockAnswer::Now(encode_replies(&[reply])) })
    }

    /// Asks again for a caller whose turn it is or whose wait is over, and answers it one way or the other. Two
    /// replies, the first nil, say that the caller has waited.
    pub fn turn(&mut self, now: Timestamp, body: &[u8]) -> Result<Vec<u8>, Error> {
        let reply = self.keyspace.apply(now, &waiting_commands(body)?.1);
        self.flush()?;
        Ok(encode_replies(&[Reply::Nil, reply]))
    }

    /// Lets a caller that hung up leave: `body` is its `TG.UNLOCK`. Gives back its token.
    pub fn leave(&mut self, now: Timestamp, body: &[u8]) -> Result<Bytes, Error> {
        let unlock = decode_batch(body)?.pop().unwrap_or_default();
        let Command::Unlock { key, token } = Command::parse(unlock)? else {
            return Err(Error::new(ErrorKind::Protocol, "expected TG.UNLOCK"));
        };
        let _ = self.keyspace.apply(now, &Command::Unlock { key, token: token.clone() });
        self.flush()?;
        Ok(token)
    }

    /// Whose turn it is on each awaited lock: the tokens to ask again, and those whose wait is over. An asker
    /// that gets the lock is out of the queue; the next turn comes when that lock is free.
    pub fn turns(&mut self, now: Timestamp) -> Result<Vec<Bytes>, Error> {
        let mut called = Vec::new();
        for lock in self.keyspace.awaited_locks() {
            let turn = self.keyspace.turn(now, &lock)?;
            called.extend(turn.over);
            called.extend(turn.next);
        }
        Ok(called)
    }

    /// When to look at [`turns`](Self::turns) again if nothing happens before.
    pub fn next_turn(&mut self, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        let mut next: Option<Timestamp> = None;
        for lock in self.keyspace.awaited_locks() {
            let at = self.keyspace.next_turn(now, &lock)?;
            next = [next, at].into_iter().flatten().min();
        }
        Ok(next)
    }

    /// When something should be written, if anything is to be: see [`flush_due`](Self::flush_due).
    pub fn next_flush(&self) -> Option<Timestamp> {
        let changes = self.changed_at.map(|at| at.saturating_add(self.flush_after));
        [changes, self.keyspace.records_due()].into_iter().flatten().min()
    }

    /// Writes what has changed, in one step, and says how many rows that took. When that fails, memory goes back to what
    /// is stored. What was recorded of policies is not written here: no request waits for it.
    pub fn flush(&mut self) -> Result<usize, Error> {
        self.changed_at = None;
        if !self.keyspace.has_changes() {
            return Ok(0);
        }
        let changes = self.keyspace.take_changes();
        let written = self.rows.borrow_mut().commit(&changes);
        if written.is_err() {
            self.keyspace.forget_changes(&changes);
        }
        written
    }

    /// Writes what is due at `now`: changes, and what was recorded with them.
    pub fn flush_due(&mut self, now: Timestamp) -> Result<usize, Error> {
        if self.keyspace.records_due().is_some_and(|due| due <= now) {
            return self.flush_records(now, false);
        }
        self.flush()
    }

    /// Writes everything, what was recorded of policies too.
    pub fn flush_all(&mut self, now: Timestamp) -> Result<usize, Error> {
        self.flush_records(now, true)
    }

    fn flush_records(&mut self, now: Timestamp, all: bool) -> Result<usize, Error> {
        // Where that fails, what was recorded waits, and the counters are written all the same.
        let staged = self.keyspace.stage_records(now, all);
        let written = self.flush();
        self.keyspace.settle_records(now, staged.is_ok() && written.is_ok());
        written
    }

    /// Removes expired rows; says when to come again, `None` when nothing is left.
    pub fn clean_up(&mut self, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        self.flush_all(now)?;
        let left = self.keyspace.reclaim(now)?;
        Ok(self.keyspace.next_expiry().or_else(|| (left.keys > 0).then_some(now)))
    }

    /// The keyspace, for tests and tools.
    pub const fn keyspace(&self) -> &Keyspace<SharedRows> {
        &self.keyspace
    }
}

/// The token of a caller that may wait.
pub fn waiter_token(body: &[u8]) -> Result<Bytes, Error> {
    match waiting_commands(body)?.0 {
        Command::Lock(request) => Ok(request.token),
        _ => Err(Error::new(ErrorKind::Protocol, "expected TG.LOCK")),
    }
}

/// The first try, and the command for the caller's turn.
fn waiting_commands(body: &[u8]) -> Result<(Command, Command), Error> {
    let commands: Vec<Command> = decode_batch(body)?.into_iter().map(Command::parse).collect::<Result<_, _>>()?;
    match <[Command; 2]>::try_from(commands) {
        Ok([first @ Command::Lock(_), second @ Command::Lock(_)]) => Ok((first, second)),
        _ => Err(Error::new(ErrorKind::Protocol, "expected two TG.LOCK")),
    }
}
