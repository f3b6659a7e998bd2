//! The Durable Object store: [`shard`] is what runs inside an object, [`client`] what a Worker runs.

pub mod client;
pub mod shard;
