//! Locks over HTTP: `POST` acquires, `PUT` renews, `DELETE` releases, `GET` shows.

use serde::{Deserialize, de::DeserializeOwned};

use super::{Begun, CALL_TIMEOUT_MS, Request, Response, STRICT, error_json, failed, method_not_allowed};
use crate::edges::exchange::{Answer, Call, Step, Target};
use crate::engine::command::{Bytes, Command, LockRequest, MAX_WAIT};
use crate::engine::policy::{Bounded, StoreName, reason};
use crate::engine::reply::Reply;
use crate::engine::resp::decode_replies;
use crate::facades::lock::grant;
use crate::stores::durable_object::client::encode_commands;
use crate::values::error::{Error, ErrorKind};
use crate::values::key::{hex, shard_of};
use crate::values::time::{Duration, Timestamp};

/// A lock granted to somebody who waited lives this long until the Worker has confirmed that the client is still
/// there. A waiter that died costs those behind it no more than this.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

/// The longest label and token, in bytes.
const MAX_TEXT: usize = 256;

/// What a lock's time to live may be: 1 ms to a day, the seed's 10 s if not given.
type TtlMs = Bounded<1, 86_400_000, 10_000>;
/// How long a caller may wait: up to five minutes, not at all if not given.
type WaitMs = Bounded<0, { MAX_WAIT.as_millis() }, 0>;

/// The body of `POST`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Acquire {
    ttl_ms: TtlMs,
    wait_ms: WaitMs,
    owner: String,
    store: StoreName,
    best_effort: bool,
}

/// The body of `PUT` and `DELETE`. The token may come in the `Tollgate-Lock-Token` header instead.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ByToken {
    token: String,
    ttl_ms: TtlMs,
    store: StoreName,
    best_effort: bool,
}

/// A lock operation that waits for its answer.
#[derive(Debug)]
pub struct Pending {
    operation: Operation,
    place: Place,
    key: Bytes,
    token: Bytes,
    ttl: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Acquire {
        waits: bool,
    },
    /// The grant came after a wait: it is given its whole life now.
    Confirm,
    Renew,
    Release,
    Show,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Shard(u16),
    Kv { best_effort: bool },
}

impl Place {
    fn new(store: StoreName, best_effort: bool, key: &[u8], shards: u16) -> Self {
        match store {
            StoreName::DurableObject => Self::Shard(shard_of(key, shards)),
            StoreName::Kv => Self::Kv { best_effort },
        }
    }

    fn call(self, commands: &[Command]) -> Call {
        let target = match self {
            Self::Shard(shard) => Target::Shard { shard, durability: STRICT },
            Self::Kv { best_effort } => Target::Kv { best_effort },
        };
        Call { target, body: encode_commands(commands.iter()), timeout_ms: CALL_TIMEOUT_MS }
    }
}

/// Reads a request for the lock that `path` names.
pub(super) fn begin(request: &Request<'_>, path: &str, query: &str, shards: u16) -> Begun {
    let key: Bytes = percent_encoding::percent_decode_str(path).collect();
    if key.is_empty() {
        return Err(bad("key", "the name of a lock after /_tollgate/locks/"));
    }
    let (pending, call) = match request.method {
        "POST" => acquire(request, key, shards)?,
        "PUT" => by_token(request, key, shards, Operation::Renew)?,
        "DELETE" => by_token(request, key, shards, Operation::Release)?,
        "GET" => show_lock(query, key, shards)?,
        _ => return Err(method_not_allowed("GET, POST, PUT, DELETE")),
    };
    Ok((super::Pending::Lock(pending), vec![call]))
}

fn show_lock(query: &str, key: Bytes, shards: u16) -> Result<(Pending, Call), Response> {
    // To look at a lock promises nothing, so best effort need not be said.
    let place = match query {
        "" => Place::new(StoreName::DurableObject, false, &key, shards),
        "store=kv" => Place::new(StoreName::Kv, true, &key, shards),
        _ => return Err(bad("query", "\"store=kv\" or none")),
    };
    let call = place.call(&[Command::LockInfo(key.clone())]);
    Ok((Pending { operation: Operation::Show, place, key, token: Bytes::new(), ttl: Duration::ZERO }, call))
}

