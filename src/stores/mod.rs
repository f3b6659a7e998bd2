//! Stores: where batches go. One trait, and a backend a file.

pub mod durable_object;
pub mod kv;
pub mod memory;
pub mod store;
