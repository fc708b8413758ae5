//! The crash matrix: every external call × {crash before, crash after, reply lost} × a second executor at
//! every call of the first, on the real executor.
//!
//! A point is a fault of one call and, for most points, a stall of one call: while that call is under way, a
//! second executor comes after the lease is over (or long after every deadline), works, and the first one's
//! call then lands late. At every call of every story an old writer comes instead, of each kind. Points whose
//! fault or stall is never reached do not count. After the faults a third executor has an hour to bring the
//! world to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::at_once;
use super::checkers::{Checker, Symptom, Violation};
use super::gate::{Fault, Gate, Mode};
use super::scenario::Scenario;
use super::seed_rules::{OldWriter, SeedExecutor};
use super::world::World;
use crate::executor::Executor;

/// Most ticks of the third executor, one a minute.
const HEALING_TICKS_MAX: u32 = 90;
/// The world is at rest after this many ticks in which nothing was written.
const RESTS: u32 = 3;

/// Whose rules are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Ours.
    Tenure,
    /// The old documents': the positive control.
    Seed,
}

/// When the second executor comes, and how long it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stall {
    /// Once the lease is over, for one tick.
    Short,
    /// After every deadline, until it has nothing more to do.
    Long,
}

/// Who comes while the first executor is stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Second {
    /// An executor that follows the same rules.
    Same,
    /// An old writer.
    Old(OldWriter),
}

/// One point of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Which story.
    pub scenario: &'static str,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// At which call the second executor runs, and who it is.
    pub second: Option<(u32, Stall, Second)>,
}

/// What became of one point.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Whether its fault and its stall happened.
    pub reached: bool,
    /// The calls of the first executor.
    pub calls: Vec<&'static str>,
    /// What broke.
    pub violations: Vec<Violation>,
}

/// The sum of many points.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Distinct points that were reached.
    pub points: BTreeSet<Point>,
    /// Points that were not reached.
    pub unreached: usize,
    /// How many points broke each checker.
    pub by_checker: BTreeMap<Checker, usize>,
    /// How many points showed each symptom.
    pub by_symptom: BTreeMap<Symptom, usize>,
    /// The first point that broke something, and how.
    pub first: Option<(Point, Violation)>,
    /// The first point of each story that broke each checker, and how.
    pub firsts: BTreeMap<(&'static str, Checker), (Point, Violation)>,
}

impl Report {
    /// How many breaches there were: a point counts once for each checker.
    #[must_use]
    pub fn violations(&self) -> usize {
        self.by_checker.values().sum()
    }

    fn take(&mut self, point: Point, outcome: &Outcome) {
        if !outcome.reached {
            self.unreached += 1;
            return;
        }
        assert!(self.points.insert(point), "{point:?} was run twice");
        let checkers: BTreeSet<_> = outcome.violations.iter().map(|violation| violation.checker).collect();
        for checker in checkers {
            *self.by_checker.entry(checker).or_default() += 1;
        }
        let symptoms: BTreeSet<_> =
            outcome.violations.iter().filter_map(|violation| violation.symptom).collect();
        for symptom in symptoms {
            *self.by_symptom.entry(symptom).or_default() += 1;
        }
        for violation in &outcome.violations {
            self.keep_first((point.scenario, violation.checker), (point, violation.clone()));
        }
        if let Some(violation) = outcome.violations.first()
            && self.first.as_ref().is_none_or(|(earlier, _)| point < *earlier)
        {
            self.first = Some((point, violation.clone()));
        }
    }

