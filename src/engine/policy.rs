//! Policies as data. What does not fit is refused with the path of the field and what was expected of it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::matching::Match;
use crate::engine::matching::partition_key::PartitionKey;
use crate::rules::limit::calendar::{Calendar, Unit};
use crate::rules::limit::{Algorithm, Limit};
use crate::rules::series::recorder::{Labels, Recording, check_retentions};
use crate::rules::series::rollup::{Rollup, Rollups};
use crate::values::error::{Error, ErrorKind};
use crate::values::time::Duration;
use crate::values::units::Rate;

/// Everything a Worker is told: `[vars.TOLLGATE_CONFIG]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How many objects the keys are spread over, 1 to 1,024. Another number puts keys on other shards: counters
    /// start anew and locks that are held are not seen, so change it while nothing is at stake.
    pub shards: Shards,
    /// How late a relaxed counter may reach the disk, in milliseconds, 1 to 5,000. Below the ten seconds after
    /// which an idle object loses its memory.
    pub flush_ms: FlushMs,
    /// What is recorded of the policies' decisions.
    pub series: Series,
    /// The policies, in the order in which they are looked at. All that match a request apply.
    pub policies: Vec<Policy>,
}

/// What is recorded of the policies' decisions, for `/_tollgate/series` and its kin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Series {
    /// Record nothing.
    pub off: bool,
    /// How partition keys are shown.
    pub keys: KeyNames,
    /// How many partition keys of a policy are watched in each bucket of time, 16 to 1,024.
    pub watched_keys: WatchedKeys,
    /// How late a decision may reach the disk, in milliseconds, 100 to 60,000. Each time it is one row, however many
    /// decisions there were.
    pub flush_ms: SeriesFlushMs,
    /// The levels: step and number of buckets, finest first.
    pub rollups: RollupTexts,
}

/// How partition keys are shown in what was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyNames {
    /// By a keyed hash: who reads them cannot tell whose they are.
    #[default]
    Pseudonym,
    /// As they are: addresses, values of headers.
    Readable,
}

/// `series.watched_keys`.
pub type WatchedKeys = Bounded<16, 1024, 500>;
/// `series.flush_ms`.
pub type SeriesFlushMs = Bounded<100, 60_000, 10_000>;

/// Levels as a person writes them: `["10s x 360", "1h x 168"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct RollupTexts(Rollups);

impl TryFrom<Vec<String>> for RollupTexts {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        let read = || {
            let levels = texts.iter().map(|text| Rollup::parse(text)).collect::<Result<Vec<_>, _>>()?;
            let rollups = Rollups::new(levels)?;
            check_retentions(&rollups)?;
            Ok(Self(rollups))
        };
        read().map_err(|error: Error| error.message().to_owned())
    }
}

impl Series {
    /// The levels.
    pub const fn rollups(&self) -> &Rollups {
        &self.rollups.0
    }

    /// How decisions are recorded, with pseudonyms under `secret`; `None` when they are not.
    pub fn recording(&self, secret: &str) -> Option<Recording> {
        let labels = Labels::pseudonyms(secret.as_bytes())?;
        let labels = if self.keys == KeyNames::Readable { labels.readable() } else { labels };
        let recording = || Recording {
            rollups: self.rollups.0.clone(),
            capacity: usize::try_from(self.watched_keys.get()).unwrap_or(usize::MAX),
            flush: Duration::from_millis(self.flush_ms.get()),
            labels,
        };
        (!self.off).then(recording)
    }
}

