//! One node's clocks, as wrong as real ones are.
//!
//! The same as `tenure_clock::ManualClock` says, but in plain numbers: a simulation reads them millions
//! of times. The wall is kept by something like NTP, so it is off by its skew and does not drift.

use tenure_clock::{Monotonic, WallTime};

const PPM: u64 = 1_000_000;
/// When every world begins: 2025-11-19.
const EPOCH_MILLIS: i64 = 1_763_553_900_000;

/// The clocks of one node.
#[derive(Debug, Clone, Copy)]
pub struct NodeClock {
    /// What the monotonic clock shows when the world begins.
    pub origin_nanos: u64,
    /// Nanoseconds that it counts in a true millisecond.
    rate: u64,
    /// By how much the wall is off.
    pub skew_millis: i64,
}

impl NodeClock {
    /// Clocks that began `origin_nanos` ago, run `rate_ppm` parts per million fast, and whose wall is
    /// off by `skew_millis`.
    ///
    /// # Panics
    /// If `rate_ppm` would stop the clock.
    #[must_use]
    pub fn new(origin_nanos: u64, rate_ppm: i64, skew_millis: i64) -> Self {
        let rate = PPM.checked_add_signed(rate_ppm).filter(|rate| *rate > 0);
        Self { origin_nanos, rate: rate.expect("a clock moves forward"), skew_millis }
    }

    /// What the monotonic clock shows at the true moment `at`.
    #[must_use]
    pub const fn monotonic(&self, at: u64) -> Monotonic {
        // 1,000 s in nanoseconds times 2,000,000 fit a word.
        Monotonic::from_nanos(self.origin_nanos + at * self.rate / PPM)
    }

    /// The first true moment at which the monotonic clock shows at least `shown`.
    #[must_use]
    pub fn moment(&self, shown: Monotonic) -> u64 {
        if shown == Monotonic::NEVER {
            return u64::MAX;
        }
        let since = u128::from(shown.as_nanos().saturating_sub(self.origin_nanos));
        match u64::try_from(since * u128::from(PPM)) {
            Ok(scaled) => scaled.div_ceil(self.rate),
            Err(_) => u64::MAX,
        }
    }

    /// What the wall shows at the true moment `at`.
    #[must_use]
    pub fn wall(&self, at: u64) -> WallTime {
        let elapsed_millis = i64::try_from(at / 1_000_000).unwrap_or(i64::MAX);
        WallTime::from_millis(EPOCH_MILLIS + elapsed_millis + self.skew_millis)
    }
}

/// What a true wall shows.
#[must_use]
pub fn true_wall(at: u64) -> WallTime {
    NodeClock::new(0, 0, 0).wall(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_first_that_shows_a_reading() {
        for rate_ppm in [-10_000, -1, 0, 3, 10_000] {
            let clock = NodeClock::new(77, rate_ppm, 0);
            for at in [0, 1, 999, 1_000_000_007, 599_999_999_999] {
                let shown = clock.monotonic(at);
                let moment = clock.moment(shown);
                assert!(moment <= at && clock.monotonic(moment) == shown);
                assert!(moment == 0 || clock.monotonic(moment - 1) < shown);
            }
            assert_eq!(clock.moment(Monotonic::NEVER), u64::MAX);
        }
    }

    #[test]
    fn skew_moves_the_wall_only() {
        let clock = NodeClock::new(0, 0, -3_600_000);
        assert_eq!(true_wall(5_000_000).as_millis() - clock.wall(5_000_000).as_millis(), 3_600_000);
        assert_eq!(clock.monotonic(5), Monotonic::from_nanos(5));
    }
}