    fn keep_first(&mut self, of: (&'static str, Checker), found: (Point, Violation)) {
        let first = self.firsts.entry(of).or_insert_with(|| found.clone());
        if found.0 < first.0 {
            *first = found;
        }
    }

    fn add(&mut self, other: Self) {
        let before = self.points.len() + other.points.len();
        self.points.extend(other.points);
        assert_eq!(self.points.len(), before, "no point is run twice");
        self.unreached += other.unreached;
        for (checker, count) in other.by_checker {
            *self.by_checker.entry(checker).or_default() += count;
        }
        for (symptom, count) in other.by_symptom {
            *self.by_symptom.entry(symptom).or_default() += count;
        }
        for (of, found) in other.firsts {
            self.keep_first(of, found);
        }
        self.first = match (self.first.take(), other.first) {
            (Some(one), Some(two)) => Some(if one.0 <= two.0 { one } else { two }),
            (one, two) => one.or(two),
        };
    }
}

/// All points of a story, from the calls of a run in which nothing goes wrong.
#[must_use]
pub fn points(scenario: &Scenario, rules: Rules) -> Vec<Point> {
    let quiet = run_point(scenario, &Point { scenario: scenario.name, fault: None, second: None }, rules);
    let calls = u32::try_from(quiet.calls.len()).unwrap_or(u32::MAX);
    let mut points = Vec::new();
    let mut add = |fault, second| points.push(Point { scenario: scenario.name, fault, second });
    let stalls = |call, who| [Stall::Short, Stall::Long].map(|stall| Some((call, stall, who)));
    for call in 0..calls {
        stalls(call, Second::Same).into_iter().for_each(|second| add(None, second));
        for writer in OldWriter::BESIDE.into_iter().filter(|_| rules == Rules::Tenure) {
            stalls(call, Second::Old(writer)).into_iter().for_each(|second| add(None, second));
        }
        for mode in Mode::ALL {
            let fault = Some(Fault { call, mode });
            add(fault, None);
            for stalled in 0..calls {
                // Whoever has crashed makes no later call. Each call is stalled and fails; effects fail
                // near every other call that is stalled: farther off, the two no longer meet.
                let dead = mode != Mode::ReplyLost && stalled > call;
                let reads = !is_effect(quiet.calls[call as usize]) && stalled != call;
                if !dead && !reads && stalled.abs_diff(call) <= scenario.near_calls {
                    stalls(stalled, Second::Same).into_iter().for_each(|second| add(fault, second));
                }
            }
        }
    }
    points
}

fn is_effect(call: &str) -> bool {
    !matches!(call, "get" | "instances" | "nodes" | "pods" | "measures" | "ready nodes" | "dry run" | "log")
}

/// Runs all points of these stories on that many threads.
///
/// # Panics
/// If a thread panicked.
#[must_use]
pub fn run(scenarios: &[Scenario], rules: Rules, threads: usize) -> Report {
    let work: Vec<(Scenario, Point)> = scenarios
        .iter()
        .flat_map(|scenario| points(scenario, rules).into_iter().map(|point| (*scenario, point)))
        .collect();
    let next = AtomicUsize::new(0);
    let sum = Mutex::new(Report::default());
    let run_some = || {
        let mut own = Report::default();
        while let Some((scenario, point)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            own.take(*point, &run_point(scenario, point, rules));
        }
        sum.lock().expect("no thread panicked").add(own);
    };
    if threads <= 1 {
        // On this thread, so that a rule that was removed here stays removed.
        run_some();
    } else {
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(run_some);
            }
        });
    }
    sum.into_inner().expect("no thread panicked")
}

/// Either executor.
enum Driver {
    Ours(Box<Executor>),
    Seed(Box<SeedExecutor>),
}

impl Driver {
    fn new(world: &World, name: &str, gate: &Gate, rules: Rules) -> Self {
        match rules {
            Rules::Tenure => Self::Ours(Box::new(world.executor(name, gate))),
            Rules::Seed => {
                let (ports, policy) = (world.ports(gate), world.policy());
                Self::Seed(Box::new(SeedExecutor::new(ports, policy, world.env(), OldWriter::Control)))
            }
        }
    }

    fn beside(world: &World, writer: OldWriter) -> Self {
        Self::Seed(Box::new(world.old_writer(writer)))
    }

    /// One tick; whatever it says, the next one goes on.
    async fn tick(&mut self) {
        match self {
            Self::Ours(executor) => drop(executor.tick().await),
            Self::Seed(executor) => drop(executor.tick().await),
        }
    }
}

/// Runs one point.
#[must_use]
pub fn run_point(scenario: &Scenario, point: &Point, rules: Rules) -> Outcome {
    let world = (scenario.build)();
    if rules == Rules::Seed {
        world.without_table();
    }
    let gate = Gate::with_fault(point.fault);
    if let Some((call, stall, who)) = point.second {
        let (world, scenario) = (world.clone(), *scenario);
        gate.stall(call, move || Box::pin(second(world, scenario, stall, who, rules)));
    }
    let mut first = Driver::new(&world, "a", &gate, rules);
    for tick in 0..scenario.ticks {
        (scenario.before_tick)(&world, tick);
        if at_once(first.tick()).is_none() || world.ended_actions() > 0 {
            break;
        }
        world.advance(Duration::from_secs(scenario.every));
    }
    heal(&world, rules);
    let reached = (point.fault.is_none() || gate.met_fault()) && (point.second.is_none() || gate.met_stall());
    Outcome { reached, calls: gate.calls(), violations: world.final_violations() }
}

async fn second(world: World, scenario: Scenario, stall: Stall, who: Second, rules: Rules) {
    (scenario.during_stall)(&world);
    let (after, ticks) = match stall {
        Stall::Short => (60, 1),
        Stall::Long => (1200, 8),
    };
    world.advance(Duration::from_secs(after));
    let mut driver = match who {
        Second::Same => Driver::new(&world, "b", &Gate::open(), rules),
        Second::Old(writer) => Driver::beside(&world, writer),
    };
    for _ in 0..ticks {
        driver.tick().await;
        world.advance(Duration::from_secs(if stall == Stall::Long { 60 } else { 1 }));
    }
    (scenario.after_stall)(&world);
}

fn heal(world: &World, rules: Rules) {
    let mut third = Driver::new(world, "c", &Gate::open(), rules);
    let mut rests = 0;
    for _ in 0..HEALING_TICKS_MAX {
        world.advance(Duration::from_secs(60));
        let before = world.changes();
        let _ = at_once(third.tick());
        let quiet = world.changes() == before && world.state().action().is_none();
        rests = if quiet { rests + 1 } else { 0 };
        if rests >= RESTS {
            return;
        }
    }
}
