//! Random numbers that are looked up, not taken in turn.
//!
//! A schedule is made smaller by leaving things out. If every draw came from one sequence, leaving out
//! one fault would change all that follow, and the smaller schedule would be another one. So the n-th
//! draw of a stream is a function of the seed, the stream and n alone.

use tenure_clock::Entropy;

/// Once in `n` times.
#[must_use]
pub fn one_in(entropy: &Entropy, n: u64) -> bool {
    entropy.below(n) == 0
}

/// Between `min` and `max`, each doubling as likely as the next: short and long ones alike.
#[must_use]
pub fn spread(entropy: &Entropy, min: u64, max: u64) -> u64 {
    let doublings = u64::from((max / min.max(1)).max(1).ilog2());
    let from = min << entropy.below(doublings + 1);
    (from + entropy.below(from)).min(max)
}

/// One stream of draws.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// The stream of this number that belongs to `key`.
    #[must_use]
    pub const fn new(key: u64, stream: u64) -> Self {
        Self { key: scramble(key ^ scramble(stream)) }
    }

    /// The draw at place `n`.
    #[must_use]
    pub const fn at(self, n: u64) -> Draw {
        Draw(scramble(self.key.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }
}

/// 64 random bits, used up a few at a time.
#[derive(Debug, Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// All the bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Sixteen fresh bits; after four takes, the next are made from the last.
    pub const fn take(&mut self) -> u64 {
        let taken = self.0 & 0xffff;
        self.0 >>= 16;
        if self.0 == 0 {
            self.0 = scramble(taken);
        }
        taken
    }

    /// A number from 0 to `bound` − 1, in 65,536 steps.
    pub const fn below(&mut self, bound: u64) -> u64 {
        let whole = bound >> 16;
        let rest = bound & 0xffff;
        let taken = self.take();
        whole * taken + ((rest * taken) >> 16)
    }
}

/// SplitMix64's finisher: every bit of the input moves every bit of the output.
const fn scramble(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_stream_has_one_draw() {
        let (one, two) = (Draws::new(1, 1), Draws::new(1, 2));
        assert_eq!(one.at(7).bits(), Draws::new(1, 1).at(7).bits());
        assert_ne!(one.at(7).bits(), two.at(7).bits());
        assert_ne!(one.at(7).bits(), one.at(8).bits());
    }

    #[test]
    fn draws_keep_their_bounds_and_fill_them() {
        let draws = Draws::new(3, 4);
        let drawn: Vec<u64> = (0..10_000).map(|n| draws.at(n).below(1_000_000)).collect();
        assert!(drawn.iter().all(|n| *n < 1_000_000));
        let mean = drawn.iter().sum::<u64>() / 10_000;
        assert!((480_000..520_000).contains(&mean), "{mean}");
        let mut draw = draws.at(0);
        assert!((0..20).map(|_| draw.take()).collect::<std::collections::BTreeSet<_>>().len() > 10);
    }
}
