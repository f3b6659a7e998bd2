//! Levels of buckets, and the arithmetic of ranges.
//!
//! A level keeps `samples` buckets of one `step`. Bucket number `index` begins at `index * step` since the epoch, UTC: a
//! day is always 24 hours. A range is inclusive at both ends: it has every bucket from that of its start to that of its end.

use crate::values::error::Error;
use crate::values::time::{Duration, Timestamp};
use crate::values::units::parse_span;

/// One level: how wide its buckets are, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rollup {
    step: Duration,
    samples: u64,
}

/// A bucket's beginning, and its count.
pub type Point = (Timestamp, u64);

/// The longest step: 366 days.
const MAX_STEP: Duration = Duration::from_secs(366 * 86_400);

/// The longest time that a level keeps: ten years.
const MAX_RETENTION: Duration = Duration::from_secs(3660 * 86_400);

/// The most levels.
const MAX_LEVELS: usize = 8;

impl Rollup {
    /// A level of `samples` buckets of `step`.
    ///
    /// # Errors
    /// The step is not 1 s to 366 days in whole seconds, or the level keeps nothing or more than ten years.
    pub fn new(step: Duration, samples: u64) -> Result<Self, Error> {
        if step.as_whole_secs().is_none_or(|secs| secs == 0) || step > MAX_STEP {
            let got = step.as_millis();
            return Err(Error::invalid("rollup", format_args!("1 s to 366 days in whole seconds, got {got} ms")));
        }
        let level = Self { step, samples };
        if samples == 0 || level.retention() > MAX_RETENTION {
            return Err(Error::invalid("samples", format_args!("1 or more, for at most ten years, got {samples}")));
        }
        Ok(level)
    }

    /// Reads `<step> x <samples>`, such as `"10s x 360"`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let expected =
            || Error::invalid("rollup", format_args!(r#""<step> x <samples>" such as "10s x 360", got {text:?}"#));
        let (step, samples) = text.split_once('x').ok_or_else(expected)?;
        let samples = samples.trim().parse().map_err(|_| expected())?;
        Self::new(parse_span(step.trim()).ok_or_else(expected)?, samples)
    }

    /// The width of a bucket.
    pub const fn step(self) -> Duration {
        self.step
    }

    /// How many buckets are kept.
    pub const fn samples(self) -> u64 {
        self.samples
    }

    /// How far back the level reaches.
    pub const fn retention(self) -> Duration {
        Duration::from_millis(self.step.as_millis().saturating_mul(self.samples))
    }

    /// The number of the bucket that `at` falls into.
    pub fn index(self, at: Timestamp) -> u64 {
        at.as_millis().checked_div(self.step.as_millis()).unwrap_or(0)
    }

    /// When the bucket of `at` goes: counted from its own beginning, so that every write to it says the same.
    pub const fn expires(self, at: Timestamp) -> Timestamp {
        at.floor_to(self.step).saturating_add(self.retention())
    }

    /// Whether the bucket of `at` is still kept at `now`.
    pub fn is_live(self, at: Timestamp, now: Timestamp) -> bool {
        now < self.expires(at)
    }
}

/// Levels from the finest to the coarsest. Each step is a multiple of the one before it, so a bucket of one level
/// is exactly a run of buckets of the level below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollups {
    levels: Vec<Rollup>,
    finest: Rollup,
    coarsest: Rollup,
}

impl Default for Rollups {
    /// Sentry's: 10 s for an hour, an hour for a week, a day for 90 days.
    fn default() -> Self {
        let level = |secs, samples| Rollup { step: Duration::from_secs(secs), samples };
        let (finest, coarsest) = (level(10, 360), level(86_400, 90));
        Self { levels: vec![finest, level(3600, 168), coarsest], finest, coarsest }
    }
}