fn acquire(request: &Request<'_>, key: Bytes, shards: u16) -> Result<(Pending, Call), Response> {
    let body: Acquire = read(request.body)?;
    if body.owner.len() > MAX_TEXT {
        return Err(bad("owner", &format!("at most {MAX_TEXT} bytes, got {}", body.owner.len())));
    }
    let place = Place::new(body.store, body.best_effort, &key, shards);
    let (ttl, wait) = (Duration::from_millis(body.ttl_ms.get()), Duration::from_millis(body.wait_ms.get()));
    let waits = wait > Duration::ZERO;
    let token = hex(&request.random.to_be_bytes()).into_bytes();
    let try_once =
        // The object holds the caller's promise and hears when it hangs up: it counts as there as long as it waits.
        LockRequest { key, token, ttl, label: body.owner.into_bytes(), wait: waits.then_some(wait), poll: Some(wait) };
    let call = match (waits, place) {
        (false, _) => place.call(&[Command::Lock(try_once.clone())]),
        (true, Place::Kv { .. }) => return Err(bad("wait_ms", "0 with store \"kv\", which has no queue")),
        (true, Place::Shard(shard)) => {
            let turn = LockRequest { ttl: ttl.min(CONFIRM_WITHIN), wait: None, ..try_once.clone() };
            let commands = [Command::Lock(try_once.clone()), Command::Lock(turn)];
            let timeout_ms = CALL_TIMEOUT_MS.saturating_add(wait.as_millis());
            Call { target: Target::Lock { shard }, body: encode_commands(commands.iter()), timeout_ms }
        }
    };
    let LockRequest { key, token, .. } = try_once;
    Ok((Pending { operation: Operation::Acquire { waits }, place, key, token, ttl }, call))
}

fn by_token(request: &Request<'_>, key: Bytes, shards: u16, operation: Operation) -> Result<(Pending, Call), Response> {
    let body: ByToken = read(request.body)?;
    let header = || (request.header)("tollgate-lock-token").unwrap_or_default();
    let token = if body.token.is_empty() { header() } else { body.token };
    if token.is_empty() || token.len() > MAX_TEXT {
        return Err(bad("token", &format!("the lock's token, 1 to {MAX_TEXT} bytes")));
    }
    let place = Place::new(body.store, body.best_effort, &key, shards);
    let (token, ttl) = (token.into_bytes(), Duration::from_millis(body.ttl_ms.get()));
    let pending = Pending { operation, place, key, token, ttl };
    let command = if operation == Operation::Release { pending.unlock() } else { pending.renew() };
    let call = place.call(&[command]);
    Ok((pending, call))
}

/// An empty body is one without fields.
fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Response> {
    match body.trim_ascii().first() {
        None => return Ok(T::default()),
        Some(b'{') => {}
        // Serde would take an array too, as the fields by their order.
        Some(_) => return Err(bad(".", "a JSON object")),
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| invalid(&format!("{}: {}", error.path(), reason(error.inner()))))?;
    json.end().map_err(|_| bad(".", "nothing after the JSON object"))?;
    Ok(value)
}

fn bad(field: &str, expected: &str) -> Response {
    invalid(&format!("{field}: expected {expected}"))
}

fn invalid(message: &str) -> Response {
    error_json(400, &format!("ERR {message}"), Some(ErrorKind::InvalidArgument.code()))
}

impl Pending {
    fn unlock(&self) -> Command {
        Command::Unlock { key: self.key.clone(), token: self.token.clone() }
    }

    fn renew(&self) -> Command {
        Command::Renew { key: self.key.clone(), token: self.token.clone(), ttl: self.ttl }
    }

