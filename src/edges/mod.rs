//! Edges: thin. They convert, call and convert back; no layer below uses them, and neither does the other edge.
//!
//! [`gate`] and [`service`] say which calls they need and are told the answers: a state machine each, without I/O,
//! so that they are tested natively and a runtime only has to carry bytes.

pub mod exchange;
pub mod gate;
#[cfg(feature = "js")]
pub mod js;
pub mod service;
pub mod tallies;
#[cfg(feature = "worker")]
pub mod worker;
