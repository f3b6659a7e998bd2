//! What a person writes: `100/minute`, `250 per 10 seconds`. Anything else is an error, never a default.

use crate::values::{error::Error, number::MAX_SAFE_INTEGER, time::Duration};

/// The longest window: 366 days, a leap year.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

/// A quota and the window it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Quota units a window, 1 to 2^53 - 1.
    pub quota: u64,
    /// The window, 1 ms to 366 days.
    pub window: Duration,
}

impl Rate {
    /// A rate within the bounds, or an error that names the part that is not.
    pub fn new(quota: u64, window: Duration) -> Result<Self, Error> {
        if !(1..=MAX_SAFE_INTEGER).contains(&quota) {
            return Err(Error::invalid("quota", format_args!("1 to 2^53 - 1, got {quota}")));
        }
        if !(Duration::from_millis(1)..=MAX_WINDOW).contains(&window) {
            return Err(Error::invalid("window", format_args!("1 ms to 366 days, got {} ms", window.as_millis())));
        }
        Ok(Self { quota, window })
    }

    /// The most that is ever counted as used: a charge that comes after the fact may overdraw by one quota.
    pub const fn most_used(self) -> u64 {
        self.quota.saturating_mul(2)
    }

    /// Reads `<quota>/<window>` or `<quota> per <window>`, where a window is a unit with an optional
    /// count before it: `ms`, `s`, `m`, `h`, `d` or the words (`millisecond` ... `day`, singular or plural).
    ///
    /// ```
    /// use tollgate::{Duration, Rate};
    /// assert_eq!(Rate::parse("100/minute")?.window, Duration::from_secs(60));
    /// assert_eq!(Rate::parse("5 per 10 s")?.quota, 5);
    /// assert!(Rate::parse("6O/minute").is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, Error> {
        let expected = || {
            Error::invalid("limit", format_args!(r#""<quota>/<window>" such as "100/minute" or "5/10s", got {text:?}"#))
        };
        let (quota, window) = text.split_once('/').or_else(|| text.split_once(" per ")).ok_or_else(expected)?;
        let quota = digits(quota.trim()).ok_or_else(expected)?;
        let window = parse_span(window.trim()).ok_or_else(expected)?;
        Self::new(quota, window)
    }
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// A span as a person writes it: a unit with an optional count before it, such as `minute`, `10s` or `2 hours`.
pub fn parse_span(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at_checked(unit_at)?;
    let count = if count.is_empty() { 1 } else { digits(count)? };
    let unit_ms: u64 = match unit.trim_start() {
        "ms" | "millisecond" | "milliseconds" => 1,
        "s" | "second" | "seconds" => 1000,
        "m" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    };
    count.checked_mul(unit_ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_people_write_are_understood() {
        for (text, quota, window_ms) in [
            ("100/minute", 100, 60_000),
            ("1/s", 1, 1000),
            ("5/10s", 5, 10_000),
            ("5 / 10 seconds", 5, 10_000),
            ("250 per 2 hours", 250, 7_200_000),
            ("9007199254740991/day", MAX_SAFE_INTEGER, 86_400_000),
            ("3/250ms", 3, 250),
        ] {
            let rate = Rate::parse(text).unwrap();
            assert_eq!((rate.quota, rate.window.as_millis()), (quota, window_ms), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_and_named() {
        for text in [
            "",
            " ",
            "100",
            "/minute",
            "100/",
            "0/minute",
            "-1/minute",
            "6O/minute",
            "1.5/s",
            "1e3/s",
            "inf/s",
            "NaN/s",
            "100/0s",
            "100/-5s",
            "100/5x",
            "100/min ute",
            "100/367d",
            "9007199254740992/s",
            "+5/s",
            "99999999999999999999/s",
            "5/99999999999999999999d",
            "5/s/s",
            "ten_minutes",
        ] {
            let error = Rate::parse(text).expect_err(text);
            assert!(["limit:", "quota:", "window:"].iter().any(|f| error.message().starts_with(f)), "{text}: {error}");
        }
    }
}
