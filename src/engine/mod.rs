//! The engine: pure functions of (state, command, now). It knows no store, no runtime and no clock.

pub mod accept;
pub mod address;
pub mod command;
pub mod headers;
pub mod keyspace;
pub mod matching;
pub mod parse;
pub mod path;
pub mod policy;
pub mod policy_key;
pub mod reply;
pub mod resp;
pub mod row;
