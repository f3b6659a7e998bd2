//! Workers KV, as a Worker sees it.

use js_sys::{ArrayBuffer, Date, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};

use super::convert;
use crate::engine::command::Command;
use crate::engine::keyspace::Bounds;
use crate::engine::reply::Reply;
use crate::engine::resp::{decode_batch, encode_replies};
use crate::stores::kv::{KvStore, Namespace};
use crate::stores::store::Store;
use crate::values::error::{Error, ErrorKind};
use crate::values::number::to_f64;
use crate::values::time::Timestamp;

#[wasm_bindgen]
extern "C" {
    /// A KV namespace binding.
    #[derive(Clone)]
    pub type KvNamespace;

    #[wasm_bindgen(method, catch)]
    fn get(this: &KvNamespace, name: &str, kind: &str) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn put(this: &KvNamespace, name: &str, value: &Uint8Array, options: &Object) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn delete(this: &KvNamespace, name: &str) -> Result<Promise, JsValue>;
}

struct Binding(KvNamespace);

impl Namespace for Binding {
    async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let value = settle(self.0.get(name, "arrayBuffer")).await?;
        Ok(value.dyn_ref::<ArrayBuffer>().map(|buffer| Uint8Array::new(buffer).to_vec()))
    }

    async fn put(&self, name: &str, value: Vec<u8>, expiration: Option<u64>) -> Result<(), Error> {
        let options = Object::new();
        if let Some(at) = expiration {
            let _ = Reflect::set(&options, &"expiration".into(), &to_f64(at).into());
        }
        settle(self.0.put(name, &Uint8Array::from(value.as_slice()), &options)).await.map(drop)
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        settle(self.0.delete(name)).await.map(drop)
    }
}

async fn settle(promise: Result<Promise, JsValue>) -> Result<JsValue, Error> {
    let settled = match promise {
        Ok(promise) => JsFuture::from(promise).await,
        Err(error) => Err(error),
    };
    settled.map_err(|error| {
        let message = convert::message(&error);
        // KV's binding has no codes: a second write within a second reads "KV PUT failed: 429 Too Many Requests".
        if message.contains("429") {
            let text = "Workers KV takes one write a second to the same key, and this was one more";
            return Error::new(ErrorKind::WriteConflict, text);
        }
        Error::new(ErrorKind::Unavailable, message)
    })
}

/// A KV namespace as a store.
#[wasm_bindgen]
#[allow(missing_debug_implementations)]
pub struct Kv {
    namespace: KvNamespace,
}

#[wasm_bindgen]
impl Kv {
    /// A store over a KV binding.
    #[wasm_bindgen(constructor)]
    pub fn new(namespace: KvNamespace) -> Self {
        Self { namespace }
    }

    /// Runs an encoded batch. Resolves to its encoded replies; rejects with an `Error` that has a `code`.
    pub fn exec(&self, body: Vec<u8>, best_effort: bool) -> Promise {
        let namespace = self.namespace.clone();
        future_to_promise(async move {
            let bytes = run(namespace, &body, best_effort).await.map_err(|error| convert::to_js(&error))?;
            Ok(Uint8Array::from(bytes.as_slice()).into())
        })
    }
}

async fn run(namespace: KvNamespace, body: &[u8], best_effort: bool) -> Result<Vec<u8>, Error> {
    let mut store = KvStore::new(Binding(namespace), || Timestamp::from_millis_f64(Date::now()), Bounds::default());
    if best_effort {
        store = store.best_effort();
    }
    let batch: Vec<Result<Command, _>> = decode_batch(body)?.into_iter().map(Command::parse).collect();
    let commands: Vec<Command> = batch.iter().filter_map(|parsed| parsed.clone().ok()).collect();
    let mut replies = store.exec(&commands).await?.into_iter();
    let in_order = batch.into_iter().map(|parsed| match parsed {
        Ok(_) => replies.next().unwrap_or(Reply::Nil),
        Err(error) => Reply::Error(error),
    });
    Ok(encode_replies(&in_order.collect::<Vec<_>>()))
}
