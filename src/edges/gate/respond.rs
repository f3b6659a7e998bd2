//! What the gate answers, once it knows what its policies said.

use super::{Passage, Verdict};
use crate::edges::exchange::Response;
use crate::engine::headers::{self, Item, Problem};
use crate::engine::policy::{OnError, Policy};
use crate::values::time::{Duration, Timestamp};

/// Names the policies that could not be counted.
const DEGRADED: &str = "tollgate-degraded";

/// How soon a client may come again when the gate cannot count.
const RETRY_WHEN_DEGRADED: Duration = Duration::from_secs(1);

impl Passage {
    /// The response; without a status the request goes to the origin.
    pub(super) fn respond(&self, verdicts: &[Verdict<'_>], failed: &[&Policy], now: Timestamp) -> Response {
        let names = |policies: &[&Policy]| policies.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let accept = self.accept.as_deref();
        let denied: Vec<_> = verdicts.iter().filter(|verdict| !verdict.allowed).collect();
        let closed: Vec<_> = failed.iter().filter(|policy| policy.on_error == OnError::Deny).collect();
        let refuse = |problem: Problem, policies: &[&str], retry_after: Duration| {
            let body = headers::problem(problem, policies, Some(retry_after), accept);
            Response::new(problem.status(), body).with("retry-after", headers::retry_after(retry_after))
        };
        let mut response = if !denied.is_empty() {
            let policies: Vec<_> = denied.iter().map(|verdict| verdict.policy.name.as_str()).collect();
            let wait = denied.iter().filter_map(|verdict| verdict.retry_after).max().unwrap_or_default();
            refuse(Problem::QuotaExceeded, &policies, wait)
        } else if !closed.is_empty() {
            let policies: Vec<_> = closed.iter().map(|policy| policy.name.as_str()).collect();
            refuse(Problem::TemporaryReducedCapacity, &policies, RETRY_WHEN_DEGRADED)
        } else {
            Response::default()
        };
        if !failed.is_empty() {
            response = response.with(DEGRADED, names(failed));
        }
        let items: Vec<_> = verdicts.iter().map(|verdict| item(verdict, now)).collect();
        if items.is_empty() {
            return response;
        }
        response.with("ratelimit-policy", headers::policy_field(&items)).with("ratelimit", headers::limit_field(&items))
    }
}

fn item<'a>(verdict: &Verdict<'a>, now: Timestamp) -> Item<'a> {
    let limit = verdict.policy.limit();
    Item {
        policy: verdict.policy.name.as_str(),
        quota: limit.rate.quota,
        window: limit.fixed_span(),
        remaining: verdict.remaining,
        // The object's clock made it; ours may run a little behind.
        more_after: verdict.more_at.saturating_since(now).min(limit.longest_wait()),
    }
}

/// The answer to a request without the key that a policy counts by.
pub(super) fn no_key(policy: &Policy) -> Response {
    let body = serde_json::json!({
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "detail": format!("the policy {:?} counts by a key that this request does not have", policy.name.as_str()),
    });
    Response::new(403, headers::Body { media_type: "application/problem+json", text: body.to_string() })
}