impl Rollups {
    /// Levels in the order of their steps.
    ///
    /// # Errors
    /// There is none or more than eight, or a step is not a larger multiple of the one before.
    ///
    /// ```
    /// use tollgate::{Duration, Rollup, Rollups};
    /// let levels = [Rollup::parse("1m x 60")?, Rollup::parse("1h x 24")?];
    /// assert_eq!(Rollups::new(levels)?.finest().step(), Duration::from_secs(60));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn new(levels: impl IntoIterator<Item = Rollup>) -> Result<Self, Error> {
        let levels: Vec<_> = levels.into_iter().collect();
        let (Some(&finest), Some(&coarsest), 0..=MAX_LEVELS) = (levels.first(), levels.last(), levels.len()) else {
            return Err(Error::invalid("rollups", format_args!("1 to {MAX_LEVELS} levels, got {}", levels.len())));
        };
        for (finer, coarser) in levels.iter().zip(levels.iter().skip(1)) {
            let (fine, coarse) = (finer.step.as_millis(), coarser.step.as_millis());
            if coarse <= fine || coarse.checked_rem(fine) != Some(0) {
                let expected =
                    format_args!("each step a larger multiple of the one before, got {fine} ms and {coarse} ms");
                return Err(Error::invalid("rollups", expected));
            }
        }
        Ok(Self { levels, finest, coarsest })
    }

    /// The levels, finest first.
    pub fn levels(&self) -> &[Rollup] {
        &self.levels
    }

    /// The level with the narrowest buckets.
    pub const fn finest(&self) -> Rollup {
        self.finest
    }

    /// The level with the widest buckets.
    pub const fn coarsest(&self) -> Rollup {
        self.coarsest
    }

    /// The level of that step.
    ///
    /// # Errors
    /// There is none; the error names those there are.
    pub fn of_step(&self, step: Duration) -> Result<Rollup, Error> {
        self.levels.iter().copied().find(|level| level.step == step).ok_or_else(|| {
            let known: Vec<_> = self.levels.iter().map(|level| level.step.as_millis().to_string()).collect();
            Error::invalid("rollup", format_args!("one of {} ms, got {} ms", known.join(", "), step.as_millis()))
        })
    }

    /// The finest level that is long enough for the range, as the seed chooses it; the coarsest when none is.
    ///
    /// It looks at the length of the range alone: for one that lies in the past it may name a level whose buckets have
    /// expired. [`get_live_rollup`](Self::get_live_rollup) knows the time.
    pub fn get_optimal_rollup(&self, start: Timestamp, end: Timestamp) -> Rollup {
        let span = end.saturating_since(start);
        self.levels.iter().copied().find(|level| level.retention() >= span).unwrap_or(self.coarsest)
    }

    /// The finest level that still has the bucket of `start` at `now`; the coarsest when none has.
    ///
    /// ```
    /// use tollgate::{Duration, Rollups, Timestamp};
    /// let (rollups, now) = (Rollups::default(), Timestamp::from_millis(1_700_000_000_000));
    /// let start = Timestamp::from_millis(now.as_millis() - 2 * 86_400_000);
    /// let end = start.saturating_add(Duration::from_secs(30));
    /// assert_eq!(rollups.get_optimal_rollup(start, end).step(), Duration::from_secs(10)); // expired two days ago
    /// assert_eq!(rollups.get_live_rollup(start, now).step(), Duration::from_secs(3600));
    /// ```
    pub fn get_live_rollup(&self, start: Timestamp, now: Timestamp) -> Rollup {
        self.levels.iter().copied().find(|level| level.is_live(start, now)).unwrap_or(self.coarsest)
    }

    /// The buckets of a range at a level: where each begins.
    ///
    /// # Errors
    /// `end` is before `start`; or there would be more than `most` points with `series` of them to a bucket. The error
    /// names the level that would fit.
    pub fn buckets(&self, level: Rollup, range: Range, series: usize, most: usize) -> Result<Vec<Timestamp>, Error> {
        let Range { start, end } = range;
        if end < start {
            return Err(Error::invalid("end", format_args!("{} or later, got {}", start.as_millis(), end.as_millis())));
        }
        let count = |level: Rollup| {
            let buckets = level.index(end).saturating_sub(level.index(start)).saturating_add(1);
            usize::try_from(buckets).unwrap_or(usize::MAX).saturating_mul(series.max(1))
        };
        if count(level) > most {
            let fitting = self.levels.iter().find(|level| count(**level) <= most);
            let advice = match fitting {
                Some(fits) => format!("the rollup of {} ms would fit", fits.step.as_millis()),
                None => "no rollup fits: ask for a shorter range or for fewer keys".to_owned(),
            };
            return Err(Error::invalid("range", format_args!("at most {most} points, got {}; {advice}", count(level))));
        }
        let first = start.floor_to(level.step);
        let buckets = std::iter::successors(Some(first), |at| Some(at.saturating_add(level.step)));
        Ok(buckets.take(count(level).checked_div(series.max(1)).unwrap_or(0)).collect())
    }
}

/// A range of time, both ends in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first instant.
    pub start: Timestamp,
    /// The last instant.
    pub end: Timestamp,
}