    /// Takes the client that hung up out of the queue, and gives the lock back if it came just then.
    pub(super) fn leave(&self) -> Option<Call> {
        let (Operation::Acquire { .. } | Operation::Confirm, Place::Shard(shard)) = (self.operation, self.place) else {
            return None;
        };
        let body = encode_commands([&self.unlock()].into_iter());
        Some(Call { target: Target::Leave { shard }, body, timeout_ms: CALL_TIMEOUT_MS })
    }

    /// Reads the answer.
    pub(super) fn resume(&mut self, answers: Vec<Answer>, now: Timestamp) -> Step {
        let answer = answers.into_iter().next().unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "no answer")));
        let mut replies = match answer.and_then(|bytes| decode_replies(&bytes)) {
            Ok(replies) => replies,
            // It is not known whether the lock was granted: nobody will use it, so it is given back.
            Err(error) => {
                return Step::Done { response: failed(&error), afterwards: self.leave().into_iter().collect() };
            }
        };
        let after_wait = replies.len() > 1;
        let reply = replies.pop().unwrap_or(Reply::Nil);
        match self.answer(reply, after_wait, now) {
            Ok(step) => step,
            Err(error) => Step::done(failed(&error)),
        }
    }

    fn answer(&mut self, reply: Reply, after_wait: bool, now: Timestamp) -> Result<Step, Error> {
        let response = match self.operation {
            Operation::Acquire { waits } => match grant(reply)? {
                Some(_) if after_wait => {
                    self.operation = Operation::Confirm;
                    return Ok(Step::Calls(vec![self.place.call(&[self.renew()])]));
                }
                Some((fencing, expires)) => self.granted(fencing, expires),
                None if waits => error_json(
                    408,
                    "ERR somebody else held the lock until the wait ran out",
                    Some(ErrorKind::WaitTimeout.code()),
                ),
                None => error_json(409, "ERR somebody else holds the lock", Some(ErrorKind::Locked.code())),
            },
            Operation::Confirm => match grant(reply)? {
                Some((fencing, expires)) => self.granted(fencing, expires),
                None => lost(),
            },
            Operation::Renew => match grant(reply)? {
                Some((fencing, expires)) => {
                    let body = serde_json::json!({ "fencing": fencing, "expires_at_ms": expires.as_millis() });
                    Response::json(200, body.to_string())
                }
                None => lost(),
            },
            Operation::Release => match reply.into_integer()? {
                1 => Response::json(200, serde_json::json!({ "released": true }).to_string()),
                _ => lost(),
            },
            Operation::Show => show(reply, now)?,
        };
        Ok(Step::done(response))
    }

    fn granted(&self, fencing: u64, expires: Timestamp) -> Response {
        let body = serde_json::json!({
            "token": String::from_utf8_lossy(&self.token),
            "fencing": fencing,
            "expires_at_ms": expires.as_millis(),
        });
        Response::json(200, body.to_string())
    }
}

fn lost() -> Response {
    let message = "ERR the lock expired, was released or belongs to another token";
    error_json(409, message, Some(ErrorKind::LockLost.code()))
}

fn show(reply: Reply, now: Timestamp) -> Result<Response, Error> {
    if reply == Reply::Nil {
        return Ok(Response::json(200, serde_json::json!({ "held": false }).to_string()));
    }
    let mut parts = reply.into_array()?.into_iter();
    let count = |reply: Option<Reply>| match reply {
        Some(Reply::Nil) | None => Ok(None),
        Some(reply) => reply.into_count().map(Some),
    };
    let owner = match parts.next() {
        Some(Reply::Bulk(label)) => Some(String::from_utf8_lossy(&label).into_owned()),
        _ => None,
    };
    let (fencing, left, waiters) = (count(parts.next())?, count(parts.next())?, count(parts.next())?);
    let expires_at_ms = left.map(|left| now.as_millis().saturating_add(left));
    let body = serde_json::json!({
        "held": true,
        "owner": owner,
        "fencing": fencing,
        "expires_in_ms": left,
        "expires_at_ms": expires_at_ms,
        "waiters": waiters.unwrap_or(0),
    });
    Ok(Response::json(200, body.to_string()))
}
