//! How Python writes bytes, which Sentry's layout hashes.

/// `repr(bytes)` of Python 3 without the leading `b`: in double quotes when there is a single quote and no double one.
pub fn bytes_repr(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut text = String::with_capacity(bytes.len().saturating_add(2));
    text.push(quote);
    for &byte in bytes {
        match char::from(byte) {
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            plain @ ' '..='~' => {
                if plain == quote || plain == '\\' {
                    text.push('\\');
                }
                text.push(plain);
            }
            // Writing to a String cannot fail.
            _ => drop(write!(text, "\\x{byte:02x}")),
        }
    }
    text.push(quote);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_escapes_are_those_of_python() {
        for (bytes, repr) in [
            (&b"foo"[..], "'foo'"),
            (b"it's", "\"it's\""),
            (b"say \"hi\"", "'say \"hi\"'"),
            (b"it's \"it\"", "'it\\'s \"it\"'"),
            (b"a\\b\t\n\r\0\x7f", "'a\\\\b\\t\\n\\r\\x00\\x7f'"),
            ("é".as_bytes(), "'\\xc3\\xa9'"),
            (b"", "''"),
        ] {
            assert_eq!(bytes_repr(bytes), repr);
        }
    }
}
