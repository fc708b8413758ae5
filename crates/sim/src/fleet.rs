//! Many schedules on several threads.
//!
//! A schedule runs on one thread and shares nothing, and what is added up does not depend on the order:
//! the same seeds give the same sums with any number of threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};

use crate::election::checkers::Rule;
use crate::election::outcome::Outcome;
use crate::election::plan::Plan;
use crate::election::{self, Rules, Watch};
use crate::fault::FaultTally;

/// How many schedules a thread takes at a time.
const BATCH: u64 = 16;
/// How often a long run says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Thousandths of a lease up to which failovers are told apart.
const FAILOVER_MAX: usize = 8000;

/// The sums over many schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    /// How many schedules ran.
    pub schedules: u64,
    /// How many schedules broke each rule.
    pub by_rule: BTreeMap<Rule, u64>,
    /// The lowest seed that broke each rule.
    pub first_seeds: BTreeMap<Rule, u64>,
    /// What was injected.
    pub faults: FaultTally,
    /// Terms that began.
    pub terms: u64,
    /// Guarded writes that were accepted.
    pub writes_accepted: u64,
    /// Guarded writes that were refused.
    pub writes_refused: u64,
    /// Renewals and releases.
    pub leader_writes: u64,
    /// Claims.
    pub claims: u64,
    /// True time with a leader.
    pub led_nanos: u64,
    /// True time in all.
    pub lived_nanos: u64,
    /// How many failovers took each number of thousandths of a lease.
    pub failovers: Vec<u64>,
    /// A number that differs if any schedule did.
    pub hash: u64,
    /// Events in all.
    pub events: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            schedules: 0,
            by_rule: Rule::ALL.iter().map(|rule| (*rule, 0)).collect(),
            first_seeds: BTreeMap::new(),
            faults: FaultTally::default(),
            terms: 0,
            writes_accepted: 0,
            writes_refused: 0,
            leader_writes: 0,
            claims: 0,
            led_nanos: 0,
            lived_nanos: 0,
            failovers: vec![0; FAILOVER_MAX + 1],
            hash: 0,
            events: 0,
        }
    }
}

impl Sums {
    /// Takes in what became of one schedule.
    pub fn take(&mut self, seed: u64, outcome: &Outcome) {
        self.schedules += 1;
        for violation in &outcome.violations {
            *self.by_rule.entry(violation.rule).or_default() += 1;
            let first = self.first_seeds.entry(violation.rule).or_insert(seed);
            *first = seed.min(*first);
        }
        self.faults.add(&outcome.faults);
        self.terms += outcome.terms;
        self.writes_accepted += outcome.writes_accepted;
        self.writes_refused += outcome.writes_refused;
        self.leader_writes += outcome.leader_writes;
        self.claims += outcome.claims;
        self.led_nanos += outcome.led_nanos;
        self.lived_nanos += outcome.lived_nanos;
        for thousandths in &outcome.failovers {
            self.failovers[(*thousandths as usize).min(FAILOVER_MAX)] += 1;
        }
        // A sum, so that the order does not matter; the seed, so that two cannot trade places.
        self.hash = self.hash.wrapping_add((outcome.hash ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.events += outcome.events;
    }

    /// Adds another's sums.
    pub fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        for (rule, count) in &other.by_rule {
            *self.by_rule.entry(*rule).or_default() += count;
        }
        for (rule, seed) in &other.first_seeds {
            let first = self.first_seeds.entry(*rule).or_insert(*seed);
            *first = *seed.min(first);
        }
        self.faults.add(&other.faults);
        self.terms += other.terms;
        self.writes_accepted += other.writes_accepted;
        self.writes_refused += other.writes_refused;
        self.leader_writes += other.leader_writes;
        self.claims += other.claims;
        self.led_nanos += other.led_nanos;
        self.lived_nanos += other.lived_nanos;
        self.failovers.iter_mut().zip(&other.failovers).for_each(|(sum, more)| *sum += more);
        self.hash = self.hash.wrapping_add(other.hash);
        self.events += other.events;
    }

    /// How many breaches there were: a schedule counts once for each rule that it broke.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.by_rule.values().sum()
    }

    /// The lowest seed that broke any rule, and which.
    #[must_use]
    pub fn first(&self) -> Option<(u64, Rule)> {
        self.first_seeds.iter().map(|(rule, seed)| (*seed, *rule)).min()
    }

    /// The failover time, in leases, below which this share of them is; nothing if there was none.
    #[must_use]
    pub fn failover(&self, share: f64) -> Option<f64> {
        let total: u64 = self.failovers.iter().sum();
        let wanted = (total as f64 * share).ceil().max(1.0);
        let mut seen = 0;
        let place = self.failovers.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        });
        place.map(|thousandths| thousandths as f64 / 1000.0)
    }

    /// The share of all time that had a leader.
    #[must_use]
    pub fn led_share(&self) -> f64 {
        self.led_nanos as f64 / (self.lived_nanos.max(1)) as f64
    }
}

/// Runs the schedules of the seeds from `seed` on, and says now and then how far it is.
#[must_use]
pub fn run(rules: Rules, seed: u64, schedules: u64, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Sums {
    let next = AtomicU64::new(0);
    let sums = Mutex::new(Sums::default());
    let said = Mutex::new(SystemClock.monotonic());
    let work = || {
        let mut own = Sums::default();
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= schedules {
                break;
            }
            for number in from..schedules.min(from + BATCH) {
                let seed = seed.wrapping_add(number);
                own.take(seed, &election::run(&Plan::draw(seed), rules, Watch::default()));
            }
            let now = SystemClock.monotonic();
            if let Ok(mut said) = said.try_lock()
                && now.since(*said) >= PROGRESS_EVERY
            {
                *said = now;
                progress(from);
            }
        }
        sums.lock().unwrap_or_else(PoisonError::into_inner).add(&own);
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    sums.into_inner().unwrap_or_else(PoisonError::into_inner)
}
