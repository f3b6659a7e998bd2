//! Workers KV as it is in production, from its documentation: a place reads what it read up to 60 s ago (misses too),
//! the last writer wins, and a key takes one write a second.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tollgate::{Error, ErrorKind, Namespace};

use super::Clock;

const CACHED_MS: u64 = 60_000;
const BETWEEN_WRITES_MS: u64 = 1000;

type Cached = (u64, Option<Vec<u8>>);

/// The central store, which all places share.
#[derive(Clone, Default)]
pub struct Central(Rc<RefCell<HashMap<String, Entry>>>);

struct Entry {
    value: Option<Vec<u8>>,
    written_ms: u64,
    expiration: Option<u64>,
}

/// One location of the network.
pub struct Place {
    clock: Clock,
    central: Central,
    cache: RefCell<HashMap<String, Cached>>,
    /// Whether this models production; else reads are fresh and writes unlimited, as in the local simulation.
    production: bool,
}

impl Place {
    pub fn production(clock: &Clock, central: &Central) -> Self {
        Self { clock: clock.clone(), central: central.clone(), cache: RefCell::default(), production: true }
    }

    pub fn local(clock: &Clock, central: &Central) -> Self {
        Self { production: false, ..Self::production(clock, central) }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_millis()
    }

    fn write(&self, name: &str, value: Option<Vec<u8>>, expiration: Option<u64>) -> Result<(), Error> {
        let now = self.now();
        assert!(name.len() <= 512 && !["", ".", ".."].contains(&name), "KV refuses the key {name:?}");
        if let Some(at) = expiration {
            assert!(at >= now / 1000 + 60, "KV refuses an expiration less than 60 s ahead: {at} at {now} ms");
        }
        let mut central = self.central.0.borrow_mut();
        if self.production && central.get(name).is_some_and(|entry| now < entry.written_ms + BETWEEN_WRITES_MS) {
            return Err(Error::new(ErrorKind::WriteConflict, "429"));
        }
        central.insert(name.to_owned(), Entry { value: value.clone(), written_ms: now, expiration });
        self.cache.borrow_mut().insert(name.to_owned(), (now, value));
        Ok(())
    }
}

impl Namespace for &Place {
    async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let now = self.now();
        if self.production
            && let Some((read_at, value)) = self.cache.borrow().get(name)
            && now < read_at + CACHED_MS
        {
            return Ok(value.clone());
        }
        let central = self.central.0.borrow();
        let entry = central.get(name).filter(|entry| entry.expiration.is_none_or(|at| now < at * 1000));
        let value = entry.and_then(|entry| entry.value.clone());
        self.cache.borrow_mut().insert(name.to_owned(), (now, value.clone()));
        Ok(value)
    }

    async fn put(&self, name: &str, value: Vec<u8>, expiration: Option<u64>) -> Result<(), Error> {
        self.write(name, Some(value), expiration)
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        self.write(name, None, None)
    }
}
