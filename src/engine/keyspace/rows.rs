//! Where rows come from when they are not in memory.

use std::cell::RefCell;
use std::rc::Rc;

use crate::engine::command::Bytes;
use crate::engine::row::Row;
use crate::values::error::Error;
use crate::values::time::Timestamp;

/// A synchronous source of stored rows. Reading from it never waits, so that read, decide and write are one step.
pub trait Rows {
    /// Whether there is anything to load and anything to write back.
    fn is_stored(&self) -> bool;

    /// The stored row of `key`, expired or not.
    fn load(&self, key: &[u8]) -> Result<Option<Row>, Error>;

    /// The stored keys from `from` on and before `until`, in the order of their bytes.
    fn keys(&self, from: &[u8], until: &[u8]) -> Result<Vec<Bytes>, Error>;

    /// How much is stored.
    fn usage(&self) -> Result<Usage, Error>;

    /// Removes the rows that expired before `now`.
    fn reclaim(&mut self, now: Timestamp) -> Result<Reclaimed, Error>;

    /// The fencing number of the last grant, 0 before the first.
    fn fencing(&self) -> Result<u64, Error>;
}

/// Any source behind one type: the stores share one interpreter, which is a third of the code of a Worker.
pub type SharedRows = Rc<RefCell<dyn Rows>>;

/// A shared source: a store that writes to it as well keeps the other handle.
impl<R: Rows + ?Sized> Rows for Rc<RefCell<R>> {
    fn is_stored(&self) -> bool {
        self.borrow().is_stored()
    }

    fn load(&self, key: &[u8]) -> Result<Option<Row>, Error> {
        self.borrow().load(key)
    }

    fn keys(&self, from: &[u8], until: &[u8]) -> Result<Vec<Bytes>, Error> {
        self.borrow().keys(from, until)
    }

    fn usage(&self) -> Result<Usage, Error> {
        self.borrow().usage()
    }

    fn reclaim(&mut self, now: Timestamp) -> Result<Reclaimed, Error> {
        self.borrow_mut().reclaim(now)
    }

    fn fencing(&self) -> Result<u64, Error> {
        self.borrow().fencing()
    }
}

/// Keys, and bytes in them and their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many keys.
    pub keys: usize,
    /// How many bytes, as [`Row::weight`] counts them, keys included.
    pub bytes: usize,
}

/// What a sweep over the rows found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// What is left.
    pub left: Usage,
    /// The next instant at which one of them expires.
    pub next_expiry: Option<Timestamp>,
}

/// What a store has to write, all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys with their new rows; `None` where the key is gone.
    pub rows: Vec<(Bytes, Option<Row>)>,
    /// The new fencing number, when there was a grant.
    pub fencing: Option<u64>,
}

/// No stored rows: everything is in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRows;

impl Rows for NoRows {
    fn is_stored(&self) -> bool {
        false
    }

    fn load(&self, _: &[u8]) -> Result<Option<Row>, Error> {
        Ok(None)
    }

    fn keys(&self, _: &[u8], _: &[u8]) -> Result<Vec<Bytes>, Error> {
        Ok(Vec::new())
    }

    fn usage(&self) -> Result<Usage, Error> {
        Ok(Usage::default())
    }

    fn reclaim(&mut self, _: Timestamp) -> Result<Reclaimed, Error> {
        Ok(Reclaimed::default())
    }

    fn fencing(&self) -> Result<u64, Error> {
        Ok(0)
    }
}
