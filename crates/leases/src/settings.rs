//! How long a lease lasts, how often it is renewed, and how leases are shared out.

use std::time::Duration;

use tenure_backend::{Error, Result};

/// The table of our own rows, beside the lease table, unless another is named.
pub const COORDINATION_TABLE: &str = "tenure_coordination";
/// Shorter leases leave no room for a round trip and its margins.
const LEASE_MIN: Duration = Duration::from_millis(200);
/// Longer leases are a mistake of units: a crash would leave shards unread for as long.
const LEASE_MAX: Duration = Duration::from_secs(3600);
/// Ten percent: beyond it a clock is broken rather than imprecise.
const RATE_ERROR_PPM_MAX: u32 = 100_000;
/// The nudge row is read this often in a lease, within the bounds below.
const NUDGES_PER_LEASE: u32 = 40;
const NUDGE_MIN: Duration = Duration::from_millis(100);
const NUDGE_MAX: Duration = Duration::from_millis(500);
/// A handoff that takes longer than this many leases is no handoff.
const HANDOFF_LEASES_MAX: u32 = 100;
/// A presence row lives this long without being written; its worker writes it three times as often.
const PRESENCE_TTL_MIN: Duration = Duration::from_secs(3600);
/// A fleet has at most this many leases: one scan reads them all.
pub(crate) const LEASES_MAX: usize = 50_000;

/// By what leases are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Balance {
    /// Every worker has as many as any other, or one more.
    #[default]
    Count,
    /// Every worker reads about as many bytes a second as any other, as far as they were measured.
    Bytes,
}

/// Where a shard is begun that nobody has read, and whose ancestors nobody has read either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum InitialPosition {
    /// With the oldest record that is kept.
    #[default]
    TrimHorizon,
    /// After the newest record.
    Latest,
    /// At the moment that the application is configured with.
    AtTimestamp,
}

/// The settings of one worker. All workers of an application must agree on `lease`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a lease lasts without renewal. 10 s by default.
    pub lease: Duration,
    /// How often a lease is renewed; 0.35 of the lease by default.
    pub renew: Option<Duration>,
    /// How often all leases are read at least; a third of the lease by default.
    pub scan: Option<Duration>,
    /// How often the one row is read that says that something changed; a fortieth of the lease by default,
    /// from 100 ms to 500 ms.
    pub nudge: Option<Duration>,
    /// By how much any clock's rate may be off, in parts per million. 10,000 (1 %) by default.
    pub rate_error_ppm: u32,
    /// How long a giver may drain before it gives up the lease. 30 s by default.
    pub handoff_timeout: Duration,
    /// A lease that changed hands stays where it is for so long; three leases by default.
    pub move_interval: Option<Duration>,
    /// How often the planner lists the shards. 30 s by default.
    pub list_interval: Duration,
    /// A lease whose consumer is busy and does not get on for so long is given up. 5 minutes by default;
    /// `None` never.
    pub progress_timeout: Option<Duration>,
    /// How long a planned stop may take. 30 s by default.
    pub stop_timeout: Duration,
    /// By what leases are shared out.
    pub balance: Balance,
    /// Where a shard is begun that nobody has read.
    pub initial: InitialPosition,
    /// The table of our own rows. `tenure_coordination` by default.
    pub coordination_table: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            renew: None,
            scan: None,
            nudge: None,
            rate_error_ppm: 10_000,
            handoff_timeout: Duration::from_secs(30),
            move_interval: None,
            list_interval: Duration::from_secs(30),
            progress_timeout: Some(Duration::from_secs(300)),
            stop_timeout: Duration::from_secs(30),
            balance: Balance::default(),
            initial: InitialPosition::default(),
            coordination_table: COORDINATION_TABLE.to_owned(),
        }
    }
}

