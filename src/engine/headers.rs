//! What a response says: draft-ietf-httpapi-ratelimit-headers-10, written here and nowhere else. Both fields are
//! structured-field Lists (RFC 9651) with one item a policy.

use serde::Serialize;

use crate::engine::accept::{TEXT, prefers};
use crate::values::time::Duration;

/// One policy's part of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The policy's name. It has no character that a structured-field string must escape.
    pub policy: &'a str,
    /// `q`: the quota.
    pub quota: u64,
    /// `w`: the window; left out when it is not a whole number of seconds.
    pub window: Option<Duration>,
    /// `r`: what is left.
    pub remaining: u64,
    /// `t`: the span until there is more.
    pub more_after: Duration,
}

/// `RateLimit-Policy`, the same from response to response.
pub fn policy_field(items: &[Item<'_>]) -> String {
    let item = |item: &Item<'_>| {
        let window = item.window.and_then(Duration::as_whole_secs).map(|w| format!(";w={w}")).unwrap_or_default();
        format!("\"{}\";q={}{window}", item.policy, item.quota)
    };
    items.iter().map(item).collect::<Vec<_>>().join(", ")
}

/// `RateLimit`. The policy with the least left leads.
pub fn limit_field(items: &[Item<'_>]) -> String {
    let mut items: Vec<_> = items.iter().collect();
    items.sort_by_key(|item| item.remaining);
    let item =
        |item: &&Item<'_>| format!("\"{}\";r={};t={}", item.policy, item.remaining, item.more_after.as_secs_ceil());
    items.iter().map(item).collect::<Vec<_>>().join(", ")
}

/// `Retry-After`: whole seconds (RFC 9110 section 10.2.3), rounded up and at least 1, so that a client that obeys
/// does not come too early.
pub fn retry_after(span: Duration) -> String {
    span.as_secs_ceil().max(1).to_string()
}

/// The problem types of the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The client used its quota up: 429.
    QuotaExceeded,
    /// The gate cannot count right now: 503.
    TemporaryReducedCapacity,
}

impl Problem {
    /// The status that goes with it.
    pub const fn status(self) -> u16 {
        match self {
            Self::QuotaExceeded => 429,
            Self::TemporaryReducedCapacity => 503,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "quota-exceeded",
            Self::TemporaryReducedCapacity => "temporary-reduced-capacity",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Request cannot be satisfied as assigned quota has been exceeded",
            Self::TemporaryReducedCapacity => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
        }
    }
}

/// A response body and its media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The `Content-Type`.
    pub media_type: &'static str,
    /// The text.
    pub text: String,
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(rename = "violated-policies")]
    violated_policies: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// The body of a refusal: problem+json (RFC 9457), or a sentence for those who ask for text first.
pub fn problem(problem: Problem, policies: &[&str], retry_after: Option<Duration>, accept: Option<&str>) -> Body {
    if prefers(accept, TEXT) {
        let names = policies.join(", ");
        return Body { media_type: "text/plain; charset=utf-8", text: format!("{} ({names})\n", problem.title()) };
    }
    let body = ProblemBody {
        r#type: format!("https://iana.org/assignments/http-problem-types#{}", problem.name()),
        title: problem.title(),
        status: problem.status(),
        violated_policies: policies,
        retry_after_ms: retry_after.map(Duration::as_millis),
    };
    let text = serde_json::to_string(&body).unwrap_or_default();
    Body { media_type: "application/problem+json", text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(policy: &str, remaining: u64, window_ms: u64, reset_ms: u64) -> Item<'_> {
        let (window, more_after) = (Some(Duration::from_millis(window_ms)), Duration::from_millis(reset_ms));
        Item { policy, quota: 100, window, remaining, more_after }
    }

    #[test]
    fn fields_are_those_of_the_draft() {
        let items = [item("burst", 50, 60_000, 29_001), item("tick", 3, 250, 0)];
        assert_eq!(policy_field(&items), r#""burst";q=100;w=60, "tick";q=100"#);
        assert_eq!(limit_field(&items), r#""tick";r=3;t=0, "burst";r=50;t=30"#);
    }

    #[test]
    fn retry_after_is_a_whole_number_and_never_too_early() {
        for (millis, text) in [(0, "1"), (1, "1"), (200, "1"), (1000, "1"), (1001, "2"), (9400, "10")] {
            assert_eq!(retry_after(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn the_body_is_what_the_client_can_read() {
        let media = |accept| problem(Problem::QuotaExceeded, &["a"], None, accept).media_type;
        for (accept, expected) in [
            (None, "application/problem+json"),
            (Some("*/*"), "application/problem+json"),
            (Some("application/json"), "application/problem+json"),
            (Some("text/plain"), "text/plain; charset=utf-8"),
            (Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), "text/plain; charset=utf-8"),
            (Some("text/plain;q=0.5, application/json"), "application/problem+json"),
            (Some("text/plain;q=oops, application/json;q=0.1"), "application/problem+json"),
        ] {
            assert_eq!(media(accept), expected, "{accept:?}");
        }
        let body = problem(Problem::QuotaExceeded, &["a", "b"], Some(Duration::from_millis(1500)), None).text;
        assert_eq!(
            body,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["a","b"],"retry_after_ms":1500}"#
        );
    }
}
