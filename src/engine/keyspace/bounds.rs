//! How much a keyspace takes.

use super::document::POLICY_KEY;
use super::records::RECORD_PREFIX;
use crate::engine::command::{Bytes, Command};
use crate::engine::reply::CommandError;

/// The bounds of one keyspace (one shard). What goes beyond is refused with an error that names the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest key, in bytes.
    pub key_bytes: usize,
    /// Largest value, field, or whole hash, in bytes. A row of a Durable Object holds 2 MB.
    pub value_bytes: usize,
    /// Most commands in a batch.
    pub batch_commands: usize,
    /// Most bytes a batch answers with, give or take its last reply.
    pub reply_bytes: usize,
    /// Most keys.
    pub keys: usize,
    /// Most bytes of keys and values together.
    pub total_bytes: usize,
    /// Most bytes of stored rows that are kept in memory as well. An isolate has 128 MB for all of its objects.
    pub cache_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            key_bytes: 1024,
            value_bytes: 1 << 20,
            batch_commands: 1000,
            reply_bytes: 2 << 20,
            keys: 100_000,
            total_bytes: 32 << 20,
            cache_bytes: 8 << 20,
        }
    }
}

impl Bounds {
    /// Refuses a command whose keys or values are too long.
    pub(super) fn check(&self, command: &Command) -> Result<(), CommandError> {
        for key in command.keys() {
            if key.starts_with(RECORD_PREFIX) || key == POLICY_KEY {
                return Err(CommandError::new("ERR key: expected one that is not the gate's own record"));
            }
            self.check_length("key", key, self.key_bytes)?;
        }
        match command {
            Command::Set { value, .. } | Command::SetNx { value, .. } => self.check_value(value),
            Command::HSet { pairs, .. } => pairs.iter().try_for_each(|(field, value)| {
                self.check_value(field)?;
                self.check_value(value)
            }),
            Command::HIncrBy { field, .. } => self.check_value(field),
            Command::Lock(request) => {
                self.check_length("token", &request.token, self.key_bytes)?;
                self.check_length("label", &request.label, self.key_bytes)
            }
            _ => Ok(()),
        }
    }

    fn check_value(&self, value: &Bytes) -> Result<(), CommandError> {
        self.check_length("value", value, self.value_bytes)
    }

    fn check_length(&self, what: &str, bytes: &[u8], most: usize) -> Result<(), CommandError> {
        if bytes.len() <= most {
            return Ok(());
        }
        Err(CommandError::new(format!("ERR {what} of {} bytes, at most {most} are taken", bytes.len())))
    }
}
