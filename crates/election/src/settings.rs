//! How long a lease lasts, how often it is renewed, and what is assumed of clocks.

use std::time::Duration;

use tenure_backend::{Error, Result};

/// The table used unless another is named.
pub const TABLE: &str = "tenure_coordination";
/// The shortest lease that a row with whole seconds can carry beside Go peers.
const LEASE_MIN_WITH_GO_PEERS: Duration = Duration::from_secs(3);
/// Shorter leases leave no room for a round trip and its margins.
const LEASE_MIN: Duration = Duration::from_millis(100);
/// Longer leases are a mistake of units: a crash would leave the shard unled for as long.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Ten percent: beyond it a clock is broken rather than imprecise.
const RATE_ERROR_PPM_MAX: u32 = 100_000;
/// A follower reads a local store at least this often.
const POLL_MAX_LOCAL: Duration = Duration::from_millis(100);
/// A leader reads this fraction of its lease between two looks, as a follower.
const POLLS_PER_LEASE: u32 = 20;

/// What may be assumed of the wall clocks of all who stand for a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Skew {
    /// Nothing: a row is judged by watching it on one's own monotonic clock.
    Unbounded,
    /// Any two wall clocks differ by at most this much at any moment (each, and the one by which the
    /// store sweeps, is within half of it of the true time). A row whose `ttl` is past by more, and one
    /// that was swept away, may then be taken without watching it first: the only way for a process
    /// that keeps nothing in memory, such as a Lambda. A leader counts itself as such for less long, by
    /// this much; and a LOCK row must not be deleted by hand while its leader lives.
    Bounded(Duration),
}

/// What a leader does when a renewal times out or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnRenewalError {
    /// Steps down at once, and may stand again at once under a new epoch.
    StepDown,
    /// Tries again until its own deadline: rides out an outage of the store of up to lease − renew.
    RetryUntilDeadline,
}

/// The settings of one election. All who stand for a shard should agree on them. Those who disagree are
/// safe from one another, because each row says for how long it was meant and how far its leader trusts
/// wall clocks; but `rate_error_ppm` and a skew bound are claims about all clocks, and `go_peers` about
/// all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The table: `pk` and `sk` texts, `ttl` its time to live. `tenure_coordination` by default.
    pub table: String,
    /// How long leadership lasts without renewal. 15 s by default.
    pub lease: Duration,
    /// How often the lease is renewed. 5 s by default.
    pub renew: Duration,
    /// How often a follower reads at most; lease / 20 by default, and at most 100 ms on a local store.
    pub poll: Option<Duration>,
    /// By how much any clock's rate may be off, in parts per million. 10,000 (1 %) by default.
    pub rate_error_ppm: u32,
    /// What may be assumed of wall clocks. Nothing by default.
    pub skew: Skew,
    /// Whether processes with the Go library stand for the same shard. They judge by the wall clock
    /// alone, so this needs [`Skew::Bounded`].
    pub go_peers: bool,
    /// What a failed renewal means. [`OnRenewalError::StepDown`] by default.
    pub on_renewal_error: OnRenewalError,
}

impl Default for Settings {
    fn default() -> Self {
        Self::balanced()
    }
}

impl Settings {
    /// 30 s and 10 s: long-running processes, leaders that seldom change.
    #[must_use]
    pub fn stable() -> Self {
        Self::of(30, 10)
    }

    /// 15 s and 5 s: the general purpose.
    #[must_use]
    pub fn balanced() -> Self {
        Self::of(15, 5)
    }

    /// 10 s and 3 s: quick recovery.
    #[must_use]
    pub fn fast() -> Self {
        Self::of(10, 3)
    }

    fn of(lease_seconds: u64, renew_seconds: u64) -> Self {
        Self {
            table: TABLE.to_owned(),
            lease: Duration::from_secs(lease_seconds),
            renew: Duration::from_secs(renew_seconds),
            poll: None,
            rate_error_ppm: 10_000,
            skew: Skew::Unbounded,
            go_peers: false,
            on_renewal_error: OnRenewalError::StepDown,
        }
    }

