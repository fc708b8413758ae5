//! What is counted while leases are kept.

use std::collections::BTreeMap;

use crate::scenario;

/// At least so much of what was written must have been delivered.
const DELIVERED_SHARE_MIN: f64 = 0.9;
/// And so much of the time that leases could be held, they must have been.
const HELD_SHARE_MIN: f64 = 0.4;

/// What is counted of one schedule, or of many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Records that were written.
    pub written: u64,
    /// Records that were processed at least once.
    pub processed: u64,
    /// Deliveries of records that were delivered before.
    pub duplicates: u64,
    /// Leases that were granted.
    pub grants: u64,
    /// Of these, after a planned end.
    pub planned: u64,
    /// Leases that were lost, by deaths and otherwise.
    pub losses: u64,
    /// Handoffs that began.
    pub moves: u64,
    /// Rows that were deleted by hand and made again.
    pub restored: u64,
    /// Shards that were read to their end.
    pub ended: u64,
    /// Writes that reached the store.
    pub writes: u64,
    /// Reads that reached it.
    pub reads: u64,
    /// Processes that refused to run beside one of the same name.
    pub same_name: u64,
    /// Schedules that ended with fewer places than leases.
    pub deficits: u64,
    /// Time that leases were held, in lease-milliseconds.
    pub held_millis: u64,
    /// Time that leases could have been held.
    pub ready_millis: u64,
}

impl scenario::Tally for Tally {
    fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.written, other.written),
            (&mut self.processed, other.processed),
            (&mut self.duplicates, other.duplicates),
            (&mut self.grants, other.grants),
            (&mut self.planned, other.planned),
            (&mut self.losses, other.losses),
            (&mut self.moves, other.moves),
            (&mut self.restored, other.restored),
            (&mut self.ended, other.ended),
            (&mut self.writes, other.writes),
            (&mut self.reads, other.reads),
            (&mut self.same_name, other.same_name),
            (&mut self.deficits, other.deficits),
            (&mut self.held_millis, other.held_millis),
            (&mut self.ready_millis, other.ready_millis),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
    }

    fn progress(&self) -> u64 {
        self.processed
    }

    fn stands_still(&self, _lived_nanos: u64) -> Option<String> {
        let processed = self.processed as f64 / self.written.max(1) as f64;
        let held = self.held_share();
        (processed < DELIVERED_SHARE_MIN || held < HELD_SHARE_MIN).then(|| {
            format!(
                "{:.1} % of {} records processed, leases held {:.1} % of the time",
                100.0 * processed,
                self.written,
                100.0 * held
            )
        })
    }

    fn line(&self, lived_nanos: u64) -> String {
        format!(
            "{} records written, {} processed, {} deliveries again; {} grants ({} after a planned end), {} losses, \
             {} handoffs begun, {} shards ended, {} deleted rows made again; leases held {:.1} % of the time; \
             {:.1} writes and {:.1} reads a second; {} refused for their name; {} schedules with a deficit",
            self.written,
            self.processed,
            self.duplicates,
            self.grants,
            self.planned,
            self.losses,
            self.moves,
            self.ended,
            self.restored,
            100.0 * self.held_share(),
            self.writes as f64 / (lived_nanos.max(1) as f64 / 1e9),
            self.reads as f64 / (lived_nanos.max(1) as f64 / 1e9),
            self.same_name,
            self.deficits,
        )
    }

    fn fields(&self) -> BTreeMap<&'static str, Option<f64>> {
        BTreeMap::new()
    }
}

impl Tally {
    /// The share of the time that leases were held, of all the time that they could have been.
    #[must_use]
    pub fn held_share(&self) -> f64 {
        self.held_millis as f64 / self.ready_millis.max(1) as f64
    }
}
