//! Facades: typed handles over any store.

pub mod limiter;
pub mod lock;
pub mod runtime;
