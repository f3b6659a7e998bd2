//! Between Rust and JavaScript.

use js_sys::{Array, Object, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;

use crate::edges::exchange::{Answer, Call, Response, Step, Target, failure};
use crate::engine::policy::Config;
use crate::stores::durable_object::shard::Durability;
use crate::values::error::{Error, ErrorKind};
use crate::values::number::to_f64;

/// A JavaScript `Error` with the stable code in `code`.
pub(super) fn to_js(error: &Error) -> JsValue {
    let js = js_sys::Error::new(error.message());
    set(&js, "code", &error.kind().code().into());
    js.into()
}

/// A field of a plain object, where it is a text, a number or a boolean.
pub(super) fn field(object: &JsValue, name: &str) -> Option<String> {
    let value = Reflect::get(object, &name.into()).ok()?;
    let number = || value.as_f64().map(|number| number.to_string());
    value.as_string().or_else(number).or_else(|| value.as_bool().map(|yes| yes.to_string()))
}

/// What a JavaScript exception says.
pub(super) fn message(error: &JsValue) -> String {
    let text = Reflect::get(error, &"message".into()).ok().and_then(|message| message.as_string());
    text.or_else(|| error.as_string()).unwrap_or_else(|| "an unknown JavaScript exception".to_owned())
}

/// Reads the configuration of an environment. Errors name the variable before the path in it.
pub(super) fn config(json: &str) -> Result<Config, JsValue> {
    Config::parse(json)
        .map_err(|error| to_js(&Error::new(error.kind(), format!("TOLLGATE_CONFIG.{}", error.message()))))
}

/// `{ calls }` or `{ response, afterwards }`.
pub(super) fn step(step: &Step) -> JsValue {
    let object = Object::new();
    match step {
        Step::Calls(calls) => set(&object, "calls", &array(calls.iter().map(call))),
        Step::Done { response: answer, afterwards } => {
            set(&object, "response", &response(answer));
            set(&object, "afterwards", &array(afterwards.iter().map(call)));
        }
    }
    object.into()
}

/// `{ kind, shard, path, bestEffort, body, timeoutMs }`
pub(super) fn call(call: &Call) -> JsValue {
    let object = Object::new();
    let (shard, path, best_effort) = match call.target {
        Target::Shard { shard, durability: Durability::Strict } => (Some(shard), "/exec/strict", false),
        Target::Shard { shard, durability: Durability::Relaxed } => (Some(shard), "/exec/relaxed", false),
        Target::Lock { shard } => (Some(shard), "/lock", false),
        Target::Leave { shard } => (Some(shard), "/leave", false),
        Target::Kv { best_effort } => (None, "", best_effort),
    };
    set(&object, "shard", &shard.map_or(JsValue::UNDEFINED, JsValue::from));
    set(&object, "path", &path.into());
    set(&object, "bestEffort", &best_effort.into());
    set(&object, "body", &Uint8Array::from(call.body.as_slice()));
    set(&object, "timeoutMs", &to_f64(call.timeout_ms).into());
    object.into()
}

/// `{ status, headers, body }`; without a status the request goes to the origin.
pub(super) fn response(response: &Response) -> JsValue {
    let object = Object::new();
    set(&object, "status", &response.status.map_or(JsValue::UNDEFINED, JsValue::from));
    let field = |(name, value): &(&str, String)| JsValue::from(Array::of2(&(*name).into(), &value.as_str().into()));
    set(&object, "headers", &array(response.headers.iter().map(field)));
    set(&object, "body", &response.body.as_str().into());
    object.into()
}

/// A call's answer: its bytes, or an exception with a code.
pub(super) fn answer(value: &JsValue) -> Answer {
    if let Some(bytes) = value.dyn_ref::<Uint8Array>() {
        return Ok(bytes.to_vec());
    }
    let code = Reflect::get(value, &"code".into()).ok().and_then(|code| code.as_string());
    Err(failure(code.as_deref().unwrap_or(ErrorKind::Unavailable.code()), &message(value)))
}

fn array(values: impl Iterator<Item = JsValue>) -> Array {
    values.collect()
}

fn set(object: &JsValue, name: &str, value: &JsValue) {
    // A plain object that was just made takes any property.
    let _ = Reflect::set(object, &name.into(), value);
}