/// One policy: which requests, counted by what, against which limit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The name in `RateLimit` fields: 1 to 64 letters, digits, `-`, `_` and `.`.
    pub name: Name,
    /// Which requests it is for; without it, all.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// What a request is counted under; without it, the client's address.
    #[serde(default)]
    pub key: PartitionKey,
    /// What happens to a request that has no such key. There is no default: a shared bucket lets one caller
    /// lock out all the others, and skipping lets them all in.
    pub missing_key: MissingKey,
    /// The quota and its window, such as `"100/minute"`.
    pub limit: RateText,
    /// How it counts.
    #[serde(default)]
    pub algorithm: AlgorithmName,
    /// What happens when the store does not answer in time.
    #[serde(default)]
    pub on_error: OnError,
    /// How long to wait for the store, in milliseconds, 1 to 30,000.
    #[serde(default)]
    pub timeout_ms: TimeoutMs,
    /// When counters reach the disk.
    #[serde(default)]
    pub durability: DurabilityName,
    /// Where counters are kept.
    #[serde(default)]
    pub store: StoreName,
    /// Says that a limit which KV cannot keep exactly will do.
    #[serde(default)]
    pub best_effort: bool,
}

/// What happens to a request without a partition key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingKey {
    /// The policy does not count it.
    Skip,
    /// It is refused with 403.
    Deny,
    /// All of them share one bucket.
    Shared,
}

/// What happens when the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// The request passes, and the response says that it was not counted.
    #[default]
    Allow,
    /// The request is answered with 503.
    Deny,
}

/// See [`Durability`](crate::Durability).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DurabilityName {
    /// At most `flush_ms` late.
    #[default]
    Relaxed,
    /// Before the request goes on.
    Strict,
}

/// Where counters are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreName {
    /// In Durable Objects: exact.
    #[default]
    DurableObject,
    /// In Workers KV: best effort.
    Kv,
}

/// A number with its bounds and its default in its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Bounded<const MIN: u64, const MAX: u64, const DEFAULT: u64>(u64);

/// `shards`.
pub type Shards = Bounded<1, 1024, 8>;
/// `flush_ms`.
pub type FlushMs = Bounded<1, 5000, 1000>;
/// `timeout_ms`.
pub type TimeoutMs = Bounded<1, 30_000, 1000>;

impl<const MIN: u64, const MAX: u64, const DEFAULT: u64> Bounded<MIN, MAX, DEFAULT> {
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64, const DEFAULT: u64> Default for Bounded<MIN, MAX, DEFAULT> {
    fn default() -> Self {
        Self(DEFAULT)
    }
}

impl<const MIN: u64, const MAX: u64, const DEFAULT: u64> TryFrom<u64> for Bounded<MIN, MAX, DEFAULT> {
    type Error = String;

    fn try_from(value: u64) -> Result<Self, String> {
        let fits = (MIN..=MAX).contains(&value);
        fits.then_some(Self(value)).ok_or_else(|| format!("expected {MIN} to {MAX}, got {value}"))
    }
}

impl<const MIN: u64, const MAX: u64, const DEFAULT: u64> From<Bounded<MIN, MAX, DEFAULT>> for u64 {
    fn from(value: Bounded<MIN, MAX, DEFAULT>) -> Self {
        value.0
    }
}

/// A policy's name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if is_plain && (1..=64).contains(&text.len()) {
            return Ok(Self(text));
        }
        Err(format!("expected 1 to 64 letters, digits, '-', '_' or '.', got {text:?}"))
    }
}

/// A rate as a person writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RateText {
    rate: Rate,
    /// The unit of the calendar that the window is, where it is one word.
    calendar: Option<Unit>,
}

/// The units of the calendar, and how long they are about.
const CALENDAR_WORDS: [(&str, Unit); 4] =
    [("day", Unit::Day), ("week", Unit::Week), ("month", Unit::Month), ("year", Unit::Year)];

impl TryFrom<String> for RateText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let window = text.split_once('/').or_else(|| text.split_once(" per ")).map(|(_, window)| window.trim());
        let word = CALENDAR_WORDS.iter().find(|(word, _)| Some(*word) == window);
        let calendar = word.map(|(_, unit)| *unit);
        // A week, a month and a year are no spans of the clock: their rate is read by how long they are about.
        let about = word.map(|(_, unit)| Calendar { unit: *unit, offset_minutes: 0 }.nominal_span());
        let readable = match (window, about) {
            (Some(window), Some(about)) => text.replacen(window, &format!("{}s", about.as_secs_ceil()), 1),
            _ => text.clone(),
        };
        let shown = |error: Error| error.message().replace(&format!("{readable:?}"), &format!("{text:?}"));
        Rate::parse(&readable).map(|rate| Self { rate, calendar }).map_err(shown)
    }
}

