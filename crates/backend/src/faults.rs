//! Decides which call goes wrong, and how. The wrappers `Faulty` carry it out.
//!
//! The draws come from a seed, so a run can be replayed. A call has one [`Fate`]:
//!
//! ```text
//!             reaches the backend   answer
//!   Pass      yes                   the backend's
//!   Throttle  no                    Throttled
//!   Fail      no                    Unavailable
//!   Lose      yes                   Unknown              (applied, the reply was lost)
//!   Late      later                 Unknown              (still under way when the caller gave up)
//!   Duplicate yes, and again later  the backend's        (the network sent it twice)
//! ```

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_clock::Entropy;

use crate::{Address, Error, Result};

/// How often each fault happens: shares from 0 to 1, whose sum is at most 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultRates {
    /// Share of calls that are refused with `Throttled`.
    pub throttled: f64,
    /// Share of calls that fail before they reach the backend.
    pub failed: f64,
    /// Share of writes that are applied and whose reply is lost.
    pub lost: f64,
    /// Share of writes that are answered `Unknown` now and applied later.
    pub late: f64,
    /// Share of writes that are applied now and once more later.
    pub duplicated: f64,
    /// Longest time that a call is held up before it reaches the backend; drawn evenly from zero.
    pub latency_max: Duration,
    /// Longest time by which a late or duplicated write lands late; drawn evenly from zero.
    pub late_by_max: Duration,
}

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Carried out as it is.
    Pass,
    /// Refused before it reaches the backend.
    Throttle,
    /// Fails before it reaches the backend.
    Fail,
    /// Applied; the caller is told `Unknown`.
    Lose,
    /// The caller is told `Unknown`; applied after this time.
    Late(Duration),
    /// Applied and answered; applied once more after this time.
    Duplicate(Duration),
}

/// How many calls met each fate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Calls carried out as they are.
    pub passed: u64,
    /// Calls (or records) throttled.
    pub throttled: u64,
    /// Calls failed.
    pub failed: u64,
    /// Replies lost.
    pub lost: u64,
    /// Writes that landed late.
    pub late: u64,
    /// Writes that landed twice.
    pub duplicated: u64,
}

/// The drawing of fates, with rates that may change while it runs.
#[derive(Debug)]
pub struct Faults {
    entropy: Entropy,
    state: Mutex<(FaultRates, FaultCounts)>,
}

impl Faults {
    /// Draws from `entropy` at `rates`.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if a rate is not a share, or they sum to more than 1.
    pub fn new(rates: FaultRates, entropy: Entropy) -> Result<Self> {
        rates.validate()?;
        Ok(Self { entropy, state: Mutex::new((rates, FaultCounts::default())) })
    }

    /// Takes the options of a `faulty+…` address: `seed`, `throttled`, `failed`, `lost`, `late`,
    /// `duplicated`, `latency_ms`, `late_by_ms`. Without any rate, a little of everything.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if an option does not parse or the rates do not fit together.
    pub fn from_address(address: &mut Address) -> Result<Self> {
        let seed = address.take("seed", "a whole number, the seed of the faults")?.unwrap_or(0);
        let share = "a share of calls from 0 to 1";
        let mut given = false;
        let mut take = |name| {
            let rate = address.take::<f64>(name, share)?;
            given |= rate.is_some();
            Ok::<_, Error>(rate.unwrap_or(0.0))
        };
        let mut rates = FaultRates {
            throttled: take("throttled")?,
            failed: take("failed")?,
            lost: take("lost")?,
            late: take("late")?,
            duplicated: take("duplicated")?,
            ..FaultRates::default()
        };
        if !given {
            rates.throttled = 0.02;
            rates.failed = 0.02;
            rates.lost = 0.02;
        }
        let millis = "a number of milliseconds";
        rates.latency_max = Duration::from_millis(address.take("latency_ms", millis)?.unwrap_or(0));
        rates.late_by_max = Duration::from_millis(address.take("late_by_ms", millis)?.unwrap_or(1000));
        Self::new(rates, Entropy::seeded(seed))
    }

