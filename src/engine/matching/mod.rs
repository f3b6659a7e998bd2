//! From a request's facts to the policies that apply and the keys they count under.

pub mod partition_key;
pub mod path_pattern;
pub mod text_match;

use std::collections::BTreeMap;

use serde::Deserialize;

use path_pattern::PathPattern;
use text_match::TextMatch;

/// What the gate knows of a request. Everything after this is a pure function of it.
pub struct Facts<'a> {
    /// The method, in upper case as HTTP has it.
    pub method: &'a str,
    /// The URL's host, with its port if it has one.
    pub host: &'a str,
    /// The URL's path, as the client spelled it.
    pub path: &'a str,
    /// The URL's query, with or without its `?`.
    pub query: &'a str,
    /// The value of a header by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<String>,
    /// A field of what Cloudflare knows of the client (`request.cf`), as text.
    pub cf: &'a dyn Fn(&str) -> Option<String>,
}

impl Facts<'_> {
    /// The first cookie of that name.
    fn cookie(&self, name: &str) -> Option<String> {
        let cookies = (self.header)("cookie")?;
        let mut pairs = cookies.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim().trim_matches('"').to_owned())
    }

    /// The first query parameter of that name.
    fn query_parameter(&self, name: &str) -> Option<String> {
        let query = self.query.strip_prefix('?').unwrap_or(self.query);
        form_urlencoded::parse(query.as_bytes()).find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }
}

/// Which requests a policy is for. What is not given matches all; what is given has to hold together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Methods, any of them. `GET` is for `HEAD` too, which asks the origin for the same.
    pub methods: Option<Vec<Method>>,
    /// A path: segments stand for themselves, `:name` for any one segment, `*` at the end for any rest, none too.
    pub path: Option<PathPattern>,
    /// The host, without its port; `*.example.com` is for every host below it.
    pub host: Option<HostPattern>,
    /// Header fields by name.
    pub headers: BTreeMap<partition_key::HeaderName, TextMatch>,
    /// Query parameters by name.
    pub query: BTreeMap<String, TextMatch>,
    /// Cookies by name.
    pub cookies: BTreeMap<String, TextMatch>,
    /// Fields of `request.cf` by name: `country`, `asn`, `colo`, ... Numbers are written as text.
    pub cf: BTreeMap<String, TextMatch>,
    /// All of these hold.
    pub all: Vec<Match>,
    /// At least one of these holds.
    pub any: Option<Vec<Match>>,
    /// This does not hold.
    pub not: Option<Box<Match>>,
}

impl Match {
    /// Whether the policy is for this request, whose path may be read as any of `readings`.
    pub fn matches(&self, facts: &Facts<'_>, readings: &[Vec<String>]) -> bool {
        let asked = if facts.method == "HEAD" { ["HEAD", "GET"] } else { [facts.method; 2] };
        let wanted = |method: &Method| asked.iter().any(|asked| method.0.eq_ignore_ascii_case(asked));
        let held = |condition: &Self| condition.matches(facts, readings);
        self.methods.as_ref().is_none_or(|methods| methods.iter().any(wanted))
            && self.path.as_ref().is_none_or(|pattern| readings.iter().any(|path| pattern.matches(path)))
            && self.host.as_ref().is_none_or(|host| host.matches(facts.host))
            && self.headers.iter().all(|(name, text)| text.matches((facts.header)(name.as_str()).as_deref()))
            && self.query.iter().all(|(name, text)| text.matches(facts.query_parameter(name).as_deref()))
            && self.cookies.iter().all(|(name, text)| text.matches(facts.cookie(name).as_deref()))
            && self.cf.iter().all(|(name, text)| text.matches((facts.cf)(name).as_deref()))
            && self.all.iter().all(held)
            && self.any.as_ref().is_none_or(|any| any.iter().any(held))
            && self.not.as_ref().is_none_or(|not| !not.matches(facts, readings))
    }

    /// What is wrong with it, and where.
    pub fn check(&self) -> Result<(), (String, &'static str)> {
        if self.methods.as_ref().is_some_and(Vec::is_empty) {
            return Err(("methods".to_owned(), "expected at least one method, or none of this field"));
        }
        if self.any.as_ref().is_some_and(Vec::is_empty) {
            return Err(("any".to_owned(), "expected at least one condition: none would never hold"));
        }
        let below = self.all.iter().enumerate().map(|(index, inner)| (format!("all[{index}]"), inner));
        let any = self.any.iter().flatten().enumerate().map(|(index, inner)| (format!("any[{index}]"), inner));
        let not = self.not.iter().map(|inner| ("not".to_owned(), inner.as_ref()));
        for (path, inner) in below.chain(any).chain(not) {
            inner.check().map_err(|(field, expected)| (format!("{path}.{field}"), expected))?;
        }
        Ok(())
    }
}

/// A host, or all hosts below one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HostPattern(String);

impl TryFrom<String> for HostPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(&text);
        if name.is_empty() || name.contains(['*', '/', ':', ' ']) {
            return Err(format!("expected a host such as \"api.example.com\" or \"*.example.com\", got {text:?}"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl HostPattern {
    fn matches(&self, host: &str) -> bool {
        let host = host
            .rsplit_once(':')
            .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
            .map_or(host, |(name, _)| name);
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match self.0.strip_prefix('*') {
            Some(below) => host.ends_with(below) && host.len() > below.len(),
            None => host == self.0,
        }
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

/// RFC 9110 section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests;
