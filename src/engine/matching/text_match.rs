//! What a text has to be: there, not there, equal to one, or one of several.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A condition on a value that may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// `true`: it is there. `false`: it is not.
    Present(bool),
    /// It is one of these.
    OneOf(Vec<String>),
}

impl TextMatch {
    /// Whether `value` is what is wanted.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self {
            Self::Present(wanted) => value.is_some() == *wanted,
            Self::OneOf(wanted) => value.is_some_and(|value| wanted.iter().any(|one| one == value)),
        }
    }
}

impl<'de> Deserialize<'de> for TextMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = TextMatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false, a text, or a list of texts")
    }

    fn visit_bool<E: Error>(self, wanted: bool) -> Result<TextMatch, E> {
        Ok(TextMatch::Present(wanted))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TextMatch, E> {
        Ok(TextMatch::OneOf(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<TextMatch, A::Error> {
        let mut wanted = Vec::new();
        while let Some(text) = texts.next_element()? {
            wanted.push(text);
        }
        if wanted.is_empty() {
            return Err(A::Error::custom("expected at least one text, or false for none"));
        }
        Ok(TextMatch::OneOf(wanted))
    }
}
