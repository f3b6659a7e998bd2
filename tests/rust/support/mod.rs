//! What several tests use.

pub mod disk;
pub mod namespace;
pub mod python;
pub mod redis;
pub mod rng;
pub mod server;

use std::cell::Cell;
use std::rc::Rc;

use tollgate::{Command, Timestamp};

/// A clock that a test sets.
#[derive(Clone, Default)]
pub struct Clock(Rc<Cell<u64>>);

impl Clock {
    pub fn at(millis: u64) -> Self {
        Self(Rc::new(Cell::new(millis)))
    }

    pub fn set(&self, millis: u64) {
        self.0.set(millis);
    }

    pub fn advance(&self, millis: u64) {
        self.0.set(self.0.get() + millis);
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.get())
    }

    pub fn reader(&self) -> impl Fn() -> Timestamp + use<> {
        let clock = self.clone();
        move || clock.now()
    }
}

/// A command from its words.
pub fn command(line: &str) -> Command {
    let argv = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    Command::parse(argv).unwrap_or_else(|error| panic!("{line}: {}", error.text()))
}

/// Runs a future that never has to wait.
pub fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

/// A runtime on this thread whose time is virtual: it jumps to the next timer when nothing else is left to do.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}
