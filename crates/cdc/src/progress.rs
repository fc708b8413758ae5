//! How far a pipeline is, for whoever watches: the log's ladder, what is under way, what is wrong.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tenure_clock::WallTime;
use tenure_stream::identity::Lsn;

/// What a process knows about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// `standby`, `starting` (it was elected, and looks where to begin), `leader`, `stopping` or `stopped`.
    pub role: String,
    /// The leader's epoch.
    pub epoch: u64,
    /// Where it began to read.
    pub started_at: u64,
    /// How far the server's log reaches.
    pub server: u64,
    /// How far it was received.
    pub received: u64,
    /// Everything that committed below is in the sink.
    pub published: u64,
    /// Everything that committed below is in the checkpoint row, and confirmed to the slot.
    pub acknowledged: u64,
    /// When the last transaction that was received had committed.
    pub last_commit_millis: Option<i64>,
    /// When the oldest transaction that is not settled had committed.
    pub oldest_unsettled_millis: Option<i64>,
    /// Events that this leader has published.
    pub events: u64,
    /// Transactions that it has received.
    pub transactions: u64,
    /// Events and bytes that are taken in and not settled.
    pub inflight_events: u64,
    /// See `inflight_events`.
    pub inflight_bytes: u64,
    /// Bytes of transactions that wait on disk for their commit.
    pub spilled_bytes: u64,
    /// Events that were parked.
    pub parked: u64,
    /// Records that were throttled.
    pub throttled: u64,
    /// Calls to the sink that failed, one after another.
    pub failures: u32,
    /// What is wrong, if something is.
    pub trouble: Option<String>,
}

impl Snapshot {
    /// How much of the server's log is not yet published.
    #[must_use]
    pub const fn lag_bytes(&self) -> u64 {
        self.server.saturating_sub(self.published)
    }

    /// How long ago the oldest change that is not yet published was committed.
    #[must_use]
    pub fn lag_millis(&self, now: WallTime) -> i64 {
        self.oldest_unsettled_millis.map_or(0, |oldest| (now.as_millis() - oldest).max(0))
    }
}

/// Shared by the pipeline that fills it in and whoever looks.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Snapshot>>);

impl Progress {
    /// As it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Changes it.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.lock());
    }

    /// Tells what is wrong, or that nothing is.
    pub fn trouble(&self, what: Option<String>) {
        self.lock().trouble = what;
    }

    /// Sets the gauges.
    pub fn measure(&self, source: &str, now: WallTime) {
        let snapshot = self.snapshot();
        let source = source.to_owned();
        for (name, value) in [
            ("tenure_cdc_server_lsn", snapshot.server),
            ("tenure_cdc_received_lsn", snapshot.received),
            ("tenure_cdc_published_lsn", snapshot.published),
            ("tenure_cdc_acknowledged_lsn", snapshot.acknowledged),
            ("tenure_cdc_lag_bytes", snapshot.lag_bytes()),
            ("tenure_cdc_inflight_events", snapshot.inflight_events),
            ("tenure_cdc_inflight_bytes", snapshot.inflight_bytes),
            ("tenure_cdc_spilled_bytes", snapshot.spilled_bytes),
            ("tenure_cdc_leader_epoch", snapshot.epoch),
        ] {
            metrics::gauge!(name, "source" => source.clone()).set(value as f64);
        }
        let lag_seconds = snapshot.lag_millis(now) as f64 / 1000.0;
        metrics::gauge!("tenure_cdc_lag_seconds", "source" => source.clone()).set(lag_seconds);
        metrics::counter!("tenure_cdc_events_total", "source" => source.clone()).absolute(snapshot.events);
        metrics::counter!("tenure_cdc_parked_total", "source" => source.clone()).absolute(snapshot.parked);
        metrics::counter!("tenure_cdc_throttled_total", "source" => source).absolute(snapshot.throttled);
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log positions of a snapshot, for people.
#[must_use]
pub fn ladder(snapshot: &Snapshot) -> [(&'static str, Lsn); 4] {
    [
        ("server", Lsn(snapshot.server)),
        ("received", Lsn(snapshot.received)),
        ("published", Lsn(snapshot.published)),
        ("acknowledged", Lsn(snapshot.acknowledged)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_what_is_not_published() {
        let snapshot = Snapshot { server: 100, published: 40, ..Snapshot::default() };
        assert_eq!(snapshot.lag_bytes(), 60);
        assert_eq!(snapshot.lag_millis(WallTime::from_millis(5)), 0);
        let waiting = Snapshot { oldest_unsettled_millis: Some(1000), ..snapshot };
        assert_eq!(waiting.lag_millis(WallTime::from_millis(3500)), 2500);
        assert_eq!(waiting.lag_millis(WallTime::from_millis(500)), 0, "clocks differ");
    }
}
