//! What a facade needs of the world: the time, waiting, randomness. A test brings its own.

use std::future::Future;

use crate::values::time::{Duration, Timestamp};

/// A clock, timers and randomness.
pub trait Runtime {
    /// The time.
    fn now(&self) -> Timestamp;

    /// Waits for `span`.
    fn sleep(&self, span: Duration) -> impl Future<Output = ()>;

    /// 128 unpredictable bits: the token of a lock.
    fn random(&self) -> u128;
}

impl<R: Runtime> Runtime for &R {
    fn now(&self) -> Timestamp {
        R::now(self)
    }

    fn sleep(&self, span: Duration) -> impl Future<Output = ()> {
        R::sleep(self, span)
    }

    fn random(&self) -> u128 {
        R::random(self)
    }
}
