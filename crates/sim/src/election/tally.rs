//! What an election counts.

use std::collections::BTreeMap;

use crate::scenario;

/// Less time with a leader than this share, and the fleet hardly moved.
const LED_SHARE_MIN: f64 = 0.5;

/// What is counted of one schedule, or of many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// How many terms began.
    pub terms: u64,
    /// Guarded writes that were accepted.
    pub writes_accepted: u64,
    /// Guarded writes that were refused: an old leader's.
    pub writes_refused: u64,
    /// Renewals and releases that were sent.
    pub leader_writes: u64,
    /// Claims that were sent: the only writes of followers.
    pub claims: u64,
    /// True time with a leader.
    pub led_nanos: u64,
    /// How many times from a leader's crash to the next leader took each number of thousandths of the lease.
    pub failovers: BTreeMap<u32, u64>,
}

impl Tally {
    /// The failover time, in leases, below which this share of them is; nothing if there was none.
    #[must_use]
    pub fn failover(&self, share: f64) -> Option<f64> {
        let total: u64 = self.failovers.values().sum();
        let wanted = (total as f64 * share).ceil().max(1.0);
        let mut seen = 0;
        let place = self.failovers.iter().find(|(_, count)| {
            seen += **count;
            seen as f64 >= wanted
        });
        place.map(|(thousandths, _)| f64::from(*thousandths) / 1000.0)
    }

    /// The share of all time that had a leader.
    #[must_use]
    pub fn led_share(&self, lived_nanos: u64) -> f64 {
        self.led_nanos as f64 / (lived_nanos.max(1)) as f64
    }
}

impl scenario::Tally for Tally {
    fn add(&mut self, other: &Self) {
        self.terms += other.terms;
        self.writes_accepted += other.writes_accepted;
        self.writes_refused += other.writes_refused;
        self.leader_writes += other.leader_writes;
        self.claims += other.claims;
        self.led_nanos += other.led_nanos;
        for (thousandths, count) in &other.failovers {
            *self.failovers.entry(*thousandths).or_default() += count;
        }
    }

    fn progress(&self) -> u64 {
        self.writes_accepted
    }

    fn stands_still(&self, lived_nanos: u64) -> Option<String> {
        let led = self.led_share(lived_nanos);
        let accepted = self.writes_accepted;
        (led < LED_SHARE_MIN || accepted == 0)
            .then(|| format!("a leader {:.1} % of the time, {accepted} guarded writes accepted", 100.0 * led))
    }

    fn line(&self, lived_nanos: u64) -> String {
        format!(
            "{} terms, a leader {:.1} % of the time; {} writes by leaders, {} claims and no other write by \
             followers; guarded writes {} accepted, {} refused; {} failovers",
            self.terms,
            100.0 * self.led_share(lived_nanos),
            self.leader_writes,
            self.claims,
            self.writes_accepted,
            self.writes_refused,
            self.failovers.values().sum::<u64>(),
        )
    }

    fn fields(&self) -> BTreeMap<&'static str, Option<f64>> {
        BTreeMap::from([("failover_p50", self.failover(0.5)), ("failover_p99", self.failover(0.99))])
    }
}
