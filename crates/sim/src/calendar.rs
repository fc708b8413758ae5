//! What will happen, in order.
//!
//! Two things at one moment happen in the order in which they were entered, so that a run replays.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// One millisecond in nanoseconds.
pub const MILLI: u64 = 1_000_000;

/// Moment and order of entry share one word: 40 bits of nanoseconds are 1,099 s.
const ORDER_BITS: u32 = 24;

/// The latest moment that can be entered.
pub const MOMENT_MAX: u64 = (1 << (64 - ORDER_BITS)) - 1;

/// A queue of what will happen, by true time in nanoseconds since the world began.
#[derive(Debug)]
pub struct Calendar<T> {
    entries: BinaryHeap<Entry<T>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry<T> {
    key: u64,
    what: T,
}

impl<T> Calendar<T> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: BinaryHeap::with_capacity(128), entered: 0 }
    }

    /// Enters something for `at`.
    ///
    /// # Panics
    /// If the moment or the number of entries is beyond what one word holds: a schedule has neither.
    pub fn enter(&mut self, at: u64, what: T) {
        assert!(at <= MOMENT_MAX && self.entered < 1 << ORDER_BITS, "the calendar is full");
        self.entries.push(Entry { key: at << ORDER_BITS | self.entered, what });
        self.entered += 1;
    }

    /// Takes out what happens next, with its moment.
    pub fn take_next(&mut self) -> Option<(u64, T)> {
        self.entries.pop().map(|entry| (entry.key >> ORDER_BITS, entry.what))
    }

    /// How many entries were ever made.
    #[must_use]
    pub const fn entered(&self) -> u64 {
        self.entered
    }
}

impl<T> Default for Calendar<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A duration as the calendar counts.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

// The heap gives the greatest first, and the earliest is wanted.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equals_in_order_of_entry() {
        let mut calendar = Calendar::new();
        for (at, what) in [(5, "later"), (1, "one"), (1, "two"), (0, "first")] {
            calendar.enter(at, what);
        }
        let order: Vec<_> = std::iter::from_fn(|| calendar.take_next()).collect();
        assert_eq!(order, [(0, "first"), (1, "one"), (1, "two"), (5, "later")]);
    }
}
