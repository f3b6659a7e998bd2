//! Points and spans of time, in whole milliseconds. All arithmetic saturates: no instant panics or wraps.

/// A point in time: milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A span of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Timestamp {
    /// The point `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The point that JavaScript's number of milliseconds names; what is no time is the epoch.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and NaN is 0")]
    pub const fn from_millis_f64(millis: f64) -> Self {
        Self(millis as u64)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The later point, or the last one there is.
    #[must_use]
    pub const fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span from `earlier` to here; zero when `earlier` is not earlier.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }

    /// The last multiple of `step` that is not after this point. A zero step changes nothing.
    ///
    /// ```
    /// use tollgate::{Duration, Timestamp};
    /// let at = Timestamp::from_millis(1_700_000_012_345);
    /// assert_eq!(at.floor_to(Duration::from_secs(60)).as_millis(), 1_699_999_980_000);
    /// ```
    #[must_use]
    pub const fn floor_to(self, step: Duration) -> Self {
        match self.0.checked_rem(step.0) {
            Some(rest) => Self(self.0.saturating_sub(rest)),
            None => self,
        }
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// A span of `secs` seconds; saturates.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up: what `Retry-After` and the draft's `t` need, so that a client that
    /// waits exactly that long does not come too early.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// The span in seconds when it is a whole number of them.
    pub const fn as_whole_secs(self) -> Option<u64> {
        match self.0.checked_rem(1000) {
            Some(0) => self.0.checked_div(1000),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_wraps_at_the_ends_of_time() {
        let end = Timestamp::from_millis(u64::MAX);
        assert_eq!(end.saturating_add(Duration::from_millis(1)), end);
        assert_eq!(Timestamp::default().saturating_since(end), Duration::ZERO);
        assert_eq!(end.floor_to(Duration::ZERO), end);
        assert_eq!(Duration::from_secs(u64::MAX).as_millis(), u64::MAX);
    }

    #[test]
    fn seconds_are_rounded_up_and_only_whole_ones_are_exact() {
        for (millis, ceil, whole) in
            [(0, 0, Some(0)), (1, 1, None), (999, 1, None), (1000, 1, Some(1)), (1001, 2, None), (60_000, 60, Some(60))]
        {
            let span = Duration::from_millis(millis);
            assert_eq!((span.as_secs_ceil(), span.as_whole_secs()), (ceil, whole), "{millis} ms");
        }
    }
}
