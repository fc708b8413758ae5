//! Randomness with one source, so that a seed replays it.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A shared source of random draws. Clones draw from the same sequence; [`Entropy::fork`] begins a
/// new one, so that what one component draws does not shift what another sees.
#[derive(Clone)]
pub struct Entropy {
    draws: Arc<Mutex<ChaCha8Rng>>,
}

impl Entropy {
    /// Seeded by the operating system: no two processes alike.
    ///
    /// # Panics
    /// If the operating system gives no randomness, without which no id would be unique.
    #[must_use]
    pub fn system() -> Self {
        let mut seed = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut urandom| std::io::Read::read_exact(&mut urandom, &mut seed))
            .expect("/dev/urandom gives the seed of every id and cannot be done without");
        Self::from_rng(ChaCha8Rng::from_seed(seed))
    }

    /// The sequence that belongs to `seed`, the same on every machine.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::from_rng(ChaCha8Rng::seed_from_u64(seed))
    }

    fn from_rng(rng: ChaCha8Rng) -> Self {
        Self { draws: Arc::new(Mutex::new(rng)) }
    }

    /// A new sequence, determined by this one's next draw.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::seeded(self.u64())
    }

    /// Any 64 bits.
    #[must_use]
    pub fn u64(&self) -> u64 {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    /// A number from 0 to `bound` − 1, and 0 if `bound` is 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no value is likelier than another by more than bound / 2⁶⁴.
        u64::try_from((u128::from(self.u64()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// True with probability `chance` (0 never, 1 always). Draws once either way.
    #[must_use]
    pub fn chance(&self, chance: f64) -> bool {
        #[allow(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
        let drawn = (self.u64() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < chance
    }

    /// A duration between zero and `max`.
    #[must_use]
    pub fn up_to(&self, max: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(max.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Sixteen random bytes as 32 hexadecimal digits: a nonce, or the random part of an owner's id.
    #[must_use]
    pub fn nonce(&self) -> String {
        let mut text = String::with_capacity(32);
        for half in [self.u64(), self.u64()] {
            let _ = write!(text, "{half:016x}");
        }
        text
    }
}

/// The state stays out of logs: whoever reads it knows every nonce to come.
impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let (one, two) = (Entropy::seeded(42), Entropy::seeded(42));
        assert_eq!(one.nonce(), two.nonce());
        assert_eq!(one.fork().u64(), two.fork().u64());
        // Kept as a number: a dependency that changed the sequence would break every stored seed.
        assert_eq!(Entropy::seeded(42).u64(), 12_578_764_544_318_200_737);
    }

    #[test]
    fn system_sources_differ() {
        assert_ne!(Entropy::system().nonce(), Entropy::system().nonce());
    }

    #[test]
    fn draws_keep_their_bounds() {
        let entropy = Entropy::seeded(1);
        assert_eq!(entropy.below(0), 0);
        assert!((0..1000).all(|_| entropy.below(7) < 7));
        assert!((0..1000).all(|_| !entropy.chance(0.0) && entropy.chance(1.0)));
        let hits = (0..10_000).filter(|_| entropy.chance(0.25)).count();
        assert!((2200..2800).contains(&hits), "{hits} of 10000 at a chance of 0.25");
        assert!(entropy.up_to(Duration::from_secs(1)) < Duration::from_secs(1));
    }
}
