//! Which policies apply to which requests, and under which keys.

use super::*;
use crate::engine::path::path_readings;

fn pattern(text: &str) -> PathPattern {
    PathPattern::try_from(text.to_owned()).unwrap()
}

#[test]
fn paths_match_segment_by_segment() {
    for (path_pattern, path, expected) in [
        ("/", "/", true),
        ("/", "/a", false),
        ("/*", "/", true),
        ("/*", "/a/b", true),
        ("/api/*", "/api", true),
        ("/api/*", "/apis", false),
        ("/api/*", "/API//v1/", true),
        ("/users/:id", "/users/7", true),
        ("/users/:id", "/users", false),
        ("/users/:id", "/users/7/posts", false),
        ("/users/:id/*", "/users/7/posts", true),
        ("/lang", "/%6cang", true),
        ("/lang", "//lang/./", true),
        ("/u/:id", "/u/a%2fb", true),
        ("/u/:id/b", "/u/a%2fb", true),
        ("/api/*", "/api/x%2f..%2f..%2fy", true),
        ("/api/:p", "/api/..%5cy", true),
    ] {
        assert_eq!(
            path_readings(path).iter().any(|path| pattern(path_pattern).matches(path)),
            expected,
            "{path_pattern} {path}"
        );
    }
    assert!(PathPattern::try_from("/a/*/b".to_owned()).is_err());
}

/// A request by its facts.
#[derive(Default)]
struct Request {
    method: &'static str,
    host: &'static str,
    path: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
    cf: &'static [(&'static str, &'static str)],
}

fn with<T>(request: &Request, ask: impl FnOnce(&Facts<'_>) -> T) -> T {
    let find = |pairs: &'static [(&str, &str)], wanted: &str| {
        pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
    };
    let (header, cf) = (|name: &str| find(request.headers, name), |name: &str| find(request.cf, name));
    let Request { method, host, path, query, .. } = request;
    ask(&Facts { method, host, path, query, header: &header, cf: &cf })
}

const REQUEST: Request = Request {
    method: "GET",
    host: "API.example.com:8443",
    path: "/Users/7/posts",
    query: "?q=a+b&empty=&q=second",
    headers: &[
        ("cf-connecting-ip", "2001:db8::1"),
        ("x-api-key", "k1"),
        ("x-blank", " "),
        ("cookie", "theme=dark; sid=\"s:1\"; sid=2"),
    ],
    cf: &[("country", "DE"), ("asn", "64496")],
};

#[test]
fn keys_say_their_kind_and_need_a_real_value() {
    let path = pattern("/users/:id/*");
    for (key, expected) in [
        (r#"{"address":{}}"#, Some("ip:2001%3adb8%3a%3a/64")),
        (r#"{"header":"X-Api-Key"}"#, Some("header-x-api-key:k1")),
        (r#"{"header":"x-blank"}"#, None),
        (r#"{"header":"x-none"}"#, None),
        (r#"{"cookie":"sid"}"#, Some("cookie-sid:s%3a1")),
        (r#"{"cookie":"si"}"#, None),
        (r#"{"query":"q"}"#, Some("query-q:a b")),
        (r#"{"query":"empty"}"#, None),
        (r#"{"path":"id"}"#, Some("path-id:7")),
        (r#"{"path":"other"}"#, None),
        (r#"{"host":true}"#, Some("host:api.example.com%3a8443")),
        (r#"{"cf":"country"}"#, Some("cf-country:DE")),
        (r#"{"cf":"colo"}"#, None),
        (r#"{"constant":"all"}"#, Some("constant:all")),
        (r#"[{"header":"x-api-key"},{"address":{}}]"#, Some("header-x-api-key:k1:ip:2001%3adb8%3a%3a/64")),
        (r#"[{"header":"x-api-key"},{"cookie":"none"}]"#, None),
    ] {
        let parsed: partition_key::PartitionKey =
            serde_json::from_str(key).unwrap_or_else(|error| panic!("{key}: {error}"));
        let found = with(&REQUEST, |facts| parsed.of(facts, Some(&path)));
        assert_eq!(found.map(|key| String::from_utf8(key).unwrap()).as_deref(), expected, "{key}");
    }
    let spoofed = Request { headers: &[("x-forwarded-for", "198.18.0.1")], ..REQUEST };
    let address = partition_key::PartitionKey::default();
    assert_eq!(with(&spoofed, |facts| address.of(facts, None)), None, "only Cloudflare's own header counts");
}

#[test]
fn conditions_hold_together_and_can_be_joined_and_turned_around() {
    for (condition, expected) in [
        ("{}", true),
        (r#"{"host":"api.example.com"}"#, true),
        (r#"{"host":"*.example.com"}"#, true),
        (r#"{"host":"*.api.example.com"}"#, false),
        (r#"{"host":"example.com"}"#, false),
        (r#"{"headers":{"X-API-Key":true}}"#, true),
        (r#"{"headers":{"x-api-key":"k1"}}"#, true),
        (r#"{"headers":{"x-api-key":["k0","k1"]}}"#, true),
        (r#"{"headers":{"x-api-key":"k2"}}"#, false),
        (r#"{"headers":{"x-api-key":false}}"#, false),
        (r#"{"headers":{"x-none":false}}"#, true),
        (r#"{"query":{"q":"a b"}}"#, true),
        (r#"{"query":{"q":"second"}}"#, false),
        (r#"{"query":{"empty":true}}"#, true),
        (r#"{"cookies":{"theme":"dark","sid":true}}"#, true),
        (r#"{"cf":{"country":["AT","DE"],"asn":"64496"}}"#, true),
        (r#"{"cf":{"country":"FR"}}"#, false),
        (r#"{"not":{"cf":{"country":"FR"}}}"#, true),
        (r#"{"any":[{"path":"/none"},{"methods":["GET"]}]}"#, true),
        (r#"{"any":[{"path":"/none"},{"methods":["PUT"]}]}"#, false),
        (r#"{"all":[{"path":"/users/*"},{"not":{"methods":["PUT"]}}]}"#, true),
        (r#"{"methods":["PUT"],"any":[{"path":"/users/*"}]}"#, false),
    ] {
        let parsed: Match = serde_json::from_str(condition).unwrap_or_else(|error| panic!("{condition}: {error}"));
        let found = with(&REQUEST, |facts| parsed.matches(facts, &path_readings(facts.path)));
        assert_eq!(found, expected, "{condition}");
    }
    for (condition, field) in [
        (r#"{"any":[]}"#, "any"),
        (r#"{"methods":[]}"#, "methods"),
        (r#"{"not":{"all":[{},{"any":[]}]}}"#, "not.all[1].any"),
    ] {
        let parsed: Match = serde_json::from_str(condition).unwrap();
        assert_eq!(parsed.check().unwrap_err().0, field);
    }
}