impl Settings {
    /// Checks what must hold between the settings, and works out what follows from them.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn timing(&self) -> Result<Timing> {
        let invalid = |text: String| Err(Error::invalid(text));
        let lease = self.lease;
        if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            return invalid(format!("lease {lease:?} is not from {LEASE_MIN:?} to {LEASE_MAX:?}"));
        }
        if !lease.subsec_nanos().is_multiple_of(1_000_000) {
            return invalid(format!("lease {lease:?} is no whole number of milliseconds: round it"));
        }
        if self.rate_error_ppm > RATE_ERROR_PPM_MAX {
            return invalid(format!(
                "rate error {} ppm is above {RATE_ERROR_PPM_MAX}: such a clock needs repair",
                self.rate_error_ppm
            ));
        }
        let validity = lease - margin(lease, self.rate_error_ppm);
        let renew = self.renew.unwrap_or(lease * 35 / 100);
        if renew.is_zero() || renew * 2 > validity {
            return invalid(format!(
                "renew period {renew:?} must be more than zero and fit twice into the lease {lease:?} less its \
                 margin: a third of the lease is usual"
            ));
        }
        let scan = self.scan.unwrap_or(lease / 3);
        if scan.is_zero() || scan > lease {
            return invalid(format!("scan period {scan:?} must be more than zero and at most the lease"));
        }
        let nudge = self.nudge.unwrap_or_else(|| (lease / NUDGES_PER_LEASE).clamp(NUDGE_MIN, NUDGE_MAX));
        if nudge.is_zero() || nudge > scan {
            return invalid(format!(
                "nudge period {nudge:?} must be more than zero and at most the scan period {scan:?}"
            ));
        }
        if self.handoff_timeout.is_zero() || self.handoff_timeout > lease * HANDOFF_LEASES_MAX {
            return invalid(format!(
                "handoff timeout {:?} must be more than zero and at most {HANDOFF_LEASES_MAX} leases ({:?})",
                self.handoff_timeout,
                lease * HANDOFF_LEASES_MAX
            ));
        }
        if self.list_interval.is_zero() {
            return invalid("list interval is zero: 30 s is usual".to_owned());
        }
        if self.progress_timeout.is_some_and(|timeout| timeout < lease) {
            return invalid(format!(
                "progress timeout must be at least the lease {lease:?}: a slow batch is no stuck one"
            ));
        }
        Ok(Timing {
            lease,
            validity,
            renew,
            scan,
            nudge,
            handoff: self.handoff_timeout,
            move_interval: self.move_interval.unwrap_or(lease * 3),
            list: self.list_interval,
            stop: self.stop_timeout,
            presence_ttl: PRESENCE_TTL_MIN.max(lease * 60),
            balance: self.balance,
            initial: self.initial,
        })
    }
}

/// What the machine needs to know of the settings, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long a lease lasts without renewal; and how long another's counter must stand still before its
    /// lease is over.
    pub lease: Duration,
    /// How long one's own lease is trusted, from when its counter was first sent: the lease less a margin.
    pub validity: Duration,
    /// How often a lease is renewed.
    pub renew: Duration,
    /// How often all leases are read at least.
    pub scan: Duration,
    /// How often the nudge row is read.
    pub nudge: Duration,
    /// How long a giver may drain.
    pub handoff: Duration,
    /// A lease that changed hands stays where it is for so long.
    pub move_interval: Duration,
    /// How often the planner lists the shards.
    pub list: Duration,
    /// How long a planned stop may take.
    pub stop: Duration,
    /// How long a presence row lives by the wall clock.
    pub presence_ttl: Duration,
    /// By what leases are shared out.
    pub balance: Balance,
    /// Where a shard is begun that nobody has read.
    pub initial: InitialPosition,
}

/// Twice the rate error: once for the clock of whoever holds the lease, once for whoever watches it. It comes
/// off one's own lease alone, so that others, the KCL among them, may judge by the bare lease.
fn margin(lease: Duration, rate_error_ppm: u32) -> Duration {
    if tenure_planted::is("lease_no_rate_margin") {
        return Duration::ZERO;
    }
    lease * (2 * rate_error_ppm) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(settings: Settings, says: &str) {
        let error = settings.timing().unwrap_err();
        assert_eq!(error.kind(), tenure_backend::Kind::Invalid);
        assert!(error.chain().contains(says), "{error:?}");
    }

    #[test]
    fn the_defaults_follow_from_the_lease() {
        let timing = Settings::default().timing().unwrap();
        let millis = |duration: Duration| duration.as_millis();
        assert_eq!(millis(timing.validity), 9_800);
        assert_eq!(millis(timing.renew), 3_500);
        assert_eq!(millis(timing.scan), 3_333);
        assert_eq!(millis(timing.nudge), 250);
        assert_eq!(millis(timing.move_interval), 30_000);
        let short = Settings { lease: Duration::from_secs(1), ..Settings::default() };
        assert_eq!(millis(short.timing().unwrap().nudge), 100);
        let long = Settings { lease: Duration::from_secs(60), ..Settings::default() };
        assert_eq!(millis(long.timing().unwrap().nudge), 500);
    }

    #[test]
    fn a_watcher_with_a_fast_clock_waits_longer_than_a_holder_with_a_slow_one() {
        let timing = Settings::default().timing().unwrap();
        let (slow, fast) = (0.99, 1.01);
        assert!(timing.validity.as_secs_f64() / slow < timing.lease.as_secs_f64() / fast);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings
        };
        refused(with(|s| s.lease = Duration::from_millis(10)), "is not from");
        refused(with(|s| s.lease = Duration::from_micros(1_000_001)), "whole number of milliseconds");
        refused(with(|s| s.renew = Some(Duration::from_secs(5))), "fit twice");
        refused(with(|s| s.rate_error_ppm = 200_000), "needs repair");
        refused(with(|s| s.scan = Some(Duration::from_secs(11))), "scan period");
        refused(with(|s| s.nudge = Some(Duration::from_secs(9))), "nudge period");
        refused(with(|s| s.handoff_timeout = Duration::from_secs(2000)), "handoff timeout");
        refused(with(|s| s.progress_timeout = Some(Duration::from_secs(1))), "progress timeout");
    }
}
