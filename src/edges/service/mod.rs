//! The service, for programs in any language: `/_tollgate/redis`, `/_tollgate/kv`, `/_tollgate/locks/<key>`, and what
//! the gate has seen: `/_tollgate/series`, `/_tollgate/top`, `/_tollgate/distinct`, `/_tollgate/metrics`.

pub mod locks;
pub mod records;
pub mod redis;

use sha2::{Digest, Sha256};

use crate::edges::exchange::{Answer, Call, Response, Step};
use crate::engine::policy::Config;
use crate::stores::durable_object::shard::Durability;
use crate::values::error::Error;
use crate::values::time::Timestamp;

/// Everything under it is the service's own and never reaches the origin.
pub const PREFIX: &str = "/_tollgate/";

/// How long a call to a store may take, in milliseconds.
const CALL_TIMEOUT_MS: u64 = 5000;

/// A request to the service.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path and query, as they were sent.
    pub path: &'a str,
    /// The value of a header by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<String>,
    /// The whole body.
    pub body: &'a [u8],
    /// 128 unpredictable bits for this request.
    pub random: u128,
    /// When it came.
    pub now: Timestamp,
}

/// A request that waits for answers.
#[derive(Debug)]
pub enum Pending {
    /// Commands.
    Redis(redis::Pending),
    /// A lock.
    Lock(locks::Pending),
    /// A question about what the gate has seen.
    Records(records::Pending),
}

/// Who may not use the service, by the header fields alone: nobody reads the body of a stranger. `secret` is the
/// configured token; without one the service does not exist.
pub fn screen(header: &dyn Fn(&str) -> Option<String>, secret: Option<&str>) -> Option<Response> {
    let Some(secret) = secret.filter(|secret| !secret.is_empty()) else { return Some(not_found()) };
    let refusal = || error_json(401, "WRONGPASS invalid or missing bearer token", None);
    (!is_authorized(header, secret)).then(|| refusal().with("www-authenticate", "Bearer".to_owned()))
}

/// Looks at a request that was screened.
pub fn begin(request: &Request<'_>, config: &Config) -> (Option<Pending>, Step) {
    let shards = config.shard_count();
    let (path, query) = request.path.split_once('?').unwrap_or((request.path, ""));
    let path = path.strip_prefix(PREFIX).unwrap_or_default();
    let (head, rest) = path.split_once('/').unwrap_or((path, ""));
    let begun = match head {
        "redis" => redis::begin(request, rest, redis::Backend::Shards(shards)),
        "kv" => redis::begin(request, rest, redis::Backend::Kv),
        "locks" => locks::begin(request, rest, query, shards),
        "series" if rest.is_empty() => records::begin(request, records::Endpoint::Series, query, config),
        "top" if rest.is_empty() => records::begin(request, records::Endpoint::Top, query, config),
        "distinct" if rest.is_empty() => records::begin(request, records::Endpoint::Distinct, query, config),
        "metrics" if rest.is_empty() => records::begin(request, records::Endpoint::Metrics, query, config),
        _ => Err(not_found()),
    };
    match begun {
        Ok((pending, calls)) => (Some(pending), Step::Calls(calls)),
        Err(response) => refuse(response),
    }
}

/// Goes on with the answers to its calls.
pub fn resume(pending: &mut Pending, answers: Vec<Answer>, now: Timestamp) -> Step {
    match pending {
        Pending::Redis(redis) => Step::done(redis.finish(answers)),
        Pending::Lock(lock) => lock.resume(answers, now),
        Pending::Records(records) => Step::done(records.finish(answers)),
    }
}

/// The call to make when the client hangs up before the end.
pub fn hang_up(pending: &Pending) -> Option<Call> {
    match pending {
        Pending::Redis(_) | Pending::Records(_) => None,
        Pending::Lock(lock) => lock.leave(),
    }
}

type Begun = Result<(Pending, Vec<Call>), Response>;

fn refuse(response: Response) -> (Option<Pending>, Step) {
    (None, Step::done(response))
}

/// Compares digests, so that the time it takes says nothing about the secret.
fn is_authorized(header: &dyn Fn(&str) -> Option<String>, secret: &str) -> bool {
    let header = header("authorization").unwrap_or_default();
    let Some((scheme, token)) = header.split_once(' ') else { return false };
    scheme.eq_ignore_ascii_case("bearer") && Sha256::digest(token.trim()) == Sha256::digest(secret)
}

fn not_found() -> Response {
    error_json(404, "ERR there is nothing here", None)
}

fn method_not_allowed(allowed: &str) -> Response {
    error_json(405, &format!("ERR expected the method {allowed}"), None).with("allow", allowed.to_owned())
}

/// `{"error": "..."}`, as Upstash's clients read it, with the stable code beside it where there is one.
fn error_json(status: u16, message: &str, code: Option<&str>) -> Response {
    let body = match code {
        Some(code) => serde_json::json!({ "error": message, "code": code }),
        None => serde_json::json!({ "error": message }),
    };
    Response::json(status, body.to_string())
}

/// The response for a call that failed.
fn failed(error: &Error) -> Response {
    use crate::values::error::ErrorKind as Kind;
    let status = match error.kind() {
        Kind::InvalidArgument | Kind::Command | Kind::BestEffortRequired | Kind::CrossShard => 400,
        Kind::WriteConflict => 429,
        Kind::Full => 507,
        _ => 503,
    };
    let response = error_json(status, error.message(), Some(error.kind().code()));
    if error.kind().is_retryable() { response.with("retry-after", "1".to_owned()) } else { response }
}

const STRICT: Durability = Durability::Strict;