/// An algorithm by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AlgorithmName(Algorithm);

impl Default for AlgorithmName {
    fn default() -> Self {
        Self(Algorithm::FixedWindow)
    }
}

impl TryFrom<String> for AlgorithmName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let expected = || format!("expected {}, got {text:?}", Algorithm::EXPECTED);
        Algorithm::from_name(text.as_bytes()).map(Self).ok_or_else(expected)
    }
}

impl Policy {
    /// The limit that the policy sets.
    pub const fn limit(&self) -> Limit {
        Limit { algorithm: self.algorithm.0, rate: self.limit.rate }
    }

    /// Refuses a key that no request can have.
    fn check_key(&self) -> Result<(), String> {
        let has = |name: &str| self.matches.path.as_ref().is_some_and(|path| path.has_parameter(name));
        if let Some(name) = self.key.path_parameters().find(|name| !has(name)) {
            return Err(format!("expected a parameter of match.path, such as {:?} in \"/users/:{name}\"", name));
        }
        if self.key.is_turned_off() { Err("expected host = true".to_owned()) } else { Ok(()) }
    }

    /// Refuses a limit that its algorithm does not count.
    fn check_limit(&self) -> Result<(), String> {
        let Limit { algorithm, rate } = self.limit();
        Limit::new(algorithm, rate).map_err(|error| error.message().to_owned())?;
        match (algorithm, self.limit.calendar) {
            (Algorithm::Calendar(calendar), unit) if unit != Some(calendar.unit) => {
                Err(format!("expected \"<quota>/{}\" with algorithm = {:?}", calendar.word(), calendar.name()))
            }
            (Algorithm::Calendar(_), _) | (_, None | Some(Unit::Day)) => Ok(()),
            (_, Some(unit)) => {
                let word = Calendar { unit, offset_minutes: 0 }.word();
                Err(format!("a {word} is no fixed span: expected algorithm = \"calendar-{word}\", or a number of days"))
            }
        }
    }
}

impl Config {
    /// Reads a configuration from JSON: the form in which a Worker gets its variables.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`]; the message begins with the path of the field.
    ///
    /// ```
    /// use tollgate::Config;
    /// let error = Config::parse(r#"{"policies":[{"name":"a","limit":"6O/minute","missing_key":"skip"}]}"#).unwrap_err();
    /// assert!(error.message().starts_with("policies[0].limit: limit: expected"), "{error}");
    /// ```
    pub fn parse(json: &str) -> Result<Self, Error> {
        let mut json = serde_json::Deserializer::from_str(json);
        let tables = Value::deserialize(&mut json).map_err(|error| invalid(".", &reason(&error)))?;
        json.end().map_err(|_| invalid(".", "expected nothing after the table"))?;
        check_tables(&tables)?;
        let config: Self = serde_path_to_error::deserialize(tables)
            .map_err(|error| invalid(&error.path().to_string(), &reason(error.inner())))?;
        config.check()?;
        Ok(config)
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> u16 {
        u16::try_from(self.shards.get()).unwrap_or(1)
    }

    fn check(&self) -> Result<(), Error> {
        for (index, policy) in self.policies.iter().enumerate() {
            let field = |name: &str| format!("policies[{index}].{name}");
            if self.policies.iter().take(index).any(|earlier| earlier.name == policy.name) {
                let expected =
                    format!("expected a name that no other policy has, got {:?} twice", policy.name.as_str());
                return Err(invalid(&field("name"), &expected));
            }
            policy.matches.check().map_err(|(inner, expected)| invalid(&field(&format!("match.{inner}")), expected))?;
            policy.check_key().map_err(|expected| invalid(&field("key"), &expected))?;
            policy.check_limit().map_err(|expected| invalid(&field("limit"), &expected))?;
            if policy.store == StoreName::Kv && !policy.best_effort {
                let expected = "Workers KV cannot keep an exact limit: expected best_effort = true with store = \"kv\"";
                return Err(invalid(&field("best_effort"), expected));
            }
        }
        Ok(())
    }
}

/// Serde would read an array where a table is expected, as the fields by their order: a mistake that no unknown
/// field shows.
fn check_tables(config: &Value) -> Result<(), Error> {
    expect_table(".", Some(config))?;
    expect_table("series", config.get("series"))?;
    for (index, policy) in config.get("policies").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let path = format!("policies[{index}]");
        expect_table(&path, Some(policy))?;
        check_match(&format!("{path}.match"), policy.get("match"))?;
        let key = policy.get("key");
        let parts = key.and_then(Value::as_array).into_iter().flatten().enumerate();
        let parts = parts.map(|(part, key)| (format!("{path}.key[{part}]"), key));
        for (path, key) in
            key.filter(|key| !key.is_array()).map(|key| (format!("{path}.key"), key)).into_iter().chain(parts)
        {
            expect_table(&path, Some(key))?;
            expect_table(&format!("{path}.address"), key.get("address"))?;
        }
    }
    Ok(())
}

