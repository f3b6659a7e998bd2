//! Shards in this process: what is committed survives them, as in an object's SQLite.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::rc::Rc;

use tollgate::{
    Bounds, Bytes, Changes, Durability, Error, ErrorKind, Reclaimed, Row, Rows, Shard, Shards, StoredRows, Timestamp,
    Usage,
};

/// The rows of one object, encoded as they are stored.
#[derive(Clone, Default)]
pub struct Disk(Rc<RefCell<Content>>);

#[derive(Default)]
struct Content {
    rows: BTreeMap<Bytes, Vec<u8>>,
    fencing: u64,
    written: usize,
    broken: bool,
}

impl Disk {
    /// From now on, writing fails (or works again).
    pub fn break_down(&self, broken: bool) {
        self.0.borrow_mut().broken = broken;
    }

    /// Rows written so far.
    pub fn written(&self) -> usize {
        self.0.borrow().written
    }

    fn decoded(&self) -> Vec<(Bytes, Row)> {
        self.0.borrow().rows.iter().map(|(key, row)| (key.clone(), tollgate::decode_row(row).unwrap())).collect()
    }
}

impl Rows for Disk {
    fn is_stored(&self) -> bool {
        true
    }

    fn load(&self, key: &[u8]) -> Result<Option<Row>, Error> {
        self.0.borrow().rows.get(key).map(|row| tollgate::decode_row(row)).transpose()
    }

    fn keys(&self, from: &[u8], until: &[u8]) -> Result<Vec<Bytes>, Error> {
        let range = (Bound::Included(from), Bound::Excluded(until));
        Ok(self.0.borrow().rows.range::<[u8], _>(range).map(|(key, _)| key.clone()).collect())
    }

    fn usage(&self) -> Result<Usage, Error> {
        // As an object's SQLite counts: records take nothing of the bounds.
        let is_counted = |(_, row): &(Bytes, Row)| !matches!(row.value, tollgate::Value::Record(_));
        let rows: Vec<_> = self.decoded().into_iter().filter(is_counted).collect();
        Ok(Usage { keys: rows.len(), bytes: rows.iter().map(|(key, row)| key.len() + row.weight()).sum() })
    }

    fn reclaim(&mut self, now: Timestamp) -> Result<Reclaimed, Error> {
        for (key, row) in self.decoded() {
            if row.is_expired(now) {
                self.0.borrow_mut().rows.remove(&key);
            }
        }
        let next_expiry = self.decoded().into_iter().filter_map(|(_, row)| row.expires).min();
        Ok(Reclaimed { left: self.usage()?, next_expiry })
    }

    fn fencing(&self) -> Result<u64, Error> {
        Ok(self.0.borrow().fencing)
    }
}

impl StoredRows for Disk {
    fn commit(&mut self, changes: &Changes) -> Result<usize, Error> {
        let mut content = self.0.borrow_mut();
        if content.broken {
            return Err(Error::new(ErrorKind::Unavailable, "the disk is broken"));
        }
        for (key, row) in &changes.rows {
            match row {
                Some(row) => content.rows.insert(key.clone(), tollgate::encode_row(row)),
                None => content.rows.remove(key),
            };
        }
        content.fencing = changes.fencing.unwrap_or(content.fencing);
        content.written += changes.rows.len();
        Ok(changes.rows.len())
    }
}

/// Several shards and their disks.
pub struct World<C> {
    clock: C,
    count: u16,
    bounds: Bounds,
    durability: Durability,
    disks: RefCell<HashMap<u16, Disk>>,
    shards: RefCell<HashMap<u16, Shard<Disk>>>,
}

impl<C: Fn() -> Timestamp> World<C> {
    pub fn new(clock: C, count: u16, durability: Durability) -> Self {
        // So little that rows come and go all the time.
        let bounds = Bounds { cache_bytes: 600, ..Bounds::default() };
        Self { clock, count, bounds, durability, disks: RefCell::default(), shards: RefCell::default() }
    }

    /// Every object loses its memory.
    pub fn evict(&self) {
        self.shards.borrow_mut().clear();
    }

    pub fn disk(&self, shard: u16) -> Disk {
        self.disks.borrow_mut().entry(shard).or_default().clone()
    }

    pub fn with<T>(&self, shard: u16, work: impl FnOnce(&mut Shard<Disk>) -> T) -> T {
        let disk = self.disk(shard);
        let mut shards = self.shards.borrow_mut();
        work(shards.entry(shard).or_insert_with(|| Shard::new(disk, self.bounds, 1)))
    }
}

impl<C: Fn() -> Timestamp> Shards for &World<C> {
    fn count(&self) -> u16 {
        self.count
    }

    async fn call(&self, shard: u16, batch: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.with(shard, |shard| shard.exec((self.clock)(), &batch, self.durability))
    }
}
