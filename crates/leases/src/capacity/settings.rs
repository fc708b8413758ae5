//! What is configured of capacity.

use std::time::Duration;

use tenure_backend::{Error, Result};

use super::formula::LIMIT;

/// No cap that anybody would notice: the KCL's default.
const MAX_LEASES_UNCAPPED: u64 = 2_147_483_647;
/// A row is not looked at more often than this: leases are longer.
const LEASE_MIN: Duration = Duration::from_millis(100);
/// Longer is a mistake of units.
const PERIOD_MAX: Duration = Duration::from_secs(24 * 3600);
/// Ten years: a row that is kept for longer is kept for good.
const KEEP_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);
/// Heartbeats that may be missed before a worker counts as gone.
const HEARTBEATS_PER_WINDOW: u32 = 3;

/// What happens when the limit does not suffice for all leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeficit {
    /// The limit holds, some shards are not read, and an alarm says so.
    Strict,
    /// This worker holds more than the limit. The shared row never says so, and the alarm is raised too.
    Exceed,
}

/// The settings of capacity. All workers of an application should agree on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether the cap follows shards and workers. Off: `max_leases` holds and no table is touched.
    pub enable_dynamic_max_leases: bool,
    /// The fixed cap, where the dynamic one is off. 2,147,483,647 by default.
    pub max_leases: u64,
    /// Most leases of one worker. 80 by default.
    pub limit: u64,
    /// What happens when the limit does not suffice. [`OnDeficit::Strict`] by default.
    pub on_deficit: OnDeficit,
    /// Whether the row is adjusted and watched while workers run. Off: a worker learns a new cap when it is
    /// started, and not before. On by default.
    pub live: bool,
    /// The table. Absent: `<stream>_meta`, or `<app>_meta` if that is there already and the other is not.
    pub table: Option<String>,
    /// How long a lease lasts without renewal. The row is looked at twice in that time. 10 s by default.
    pub lease: Duration,
    /// How often a worker says that it lives. After three times this it counts as gone. 30 s by default.
    pub heartbeat: Duration,
    /// How long the row of a worker that is gone stays. An hour by default.
    pub keep_rows: Duration,
    /// How long one call to a store or a stream may take. 10 s by default.
    pub call_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enable_dynamic_max_leases: true,
            max_leases: MAX_LEASES_UNCAPPED,
            limit: LIMIT,
            on_deficit: OnDeficit::Strict,
            live: true,
            table: None,
            lease: Duration::from_secs(10),
            heartbeat: Duration::from_secs(30),
            keep_rows: Duration::from_secs(3600),
            call_timeout: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Checks what must hold between the settings.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn validate(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::invalid(text));
        if self.limit == 0 {
            return invalid("limit is 0: no worker could hold a lease; 80 is usual".to_owned());
        }
        if self.max_leases == 0 {
            return invalid("max_leases is 0: the worker could hold no lease; give at least 1".to_owned());
        }
        if !(LEASE_MIN..=PERIOD_MAX).contains(&self.lease) {
            return invalid(format!("lease {:?} is not from {LEASE_MIN:?} to {PERIOD_MAX:?}", self.lease));
        }
        if !(LEASE_MIN..=PERIOD_MAX).contains(&self.heartbeat) {
            return invalid(format!(
                "heartbeat {:?} is not from {LEASE_MIN:?} to {PERIOD_MAX:?}",
                self.heartbeat
            ));
        }
        if self.keep_rows < self.window() || self.keep_rows > KEEP_MAX {
            return invalid(format!(
                "keep_rows {:?} is not from {:?} (three heartbeats) to {KEEP_MAX:?}",
                self.keep_rows,
                self.window()
            ));
        }
        if self.call_timeout.is_zero() || self.call_timeout > PERIOD_MAX {
            return invalid(format!(
                "call_timeout {:?} must be more than zero: 10 s is usual",
                self.call_timeout
            ));
        }
        if self.table.as_ref().is_some_and(String::is_empty) {
            return invalid("table is empty: leave it out, or name one".to_owned());
        }
        Ok(())
    }

    /// How long a worker counts as alive after a heartbeat.
    pub(super) fn window(&self) -> Duration {
        self.heartbeat * HEARTBEATS_PER_WINDOW
    }

    /// How often the coordinator row is looked at.
    pub(super) fn watch_interval(&self) -> Duration {
        self.lease / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(settings: &Settings, says: &str) {
        let error = settings.validate().unwrap_err();
        assert!(error.chain().contains(says), "{error:?}");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let usual = Settings::default();
        usual.validate().unwrap();
        refused(&Settings { limit: 0, ..usual.clone() }, "limit is 0");
        refused(&Settings { max_leases: 0, ..usual.clone() }, "max_leases is 0");
        refused(&Settings { lease: Duration::ZERO, ..usual.clone() }, "lease 0ns");
        refused(&Settings { heartbeat: Duration::MAX, ..usual.clone() }, "heartbeat");
        refused(&Settings { keep_rows: Duration::from_secs(80), ..usual.clone() }, "three heartbeats");
        refused(&Settings { call_timeout: Duration::ZERO, ..usual.clone() }, "call_timeout");
        refused(&Settings { table: Some(String::new()), ..usual }, "table is empty");
    }
}
