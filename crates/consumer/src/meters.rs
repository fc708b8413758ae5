//! What is counted per shard.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `tenure_consumer_records_total` | records delivered |
//! | `tenure_consumer_bytes_total` | their bytes |
//! | `tenure_consumer_dropped_total` | events not delivered, by `why`: `duplicate`, `zombie`, `elsewhere` |
//! | `tenure_consumer_untracked_total` | events of more sources than can be told apart: maybe delivered again |
//! | `tenure_consumer_marks_unknown_total` | starts without marks: what follows may be delivered again |
//! | `tenure_consumer_marks_cut_total` | checkpoints whose marks did not fit |
//! | `tenure_consumer_losses_total` | losses that were accepted |
//! | `tenure_consumer_dead_letters_total` | records kept as dead letters |
//! | `tenure_consumer_failures_total` | attempts of a processor that failed |
//! | `tenure_consumer_checkpoints_total` | checkpoints stored |
//! | `tenure_consumer_overdrafts_total` | reads that were larger than what the budget had left |
//! | `tenure_consumer_stops_total` | shards that stopped, by `why` |
//! | `tenure_consumer_stopped` | 1 while the shard is stopped here |
//! | `tenure_consumer_behind_seconds` | how far reading is behind the newest record |
//!
//! All have the labels `stream` and `shard`.

use metrics::{Counter, Gauge, SharedString, counter, gauge};

use crate::intake::Counts;

/// The counters of one shard.
#[derive(Clone)]
pub(crate) struct Meters {
    stream: SharedString,
    shard: SharedString,
    pub(crate) records: Counter,
    pub(crate) bytes: Counter,
    duplicates: Counter,
    zombies: Counter,
    elsewhere: Counter,
    untracked: Counter,
    pub(crate) marks_unknown: Counter,
    pub(crate) marks_cut: Counter,
    pub(crate) losses: Counter,
    pub(crate) dead_letters: Counter,
    pub(crate) failures: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) overdrafts: Counter,
    pub(crate) stopped: Gauge,
    pub(crate) behind: Gauge,
}

impl Meters {
    pub(crate) fn new(stream: &str, shard: &str) -> Self {
        let (stream, shard): (SharedString, SharedString) =
            (stream.to_owned().into(), shard.to_owned().into());
        let count = |name: &'static str| counter!(name, "stream" => stream.clone(), "shard" => shard.clone());
        let drop = |why: &'static str| counter!("tenure_consumer_dropped_total", "stream" => stream.clone(), "shard" => shard.clone(), "why" => why);
        let show = |name: &'static str| gauge!(name, "stream" => stream.clone(), "shard" => shard.clone());
        Self {
            records: count("tenure_consumer_records_total"),
            bytes: count("tenure_consumer_bytes_total"),
            duplicates: drop("duplicate"),
            zombies: drop("zombie"),
            elsewhere: drop("elsewhere"),
            untracked: count("tenure_consumer_untracked_total"),
            marks_unknown: count("tenure_consumer_marks_unknown_total"),
            marks_cut: count("tenure_consumer_marks_cut_total"),
            losses: count("tenure_consumer_losses_total"),
            dead_letters: count("tenure_consumer_dead_letters_total"),
            failures: count("tenure_consumer_failures_total"),
            checkpoints: count("tenure_consumer_checkpoints_total"),
            overdrafts: count("tenure_consumer_overdrafts_total"),
            stopped: show("tenure_consumer_stopped"),
            behind: show("tenure_consumer_behind_seconds"),
            stream,
            shard,
        }
    }

    pub(crate) fn count(&self, counts: &Counts) {
        for (counter, count) in [
            (&self.duplicates, counts.duplicates),
            (&self.zombies, counts.zombies),
            (&self.elsewhere, counts.elsewhere),
            (&self.untracked, counts.untracked),
        ] {
            if count > 0 {
                counter.increment(count);
            }
        }
    }

    pub(crate) fn stop(&self, why: &'static str) {
        counter!("tenure_consumer_stops_total", "stream" => self.stream.clone(), "shard" => self.shard.clone(), "why" => why)
            .increment(1);
        self.stopped.set(1.0);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meters({}, {})", self.stream, self.shard)
    }
}
