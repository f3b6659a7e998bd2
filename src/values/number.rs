//! Integers as Redis reads and writes them (`string2ll`).

/// The largest integer that JavaScript holds exactly, 2^53 - 1: the top of every quota and cost.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Reads a signed 64-bit decimal the way Redis does: no sign but a leading `-`, no leading zeros, no
/// spaces, no `-0`. `None` is Redis's "not an integer or out of range".
///
/// ```
/// use tollgate::parse_integer;
/// assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
/// assert_eq!(parse_integer(b"007"), None);
/// ```
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a count from 0 to [`MAX_SAFE_INTEGER`].
pub fn parse_count(text: &[u8]) -> Option<u64> {
    let value = u64::try_from(parse_integer(text)?).ok()?;
    (value <= MAX_SAFE_INTEGER).then_some(value)
}

/// The number as JavaScript has it: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "JavaScript has no other numbers")]
pub const fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_an_integer() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("10", Some(10)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("1e3", None),
            ("-", None),
            ("", None),
        ] {
            assert_eq!(parse_integer(text.as_bytes()), value, "{text:?}");
        }
    }
}
