//! Calendar windows: a day, a week from Monday, a month or a year, in UTC or at a fixed distance from it.

use time::{Date, OffsetDateTime, UtcOffset};

use crate::values::time::{Duration, Timestamp};

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// From midnight.
    Day,
    /// From Monday (ISO 8601).
    Week,
    /// From the first.
    Month,
    /// From the first of January.
    Year,
}

/// Windows of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    /// How long they are.
    pub unit: Unit,
    /// Minutes that the local time is ahead of UTC, -840 to 840. It is fixed: there is no summer time.
    pub offset_minutes: i16,
}

/// The furthest that a local time is from UTC, in minutes.
const MAX_OFFSET: i16 = 14 * 60;

impl Calendar {
    /// Reads `calendar-<unit>`, with an offset such as `+05:30` if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("calendar-")?;
        let (unit, offset) = rest.find(['+', '-']).and_then(|at| rest.split_at_checked(at)).unwrap_or((rest, ""));
        let unit = match unit {
            "day" => Unit::Day,
            "week" => Unit::Week,
            "month" => Unit::Month,
            "year" => Unit::Year,
            _ => return None,
        };
        let offset_minutes = if offset.is_empty() { 0 } else { read_offset(offset)? };
        Some(Self { unit, offset_minutes })
    }

    /// What [`from_name`](Self::from_name) reads.
    pub fn name(self) -> String {
        let unit = self.word();
        let minutes = self.offset_minutes.unsigned_abs();
        let (hours, minutes) = (minutes.div_euclid(60), minutes.rem_euclid(60));
        match self.offset_minutes {
            0 => format!("calendar-{unit}"),
            ..0 => format!("calendar-{unit}-{hours:02}:{minutes:02}"),
            _ => format!("calendar-{unit}+{hours:02}:{minutes:02}"),
        }
    }

    /// How long its windows are about: 30 days for a month, 365 for a year.
    pub const fn nominal_span(self) -> Duration {
        Duration::from_secs(match self.unit {
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        })
    }

    /// How long they are, where they are all alike.
    pub const fn fixed_span(self) -> Option<Duration> {
        match self.unit {
            Unit::Day | Unit::Week => Some(self.nominal_span()),
            Unit::Month | Unit::Year => None,
        }
    }

    /// The word for its windows in a limit such as `1000/month`.
    pub const fn word(self) -> &'static str {
        match self.unit {
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// The window of `now`: its start and its length. Beyond the year 9999, which no clock shows, windows are 24 hours.
    pub fn window_of(self, now: Timestamp) -> (Timestamp, Duration) {
        self.civil_window(now).unwrap_or_else(|| {
            let day = Duration::from_secs(86_400);
            (now.floor_to(day), day)
        })
    }

    fn civil_window(self, now: Timestamp) -> Option<(Timestamp, Duration)> {
        let offset = UtcOffset::from_whole_seconds(i32::from(self.offset_minutes).checked_mul(60)?).ok()?;
        let secs = i64::try_from(now.as_millis().checked_div(1000)?).ok()?;
        let today = OffsetDateTime::from_unix_timestamp(secs).ok()?.checked_to_offset(offset)?.date();
        let (first, next) = match self.unit {
            Unit::Day => (today, today.next_day()?),
            Unit::Week => {
                let monday = days_after(today, i32::from(today.weekday().number_days_from_monday()).checked_neg()?)?;
                (monday, days_after(monday, 7)?)
            }
            Unit::Month => {
                let first = today.replace_day(1).ok()?;
                let year =
                    if today.month() == time::Month::December { today.year().checked_add(1)? } else { today.year() };
                (first, Date::from_calendar_date(year, today.month().next(), 1).ok()?)
            }
            Unit::Year => {
                let first = |year| Date::from_calendar_date(year, time::Month::January, 1).ok();
                (first(today.year())?, first(today.year().checked_add(1)?)?)
            }
        };
        let instant = |date: Date| {
            let secs = date.midnight().assume_offset(offset).unix_timestamp();
            // The window that 1970 begins in may have begun before it.
            Some(Timestamp::from_millis(u64::try_from(secs.max(0)).ok()?.checked_mul(1000)?))
        };
        let (start, end) = (instant(first)?, instant(next)?);
        Some((start, end.saturating_since(start)))
    }
}

fn days_after(date: Date, days: i32) -> Option<Date> {
    Date::from_julian_day(date.to_julian_day().checked_add(days)?).ok()
}

/// Reads `+hh:mm` or `-hh:mm`.
fn read_offset(text: &str) -> Option<i16> {
    let (sign, rest) = text.split_at_checked(1)?;
    let (hours, minutes) = rest.split_once(':')?;
    let two_digits = |text: &str| {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<i16>().ok()).flatten()
    };
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
    let total = hours.checked_mul(60)?.checked_add(minutes)?;
    let signed = if sign == "-" { total.checked_neg()? } else { total };
    (minutes < 60 && total <= MAX_OFFSET).then_some(signed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn windows_are_those_of_the_calendar() {
        // 2024-02-29T23:30:00Z, a Thursday.
        let now = Timestamp::from_millis(1_709_249_400_000);
        for (name, start, days) in [
            ("calendar-day", 1_709_164_800, 1),
            ("calendar-week", 1_708_905_600, 7),
            ("calendar-month", 1_706_745_600, 29),
            ("calendar-year", 1_704_067_200, 366),
            ("calendar-day+01:00", 1_709_247_600, 1),
            ("calendar-month+05:30", 1_709_231_400, 31),
            ("calendar-month-05:00", 1_706_763_600, 29),
        ] {
            let calendar = Calendar::from_name(name).unwrap();
            let (found, window) = calendar.window_of(now);
            assert_eq!((found.as_millis() / 1000, window.as_millis()), (start, days * 86_400_000), "{name}");
            assert_eq!(calendar.name(), name);
        }
        for bad in [
            "calendar-",
            "calendar-hour",
            "calendar-day+1:00",
            "calendar-day+15:00",
            "calendar-day+05:60",
            "calendar-day+",
            "day",
        ] {
            assert_eq!(Calendar::from_name(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn windows_follow_on_each_other(now in 86_400_000u64..253_000_000_000_000, unit in 0usize..4, offset in -840i16..=840) {
            let unit = [Unit::Day, Unit::Week, Unit::Month, Unit::Year][unit];
            let calendar = Calendar { unit, offset_minutes: offset };
            let (start, window) = calendar.window_of(Timestamp::from_millis(now));
            let end = start.saturating_add(window);
            prop_assert!(start.as_millis() <= now && now < end.as_millis());
            prop_assert_eq!(calendar.window_of(start).0, start);
            prop_assert_eq!(calendar.window_of(Timestamp::from_millis(end.as_millis() - 1)).0, start);
            prop_assert_eq!(calendar.window_of(end).0, end);
        }

        #[test]
        fn no_instant_panics(now: u64, offset: i16) {
            let _ = Calendar { unit: Unit::Month, offset_minutes: offset }.window_of(Timestamp::from_millis(now));
        }
    }
}
