//! The REST form of Redis that Upstash's clients speak: a command, `/pipeline` and `/multi-exec`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::value::RawValue;

use super::{Begun, CALL_TIMEOUT_MS, Request, Response, STRICT, error_json, failed, method_not_allowed, not_found};
use crate::edges::exchange::{Answer, Call, Target};
use crate::engine::command::Command;
use crate::engine::reply::{CommandError, Reply};
use crate::engine::resp::Argv;
use crate::stores::durable_object::client::{ShardBatch, collect, common_shard, deal, encode_commands};

/// Where the commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// This many Durable Objects.
    Shards(u16),
    /// Workers KV.
    Kv,
}

/// The three forms of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Single,
    Pipeline,
    Transaction,
}

/// Commands that wait for their replies.
#[derive(Debug)]
pub struct Pending {
    form: Form,
    base64: bool,
    replies: Vec<Reply>,
    /// Positions in `replies` of what each call answers.
    positions: Vec<Vec<usize>>,
}

/// Reads a request and deals its commands out.
pub(super) fn begin(request: &Request<'_>, path: &str, backend: Backend) -> Begun {
    let form = match path.trim_end_matches('/') {
        "" => Form::Single,
        "pipeline" => Form::Pipeline,
        "multi-exec" => Form::Transaction,
        _ => return Err(not_found()),
    };
    if request.method != "POST" {
        return Err(method_not_allowed("POST"));
    }
    let parsed = read(request.body, form)?.into_iter().map(Command::parse).collect();
    let (replies, batches) = route(parsed, form, backend)?;
    let (calls, positions) = batches.into_iter().map(|batch| to_call(batch, backend)).unzip();
    let base64 = (request.header)("upstash-encoding").is_some_and(|value| value.eq_ignore_ascii_case("base64"));
    Ok((super::Pending::Redis(Pending { form, base64, replies, positions }), calls))
}

type Parsed = Vec<Result<Command, CommandError>>;

/// The replies that are known already, and the batches that give the others.
fn route(parsed: Parsed, form: Form, backend: Backend) -> Result<(Vec<Reply>, Vec<ShardBatch>), Response> {
    if form == Form::Transaction && parsed.iter().any(|p| p.as_ref().is_err_and(CommandError::discards_transaction)) {
        return Err(error_json(400, "EXECABORT Transaction discarded because of previous errors.", None));
    }
    let mut replies = Vec::with_capacity(parsed.len());
    let (mut commands, mut places) = (Vec::new(), Vec::new());
    for (place, parsed) in parsed.into_iter().enumerate() {
        match parsed {
            Err(error) => replies.push(Reply::Error(error)),
            Ok(command) => {
                replies.push(Reply::Nil);
                commands.push(command);
                places.push(place);
            }
        }
    }
    let whole = |shard| {
        let positions = (0..commands.len()).collect();
        (vec![ShardBatch { shard, body: encode_commands(commands.iter()), positions }], Vec::new())
    };
    let (mut batches, known) = match (backend, form) {
        _ if commands.is_empty() => (Vec::new(), Vec::new()),
        (Backend::Kv, _) => whole(0),
        (Backend::Shards(shards), Form::Transaction) => {
            whole(common_shard(&commands, shards).map_err(|error| failed(&error))?)
        }
        (Backend::Shards(shards), _) => deal(&commands, shards),
    };
    for (place, reply) in places.iter().zip(known) {
        if let Some(slot) = replies.get_mut(*place) {
            *slot = reply;
        }
    }
    for position in batches.iter_mut().flat_map(|batch| &mut batch.positions) {
        *position = places.get(*position).copied().unwrap_or(*position);
    }
    Ok((replies, batches))
}

fn to_call(batch: ShardBatch, backend: Backend) -> (Call, Vec<usize>) {
    let target = match backend {
        Backend::Shards(_) => Target::Shard { shard: batch.shard, durability: STRICT },
        Backend::Kv => Target::Kv { best_effort: false },
    };
    (Call { target, body: batch.body, timeout_ms: CALL_TIMEOUT_MS }, batch.positions)
}

fn read(body: &[u8], form: Form) -> Result<Vec<Argv>, Response> {
    let malformed =
        |expected: &str| error_json(400, &format!("ERR failed to parse the body: expected {expected}"), None);
    let batch = match form {
        Form::Single => vec![
            serde_json::from_slice::<Vec<Box<RawValue>>>(body)
                .map_err(|_| malformed(r#"a JSON array such as ["GET","key"]"#))?,
        ],
        _ => serde_json::from_slice::<Vec<Vec<Box<RawValue>>>>(body)
            .map_err(|_| malformed(r#"a JSON array of commands such as [["GET","key"]]"#))?,
    };
    let words = batch.into_iter().map(|argv| argv.iter().map(|raw| word(raw)).collect::<Option<Argv>>());
    words.collect::<Option<_>>().ok_or_else(|| malformed("strings, numbers and booleans as arguments"))
}

/// A string is its text, a number or boolean the text it was written with.
fn word(raw: &RawValue) -> Option<Vec<u8>> {
    let text = raw.get();
    match text.bytes().next()? {
        b'"' => serde_json::from_str::<String>(text).ok().map(String::into_bytes),
        b'[' | b'{' | b'n' => None,
        _ => Some(text.as_bytes().to_vec()),
    }
}

impl Pending {
    /// Puts the replies in their places and writes the response.
    pub(super) fn finish(&mut self, answers: Vec<Answer>) -> Response {
        for (positions, answer) in self.positions.iter().zip(answers) {
            if let Err(error) = answer.and_then(|bytes| collect(&mut self.replies, positions, &bytes)) {
                if self.form != Form::Pipeline || self.positions.len() == 1 {
                    return failed(&error);
                }
                // The other shards have answered: only these replies are missing.
                let text = format!("UNAVAILABLE {}", error.message());
                for position in positions {
                    if let Some(reply) = self.replies.get_mut(*position) {
                        *reply = Reply::Error(CommandError::new(text.clone()));
                    }
                }
            }
        }
        let mut entries = self.replies.iter().map(|reply| self.entry(reply));
        match self.form {
            Form::Single => {
                let is_error = matches!(self.replies.first(), Some(Reply::Error(_)));
                Response::json(if is_error { 400 } else { 200 }, entries.next().unwrap_or_default())
            }
            _ => Response::json(200, format!("[{}]", entries.collect::<Vec<_>>().join(","))),
        }
    }

    fn entry(&self, reply: &Reply) -> String {
        match reply {
            Reply::Error(error) => serde_json::json!({ "error": error.text() }).to_string(),
            reply => format!(r#"{{"result":{}}}"#, self.json(reply)),
        }
    }

    fn json(&self, reply: &Reply) -> String {
        match reply {
            Reply::Nil => "null".to_owned(),
            Reply::Integer(value) => value.to_string(),
            // Clients leave OK alone when they decode.
            Reply::Status("OK") => "\"OK\"".to_owned(),
            Reply::Status(text) => self.string(text.as_bytes()),
            Reply::Bulk(bytes) => self.string(bytes),
            Reply::Error(error) => self.string(error.text().as_bytes()),
            Reply::Array(parts) => {
                format!("[{}]", parts.iter().map(|part| self.json(part)).collect::<Vec<_>>().join(","))
            }
        }
    }

    fn string(&self, bytes: &[u8]) -> String {
        let text = if self.base64 { BASE64.encode(bytes) } else { String::from_utf8_lossy(bytes).into_owned() };
        serde_json::Value::String(text).to_string()
    }
}
