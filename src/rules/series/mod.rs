//! Time series of counts: levels of buckets, where a count is kept, and sketches of who was counted.
//!
//! The layout and the range rules are those of the seed and of Sentry's published time-series store, which grew from it.

pub mod hyperloglog;
pub mod layout;
pub mod python;
pub mod record;
pub mod recorder;
pub mod rollup;
pub mod top;
