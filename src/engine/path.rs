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
    format!("/{}", split(&decode(path)).join("/"))
}

/// The ways an origin may read a path, as segments in their normal form: percent-encoding undone before it is
/// split, so that `%2f` separates, or after, so that it is a part of its segment. One way where nothing is encoded.
pub fn path_readings(path: &str) -> Vec<Vec<String>> {
    let mut readings = vec![split(&decode(path))];
    if path.contains('%') {
        readings.push(split(path).iter().map(|segment| decode(segment).to_lowercase()).collect());
    }
    readings
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn split(path: &str) -> Vec<String> {
    let mut segments = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment.to_lowercase()),
        }
    }
    segments
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
