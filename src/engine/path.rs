//! The normal form of a path, so that one resource has one spelling.

/// Brings a URL's path into the form that policies are matched on: percent-encoding undone, lower case,
/// repeated slashes made one, `.` and `..` resolved, no slash at the end.
///
/// ```
/// use tollgate::normal_path;
/// for spelling in ["/lang", "/LANG", "//lang", "/lang/", "/%6cang", "/./x/../lang"] {
///     assert_eq!(normal_path(spelling), "/lang");
/// }
/// ```
pub fn normal_path(path: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let mut segments = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment.to_lowercase()),
        }
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::normal_path;

    #[test]
    fn odd_spellings_have_one_form() {
        for (path, normal) in [
            ("", "/"),
            ("/", "/"),
            ("/..", "/"),
            ("/a/../../b", "/b"),
            ("/a%2Fb", "/a/b"),
            ("/a\\b", "/a/b"),
            ("/%ff", "/\u{fffd}"),
            ("/%", "/%"),
            ("/ÄB", "/äb"),
        ] {
            assert_eq!(normal_path(path), normal, "{path}");
            assert_eq!(normal_path(normal), normal, "{path} again");
        }
    }
}
