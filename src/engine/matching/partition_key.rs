//! What a request is counted under.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::path_pattern::PathPattern;
use super::{Facts, is_token};
use crate::engine::address::client_network;
use crate::engine::policy::Bounded;
use crate::values::key::join_key;

/// The header in which Cloudflare gives the client's address. Others can be written by the client.
const CLIENT_ADDRESS: &str = "cf-connecting-ip";

/// One or several parts of a request, which together are its partition key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionKey(Vec<KeyPart>);

impl Default for PartitionKey {
    fn default() -> Self {
        Self(vec![KeyPart::Address(Prefixes::default())])
    }
}

/// One part of a partition key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeyPart {
    /// The client's address, by network.
    Address(Prefixes),
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
    /// The value of a query parameter.
    Query(String),
    /// What stands for a parameter of the policy's path.
    Path(String),
    /// The host that the request names. `true`.
    Host(bool),
    /// A field that Cloudflare gives: country, asn, colo, ...
    Cf(String),
    /// The same for all.
    Constant(String),
}

/// How much of an address counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prefixes {
    /// Bits of an IPv4 address.
    pub ipv4_prefix: Bounded<0, 32, 32>,
    /// Bits of an IPv6 address.
    pub ipv6_prefix: Bounded<0, 128, 64>,
}

/// A header's name, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct HeaderName(String);

impl HeaderName {
    /// The name, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

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
    /// request lacks a part of it. `path` is the policy's.
    pub fn of(&self, facts: &Facts<'_>, path: Option<&PathPattern>) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        for part in &self.0 {
            let (kind, value) = part.of(facts, path)?;
            let value = value.trim();
            if value.is_empty() {
                return None;
            }
            parts.push(kind.into_bytes());
            parts.push(value.as_bytes().to_vec());
        }
        Some(join_key(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()))
    }

    /// Whether it says of a part that it is none.
    pub fn is_turned_off(&self) -> bool {
        self.0.contains(&KeyPart::Host(false))
    }

    /// The parameters of the policy's path that it needs.
    pub fn path_parameters(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            KeyPart::Path(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

impl KeyPart {
    /// Its kind, and its value in this request.
    fn of(&self, facts: &Facts<'_>, path: Option<&PathPattern>) -> Option<(String, String)> {
        match self {
            Self::Address(Prefixes { ipv4_prefix, ipv6_prefix }) => {
                let bits = |prefix: u64| u8::try_from(prefix).unwrap_or(u8::MAX);
                let text = (facts.header)(CLIENT_ADDRESS)?;
                let network = client_network(&text, bits(ipv4_prefix.get()), bits(ipv6_prefix.get()))?;
                Some(("ip".to_owned(), network))
            }
            Self::Header(HeaderName(name)) => Some((format!("header-{name}"), (facts.header)(name)?)),
            Self::Cookie(name) => Some((format!("cookie-{name}"), facts.cookie(name)?)),
            Self::Query(name) => Some((format!("query-{name}"), facts.query_parameter(name)?)),
            Self::Path(name) => {
                let readings = crate::engine::path::path_readings(facts.path);
                Some((format!("path-{name}"), path?.parameter(name, &readings)?.to_owned()))
            }
            Self::Host(_) => Some(("host".to_owned(), facts.host.to_ascii_lowercase())),
            Self::Cf(name) => Some((format!("cf-{name}"), (facts.cf)(name)?)),
            Self::Constant(value) => Some(("constant".to_owned(), value.clone())),
        }
    }
}

impl<'de> Deserialize<'de> for PartitionKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = PartitionKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table such as { header = \"x-api-key\" }, or a list of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<PartitionKey, A::Error> {
        KeyPart::deserialize(MapAccessDeserializer::new(table)).map(|part| PartitionKey(vec![part]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<PartitionKey, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = tables.next_element()? {
            parts.push(part);
        }
        if parts.is_empty() {
            return Err(A::Error::custom("expected at least one part"));
        }
        Ok(PartitionKey(parts))
    }
}
