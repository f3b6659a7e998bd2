//! Tollgate: a rate limiter and lock service for the edge.
//!
//! [`Store`] runs batches of [`Command`]s with the semantics of Redis, in memory, in Durable Objects or in Workers
//! KV. Over any of them stand the limiters ([`incr_and_check_limit`]), the locks ([`Locks`]) and the time-series counters
//! ([`Counters`]).
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use tollgate::{Bounds, MemoryStore, Timestamp, incr_and_check_limit};
//! let now = Timestamp::from_millis(1_700_000_000_000);
//! let store = MemoryStore::new(move || now, Bounds::default(), 7);
//! for call in 1..=6 {
//!     let over = incr_and_check_limit(&store, now, b"user", 5).await?;
//!     assert_eq!(over, call > 5);
//! }
//! # Ok::<(), tollgate::Error>(()) }).unwrap();
//! ```

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod edges;
pub mod engine;
pub mod facades;
pub mod rules;
pub mod stores;
pub mod values;

pub use engine::address::client_network;
pub use engine::command::{
    Bytes, Charge, Command, Existence, ExpireAt, ExpireCondition, LockRequest, SetExpiry, Take, Tally, TimeUnit, Window,
};
pub use engine::keyspace::{Bounds, Changes, Keyspace, NoRows, Reclaimed, Rows, Turn, Usage};
pub use engine::path::normal_path;
pub use engine::policy::{Config, Policy};
pub use engine::reply::{CommandError, Reply};
pub use engine::resp;
pub use engine::row::{Fields, Holder, Metered, Row, Value, decode as decode_row, encode as encode_row};
pub use facades::counters::{Counters, Increment, Partial, Series};
pub use facades::limiter::{MemcacheMode, incr_and_check_limit, incr_and_check_limit_memcache};
pub use facades::lock::{Held, LockOptions, Locks};
pub use facades::runtime::Runtime;
pub use rules::limit::standing::{Escalation, Standing};
pub use rules::limit::{Algorithm, Ask, Decision, Limit, Next, State as LimitState};
pub use rules::series::hyperloglog::HyperLogLog;
pub use rules::series::layout::{Id, Layout, Model, Place};
pub use rules::series::record::{Counts, Outcome};
pub use rules::series::recorder::{Labels, Recorder, Recording};
pub use rules::series::rollup::{Point, Range, Rollup, Rollups, roll_up};
pub use stores::durable_object::client::{DurableObjectStore, Shards};
pub use stores::durable_object::shard::{Durability, LockAnswer, Shard, StoredRows};
pub use stores::kv::{KvStore, Namespace};
pub use stores::memory::MemoryStore;
pub use stores::store::{Capabilities, Store};
pub use values::error::{Error, ErrorKind};
pub use values::key::{hash_slot, hex, join_key, shard_of};
pub use values::number::{MAX_SAFE_INTEGER, parse_count, parse_integer};
pub use values::time::{Duration, Timestamp};
pub use values::units::{MAX_WINDOW, Rate};