    /// Checks what must hold between the settings, and works out what follows from them.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn timing(&self, local_store: bool) -> Result<Timing> {
        let invalid = |text: String| Err(Error::invalid(text));
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            return invalid(format!("lease {:?} is not from {LEASE_MIN:?} to {LEASE_MAX:?}", self.lease));
        }
        if self.renew.is_zero() || self.renew >= self.lease {
            return invalid(format!(
                "renew period {:?} must be more than zero and less than the lease {:?}: a third of it is usual",
                self.renew, self.lease
            ));
        }
        if self.rate_error_ppm > RATE_ERROR_PPM_MAX {
            return invalid(format!(
                "rate error {} ppm is above {RATE_ERROR_PPM_MAX}: such a clock needs repair",
                self.rate_error_ppm
            ));
        }
        let skew = match self.skew {
            Skew::Unbounded => None,
            Skew::Bounded(bound) => Some(bound),
        };
        if self.go_peers {
            if skew.is_none() {
                return invalid(
                    "go_peers needs a skew bound: Go processes judge a lease by the wall clock alone"
                        .to_owned(),
                );
            }
            if self.lease < LEASE_MIN_WITH_GO_PEERS {
                return invalid(format!(
                    "lease {:?} is too short beside Go peers, whose rows count whole seconds: give at least \
                     {LEASE_MIN_WITH_GO_PEERS:?}",
                    self.lease
                ));
            }
        }
        let margin = margin(self.lease, self.rate_error_ppm);
        // Whoever goes by the wall clock may be ahead of ours by the whole bound.
        let shrunk = margin + skew.unwrap_or_default();
        let validity = self.lease.saturating_sub(shrunk);
        if validity <= self.renew {
            return invalid(format!(
                "a lease of {:?} less its margins of {shrunk:?} is over before its renewal after {:?}: lengthen \
                 the lease or renew sooner",
                self.lease, self.renew
            ));
        }
        let poll_max = self.lease / POLLS_PER_LEASE;
        let poll_usual = if local_store { poll_max.min(POLL_MAX_LOCAL) } else { poll_max };
        let poll = self.poll.unwrap_or(poll_usual);
        if poll.is_zero() || poll > self.lease {
            return invalid(format!("poll period {poll:?} must be more than zero and at most the lease"));
        }
        Ok(Timing {
            lease: self.lease,
            renew: self.renew,
            poll,
            validity,
            rate_error_ppm: self.rate_error_ppm,
            skew,
            go_peers: self.go_peers,
            on_renewal_error: self.on_renewal_error,
        })
    }

    /// What is allowed but unwise, in words; for a log.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let (lease, renew) = (self.lease, self.renew);
        // A tenth of tolerance: the fast preset is 10 s to 3 s.
        let wise = lease >= renew * 3 && lease * 10 <= renew * 41;
        (!wise).then(|| {
            format!("lease {lease:?} is not 3 to 4 times the renew period {renew:?}: expect needless failovers or slow ones")
        })
    }
}

/// What the machine needs to know of the settings, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long leadership lasts without renewal.
    pub lease: Duration,
    /// How often the lease is renewed.
    pub renew: Duration,
    /// How often a follower reads at most.
    pub poll: Duration,
    /// How long a leader trusts a renewal, from when it was sent: the lease less its margins.
    pub validity: Duration,
    /// By how much any clock's rate may be off.
    pub rate_error_ppm: u32,
    /// The bound on the difference of wall clocks, if one is assumed.
    pub skew: Option<Duration>,
    /// Whether Go processes stand for the same shard.
    pub go_peers: bool,
    /// What a failed renewal means.
    pub on_renewal_error: OnRenewalError,
}

impl Timing {
    /// How long a version of a row must have been seen unchanged before it counts as stale.
    #[must_use]
    pub fn stale_after(&self, lease: Duration) -> Duration {
        lease + margin(lease, self.rate_error_ppm)
    }
}

/// Twice the rate error: once for the clock of whoever holds the lease, once for whoever watches it.
fn margin(lease: Duration, rate_error_ppm: u32) -> Duration {
    if tenure_planted::is("no_rate_margin") {
        return Duration::ZERO;
    }
    lease * (2 * rate_error_ppm) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(settings: Settings, says: &str) {
        let error = settings.timing(false).unwrap_err();
        assert_eq!(error.kind(), tenure_backend::Kind::Invalid);
        assert!(error.chain().contains(says), "{error:?}");
    }

    #[test]
    fn presets_are_the_documented_ones() {
        let seconds = |s: Settings| (s.lease.as_secs(), s.renew.as_secs());
        assert_eq!(seconds(Settings::stable()), (30, 10));
        assert_eq!(seconds(Settings::balanced()), (15, 5));
        assert_eq!(seconds(Settings::fast()), (10, 3));
        for preset in [Settings::stable(), Settings::balanced(), Settings::fast()] {
            assert_eq!(preset.advice(), None);
            preset.timing(false).unwrap();
        }
    }

    #[test]
    fn margins_shorten_ours_and_lengthen_theirs() {
        let timing = Settings::balanced().timing(false).unwrap();
        assert_eq!(timing.validity, Duration::from_millis(14_700));
        assert_eq!(timing.stale_after(timing.lease), Duration::from_millis(15_300));
        assert_eq!(timing.poll, Duration::from_millis(750));
        assert_eq!(Settings::balanced().timing(true).unwrap().poll, Duration::from_millis(100));
    }

    #[test]
    fn the_skew_comes_off_our_own_lease() {
        let bounded = Settings { skew: Skew::Bounded(Duration::from_secs(1)), ..Settings::balanced() };
        assert_eq!(bounded.timing(false).unwrap().validity, Duration::from_millis(13_700));
        let go =
            Settings { go_peers: true, skew: Skew::Bounded(Duration::from_secs(2)), ..Settings::balanced() };
        assert_eq!(go.timing(false).unwrap().validity, Duration::from_millis(12_700));
        refused(Settings { go_peers: true, ..Settings::balanced() }, "needs a skew bound");
        let short = Duration::from_secs(2);
        refused(Settings { lease: short, renew: short / 4, ..go.clone() }, "whole seconds");
        refused(
            Settings { skew: Skew::Bounded(Duration::from_secs(10)), ..go },
            "is over before its renewal",
        );
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let lease = |lease, renew| Settings {
            lease: Duration::from_millis(lease),
            renew: Duration::from_millis(renew),
            ..Settings::balanced()
        };
        refused(lease(5000, 5000), "less than the lease");
        refused(lease(5000, 0), "more than zero");
        refused(lease(10, 3), "is not from");
        refused(lease(5000, 4950), "is over before its renewal");
        refused(Settings { rate_error_ppm: 200_000, ..Settings::balanced() }, "needs repair");
        refused(Settings { poll: Some(Duration::ZERO), ..Settings::balanced() }, "poll period");
        assert!(lease(15_000, 7_000).advice().unwrap().contains("3 to 4 times"));
    }
}
