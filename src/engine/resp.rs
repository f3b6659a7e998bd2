//! RESP2, the Redis serialization protocol: how a batch travels to a shard and its replies come back.
//!
//! A batch is an array of commands, each an array of bulk strings; its answer is an array of replies. It is
//! self-describing, so old and new versions meet with a clear "unknown command" instead of a misread byte.

use crate::engine::reply::{CommandError, Reply};
use crate::values::error::{Error, ErrorKind};
use crate::values::number::parse_integer;

/// Arrays nest at most this deep.
const MAX_DEPTH: usize = 8;

/// One command as it is written: its name and arguments.
pub type Argv = Vec<Vec<u8>>;

/// Writes a batch of commands.
pub fn encode_batch<'a>(batch: impl ExactSizeIterator<Item = &'a Argv>) -> Vec<u8> {
    let mut out = Vec::new();
    push_line(&mut out, b'*', batch.len());
    for argv in batch {
        push_line(&mut out, b'*', argv.len());
        for part in argv {
            push_bulk(&mut out, part);
        }
    }
    out
}

/// Writes the replies to a batch.
pub fn encode_replies(replies: &[Reply]) -> Vec<u8> {
    let mut out = Vec::new();
    push_array(&mut out, replies);
    out
}

/// Reads a batch of commands.
pub fn decode_batch(bytes: &[u8]) -> Result<Vec<Argv>, Error> {
    let commands = decode_replies(bytes)?;
    commands.into_iter().map(|command| command.into_array()?.into_iter().map(bulk).collect()).collect()
}

/// Reads the replies to a batch.
pub fn decode_replies(bytes: &[u8]) -> Result<Vec<Reply>, Error> {
    let mut reader = Reader { rest: bytes };
    let reply = reader.reply(MAX_DEPTH)?;
    if !reader.rest.is_empty() {
        return Err(malformed("bytes after its end"));
    }
    reply.into_array()
}

fn bulk(reply: Reply) -> Result<Vec<u8>, Error> {
    match reply {
        Reply::Bulk(bytes) => Ok(bytes),
        other => Err(other.unexpected("a bulk string")),
    }
}

fn push_line(out: &mut Vec<u8>, kind: u8, number: impl std::fmt::Display) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_line(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn push_array(out: &mut Vec<u8>, replies: &[Reply]) {
    push_line(out, b'*', replies.len());
    for reply in replies {
        match reply {
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
            Reply::Status(text) => push_line(out, b'+', text),
            Reply::Integer(value) => push_line(out, b':', value),
            Reply::Bulk(bytes) => push_bulk(out, bytes),
            Reply::Array(parts) => push_array(out, parts),
            Reply::Error(error) => push_line(out, b'-', error.text().replace(['\r', '\n'], " ")),
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, Error> {
        let line = self.line()?;
        let (kind, text) = line.split_first().ok_or_else(|| malformed("an empty line"))?;
        match kind {
            b'+' => Ok(status(text)),
            b'-' => Ok(Reply::Error(CommandError::new(String::from_utf8_lossy(text)))),
            b':' => parse_integer(text).map(Reply::Integer).ok_or_else(|| malformed("a bad integer")),
            b'$' if text == b"-1" => Ok(Reply::Nil),
            b'$' => self.take(length(text)?).map(Reply::Bulk),
            b'*' => {
                let depth = depth.checked_sub(1).ok_or_else(|| malformed("arrays nested too deep"))?;
                // Not reserved ahead: the length is only a claim until its elements are there.
                (0..length(text)?).map(|_| self.reply(depth)).collect::<Result<_, _>>().map(Reply::Array)
            }
            _ => Err(malformed("an unknown type")),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Error> {
        let end = self.rest.windows(2).position(|w| w == b"\r\n").ok_or_else(|| malformed("an unfinished line"))?;
        self.split(end)
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, Error> {
        let follows = length.checked_add(2).and_then(|end| self.rest.get(length..end));
        if follows != Some(b"\r\n") {
            return Err(malformed("a string of another length than it says"));
        }
        self.split(length).map(<[u8]>::to_vec)
    }

    /// The bytes before `end`; goes on behind the line break that stands there.
    fn split(&mut self, end: usize) -> Result<&'a [u8], Error> {
        let (head, tail) = self.rest.split_at_checked(end).ok_or_else(|| malformed("an early end"))?;
        self.rest = tail.get(2..).unwrap_or_default();
        Ok(head)
    }
}

fn status(text: &[u8]) -> Reply {
    match text {
        b"OK" => Reply::OK,
        b"PONG" => Reply::Status("PONG"),
        other => Reply::Bulk(other.to_vec()),
    }
}

fn length(text: &[u8]) -> Result<usize, Error> {
    parse_integer(text).and_then(|n| usize::try_from(n).ok()).ok_or_else(|| malformed("a bad length"))
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the batch is not RESP: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            Just(Reply::Nil),
            Just(Reply::OK),
            any::<i64>().prop_map(Reply::Integer),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(Reply::Bulk),
            "[A-Z]{1,8} [a-z ]{0,20}".prop_map(|text| Reply::Error(CommandError::new(text))),
        ];
        leaf.prop_recursive(4, 30, 5, |inner| prop::collection::vec(inner, 0..5).prop_map(Reply::Array))
    }

    proptest! {
        #[test]
        fn replies_come_back_as_they_went(replies in prop::collection::vec(any_reply(), 0..6)) {
            prop_assert_eq!(decode_replies(&encode_replies(&replies)).unwrap(), replies);
        }

        #[test]
        fn batches_come_back_as_they_went(
            batch in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..4), 0..4),
        ) {
            prop_assert_eq!(decode_batch(&encode_batch(batch.iter())).unwrap(), batch);
        }

        #[test]
        fn odd_bytes_are_errors_never_panics(bytes in prop::collection::vec(
            prop_oneof![prop::sample::select(b"*$:+-\r\n0123".to_vec()), any::<u8>()], 0..60)) {
            let _ = decode_batch(&bytes);
        }
    }

    #[test]
    fn claims_are_not_believed() {
        for bytes in ["*99999999999999\r\n", "*1\r\n$9223372036854775807\r\nx\r\n", "*1\r\n", "", "*0\r\nx"] {
            assert_eq!(decode_batch(bytes.as_bytes()).unwrap_err().kind(), ErrorKind::Protocol, "{bytes:?}");
        }
        assert!(decode_replies("*1\r\n".repeat(50).as_bytes()).is_err());
    }
}
