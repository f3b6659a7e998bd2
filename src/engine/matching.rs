//! From a request's facts to the policies that apply and the keys they count under.

use serde::Deserialize;

use crate::engine::address::client_network;
use crate::engine::path::normal_path;
use crate::engine::policy::Bounded;
use crate::values::key::join_key;

/// What the gate knows of a request. Everything after this is a pure function of it.
pub struct Facts<'a> {
    /// The method, in upper case as HTTP has it.
    pub method: &'a str,
    /// The URL's path, as the client spelled it.
    pub path: &'a str,
    /// The value of a header by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<String>,
}

/// The header in which Cloudflare gives the client's address. Others can be written by the client.
const CLIENT_ADDRESS: &str = "cf-connecting-ip";

/// Which requests a policy is for. What is not given matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Methods, any of them. `GET` is for `HEAD` too, which asks the origin for the same.
    pub methods: Option<Vec<Method>>,
    /// A path: segments stand for themselves, `:name` for any one segment, `*` at the end for any rest, none too.
    pub path: Option<PathPattern>,
}

impl Match {
    /// Whether the policy is for this request, whose path may be read as any of `readings`.
    pub fn matches(&self, facts: &Facts<'_>, readings: &[Vec<String>]) -> bool {
        let asked = if facts.method == "HEAD" { ["HEAD", "GET"] } else { [facts.method; 2] };
        let wanted = |method: &Method| asked.iter().any(|asked| method.0.eq_ignore_ascii_case(asked));
        let method = self.methods.as_ref().is_none_or(|methods| methods.iter().any(wanted));
        method && self.path.as_ref().is_none_or(|pattern| readings.iter().any(|path| pattern.matches(path)))
    }
}

/// An HTTP method.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Method(String);

impl TryFrom<String> for Method {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_token(&text) {
            Ok(Self(text))
        } else {
            Err(format!("expected an HTTP method such as \"GET\", got {text:?}"))
        }
    }
}

/// A path with wild cards.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PathPattern {
    segments: Vec<Segment>,
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Any,
}

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err(format!("expected a path that begins with '/', got {text:?}"));
        }
        if text.contains(['?', '#']) {
            return Err(format!("expected a path without '?' and '#', got {text:?}"));
        }
        let (path, open) = match text.strip_suffix("/*") {
            Some(head) => (head, true),
            None => (text.as_str(), false),
        };
        if path.contains('*') {
            return Err(format!("expected '*' only as the last segment, got {text:?}"));
        }
        let segment = |text: &str| {
            if text.starts_with(':') { Segment::Any } else { Segment::Literal(text.to_owned()) }
        };
        Ok(Self { segments: segments(&normal_path(path)).map(segment).collect(), open })
    }
}

impl PathPattern {
    fn matches(&self, path: &[String]) -> bool {
        let mut path = path.iter();
        let fits = self.segments.iter().all(|wanted| match (wanted, path.next()) {
            (Segment::Any, Some(_)) => true,
            (Segment::Literal(literal), Some(segment)) => literal == segment,
            (_, None) => false,
        });
        fits && (self.open || path.next().is_none())
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// What a request is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PartitionKey {
    /// The client's address, by network.
    Address(Prefixes),
    /// The value of a header.
    Header(HeaderName),
}

impl Default for PartitionKey {
    fn default() -> Self {
        Self::Address(Prefixes::default())
    }
}

/// How much of an address counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prefixes {
    /// Bits of an IPv4 address.
    pub ipv4_prefix: Bounded<0, 32, 32>,
    /// Bits of an IPv6 address.
    pub ipv6_prefix: Bounded<0, 128, 64>,
}

/// A header's name, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HeaderName(String);

impl TryFrom<String> for HeaderName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_token(&text) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(format!("expected the name of a header, got {text:?}"))
    }
}

impl PartitionKey {
    /// The key of this request, its kind in front so that an address and a header never meet. `None` when the
    /// request has none.
    pub fn of(&self, facts: &Facts<'_>) -> Option<Vec<u8>> {
        let (kind, value) = match self {
            Self::Address(Prefixes { ipv4_prefix, ipv6_prefix }) => {
                let bits = |prefix: u64| u8::try_from(prefix).unwrap_or(u8::MAX);
                let text = (facts.header)(CLIENT_ADDRESS)?;
                let network = client_network(&text, bits(ipv4_prefix.get()), bits(ipv6_prefix.get()))?;
                ("ip".to_owned(), network)
            }
            Self::Header(HeaderName(name)) => {
                let value = (facts.header)(name).filter(|value| !value.trim().is_empty())?;
                (format!("header-{name}"), value)
            }
        };
        Some(join_key(&[kind.as_bytes(), value.trim().as_bytes()]))
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn keys_say_their_kind_and_need_a_real_value() {
        let key = |key: &PartitionKey, name: &'static str, value: &'static str| {
            let header = move |wanted: &str| (wanted == name).then(|| value.to_owned());
            let key = key.of(&Facts { method: "GET", path: "/", header: &header })?;
            String::from_utf8(key).ok()
        };
        let address = PartitionKey::default();
        assert_eq!(key(&address, "cf-connecting-ip", "2001:db8::1").as_deref(), Some("ip:2001%3adb8%3a%3a/64"));
        assert_eq!(key(&address, "cf-connecting-ip", "unknown"), None);
        assert_eq!(key(&address, "x-forwarded-for", "198.18.0.1"), None, "only Cloudflare's own header counts");
        let header = PartitionKey::Header(HeaderName("x-api-key".to_owned()));
        assert_eq!(key(&header, "x-api-key", "k1").as_deref(), Some("header-x-api-key:k1"));
        assert_eq!(key(&header, "x-api-key", " "), None);
    }
}
