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

use crate::fault::FaultTally;
use crate::scenario::{Named, Outcome, Plan, Scenario, Tally, Watch};

/// How many schedules a thread takes at a time.
const BATCH: u64 = 16;
/// How often a long run says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// The sums over many schedules of a scenario.
pub type SumsOf<S> = Sums<<S as Scenario>::Rule, <S as Scenario>::Fault, <S as Scenario>::Tally>;

/// The sums over many schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums<R, F, T> {
    /// How many schedules ran.
    pub schedules: u64,
    /// How many schedules broke each rule.
    pub by_rule: BTreeMap<R, u64>,
    /// The lowest seed that broke each rule.
    pub first_seeds: BTreeMap<R, u64>,
    /// What was injected.
    pub faults: FaultTally<F>,
    /// What else was counted.
    pub tally: T,
    /// True time in all.
    pub lived_nanos: u64,
    /// A number that differs if any schedule did.
    pub hash: u64,
    /// Events in all.
    pub events: u64,
}

impl<R: Named, F: Named, T: Tally> Default for Sums<R, F, T> {
    fn default() -> Self {
        Self {
            schedules: 0,
            by_rule: R::ALL.iter().map(|rule| (*rule, 0)).collect(),
            first_seeds: BTreeMap::new(),
            faults: FaultTally::default(),
            tally: T::default(),
            lived_nanos: 0,
            hash: 0,
            events: 0,
        }
    }
}

impl<R: Named, F: Named, T: Tally> Sums<R, F, T> {
    /// Takes in what became of one schedule.
    pub fn take(&mut self, seed: u64, outcome: &Outcome<R, F, T>) {
        self.schedules += 1;
        for violation in &outcome.violations {
            *self.by_rule.entry(violation.rule).or_default() += 1;
            let first = self.first_seeds.entry(violation.rule).or_insert(seed);
            *first = seed.min(*first);
        }
        self.faults.add(&outcome.faults);
        self.tally.add(&outcome.tally);
        self.lived_nanos += outcome.lived_nanos;
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
        self.tally.add(&other.tally);
        self.lived_nanos += other.lived_nanos;
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
    pub fn first(&self) -> Option<(u64, R)> {
        self.first_seeds.iter().map(|(rule, seed)| (*seed, *rule)).min()
    }
}

/// Runs the schedules of the seeds from `seed` on, and says now and then how far it is.
#[must_use]
pub fn run<S: Scenario>(
    rules: S::Rules,
    seed: u64,
    schedules: u64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> SumsOf<S> {
    let next = AtomicU64::new(0);
    let sums = Mutex::new(SumsOf::<S>::default());
    let said = Mutex::new(SystemClock.monotonic());
    let work = || {
        let mut own = SumsOf::<S>::default();
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= schedules {
                break;
            }
            for number in from..schedules.min(from + BATCH) {
                let seed = seed.wrapping_add(number);
                own.take(seed, &S::run(&S::Plan::draw(seed), rules, Watch::default()));
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
