//! Locks: the seed's `lock(key, nowait)` without its two defects.
//!
//! One atomic step acquires the lock under a random token with an expiry, so a crash leaves nothing behind for
//! longer than that; only the token releases or renews, so nobody deletes somebody else's; and each grant carries
//! a fencing number larger than any before it, for the resource behind the lock to refuse a holder that slept.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::engine::command::{Bytes, Command, LockRequest, MAX_WAIT};
use crate::engine::reply::Reply;
use crate::facades::limiter::exec;
use crate::facades::runtime::Runtime;
use crate::stores::store::Store;
use crate::values::error::{Error, ErrorKind};
use crate::values::key::hex;
use crate::values::time::{Duration, Timestamp};

/// Between two looks at a lock that is held. The seed looks every 10 ms; each look is a call to the store.
const POLL: Duration = Duration::from_millis(50);

/// A caller that was not heard of for this long is out of the queue.
const ALIVE: Duration = Duration::from_secs(1);

/// How a lock is acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockOptions {
    /// How long the lock lives without renewal; positive. The seed's 10 s.
    pub ttl: Duration,
    /// How long to wait for it; `None` is the seed's `nowait`.
    pub wait: Option<Duration>,
    /// The longest that [`Locks::hold`] renews it for.
    pub max_hold: Duration,
    /// Who asks, for people who look at the lock.
    pub label: Bytes,
    /// Take the lock on a store that cannot promise it: two owners may hold it at the same time.
    pub best_effort: bool,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: None,
            max_hold: Duration::from_secs(3600),
            label: Bytes::new(),
            best_effort: false,
        }
    }
}

/// A lock that is held. It is released by [`Locks::release`] or by its expiry: dropping it cannot wait for a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the lock stays held until it expires"]
pub struct Held {
    key: Bytes,
    token: Bytes,
    fencing: u64,
    expires: Timestamp,
}

impl Held {
    /// The number of this grant: larger than that of every earlier one of this lock.
    pub const fn fencing(&self) -> u64 {
        self.fencing
    }

    /// When the lock expires without renewal, by the store's clock.
    pub const fn expires(&self) -> Timestamp {
        self.expires
    }

    /// The secret that releases and renews.
    pub fn token(&self) -> &[u8] {
        &self.token
    }
}

/// Locks over a store.
#[derive(Clone, Debug)]
pub struct Locks<S, R> {
    store: S,
    runtime: R,
}

impl<S: Store, R: Runtime> Locks<S, R> {
    /// Locks in `store`.
    pub const fn new(store: S, runtime: R) -> Self {
        Self { store, runtime }
    }

