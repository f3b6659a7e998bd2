//! The gate and the service, as a Worker sees them.

use std::cell::RefCell;
use std::rc::Rc;

use wasm_bindgen::prelude::*;

use super::convert;
use crate::edges::exchange::Step;
use crate::edges::gate::Passage;
use crate::edges::service;
use crate::edges::tallies::Tallies;
use crate::engine::matching::Facts;
use crate::engine::path::normal_path;
use crate::engine::policy::Config;
use crate::values::time::Timestamp;

#[wasm_bindgen]
extern "C" {
    /// A request's header fields.
    pub type Headers;

    #[wasm_bindgen(method, catch)]
    fn get(this: &Headers, name: &str) -> Result<Option<String>, JsValue>;
}

/// One Worker's gate: its policies and the service's secret.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Gate {
    config: Rc<Config>,
    tallies: Rc<Tallies>,
    secret: Option<String>,
}

#[wasm_bindgen]
impl Gate {
    /// Reads the configuration, a JSON text. Throws an `Error` with `code` "invalid-config" that names the field. `seed` is
    /// a random number.
    #[wasm_bindgen(constructor)]
    pub fn new(config: &str, secret: Option<String>, seed: f64) -> Result<Self, JsValue> {
        let tallies = Rc::new(Tallies::new(seed.to_bits()));
        Ok(Self { config: Rc::new(convert::config(config)?), tallies, secret })
    }

    /// Begins with a request for the origin. `cf` is the request's, and may be `undefined`.
    pub fn check(
        &self,
        method: &str,
        host: &str,
        path: &str,
        query: &str,
        headers: &Headers,
        cf: &JsValue,
    ) -> Exchange {
        let header = |name: &str| headers.get(name).ok().flatten();
        let cf = |name: &str| convert::field(cf, name);
        let (passage, step) =
            Passage::begin(&self.config, &self.tallies, &Facts { method, host, path, query, header: &header, cf: &cf });
        Exchange::new(Machine::Gate(passage), step)
    }

    /// The refusal of a request for the service whose sender may not use it, else `undefined`.
    pub fn screen(&self, headers: &Headers) -> JsValue {
        let header = |name: &str| headers.get(name).ok().flatten();
        service::screen(&header, self.secret.as_deref())
            .map_or(JsValue::UNDEFINED, |refusal| convert::response(&refusal))
    }

    /// Begins with a request for the service that was screened. `random` is 16 bytes, `now` in Unix ms.
    pub fn serve(&self, method: &str, path: &str, headers: &Headers, body: &[u8], random: &[u8], now: f64) -> Exchange {
        let header = |name: &str| headers.get(name).ok().flatten();
        let random = random.iter().fold(0, |sum: u128, byte| (sum << 8) | u128::from(*byte));
        let now = Timestamp::from_millis_f64(now);
        let request = service::Request { method, path, header: &header, body, random, now };
        let (pending, step) = service::begin(&request, &self.config);
        Exchange::new(pending.map_or(Machine::Over, Machine::Service), step)
    }
}

/// Whether a path, in whatever spelling, belongs to the service and must not reach the origin.
#[wasm_bindgen(js_name = isService)]
pub fn is_service(path: &str) -> bool {
    format!("{}/", normal_path(path)).starts_with(service::PREFIX)
}

#[derive(Debug)]
enum Machine {
    Gate(Passage),
    Service(service::Pending),
    Over,
}

/// One request on its way: calls to make, then a response.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Exchange {
    state: RefCell<(Machine, Step)>,
}

impl Exchange {
    fn new(machine: Machine, step: Step) -> Self {
        Self { state: RefCell::new((machine, step)) }
    }
}

#[wasm_bindgen]
impl Exchange {
    /// What comes next: `{ calls }`, or `{ response, afterwards }` at the end.
    pub fn step(&self) -> JsValue {
        convert::step(&self.state.borrow().1)
    }

    /// Goes on with the answers to the calls, in their order: bytes, or exceptions. `now` is in Unix ms.
    pub fn resume(&self, answers: Vec<JsValue>, now: f64) -> JsValue {
        let answers = answers.iter().map(convert::answer).collect();
        let now = Timestamp::from_millis_f64(now);
        let mut state = self.state.borrow_mut();
        let next = match &mut state.0 {
            Machine::Gate(passage) => passage.resume(answers, now),
            Machine::Service(pending) => service::resume(pending, answers, now),
            Machine::Over => return convert::step(&state.1),
        };
        state.1 = next;
        convert::step(&state.1)
    }

    /// How each policy decided, once there is a response: name and outcome by turns.
    pub fn decisions(&self) -> Vec<String> {
        match &self.state.borrow().0 {
            Machine::Gate(passage) => passage
                .decisions()
                .flat_map(|(policy, outcome)| [policy.to_owned(), outcome.name().to_owned()])
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The call to make when the client hangs up now, if there is one.
    #[wasm_bindgen(js_name = hangUp)]
    pub fn hang_up(&self) -> JsValue {
        match &self.state.borrow().0 {
            Machine::Service(pending) => service::hang_up(pending).as_ref().map_or(JsValue::UNDEFINED, convert::call),
            _ => JsValue::UNDEFINED,
        }
    }
}
