//! The rows of an object, in its SQLite.

use js_sys::{Array, ArrayBuffer, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;

use super::convert;
use crate::engine::command::Bytes;
use crate::engine::keyspace::{Changes, RECORD_PREFIX, Reclaimed, Rows, Usage};
use crate::engine::row::{ROW_OVERHEAD, Row, decode, encode};
use crate::stores::durable_object::shard::StoredRows;
use crate::values::error::{Error, ErrorKind};
use crate::values::number::{MAX_SAFE_INTEGER, to_f64};
use crate::values::time::Timestamp;

#[wasm_bindgen]
extern "C" {
    /// `ctx.storage` of an object.
    pub type Storage;
    type SqlStorage;
    type Cursor;

    #[wasm_bindgen(method, getter, catch)]
    fn sql(this: &Storage) -> Result<SqlStorage, JsValue>;

    #[wasm_bindgen(method, catch, js_name = transactionSync)]
    fn transaction_sync(this: &Storage, work: &mut dyn FnMut() -> Result<JsValue, JsValue>)
    -> Result<JsValue, JsValue>;

    #[wasm_bindgen(method, catch, variadic)]
    fn exec(this: &SqlStorage, query: &str, bindings: &Array) -> Result<Cursor, JsValue>;

    // Not `one()`: it throws for no row.
    #[wasm_bindgen(method, catch, js_name = toArray)]
    fn to_array(this: &Cursor) -> Result<Array, JsValue>;

    #[wasm_bindgen(method, catch, getter, js_name = rowsWritten)]
    fn rows_written(this: &Cursor) -> Result<f64, JsValue>;
}

/// Without rowid, a row is written once: a table with one would write its index too, and rows written are what an
/// object costs. `expires` has no index for the same reason; the clean-up reads them all, which is cheaper.
const SCHEMA: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB NOT NULL, expires INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
];

/// The rows of one object.
pub(super) struct SqlRows {
    storage: Storage,
}

impl SqlRows {
    /// Opens the tables, and makes them in a new object.
    pub(super) fn open(storage: Storage) -> Result<Self, Error> {
        let rows = Self { storage };
        for table in SCHEMA {
            rows.query(table, &[])?;
        }
        Ok(rows)
    }

    fn run(&self, query: &str, bindings: &[JsValue]) -> Result<Cursor, JsValue> {
        self.storage.sql()?.exec(query, &bindings.iter().collect())
    }

    fn query(&self, query: &str, bindings: &[JsValue]) -> Result<Array, Error> {
        self.run(query, bindings).and_then(|cursor| cursor.to_array()).map_err(|error| failed(&error))
    }

    /// The first row of the answer.
    fn first(&self, query: &str, bindings: &[JsValue]) -> Result<Option<JsValue>, Error> {
        Ok(self.query(query, bindings)?.iter().next())
    }

    fn write(&self, changes: &Changes) -> Result<f64, JsValue> {
        let mut written = 0.0;
        for (key, row) in &changes.rows {
            let key = blob(key);
            let cursor = match row {
                Some(row) => self.run(
                    "INSERT OR REPLACE INTO rows (key, value, expires) VALUES (?, ?, ?)",
                    &[key, blob(&encode(row)), row.expires.map_or(JsValue::NULL, millis)],
                ),
                None => self.run("DELETE FROM rows WHERE key = ?", &[key]),
            }?;
            written += cursor.rows_written()?;
        }
        if let Some(fencing) = changes.fencing {
            let query = "INSERT OR REPLACE INTO meta (name, value) VALUES ('fencing', ?)";
            written += self.run(query, &[to_f64(fencing).into()])?.rows_written()?;
        }
        Ok(written)
    }
}

impl Rows for SqlRows {
    fn is_stored(&self) -> bool {
        true
    }

    fn load(&self, key: &[u8]) -> Result<Option<Row>, Error> {
        let Some(row) = self.first("SELECT value FROM rows WHERE key = ?", &[blob(key)])? else { return Ok(None) };
        decode(&bytes(&column(&row, "value"))).map(Some)
    }

    fn keys(&self, from: &[u8], until: &[u8]) -> Result<Vec<Bytes>, Error> {
        let found =
            self.query("SELECT key FROM rows WHERE key >= ? AND key < ? ORDER BY key", &[blob(from), blob(until)])?;
        Ok(found.iter().map(|row| bytes(&column(&row, "key"))).collect())
    }

    fn usage(&self) -> Result<Usage, Error> {
        self.count().map(|reclaimed| reclaimed.left)
    }

    fn reclaim(&mut self, now: Timestamp) -> Result<Reclaimed, Error> {
        self.query("DELETE FROM rows WHERE expires < ?", &[millis(now)])?;
        self.count()
    }

    fn fencing(&self) -> Result<u64, Error> {
        let row = self.first("SELECT value FROM meta WHERE name = 'fencing'", &[])?;
        Ok(row.map_or(0, |row| integer(&row, "value")))
    }
}

impl SqlRows {
    fn count(&self) -> Result<Reclaimed, Error> {
        // Records take nothing of the bounds, and expire all the same.
        let query = "SELECT COUNT(*) FILTER (WHERE NOT own) AS keys, SUM(size) FILTER (WHERE NOT own) AS bytes, MIN(expires) AS next \
                     FROM (SELECT key >= ?1 AND key < ?2 AS own, LENGTH(key) + LENGTH(value) AS size, expires FROM rows)";
        let after: Vec<u8> = RECORD_PREFIX.iter().copied().chain([u8::MAX]).collect();
        let row = self.first(query, &[blob(RECORD_PREFIX), blob(&after)])?.unwrap_or(JsValue::NULL);
        let keys = usize::try_from(integer(&row, "keys")).unwrap_or(usize::MAX);
        let bytes = usize::try_from(integer(&row, "bytes")).unwrap_or(usize::MAX);
        let left = Usage { keys, bytes: bytes.saturating_add(keys.saturating_mul(ROW_OVERHEAD)) };
        let next_expiry = column(&row, "next").as_f64().map(Timestamp::from_millis_f64);
        Ok(Reclaimed { left, next_expiry })
    }
}

impl StoredRows for SqlRows {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rows")]
    fn commit(&mut self, changes: &Changes) -> Result<usize, Error> {
        // In a transaction of its own: an exception in the middle rolls all of it back.
        let mut work = || self.write(changes).map(JsValue::from);
        let written = self.storage.transaction_sync(&mut work).map_err(|error| failed(&error))?;
        Ok(written.as_f64().unwrap_or(0.0) as usize)
    }
}

fn blob(bytes: &[u8]) -> JsValue {
    Uint8Array::from(bytes).into()
}

fn bytes(blob: &JsValue) -> Bytes {
    blob.dyn_ref::<ArrayBuffer>().map(|buffer| Uint8Array::new(buffer).to_vec()).unwrap_or_default()
}

/// A point in time as SQLite gets it; the exact one is in the row.
fn millis(at: Timestamp) -> JsValue {
    to_f64(at.as_millis().min(MAX_SAFE_INTEGER)).into()
}

fn column(row: &JsValue, name: &str) -> JsValue {
    Reflect::get(row, &name.into()).unwrap_or(JsValue::UNDEFINED)
}

fn integer(row: &JsValue, name: &str) -> u64 {
    column(row, name).as_f64().map_or(0, |value| Timestamp::from_millis_f64(value).as_millis())
}

fn failed(error: &JsValue) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the object's storage failed: {}", convert::message(error)))
}
