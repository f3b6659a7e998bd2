//! What an `Accept` header field prefers (RFC 9110 section 12.5.1).

/// Media types that one kind of answer goes by, wild cards included.
pub type Types = [&'static str];

/// `application/json`, and problems in it.
pub const JSON: &Types = &["application/problem+json", "application/json", "application/*"];
/// A sentence for a person.
pub const TEXT: &Types = &["text/plain", "text/html", "text/*"];
/// A table.
pub const CSV: &Types = &["text/csv", "text/*"];

/// OpenMetrics. A scraper that knows it asks for it by name.
pub const OPENMETRICS: &Types = &["application/openmetrics-text"];

/// Whether `wanted` is named with any weight.
pub fn names(accept: &str, wanted: &Types) -> bool {
    quality(accept, wanted) > 0
}

/// Whether `wanted` is preferred to JSON. Without a preference the answer is JSON.
pub fn prefers(accept: Option<&str>, wanted: &Types) -> bool {
    let accept = accept.unwrap_or_default();
    let any = quality(accept, &["*/*"]);
    quality(accept, wanted).max(any) > quality(accept, JSON).max(any)
}

/// The highest weight, in thousandths, that is given to one of `types`.
fn quality(accept: &str, types: &Types) -> u16 {
    let weight = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        types.contains(&parts.next()?.to_ascii_lowercase().as_str()).then_some(())?;
        Some(parts.find_map(|part| part.strip_prefix("q=")).map_or(1000, thousandths))
    };
    accept.split(',').filter_map(weight).max().unwrap_or(0)
}

/// A weight is `0` or `1`, then up to three decimals; what is none of that weighs nothing.
fn thousandths(text: &str) -> u16 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{decimals:0<3}");
    match digits.parse() {
        Ok(weight) if weight <= 1000 && decimals.len() <= 3 => weight,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_weight_wins_and_json_wins_a_tie() {
        for (accept, text, csv) in [
            ("", false, false),
            ("*/*", false, false),
            ("text/plain", true, false),
            ("text/html, application/json;q=0.9", true, false),
            ("application/json, text/plain;q=0.5", false, false),
            ("TEXT/CSV", false, true),
            ("text/*;q=0.300, application/json;q=0.3", false, false),
            ("text/*;q=0.301, application/json;q=0.3", true, true),
            ("text/csv;q=2, application/json;q=0.1", false, false),
            ("text/csv;q=x", false, false),
        ] {
            assert_eq!((prefers(Some(accept), TEXT), prefers(Some(accept), CSV)), (text, csv), "{accept:?}");
        }
        assert!(!prefers(None, TEXT));
    }
}
