//! Who waits for which lock, in the order of arrival.
//!
//! The queue lives in memory beside the locks: a waiter is a caller that is still there, so there is nothing
//! to keep when the process that holds the queue is gone. Each waiter carries two instants: its deadline, and
//! the one until which it counts as alive. A caller that polls renews the second with every poll, so that
//! one that died does not stop those behind it.

use std::collections::{HashMap, VecDeque};

use crate::values::{error::Error, error::ErrorKind, time::Timestamp};

/// The most callers that may wait in one keyspace, for all of its locks together.
pub const MAX_WAITERS: usize = 10_000;

/// One caller in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The owner token the lock will be granted to; also the waiter's name.
    pub token: Vec<u8>,
    /// When the caller stops waiting.
    pub deadline: Timestamp,
    /// Until when the caller counts as there without word from it.
    pub alive_until: Timestamp,
}

impl Waiter {
    fn is_waiting(&self, now: Timestamp) -> bool {
        now < self.deadline && now <= self.alive_until
    }
}

/// The queues of all locks of one keyspace.
#[derive(Debug, Default)]
pub struct WaitQueue {
    by_lock: HashMap<Vec<u8>, VecDeque<Waiter>>,
}

impl WaitQueue {
    /// Puts `waiter` at the end of the queue for `lock`, or renews it where it stands.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] when [`MAX_WAITERS`] are waiting at `now`.
    pub fn join(&mut self, lock: &[u8], waiter: Waiter, now: Timestamp) -> Result<(), Error> {
        let known = self.by_lock.get_mut(lock).and_then(|queue| queue.iter_mut().find(|w| w.token == waiter.token));
        if let Some(known) = known {
            *known = waiter;
            return Ok(());
        }
        if self.total() >= MAX_WAITERS {
            for lock in self.locks() {
                self.prune(&lock, now);
            }
        }
        if self.total() >= MAX_WAITERS {
            return Err(Error::new(ErrorKind::Full, format!("{MAX_WAITERS} callers wait for locks already")));
        }
        self.by_lock.entry(lock.to_vec()).or_default().push_back(waiter);
        Ok(())
    }

    fn total(&self) -> usize {
        self.by_lock.values().map(VecDeque::len).sum()
    }

    /// Takes the waiter out of the queue. False when it was not in it.
    pub fn leave(&mut self, lock: &[u8], token: &[u8]) -> bool {
        let Some(queue) = self.by_lock.get_mut(lock) else { return false };
        let before = queue.len();
        queue.retain(|w| w.token != token);
        let left = queue.len() < before;
        if queue.is_empty() {
            self.by_lock.remove(lock);
        }
        left
    }

    /// Whether somebody else than `token` is first in the queue at `now`. Forgets those who stopped waiting.
    pub fn is_behind_another(&mut self, lock: &[u8], token: &[u8], now: Timestamp) -> bool {
        self.prune(lock, now);
        self.first(lock).is_some_and(|first| first.token != token)
    }

    /// The waiter that is next in turn.
    pub fn first(&self, lock: &[u8]) -> Option<&Waiter> {
        self.by_lock.get(lock)?.front()
    }

    /// How many callers wait for `lock` at `now`.
    pub fn len(&self, lock: &[u8], now: Timestamp) -> usize {
        self.by_lock.get(lock).map_or(0, |queue| queue.iter().filter(|w| w.is_waiting(now)).count())
    }

    /// Forgets the waiters of `lock` whose time is over, and returns their tokens.
    pub fn prune(&mut self, lock: &[u8], now: Timestamp) -> Vec<Vec<u8>> {
        let Some(queue) = self.by_lock.get_mut(lock) else { return Vec::new() };
        let (waiting, over): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(queue).into_iter().partition(|w| w.is_waiting(now));
        *queue = waiting;
        if queue.is_empty() {
            self.by_lock.remove(lock);
        }
        over.into_iter().map(|w| w.token).collect()
    }

    /// The locks that somebody waits for.
    pub fn locks(&self) -> Vec<Vec<u8>> {
        self.by_lock.keys().cloned().collect()
    }

    /// The next instant at which a waiter of `lock` gives up.
    pub fn next_deadline(&self, lock: &[u8]) -> Option<Timestamp> {
        self.by_lock.get(lock)?.iter().map(|w| w.deadline.min(w.alive_until)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(token: &str, deadline: u64, alive_until: u64) -> Waiter {
        Waiter {
            token: token.into(),
            deadline: Timestamp::from_millis(deadline),
            alive_until: Timestamp::from_millis(alive_until),
        }
    }

    #[test]
    fn turns_come_in_the_order_of_arrival_and_the_dead_lose_theirs() {
        let (mut queue, at) = (WaitQueue::default(), Timestamp::from_millis);
        for (token, deadline, alive) in [("a", 100, 100), ("b", 100, 20), ("c", 50, 50)] {
            queue.join(b"k", waiter(token, deadline, alive), at(0)).unwrap();
        }
        queue.join(b"k", waiter("a", 100, 10), at(0)).unwrap();
        assert_eq!(queue.len(b"k", at(0)), 3, "joining twice keeps one place");
        assert!(queue.is_behind_another(b"k", b"b", at(0)));
        assert!(!queue.is_behind_another(b"k", b"b", at(11)), "a was not heard of since 10");
        assert_eq!(queue.next_deadline(b"k"), Some(at(20)));
        assert_eq!(queue.prune(b"k", at(60)), [b"b".to_vec(), b"c".to_vec()]);
        assert_eq!(queue.locks().len(), 0);
    }

    #[test]
    fn leaving_is_idempotent() {
        let mut queue = WaitQueue::default();
        queue.join(b"k", waiter("a", 9, 9), Timestamp::default()).unwrap();
        assert!(queue.leave(b"k", b"a"));
        assert!(!queue.leave(b"k", b"a"));
        assert!(queue.first(b"k").is_none());
    }

    #[test]
    fn a_full_queue_refuses_until_somebody_gave_up() {
        let (mut queue, at) = (WaitQueue::default(), Timestamp::from_millis);
        for i in 0..MAX_WAITERS {
            let lock = (i % 100).to_string();
            queue.join(lock.as_bytes(), waiter(&i.to_string(), 9, 9), at(0)).unwrap();
        }
        assert_eq!(queue.join(b"k", waiter("x", 99, 99), at(8)).unwrap_err().kind(), ErrorKind::Full);
        assert!(queue.join(b"k", waiter("x", 99, 99), at(9)).is_ok());
        assert_eq!(queue.locks(), [b"k".to_vec()]);
    }
}
