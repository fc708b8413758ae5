//! What is counted while changes travel.

use std::collections::BTreeMap;

use crate::scenario;

/// At least so much of what was committed must have arrived in its own era.
const DELIVERED_SHARE_MIN: f64 = 0.5;

/// What is counted of one schedule, or of many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Events that were committed.
    pub committed: u64,
    /// Records' events that reached the stream, copies included.
    pub landed: u64,
    /// Events that reached it for the first time.
    pub first: u64,
    /// Events of which the stream has a pointer.
    pub pointers: u64,
    /// Events that the consumer handed on.
    pub delivered: u64,
    /// Copies that the consumer dropped.
    pub duplicates: u64,
    /// Events of older eras that the consumer dropped.
    pub zombies: u64,
    /// Runs that began to publish.
    pub runs: u64,
    /// Moments at which a call was sent while another node believed that it leads.
    pub two_leaders: u64,
    /// Times that a leader refused to begin.
    pub halts: u64,
    /// Gaps that an operator accepted.
    pub eras: u64,
    /// Writes of the row that were applied.
    pub rows: u64,
    /// Writes of the row that were refused.
    pub rows_refused: u64,
}

impl scenario::Tally for Tally {
    fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.landed += other.landed;
        self.first += other.first;
        self.pointers += other.pointers;
        self.delivered += other.delivered;
        self.duplicates += other.duplicates;
        self.zombies += other.zombies;
        self.runs += other.runs;
        self.two_leaders += other.two_leaders;
        self.halts += other.halts;
        self.eras += other.eras;
        self.rows += other.rows;
        self.rows_refused += other.rows_refused;
    }

    fn progress(&self) -> u64 {
        self.first
    }

    fn stands_still(&self, _lived_nanos: u64) -> Option<String> {
        let share = self.first as f64 / self.committed.max(1) as f64;
        (share < DELIVERED_SHARE_MIN)
            .then(|| format!("{:.1} % of {} events reached the stream", 100.0 * share, self.committed))
    }

    fn line(&self, _lived_nanos: u64) -> String {
        format!(
            "{} events committed, {} reached the stream ({} as pointers) in {} copies; the consumer handed on {}, \
             dropped {} copies and {} of older eras; {} runs, {} calls beside another leader; {} halts, {} gaps \
             accepted; the row was written {} times and refused {} writes",
            self.committed,
            self.first,
            self.pointers,
            self.landed,
            self.delivered,
            self.duplicates,
            self.zombies,
            self.runs,
            self.two_leaders,
            self.halts,
            self.eras,
            self.rows,
            self.rows_refused,
        )
    }

    fn fields(&self) -> BTreeMap<&'static str, Option<f64>> {
        BTreeMap::new()
    }
}
