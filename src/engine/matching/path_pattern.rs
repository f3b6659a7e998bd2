//! Path templates: `/users/:id`, `/api/*`.

use serde::Deserialize;

use crate::engine::path::normal_path;

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
    /// Any one segment, by the name it has in partition keys.
    Parameter(String),
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
        let normal = normal_path(path);
        let segment = |text: &str| match text.strip_prefix(':') {
            Some(name) => Segment::Parameter(name.to_owned()),
            None => Segment::Literal(text.to_owned()),
        };
        Ok(Self { segments: normal.split('/').filter(|segment| !segment.is_empty()).map(segment).collect(), open })
    }
}

impl PathPattern {
    /// Whether a path, as its normal segments, is of this form.
    pub fn matches(&self, path: &[String]) -> bool {
        let mut path = path.iter();
        let fits = self.segments.iter().all(|wanted| match (wanted, path.next()) {
            (Segment::Parameter(_), Some(_)) => true,
            (Segment::Literal(literal), Some(segment)) => literal == segment,
            (_, None) => false,
        });
        fits && (self.open || path.next().is_none())
    }

    /// Whether it has a parameter of that name.
    pub fn has_parameter(&self, name: &str) -> bool {
        self.segments.iter().any(|segment| matches!(segment, Segment::Parameter(known) if known == name))
    }

    /// What stands in the place of the parameter `name` in the first of the readings that is of this form.
    pub fn parameter<'p>(&self, name: &str, readings: &'p [Vec<String>]) -> Option<&'p str> {
        let path = readings.iter().find(|path| self.matches(path))?;
        let is_it = |segment: &Segment| matches!(segment, Segment::Parameter(known) if known == name);
        path.get(self.segments.iter().position(is_it)?).map(String::as_str)
    }
}
