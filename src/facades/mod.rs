//! Facades: typed handles over any store.

pub mod counters;
pub mod limiter;
pub mod lock;
pub mod runtime;
