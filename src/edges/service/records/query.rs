//! The query of a question: `since`, `until`, `policy`, `outcome`, `rollup`, `limit`.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Endpoint, all_if_none};
use crate::engine::keyspace::MAX_BUCKETS;
use crate::engine::policy::Config;
use crate::rules::series::record::Outcome;
use crate::rules::series::rollup::{Range, Rollup, Rollups};
use crate::values::error::Error;
use crate::values::time::{Duration, Timestamp};
use crate::values::units::parse_span;

/// The most points of all series together.
pub(super) const MAX_POINTS: usize = 50_000;

/// The most buckets that are read with all of their keys, unless a rollup is asked for by name: a shard's requests wait
/// while it reads.
const MAX_READ: usize = 61;

/// The most keys of a top.
pub(super) const MAX_LIMIT: usize = 1000;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) range: Range,
    pub(super) level: Rollup,
    /// Where each bucket of the range begins.
    pub(super) buckets: Vec<Timestamp>,
    /// The policies asked for; all when there is none.
    pub(super) policies: Vec<String>,
    /// The policies that there are.
    pub(super) known: Vec<String>,
    /// The outcomes asked for.
    pub(super) outcomes: Vec<Outcome>,
    /// How many keys.
    pub(super) limit: usize,
}

#[derive(Default)]
struct Fields {
    since: Option<String>,
    until: Option<String>,
    rollup: Option<String>,
    limit: Option<String>,
    policies: Vec<String>,
    outcomes: Vec<Outcome>,
}

impl Fields {
    fn read(query: &str, endpoint: Endpoint) -> Result<Self, Error> {
        let mut fields = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let is_known = match endpoint {
                Endpoint::Metrics => false,
                Endpoint::Top => true,
                Endpoint::Series => name != "limit",
                Endpoint::Distinct => name != "limit" && name != "outcome",
            };
            let slot = match name.as_ref() {
                _ if !is_known => None,
                "since" => Some(&mut fields.since),
                "until" => Some(&mut fields.until),
                "rollup" => Some(&mut fields.rollup),
                "limit" => Some(&mut fields.limit),
                "policy" => {
                    push_new(&mut fields.policies, value.into_owned());
                    continue;
                }
                "outcome" => {
                    let expected = format!(r#""allowed", "denied", "degraded" or "shadowed", got {value:?}"#);
                    let outcome = Outcome::from_name(value.as_bytes());
                    push_new(&mut fields.outcomes, outcome.ok_or_else(|| Error::invalid("outcome", expected))?);
                    continue;
                }
                _ => None,
            };
            let slot = slot.ok_or_else(|| Error::invalid(&name, "no such query parameter here"))?;
            if slot.replace(value.into_owned()).is_some() {
                return Err(Error::invalid(&name, "the query parameter once, got it twice"));
            }
        }
        Ok(fields)
    }
}

/// What is asked for twice is told once.
fn push_new<T: PartialEq>(known: &mut Vec<T>, item: T) {
    if !known.contains(&item) {
        known.push(item);
    }
}

impl Query {
    /// Reads a query string.
    ///
    /// # Errors
    /// They begin with the parameter's name and say what was expected.
    pub(super) fn read(query: &str, endpoint: Endpoint, now: Timestamp, config: &Config) -> Result<Self, Error> {
        let fields = Fields::read(query, endpoint)?;
        let until = fields.until.as_deref().map_or(Ok(now), |text| instant("until", text, now))?.min(now);
        let since = fields.since.as_deref().unwrap_or("-1h");
        let since = instant("since", since, now)?;
        if until < since {
            return Err(Error::invalid("since", "a time that is over and not after until"));
        }
        let rollups = config.series.rollups();
        let known: Vec<_> = config.policies.iter().map(|policy| policy.name.as_str().to_owned()).collect();
        let outcomes = all_if_none(fields.outcomes);
        let policies = if fields.policies.is_empty() { known.len() } else { fields.policies.len() };
        let (lines, most) = match endpoint {
            Endpoint::Series => (policies.max(1).saturating_mul(outcomes.len()), MAX_POINTS),
            // Each of its buckets is read with all of its keys.
            _ => (1, MAX_READ),
        };
        let fits = |level: &Rollup| rollups.buckets(*level, Range { start: since, end: until }, lines, most).is_ok();
        let level = level(rollups, fields.rollup.as_deref(), since, now, fits)?;
        // What is older than the level keeps is not zero but unknown.
        let kept = level.retention().as_millis();
        let oldest = Timestamp::from_millis(now.floor_to(level.step()).as_millis().saturating_sub(kept));
        if until < oldest {
            let oldest = oldest.as_millis();
            return Err(Error::invalid("until", format_args!("{oldest} or later, nothing older is kept")));
        }
        let range = Range { start: since.max(oldest), end: until };
        let buckets = rollups.buckets(level, range, lines, MAX_POINTS.min(MAX_BUCKETS.saturating_mul(lines)))?;
        let limit = fields.limit.as_deref().map_or(Ok(10), read_limit)?;
        Ok(Self { range, level, buckets, policies: fields.policies, known, outcomes, limit })
    }

    /// Whether a policy is asked for.
    pub(super) fn wants(&self, policy: &str) -> bool {
        self.policies.is_empty() || self.policies.iter().any(|wanted| wanted == policy)
    }
}

fn read_limit(text: &str) -> Result<usize, Error> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| Error::invalid("limit", format_args!("1 to {MAX_LIMIT}, got {text:?}")))
}

