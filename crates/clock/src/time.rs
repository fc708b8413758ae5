//! The two readings: wall time to store and show, monotonic time to measure with.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Milliseconds since 1970-01-01 UTC, as this machine believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(i64);

impl WallTime {
    /// The reading that is `millis` milliseconds after 1970-01-01 UTC.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970-01-01 UTC, rounded down: what a `ttl` attribute holds.
    #[must_use]
    pub const fn as_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }
}

impl Add<Duration> for WallTime {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for WallTime {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// RFC 3339 in UTC with milliseconds, e.g. `2025-11-19T12:05:00.000Z`.
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, millis_of_day) = (self.0.div_euclid(86_400_000), self.0.rem_euclid(86_400_000));
        let (year, month, day) = civil_from_days(days);
        let (seconds, millis) = (millis_of_day / 1000, millis_of_day % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// The proleptic Gregorian date of a day number counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year and month lengths
/// follow one linear rule; 400-year eras repeat exactly.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Nanoseconds since a fixed moment of this machine, suspended time included.
///
/// Readings of two machines (or of two nodes of a simulation) cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Monotonic(u64);

impl Monotonic {
    /// The latest reading there is: a deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The reading `nanos` nanoseconds after the fixed moment.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the fixed moment.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this reading is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_shows_as_rfc_3339() {
        let shown = |millis| WallTime::from_millis(millis).to_string();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(1_763_553_900_000), "2025-11-19T12:05:00.000Z");
        assert_eq!(shown(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(shown(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(shown(4_102_444_799_000), "2099-12-31T23:59:59.000Z");
    }

    #[test]
    fn seconds_round_down_before_the_epoch_too() {
        assert_eq!(WallTime::from_millis(1_999).as_seconds(), 1);
        assert_eq!(WallTime::from_millis(-1).as_seconds(), -1);
    }

    #[test]
    fn never_stays_never() {
        assert_eq!(Monotonic::NEVER + Duration::from_secs(1), Monotonic::NEVER);
        assert_eq!(Monotonic::from_nanos(5).since(Monotonic::from_nanos(9)), Duration::ZERO);
    }
}
