//! One Durable Object, as its class in `js/` sees it. All methods are synchronous: nothing can come in between.

use std::cell::RefCell;

use wasm_bindgen::prelude::*;

use super::convert;
use super::sql::{SqlRows, Storage};
use crate::engine::keyspace::Bounds;
use crate::rules::series::recorder::Recorder;
use crate::stores::durable_object::shard::{Durability, LockAnswer, Shard, waiter_token};
use crate::values::error::Error;
use crate::values::number::to_f64;
use crate::values::time::{Duration, Timestamp};

/// A shard over an object's storage.
#[wasm_bindgen]
#[allow(missing_debug_implementations)]
pub struct ObjectShard {
    shard: RefCell<Shard<SqlRows>>,
}

type Answer<T> = Result<T, JsValue>;

#[wasm_bindgen]
impl ObjectShard {
    /// Opens the shard. `config` is the Worker's configuration as JSON, `secret` the service's, `seed` a random number.
    #[wasm_bindgen(constructor)]
    pub fn new(storage: Storage, config: &str, secret: Option<String>, seed: f64) -> Answer<Self> {
        let config = convert::config(config)?;
        let rows = SqlRows::open(storage).map_err(|error| convert::to_js(&error))?;
        let flush_after = Duration::from_millis(config.flush_ms.get());
        let shard = Shard::new(rows, Bounds::default(), seed.to_bits()).flushing_after(flush_after);
        // Without a secret there is no service, and nobody could read what was recorded.
        let recording = secret.filter(|secret| !secret.is_empty()).and_then(|secret| config.series.recording(&secret));
        let shard = match recording {
            Some(recording) => shard.recording(Recorder::new(recording)),
            None => shard,
        };
        Ok(Self { shard: RefCell::new(shard) })
    }

    /// Runs an encoded batch at `now` (Unix ms) and gives its encoded replies.
    pub fn exec(&self, body: &[u8], strict: bool, now: f64) -> Answer<Vec<u8>> {
        let durability = if strict { Durability::Strict } else { Durability::Relaxed };
        self.with(|shard| shard.exec(Timestamp::from_millis_f64(now), body, durability))
    }

    /// Tries for a lock: the encoded reply, or `undefined` when the caller is in the queue.
    pub fn lock(&self, body: &[u8], now: f64) -> Answer<Option<Vec<u8>>> {
        self.with(|shard| {
            Ok(match shard.lock(Timestamp::from_millis_f64(now), body)? {
                LockAnswer::Now(reply) => Some(reply),
                LockAnswer::Queued => None,
            })
        })
    }

    /// The answer for a caller whose turn it is or whose wait is over.
    pub fn turn(&self, body: &[u8], now: f64) -> Answer<Vec<u8>> {
        self.with(|shard| shard.turn(Timestamp::from_millis_f64(now), body))
    }

    /// Lets a caller leave the queue, or gives its lock back. The token it waited under.
    pub fn leave(&self, body: &[u8], now: f64) -> Answer<String> {
        self.with(|shard| shard.leave(Timestamp::from_millis_f64(now), body).map(text))
    }

    /// The token that a caller of [`lock`](Self::lock) waits under.
    #[wasm_bindgen(js_name = waiterToken)]
    pub fn waiter_token(body: &[u8]) -> Answer<String> {
        waiter_token(body).map(text).map_err(|error| convert::to_js(&error))
    }

    /// The tokens of those to be answered now.
    pub fn turns(&self, now: f64) -> Answer<Vec<String>> {
        self.with(|shard| Ok(shard.turns(Timestamp::from_millis_f64(now))?.into_iter().map(text).collect()))
    }

    /// When to look at [`turns`](Self::turns) again, in Unix ms; `undefined` when nobody waits.
    #[wasm_bindgen(js_name = nextTurn)]
    pub fn next_turn(&self, now: f64) -> Answer<Option<f64>> {
        self.with(|shard| {
            let next = shard.next_turn(Timestamp::from_millis_f64(now))?;
            Ok(next.map(|at| to_f64(at.as_millis())))
        })
    }

    /// When something is to be written, in Unix ms; `undefined` when nothing is.
    #[wasm_bindgen(js_name = nextFlush)]
    pub fn next_flush(&self) -> Option<f64> {
        self.shard.borrow().next_flush().map(|at| to_f64(at.as_millis()))
    }

    /// Writes what is due; says how many rows that took.
    pub fn flush(&self, now: f64) -> Answer<usize> {
        self.with(|shard| shard.flush_due(Timestamp::from_millis_f64(now)))
    }

    /// Removes expired rows; says when to come again in Unix ms, `undefined` when nothing is left.
    #[wasm_bindgen(js_name = cleanUp)]
    pub fn clean_up(&self, now: f64) -> Answer<Option<f64>> {
        self.with(|shard| {
            let next = shard.clean_up(Timestamp::from_millis_f64(now))?;
            Ok(next.map(|at| to_f64(at.as_millis())))
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shard<SqlRows>) -> Result<T, Error>) -> Answer<T> {
        work(&mut self.shard.borrow_mut()).map_err(|error| convert::to_js(&error))
    }
}

fn text(token: Vec<u8>) -> String {
    String::from_utf8_lossy(&token).into_owned()
}