fn check_match(path: &str, condition: Option<&Value>) -> Result<(), Error> {
    expect_table(path, condition)?;
    let Some(condition) = condition else { return Ok(()) };
    for list in ["all", "any"] {
        for (index, inner) in condition.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
            check_match(&format!("{path}.{list}[{index}]"), Some(inner))?;
        }
    }
    condition.get("not").map_or(Ok(()), |not| check_match(&format!("{path}.not"), Some(not)))
}

fn expect_table(path: &str, value: Option<&Value>) -> Result<(), Error> {
    match value {
        Some(value) if !value.is_object() => Err(invalid(path, "expected a table")),
        _ => Ok(()),
    }
}

fn invalid(path: &str, reason: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{path}: {reason}"))
}

/// serde_json says where in the text the error is; the path says it better.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named_by_their_path() {
        let policy =
            |fields: &str| format!(r#"{{"policies":[{{"name":"a","limit":"1/s","missing_key":"skip"{fields}}}]}}"#);
        let limit =
            |limit: &str, algorithm: &str| policy(&format!(r#","algorithm":"{algorithm}""#)).replace("1/s", limit);
        for (json, message) in [
            (r#"{"polices":[]}"#.to_owned(), "polices: unknown field `polices`"),
            (r#"{"shards":0}"#.to_owned(), "shards: expected 1 to 1024, got 0"),
            (r#"{"shards":-1}"#.to_owned(), "shards: invalid value: integer `-1`, expected u64"),
            (r#"{"flush_ms":1e9}"#.to_owned(), "flush_ms: invalid type: floating point"),
            (r#"{"policies":[{"limit":"1/s","missing_key":"skip"}]}"#.to_owned(), "policies[0]: missing field `name`"),
            (r#"{"policies":[{"name":"a","limit":"1/s"}]}"#.to_owned(), "policies[0]: missing field `missing_key`"),
            (r#"{"policies":[{"name":"a\"b"}]}"#.to_owned(), "policies[0].name: expected 1 to 64 letters"),
            (policy(r#","limits":"1/s""#), "policies[0].limits: unknown field `limits`"),
            (policy(r#","on_error":"open""#), "policies[0].on_error: unknown variant `open`"),
            (policy(r#","store":"kv""#), "policies[0].best_effort: Workers KV cannot keep an exact limit"),
            (policy(r#","match":{"path":"api"}"#), "policies[0].match.path: expected a path that begins with '/'"),
            (policy(r#","match":{"methods":["FETCH IT"]}"#), "policies[0].match.methods[0]: expected an HTTP method"),
            (policy(r#","key":{"header":"a b"}"#), "policies[0].key.header: expected the name of a header"),
            (
                policy(r#","key":{"address":{"ipv6_prefix":129}}"#),
                "policies[0].key.address.ipv6_prefix: expected 0 to 128",
            ),
            ("[".to_owned(), ".: EOF"),
            ("[]".to_owned(), ".: expected a table"),
            ("".to_owned(), ".: EOF"),
            ("{} x".to_owned(), ".: expected nothing after the table"),
            (policy(r#","match":{"path":"/a?x=1"}"#), "policies[0].match.path: expected a path without '?' and '#'"),
            (policy(r#","match":{"methods":[]}"#), "policies[0].match.methods: expected at least one"),
            (r#"{"policies":[["a"]]}"#.to_owned(), "policies[0]: expected a table"),
            (policy(r#","match":[["GET"]]"#), "policies[0].match: expected a table"),
            (policy(r#","match":{"not":{"any":[[]]}}"#), "policies[0].match.not.any[0]: expected a table"),
            (policy(r#","match":{"not":{"any":[]}}"#), "policies[0].match.not.any: expected at least one condition"),
            (policy(r#","match":{"any":[{"paht":"/"}]}"#), "policies[0].match.any[0].paht: unknown field `paht`"),
            (
                policy(r#","match":{"headers":{"x":1}}"#),
                "policies[0].match.headers.x: invalid type: integer `1`, expected true, false",
            ),
            (policy(r#","match":{"host":"a/b"}"#), "policies[0].match.host: expected a host such as"),
            (policy(r#","key":{"path":"id"}"#), "policies[0].key: expected a parameter of match.path"),
            (policy(r#","key":{"host":false}"#), "policies[0].key: expected host = true"),
            (policy(r#","key":[]"#), "policies[0].key: expected at least one part"),
            (policy(r#","key":"address""#), "policies[0].key: expected a table"),
            (policy(r#","algorithm":"leaky""#), "policies[0].algorithm: expected \"fixed-window\""),
            (limit("10001/hour", "sliding-log"), "policies[0].limit: quota: expected at most 10000 with a sliding log"),
            (
                limit("5/month", "gcra"),
                "policies[0].limit: a month is no fixed span: expected algorithm = \"calendar-month\"",
            ),
            (limit("5/hour", "calendar-month"), "policies[0].limit: expected \"<quota>/month\" with algorithm"),
            (limit("5/week", "calendar-month"), "policies[0].limit: expected \"<quota>/month\" with algorithm"),
            (policy(r#","key":{"address":[32]}"#), "policies[0].key.address: expected a table"),
            (r#"{"series":[]}"#.to_owned(), "series: expected a table"),
            (r#"{"series":{"keys":"plain"}}"#.to_owned(), "series.keys: unknown variant `plain`"),
            (r#"{"series":{"rollups":["10s"]}}"#.to_owned(), "series.rollups: rollup: expected \"<step> x <samples>\""),
            (
                r#"{"series":{"rollups":["10s x 6","1h x 5"]}}"#.to_owned(),
                "series.rollups: rollups: expected the level of 10000 ms",
            ),
            (r#"{"series":{"flush_ms":1}}"#.to_owned(), "series.flush_ms: expected 100 to 60000, got 1"),
        ] {
            let error = Config::parse(&json).expect_err(&json);
            let found = error.message().replace("policies[0].key.?.", "policies[0].key.");
            assert!(found.starts_with(message), "{json}\n  gave {found}\n  want {message}");
        }
    }

    #[test]
    fn two_policies_cannot_share_a_name() {
        let one = r#"{"name":"a","limit":"1/s","missing_key":"skip"}"#;
        let error = Config::parse(&format!(r#"{{"policies":[{one},{one}]}}"#)).unwrap_err();
        assert!(error.message().starts_with("policies[1].name: expected a name that no other policy has"), "{error}");
    }

    #[test]
    fn an_empty_configuration_has_defaults() {
        let config = Config::parse("{}").unwrap();
        assert_eq!((config.shard_count(), config.flush_ms.get(), config.policies.len()), (8, 1000, 0));
    }
}
