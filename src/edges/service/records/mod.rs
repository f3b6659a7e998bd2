//! What the gate has seen: `/_tollgate/series`, `/_tollgate/top`, `/_tollgate/distinct` and `/_tollgate/metrics`.
//!
//! Every shard is asked at once. One that does not answer makes the answer partial, and the answer says so.

mod answer;
mod csv;
mod metrics;
mod query;

use super::{Begun, CALL_TIMEOUT_MS, Request, Response, error_json, failed, method_not_allowed};
use crate::edges::exchange::{Answer, Call, Target};
use crate::engine::accept::{CSV, prefers};
use crate::engine::command::{Command, Window};
use crate::engine::policy::Config;
use crate::engine::reply::Reply;
use crate::engine::resp::decode_replies;
use crate::rules::series::record::Outcome;
use crate::stores::durable_object::client::encode_commands;
use crate::stores::durable_object::shard::Durability;
use crate::values::error::Error;

use answer::Found;
use query::Query;

/// Which of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Series,
    Top,
    Distinct,
    Metrics,
}

/// A question that waits for the shards.
#[derive(Debug)]
pub struct Pending {
    endpoint: Endpoint,
    query: Query,
    accept: String,
}

/// Reads a request and asks every shard.
pub(super) fn begin(request: &Request<'_>, endpoint: Endpoint, query: &str, config: &Config) -> Begun {
    if request.method != "GET" {
        return Err(method_not_allowed("GET"));
    }
    if config.series.off {
        return Err(error_json(404, "ERR nothing is recorded: series.off is set", None));
    }
    let query = Query::read(query, endpoint, request.now, config).map_err(|error| failed(&error))?;
    let body = encode_commands([&command(endpoint, &query)].into_iter());
    let call = |shard| Call {
        target: Target::Shard { shard, durability: Durability::Relaxed },
        body: body.clone(),
        timeout_ms: CALL_TIMEOUT_MS,
    };
    let calls = (0..config.shard_count()).map(call).collect();
    let accept = (request.header)("accept").unwrap_or_default();
    Ok((super::Pending::Records(Pending { endpoint, query, accept }), calls))
}

fn command(endpoint: Endpoint, query: &Query) -> Command {
    let window = || Window {
        rollup: query.level.step(),
        start: query.range.start,
        end: query.range.end,
        policy: match query.policies.as_slice() {
            [one] => Some(one.as_bytes().to_vec()),
            _ => None,
        },
    };
    match endpoint {
        Endpoint::Series => Command::Series(window()),
        Endpoint::Distinct => Command::Distinct(window()),
        Endpoint::Metrics => Command::Totals,
        // Of several policies, and not of all, each shard's heaviest may be another one's.
        Endpoint::Top => Command::Top {
            most: if query.policies.len() > 1 { query::MAX_LIMIT } else { query.limit },
            outcomes: query.outcomes.clone(),
            window: window(),
        },
    }
}

impl Pending {
    /// Adds the shards' answers up.
    pub(super) fn finish(&self, answers: Vec<Answer>) -> Response {
        let mut found = Found::default();
        let mut last_failure = None;
        let shards = answers.len();
        for (shard, answer) in answers.into_iter().enumerate() {
            match answer.and_then(|bytes| rows(&bytes)) {
                Ok(rows) => found.shards.push((shard, rows)),
                Err(error) => {
                    found.failed.push(shard);
                    last_failure = Some(error);
                }
            }
        }
        if self.endpoint == Endpoint::Metrics {
            return metrics::respond(&found, shards, &self.accept);
        }
        match last_failure {
            Some(error) if found.shards.is_empty() => failed(&error),
            _ => self.respond(&found).unwrap_or_else(|error| failed(&error)),
        }
    }

    fn respond(&self, found: &Found) -> Result<Response, Error> {
        let is_csv = prefers(Some(&self.accept), CSV);
        let body = match (self.endpoint, is_csv) {
            (Endpoint::Top, false) => answer::top(found, &self.query)?,
            (Endpoint::Top, true) => csv::top(&answer::heaviest(found, &self.query)?),
            (Endpoint::Distinct, false) => answer::distinct(found, &self.query)?,
            (Endpoint::Distinct, true) => csv::distinct(&answer::clients(found, &self.query)?),
            (_, false) => answer::series(found, &self.query)?,
            (_, true) => csv::series(&answer::lines(found, &self.query)?),
        };
        let response = if is_csv { csv::response(body) } else { Response::json(200, body) };
        Ok(if found.failed.is_empty() { response } else { response.with(PARTIAL, list(&found.failed)) })
    }
}

/// Names the shards that did not answer.
const PARTIAL: &str = "tollgate-partial";

fn list(shards: &[usize]) -> String {
    shards.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The rows of one shard's answer.
fn rows(bytes: &[u8]) -> Result<Vec<Reply>, Error> {
    decode_replies(bytes)?.into_iter().next().unwrap_or(Reply::Nil).into_array()
}

/// All outcomes, where none is asked for by name.
fn all_if_none(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    if outcomes.is_empty() { Outcome::ALL.to_vec() } else { outcomes }
}
