//! The memory store: a keyspace in this process or isolate.

use std::cell::RefCell;

use crate::engine::command::Command;
use crate::engine::keyspace::{Bounds, Keyspace, NoRows};
use crate::engine::reply::Reply;
use crate::stores::store::{Capabilities, Store, check_batch};
use crate::values::error::Error;
use crate::values::time::{Duration, Timestamp};

/// Exact within one process, gone with it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{Bounds, Command, MemoryStore, Reply, Store, Timestamp};
/// let store = MemoryStore::new(|| Timestamp::from_millis(0), Bounds::default(), 7);
/// let replies = store.exec(&[Command::IncrBy { key: b"k".to_vec(), by: 2 }]).await?;
/// assert_eq!(replies, [Reply::Integer(2)]);
/// # Ok::<(), tollgate::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct MemoryStore<C> {
    clock: C,
    keyspace: RefCell<Keyspace<NoRows>>,
}

impl<C: Fn() -> Timestamp> MemoryStore<C> {
    /// An empty store that reads the time from `clock`, once a batch. `seed` should be random: it keeps
    /// strangers from choosing keys that slow the store down.
    pub fn new(clock: C, bounds: Bounds, seed: u64) -> Self {
        Self { clock, keyspace: RefCell::new(Keyspace::new(NoRows, bounds, seed)) }
    }
}

impl<C: Fn() -> Timestamp> Store for MemoryStore<C> {
    async fn exec(&self, batch: &[Command]) -> Result<Vec<Reply>, Error> {
        let mut keyspace = self.keyspace.borrow_mut();
        check_batch(batch.len(), keyspace.bounds().batch_commands)?;
        let now = (self.clock)();
        let mut budget = keyspace.reply_budget();
        Ok(batch.iter().map(|command| budget.spend(|| keyspace.apply(now, command))).collect())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            atomic: true,
            durable: false,
            staleness: None,
            smallest_ttl: Duration::from_millis(1),
            fair_waiting: true,
        }
    }
}
