//! When a row may be swept away because its time is over.
//!
//! DynamoDB deletes such rows late and at will, so no meaning rests on a row being gone. The other
//! backends sweep in the same spirit: now and then, a bounded number at a time, while something is
//! written anyway. Until then an expired row is read like any other.

use std::sync::Mutex;
use std::time::Duration;

use tenure_clock::{Clock, Monotonic, WallTime};

use crate::item::Item;

/// How often expired rows are looked for.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Most rows that one sweep takes away, so that it never holds a writer up for long.
pub const SWEEP_ROWS_MAX: usize = 100;
/// A `ttl` further back than this is taken for a mistake and left alone, as DynamoDB does. A
/// released lock, whose `ttl` is 0, stays for this reason.
pub(crate) const FIVE_YEARS_SECONDS: i64 = 5 * 366 * 86_400;

/// The epoch second at which a row expires, if it says so with a whole number.
#[must_use]
pub(crate) fn expiry_seconds(item: &Item, attribute: &str) -> Option<i64> {
    item.get(attribute).and_then(super::Value::as_i64)
}

/// Whether a row that expires at `expiry_seconds` may go at `now`.
#[must_use]
pub(crate) const fn may_go(expiry_seconds: i64, now: WallTime) -> bool {
    let now = now.as_seconds();
    expiry_seconds < now && expiry_seconds > now - FIVE_YEARS_SECONDS
}

/// Decides when the next sweep is due.
#[derive(Debug)]
pub(crate) struct Sweeping {
    interval: Duration,
    next: Mutex<Monotonic>,
}

impl Sweeping {
    pub(crate) fn every(interval: Duration, clock: &dyn Clock) -> Self {
        Self { interval, next: Mutex::new(clock.monotonic() + interval) }
    }

    /// True once per interval: for whoever asks first.
    pub(crate) fn due(&self, clock: &dyn Clock) -> bool {
        let now = clock.monotonic();
        let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let due = now >= *next;
        if due {
            *next = now + self.interval;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_expired_in_the_last_five_years_goes() {
        let now = WallTime::from_millis(1_763_924_400_500);
        assert!(may_go(1_763_924_399, now));
        assert!(!may_go(1_763_924_400, now), "its second is not over");
        assert!(!may_go(1_763_924_401, now));
        assert!(!may_go(0, now), "a released lock stays");
    }

    #[test]
    fn one_sweep_an_interval() {
        let time = tenure_clock::ManualTime::default();
        let clock = time.clock();
        let sweeping = Sweeping::every(SWEEP_INTERVAL, &clock);
        assert!(!sweeping.due(&clock));
        time.advance(SWEEP_INTERVAL);
        assert!(sweeping.due(&clock) && !sweeping.due(&clock));
    }
}