    /// The store the locks are in.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Acquires the lock `key`.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] without `wait`, [`ErrorKind::WaitTimeout`] with it,
    /// [`ErrorKind::BestEffortRequired`] on a store that is not atomic, and the store's own.
    pub async fn acquire(&self, key: &[u8], options: &LockOptions) -> Result<Held, Error> {
        self.store.capabilities().require_atomic("a lock", options.best_effort)?;
        let mut request = LockRequest {
            key: key.to_vec(),
            token: hex(&self.runtime.random().to_be_bytes()).into_bytes(),
            ttl: positive(options.ttl)?,
            label: options.label.clone(),
            wait: None,
            poll: None,
        };
        let deadline = options.wait.map(|wait| self.runtime.now().saturating_add(wait));
        loop {
            let now = self.runtime.now();
            let left = deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_since(now));
            if left > Duration::ZERO {
                (request.wait, request.poll) = (Some(left.min(MAX_WAIT)), Some(ALIVE));
            } else {
                (request.wait, request.poll) = (None, None);
            }
            let [reply] = exec(&self.store, [Command::Lock(request.clone())]).await?;
            if let Some((fencing, expires)) = grant(reply)? {
                return Ok(Held { key: request.key, token: request.token, fencing, expires });
            }
            if left == Duration::ZERO {
                return Err(refused(deadline.is_some()));
            }
            self.runtime.sleep(POLL.min(left)).await;
        }
    }

    /// Sets the lock's expiry to `ttl` from now.
    ///
    /// # Errors
    /// [`ErrorKind::LockLost`] when it is not ours any more.
    pub async fn renew(&self, held: &mut Held, ttl: Duration) -> Result<(), Error> {
        let (key, token) = (held.key.clone(), held.token.clone());
        let [reply] = exec(&self.store, [Command::Renew { key, token, ttl: positive(ttl)? }]).await?;
        match grant(reply)? {
            Some((_, expires)) => {
                held.expires = expires;
                Ok(())
            }
            None => Err(lost()),
        }
    }

    /// Releases the lock. The token is kept until the store has confirmed, so a failed call can be made again.
    ///
    /// # Errors
    /// [`ErrorKind::LockLost`] when it was not ours any more.
    pub async fn release(&self, held: &Held) -> Result<(), Error> {
        let (key, token) = (held.key.clone(), held.token.clone());
        let [reply] = exec(&self.store, [Command::Unlock { key, token }]).await?;
        if reply.into_integer()? == 1 { Ok(()) } else { Err(lost()) }
    }

    /// Does `work` under the lock `key`, renews it while the work goes on, and releases it after.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), then the work did not start; [`ErrorKind::LockLost`] when the lock was
    /// lost or `max_hold` was over, then the work was dropped where it stood.
    pub async fn hold<T, F: Future<Output = T>>(
        &self,
        key: &[u8],
        options: &LockOptions,
        work: impl FnOnce(u64) -> F,
    ) -> Result<T, Error> {
        let held = self.acquire(key, options).await?;
        let done = {
            let mut work = pin!(work(held.fencing));
            let mut loss = pin!(self.renew_until_lost(held.clone(), options));
            poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(value) => Poll::Ready(Ok(value)),
                Poll::Pending => loss.as_mut().poll(context).map(Err),
            })
            .await
        };
        match (self.release(&held).await, done) {
            (Err(error), Ok(_)) => Err(error),
            (_, done) => done,
        }
    }

    /// Renews at a third of the time to live; a store that does not answer is asked again until the lock is over.
    async fn renew_until_lost(&self, mut held: Held, options: &LockOptions) -> Error {
        let end = self.runtime.now().saturating_add(options.max_hold);
        let pause = Duration::from_millis(options.ttl.as_millis().div_ceil(3));
        let mut safe_until = self.runtime.now().saturating_add(options.ttl);
        loop {
            self.runtime.sleep(pause.min(end.saturating_since(self.runtime.now()))).await;
            let now = self.runtime.now();
            if now >= end {
                return Error::new(ErrorKind::LockLost, "the lock was held for the longest time allowed");
            }
            match self.renew(&mut held, options.ttl).await {
                Ok(()) => safe_until = now.saturating_add(options.ttl),
                Err(error) if error.kind() == ErrorKind::LockLost || now >= safe_until => return lost(),
                Err(_) => {}
            }
        }
    }
}

fn positive(ttl: Duration) -> Result<Duration, Error> {
    if ttl == Duration::ZERO {
        return Err(Error::invalid("ttl", "a positive number of milliseconds"));
    }
    Ok(ttl)
}

/// The fencing number and expiry of a grant; `None` when the lock is not ours.
pub(crate) fn grant(reply: Reply) -> Result<Option<(u64, Timestamp)>, Error> {
    if reply == Reply::Nil {
        return Ok(None);
    }
    let mut parts = reply.into_array()?.into_iter();
    let mut next = || parts.next().unwrap_or(Reply::Nil);
    if next().into_integer()? == 0 {
        return Ok(None);
    }
    Ok(Some((next().into_count()?, Timestamp::from_millis(next().into_count()?))))
}

fn refused(waited: bool) -> Error {
    if waited {
        Error::new(ErrorKind::WaitTimeout, "somebody else held the lock until the wait ran out")
    } else {
        Error::new(ErrorKind::Locked, "somebody else holds the lock: try again soon")
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::LockLost, "the lock expired, was released or went to another owner")
}