/// The level of that step, if it still holds the beginning; or the finest one that does and that fits, or else holds it.
fn level(
    rollups: &Rollups,
    step: Option<&str>,
    since: Timestamp,
    now: Timestamp,
    fits: impl Fn(&Rollup) -> bool,
) -> Result<Rollup, Error> {
    // The record keeps one bucket more than a level has, so that all of a level can be asked with both ends in it.
    let holds = |level: &&Rollup| level.is_live(since.saturating_add(level.step()), now);
    let live = rollups.levels().iter().find(holds).copied().unwrap_or(rollups.coarsest());
    let Some(text) = step else {
        let fitting = rollups.levels().iter().find(|level| level.step() >= live.step() && fits(level));
        return Ok(fitting.copied().unwrap_or(rollups.coarsest()));
    };
    let step =
        parse_span(text).ok_or_else(|| Error::invalid("rollup", format_args!("a step such as 10s, got {text:?}")))?;
    let level = rollups.of_step(step)?;
    if level.step() < live.step() {
        let (kept, fits) = (level.retention().as_millis(), live.step().as_millis());
        let expected = format_args!("one that reaches back to since: {text} keeps {kept} ms, {fits} ms would fit");
        return Err(Error::invalid("rollup", expected));
    }
    Ok(level)
}

/// Reads RFC 3339, a span before now such as `-1h`, `now`, or Unix milliseconds.
fn instant(field: &str, text: &str, now: Timestamp) -> Result<Timestamp, Error> {
    let ago = |span: Duration| Timestamp::from_millis(now.as_millis().saturating_sub(span.as_millis()));
    let parsed = match text.as_bytes().first() {
        Some(b'-') => text.get(1..).and_then(parse_span).map(ago),
        _ if text == "now" => Some(now),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok().map(Timestamp::from_millis),
        _ => {
            // A '+' of a time zone that was not percent-encoded arrives as a space.
            let at = OffsetDateTime::parse(&text.replace(' ', "+"), &Rfc3339).ok();
            at.and_then(|at| u64::try_from(at.unix_timestamp_nanos().checked_div(1_000_000)?).ok())
                .map(Timestamp::from_millis)
        }
    };
    let expected = || Error::invalid(field, format_args!(r#"RFC 3339, "-1h" or Unix milliseconds, got {text:?}"#));
    parsed.ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_005_500);

    fn read(query: &str) -> Result<Query, Error> {
        let config = r#"{"policies":[{"name":"p","limit":"1/s","missing_key":"skip"}]}"#;
        Query::read(query, Endpoint::Series, NOW, &Config::parse(config).unwrap())
    }

    #[test]
    fn times_are_read_in_every_form_and_the_rollup_is_chosen() {
        for (query, start, end, step_s, buckets) in [
            ("", 1_699_996_405_500, NOW.as_millis(), 10, 361),
            ("since=-30m", 1_699_998_205_500, NOW.as_millis(), 10, 181),
            ("since=-1d", 1_699_913_605_500, NOW.as_millis(), 3600, 25),
            ("since=-1d&until=-1h", 1_699_913_605_500, 1_699_996_405_500, 3600, 24),
            ("since=2023-11-14T22:00:00Z", 1_699_999_200_000, NOW.as_millis(), 10, 81),
            ("since=2023-11-14T23:00:00%2B01:00", 1_699_999_200_000, NOW.as_millis(), 10, 81),
            ("since=2023-11-14T23:00:00+01:00", 1_699_999_200_000, NOW.as_millis(), 10, 81),
            ("since=1699999200000&until=1699999200000", 1_699_999_200_000, 1_699_999_200_000, 10, 1),
            ("since=-1h&until=2040-01-01T00:00:00Z&rollup=1h", 1_699_996_405_500, NOW.as_millis(), 3600, 2),
            ("since=1970-01-01T00:00:00Z", 1_692_144_000_000, NOW.as_millis(), 86_400, 91),
            ("since=-90d&until=-89d", 1_692_224_005_500, 1_692_310_405_500, 86_400, 2),
        ] {
            let read = read(query).unwrap_or_else(|error| panic!("{query}: {error}"));
            let found =
                (read.range.start.as_millis(), read.range.end.as_millis(), read.level.step().as_millis() / 1000);
            assert_eq!((found, read.buckets.len()), ((start, end, step_s), buckets), "{query}");
        }
    }

    #[test]
    fn mistakes_name_the_parameter() {
        for (query, message) in [
            ("since=yesterday", "since: expected RFC 3339, \"-1h\" or Unix milliseconds, got \"yesterday\""),
            ("since=", "since: expected RFC 3339"),
            ("since=-", "since: expected RFC 3339"),
            ("since=-5x", "since: expected RFC 3339"),
            ("since=99999999999999999999999", "since: expected RFC 3339"),
            ("since=2023-02-30T00:00:00Z", "since: expected RFC 3339"),
            ("since=1960-01-01T00:00:00Z", "since: expected RFC 3339"),
            ("until=-2h&since=-1h", "since: expected a time that is over and not after until"),
            ("since=2040-01-01T00:00:00Z", "since: expected a time that is over"),
            ("since=-1h&since=-2h", "since: expected the query parameter once"),
            ("sincee=-1h", "sincee: expected no such query parameter here"),
            ("since=-200d&until=-150d", "until: expected 1692144000000 or later, nothing older is kept"),
            ("limit=5", "limit: expected no such query parameter here"),
            ("outcome=lost", "outcome: expected \"allowed\", \"denied\", \"degraded\" or \"shadowed\", got \"lost\""),
            ("rollup=20s", "rollup: expected one of 10000, 3600000, 86400000 ms, got 20000 ms"),
            ("rollup=x", "rollup: expected a step such as 10s"),
            (
                "since=-2h&rollup=10s",
                "rollup: expected one that reaches back to since: 10s keeps 3600000 ms, 3600000 ms would fit",
            ),
        ] {
            let error = read(query).expect_err(query);
            assert!(error.message().starts_with(message), "{query}: {error}");
        }
    }
}
