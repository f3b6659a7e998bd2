//! The JavaScript edge: a clock, timers and randomness from a browser, Node or any other runtime with them.

use js_sys::{Date, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use crate::facades::runtime::Runtime;
use crate::values::number::to_f64;
use crate::values::time::{Duration, Timestamp};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = setTimeout, catch)]
    fn set_timeout(callback: &js_sys::Function, millis: f64) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(js_namespace = crypto, js_name = getRandomValues, catch)]
    fn get_random_values(bytes: &js_sys::Uint8Array) -> Result<JsValue, JsValue>;
}

/// JavaScript's `Date.now`, `setTimeout` and `crypto.getRandomValues`.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsRuntime;

/// The longest span `setTimeout` takes: above it, the callback runs at once.
const MAX_TIMEOUT_MS: f64 = 2_147_483_647.0;

impl Runtime for JsRuntime {
    fn now(&self) -> Timestamp {
        now()
    }

    async fn sleep(&self, span: Duration) {
        let millis = to_f64(span.as_millis()).min(MAX_TIMEOUT_MS);
        let promise = Promise::new(&mut |resolve, reject| {
            if let Err(error) = set_timeout(&resolve, millis) {
                let _ = reject.call1(&JsValue::UNDEFINED, &error);
            }
        });
        // A runtime that has no timers answers at once: the caller looks at the clock again.
        let _ = JsFuture::from(promise).await;
    }

    fn random(&self) -> u128 {
        let bytes = js_sys::Uint8Array::new_with_length(16);
        match get_random_values(&bytes) {
            Ok(_) => bytes.to_vec().iter().fold(0, |sum: u128, byte| (sum << 8) | u128::from(*byte)),
            Err(error) => wasm_bindgen::throw_val(error),
        }
    }
}

/// `Date.now()`.
pub fn now() -> Timestamp {
    Timestamp::from_millis_f64(Date::now())
}