    /// The latency and the fate of the next call. A read is never late, lost or duplicated: it fails.
    pub fn draw(&self, is_write: bool) -> (Duration, Fate) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (rates, counts) = &mut *state;
        let latency = self.entropy.up_to(rates.latency_max);
        let late_by = self.entropy.up_to(rates.late_by_max);
        let fates = [
            (rates.throttled, Fate::Throttle),
            (rates.failed, Fate::Fail),
            (rates.lost, Fate::Lose),
            (rates.late, Fate::Late(late_by)),
            (rates.duplicated, Fate::Duplicate(late_by)),
        ];
        let mut fate = Fate::Pass;
        let mut left = 1.0;
        for (rate, candidate) in fates {
            // Each is drawn among the calls that the ones before it left over.
            if fate == Fate::Pass && left > 0.0 && self.entropy.chance(rate / left) {
                fate = candidate;
            }
            left -= rate;
        }
        if !is_write {
            fate = match fate {
                Fate::Lose | Fate::Late(_) => Fate::Fail,
                Fate::Duplicate(_) => Fate::Pass,
                other => other,
            };
        }
        match fate {
            Fate::Pass => counts.passed += 1,
            Fate::Throttle => counts.throttled += 1,
            Fate::Fail => counts.failed += 1,
            Fate::Lose => counts.lost += 1,
            Fate::Late(_) => counts.late += 1,
            Fate::Duplicate(_) => counts.duplicated += 1,
        }
        (latency, fate)
    }

    /// For calls that carry many records: whether this one of them is throttled.
    pub fn draw_record_throttled(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (rates, counts) = &mut *state;
        let throttled = self.entropy.chance(rates.throttled);
        counts.throttled += u64::from(throttled);
        throttled
    }

    /// Changes the rates from the next draw on; [`FaultRates::default`] heals.
    ///
    /// # Errors
    /// As [`Faults::new`]; the old rates stay.
    pub fn set_rates(&self, rates: FaultRates) -> Result<()> {
        rates.validate()?;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = rates;
        Ok(())
    }

    /// How many calls met each fate so far.
    pub fn counts(&self) -> FaultCounts {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl FaultRates {
    fn validate(&self) -> Result<()> {
        let rates = [
            ("throttled", self.throttled),
            ("failed", self.failed),
            ("lost", self.lost),
            ("late", self.late),
            ("duplicated", self.duplicated),
        ];
        for (name, rate) in rates {
            if !(0.0..=1.0).contains(&rate) {
                return Err(Error::invalid(format!("fault rate `{name}={rate}` is not from 0 to 1")));
            }
        }
        let sum: f64 = rates.iter().map(|(_, rate)| rate).sum();
        if sum > 1.0 + 1e-9 {
            return Err(Error::invalid(format!("fault rates sum to {sum}: lower them to 1 in all")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_faults() {
        let open = || {
            let mut address =
                Address::parse("faulty+memory:?seed=3&lost=0.2&late=0.2&duplicated=0.1&latency_ms=5")
                    .unwrap();
            let faults = Faults::from_address(&mut address).unwrap();
            address.finish().unwrap();
            faults
        };
        let draws = |faults: &Faults| (0..200).map(|_| faults.draw(true)).collect::<Vec<_>>();
        assert_eq!(draws(&open()), draws(&open()));
    }

    #[test]
    fn rates_come_out_as_asked() {
        let rates = FaultRates {
            throttled: 0.1,
            failed: 0.1,
            lost: 0.2,
            late: 0.2,
            duplicated: 0.3,
            ..FaultRates::default()
        };
        let faults = Faults::new(rates, Entropy::seeded(1)).unwrap();
        for _ in 0..20_000 {
            let _ = faults.draw(true);
        }
        let counts = faults.counts();
        let near = |count: u64, rate: f64| (count as f64 / 20_000.0 - rate).abs() < 0.02;
        assert!(near(counts.throttled, 0.1) && near(counts.failed, 0.1), "{counts:?}");
        assert!(near(counts.lost, 0.2) && near(counts.late, 0.2), "{counts:?}");
        assert!(near(counts.duplicated, 0.3) && near(counts.passed, 0.1), "{counts:?}");
    }

    #[test]
    fn reads_do_not_land_late() {
        let rates = FaultRates { lost: 0.5, late: 0.5, ..FaultRates::default() };
        let faults = Faults::new(rates, Entropy::seeded(1)).unwrap();
        assert!((0..100).all(|_| faults.draw(false).1 == Fate::Fail));
        faults.set_rates(FaultRates::default()).unwrap();
        assert!((0..100).all(|_| faults.draw(true) == (Duration::ZERO, Fate::Pass)));
    }

    #[test]
    fn impossible_rates_are_refused() {
        let refused = |rates| Faults::new(rates, Entropy::seeded(1)).unwrap_err().chain();
        assert!(refused(FaultRates { lost: 1.5, ..FaultRates::default() }).contains("lost=1.5"));
        assert!(refused(FaultRates { lost: 0.6, failed: 0.6, ..FaultRates::default() }).contains("sum to"));
    }
}