/// Adds points up into buckets of `step`. Points come back in the order of time, each at its bucket's beginning.
///
/// ```
/// use tollgate::{Duration, Timestamp, roll_up};
/// let at = |secs: u64| Timestamp::from_millis(secs * 1000);
/// let hourly = roll_up(&[(at(0), 1), (at(3590), 2), (at(3600), 4)], Duration::from_secs(3600));
/// assert_eq!(hourly, [(at(0), 3), (at(3600), 4)]);
/// ```
pub fn roll_up(points: &[Point], step: Duration) -> Vec<Point> {
    let mut sums = std::collections::BTreeMap::<Timestamp, u64>::new();
    for (at, count) in points {
        let sum = sums.entry(at.floor_to(step)).or_default();
        *sum = sum.saturating_add(*count);
    }
    sums.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start: at(start), end: at(end) }
    }

    #[test]
    fn both_ends_are_in_the_range_case_b101() {
        let minutes = Rollups::new([Rollup::parse("1m x 60").unwrap()]).unwrap();
        let starts = |start, end| {
            let buckets = minutes.buckets(minutes.finest(), Range { start, end }, 1, 100).unwrap();
            buckets.iter().map(|at| at.as_millis() / 60_000).collect::<Vec<_>>()
        };
        let ms = Timestamp::from_millis;
        assert_eq!(starts(ms(3_210_000), ms(3_510_000)), [53, 54, 55, 56, 57, 58], "53:30 to 58:30");
        assert_eq!(starts(ms(3_230_000), ms(3_490_000)), [53, 54, 55, 56, 57, 58], "53:50 to 58:10");
        assert_eq!(starts(ms(60_000), ms(60_000)), [1], "an instant on an edge");
        assert_eq!(starts(ms(60_000), ms(119_999)), [1]);
        assert_eq!(starts(ms(60_000), ms(120_000)), [1, 2], "the end on an edge has its bucket");
        assert_eq!(starts(ms(59_999), ms(60_000)), [0, 1], "milliseconds are floored");
    }

    #[test]
    fn a_day_is_24_hours_of_utc_on_every_day() {
        let rollups = Rollups::default();
        // 2026-03-29 and 2026-10-25: 23 and 25 hours long in Berlin.
        for (start, end) in [(1_774_742_400, 1_774_828_799), (1_792_886_400, 1_792_972_799)] {
            let hours = rollups.buckets(rollups.levels()[1], range(start, end), 1, 100).unwrap();
            let days = rollups.buckets(rollups.levels()[2], range(start, end), 1, 100).unwrap();
            assert_eq!((hours.len(), days.len()), (24, 1));
        }
    }

    #[test]
    fn a_range_of_too_many_points_names_the_rollup_that_fits() {
        let rollups = Rollups::default();
        let day = range(1_700_000_000, 1_700_086_400);
        let message = |keys, most| rollups.buckets(rollups.finest(), day, keys, most).unwrap_err().message().to_owned();
        assert_eq!(
            message(10, 1000),
            "range: expected at most 1000 points, got 86410; the rollup of 3600000 ms would fit"
        );
        assert_eq!(
            message(10, 100),
            "range: expected at most 100 points, got 86410; the rollup of 86400000 ms would fit"
        );
        assert!(message(100, 100).ends_with("no rollup fits: ask for a shorter range or for fewer keys"));
        let all = Range { start: at(0), end: Timestamp::from_millis(u64::MAX) };
        assert!(rollups.buckets(rollups.finest(), all, usize::MAX, 1000).is_err());
        assert!(
            rollups.buckets(rollups.finest(), range(11, 10), 1, 10).unwrap_err().message().starts_with("end: expected")
        );
    }

    #[test]
    fn levels_that_cannot_be_added_up_are_refused() {
        let levels = |texts: &[&str]| Rollups::new(texts.iter().map(|text| Rollup::parse(text).unwrap()));
        assert!(levels(&["10s x 360", "1h x 168", "1d x 90"]).is_ok_and(|rollups| rollups == Rollups::default()));
        for bad in [&[][..], &["10s x 6", "10s x 6"], &["1m x 6", "10s x 6"], &["10s x 6", "15s x 6"]] {
            assert!(levels(bad).unwrap_err().message().starts_with("rollups: expected"), "{bad:?}");
        }
        for bad in [
            "",
            "10s",
            "x",
            "10 x",
            "x 10",
            "10s x -1",
            "10s x 0",
            "0s x 5",
            "500ms x 5",
            "1500ms x 5",
            "367d x 1",
            "1d x 99999",
            "10s × 5",
        ] {
            assert!(Rollup::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_optimal_rollup_is_the_seeds_and_the_live_one_knows_the_time() {
        let rollups = Rollups::default();
        let secs = |level: Rollup| level.step().as_millis() / 1000;
        let now = 1_700_000_000;
        for (ago, length, optimal, live) in [
            (3590, 3590, 10, 10),
            (3591, 3591, 10, 3600),
            (3600, 3600, 10, 3600),
            (3601, 3601, 3600, 3600),
            (7 * 86_400 - 3600, 30, 10, 3600),
            (8 * 86_400, 30, 10, 86_400),
            (200 * 86_400, 200 * 86_400, 86_400, 86_400),
        ] {
            let (start, end) = (at(now - ago), at(now - ago + length));
            assert_eq!(secs(rollups.get_optimal_rollup(start, end)), optimal, "{ago} s ago for {length} s");
            assert_eq!(secs(rollups.get_live_rollup(start, at(now))), live, "{ago} s ago for {length} s");
        }
    }

    proptest! {
        #[test]
        fn a_bucket_keeps_its_expiry_whatever_is_written_to_it(now in 0u64..1 << 45, within in 0u64..3_600_000) {
            for level in Rollups::default().levels() {
                let first = Timestamp::from_millis(now).floor_to(level.step());
                let later = first.saturating_add(Duration::from_millis(within % level.step().as_millis()));
                prop_assert_eq!(level.expires(first), level.expires(later));
                prop_assert_eq!(level.index(first), level.index(later));
                prop_assert!(level.is_live(first, later));
                let live = (0..400).filter(|ago| level.is_live(first.floor_to(level.step()), first.saturating_add(Duration::from_millis(ago * level.step().as_millis())))).count();
                prop_assert_eq!(live as u64, level.samples(), "it is kept for as many buckets as the level has");
            }
        }
    }
}
