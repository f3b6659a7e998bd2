//! `TG.POLICY` and `TG.SETPOLICY`: the document of policies, kept by one shard for all isolates.

use super::{Keyspace, Outcome, Rows};
use crate::engine::command::Bytes;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::row::{Row, Value};
use crate::values::time::Timestamp;

/// Where it is kept: a key that no command may name.
pub(super) const POLICY_KEY: &[u8] = b"\0policy";

/// The longest document, in bytes.
pub const MAX_DOCUMENT: usize = 512 << 10;

/// Bytes of the version in front of the text.
const VERSION_BYTES: usize = 8;

impl<R: Rows> Keyspace<R> {
    pub(super) fn policy(&mut self, now: Timestamp, known: Option<u64>) -> Outcome {
        let (version, document) = self.document(now)?;
        let text = if known == Some(version) || document.is_empty() { Reply::Nil } else { Reply::Bulk(document) };
        Ok(Reply::Array(vec![Reply::from_count(version), text]))
    }

    /// A version is never given twice, not even after a removal: nobody may take another document for the one they know.
    pub(super) fn set_policy(&mut self, now: Timestamp, expected: Option<u64>, document: &[u8]) -> Outcome {
        if document.len() > MAX_DOCUMENT {
            let text = format!("ERR document: expected at most {MAX_DOCUMENT} bytes, got {}", document.len());
            return Err(CommandError::new(text));
        }
        let (present, _) = self.document(now)?;
        if expected.is_some_and(|expected| expected != present) {
            return Ok(Reply::Array(vec![Reply::from_bool(false), Reply::from_count(present)]));
        }
        let version = present.saturating_add(1);
        let value = [&version.to_le_bytes(), document].concat();
        self.put(now, POLICY_KEY, Row { value: Value::String(value), expires: None })?;
        Ok(Reply::Array(vec![Reply::from_bool(true), Reply::from_count(version)]))
    }

    fn document(&mut self, now: Timestamp) -> Result<(u64, Bytes), CommandError> {
        let Some(Value::String(stored)) = self.live(now, POLICY_KEY)?.map(|row| &row.value) else {
            return Ok((0, Bytes::new()));
        };
        let (version, document) = stored.split_at_checked(VERSION_BYTES).unwrap_or_default();
        let version = version.try_into().map_or(0, u64::from_le_bytes);
        Ok((version, document.to_vec()))
    }
}
