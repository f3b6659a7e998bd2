//! The Cloudflare Worker edge: what `js/` calls. Its own bindings, because those of the `worker` crate throw through
//! wasm frames in places (`SqlCursor::one`), which hangs an object's caller; here every import is caught.

mod convert;
mod gate;
mod kv;
mod object;
mod sql;

pub use gate::{Exchange, Gate, is_service};
pub use kv::Kv;
pub use object::ObjectShard;

use std::sync::atomic::{AtomicBool, Ordering};

use wasm_bindgen::prelude::*;

static POISONED: AtomicBool = AtomicBool::new(false);

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error, catch)]
    fn console_error(text: &str) -> Result<(), JsValue>;
}

/// Says what a panic said, and remembers that there was one: the trap that follows may pass nobody who would see it.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| {
        POISONED.store(true, Ordering::Relaxed);
        let _ = console_error(&format!("tollgate: {panic}"));
    }));
}

/// Whether this instance panicked and must not be used again.
#[wasm_bindgen(js_name = isPoisoned)]
pub fn is_poisoned() -> bool {
    POISONED.load(Ordering::Relaxed)
}

/// Ends this instance the way a bug would: a trap. Only the tests' own build has it.
#[cfg(feature = "faults")]
#[wasm_bindgen]
pub fn trap() {
    std::process::abort();
}
