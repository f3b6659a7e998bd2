//! The native tests, in one binary. They start the servers they need, on free loopback ports, and stop them.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that goes wrong should stop"
)]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod access_log;
mod backends;
mod counters;
mod kv_model;
mod layers;
mod limits;
mod lock;
mod records;
mod redis_differential;
mod seed;
mod seed_series;
mod support;
mod waiting;
mod wrangler_config;
