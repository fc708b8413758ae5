//! What every scenario has: rules to keep, faults to meet, a plan drawn from a seed, and a run of it.
//!
//! The command, the fleet of threads and the search for small schedules know only this.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::fault::FaultTally;
use crate::trace::Line;

/// One scenario.
pub trait Scenario: Sized + 'static {
    /// As the command line calls it.
    const NAME: &'static str;
    /// Whose rules are followed.
    type Rules: Copy + Sync;
    /// What must hold.
    type Rule: Named;
    /// What can go wrong.
    type Fault: Named;
    /// What a seed draws.
    type Plan: Plan<Fault = Self::Fault>;
    /// What is counted beside faults and breaches.
    type Tally: Tally;

    /// Ours.
    const OURS: Self::Rules;
    /// The seed document's: the positive control.
    const SEED: Self::Rules;

    /// Runs one schedule.
    fn run(plan: &Self::Plan, rules: Self::Rules, watch: Watch<Self::Rule>) -> OutcomeOf<Self>;
    /// Whether a breach of this rule shows only at the end, after healing.
    fn shows_at_the_end(rule: Self::Rule) -> bool;
}

/// What became of one schedule of a scenario.
pub type OutcomeOf<S> = Outcome<<S as Scenario>::Rule, <S as Scenario>::Fault, <S as Scenario>::Tally>;

/// One of a fixed set of things that have names.
pub trait Named: Copy + Ord + Debug + Send + Sync + 'static {
    /// All of them, in order.
    const ALL: &'static [Self];
    /// As it is called in reports.
    fn name(self) -> &'static str;
    /// Its place in [`Named::ALL`].
    fn index(self) -> usize;
}

/// What a scenario counts, and how it judges and tells the sum of many schedules.
pub trait Tally: Default + Clone + PartialEq + Debug + Send {
    /// Adds another's counts.
    fn add(&mut self, other: &Self);
    /// How far the world came: safety alone is kept by a dead system.
    fn progress(&self) -> u64;
    /// Why it hardly came anywhere, if so.
    fn stands_still(&self, lived_nanos: u64) -> Option<String>;
    /// One line for people.
    fn line(&self, lived_nanos: u64) -> String;
    /// Further fields of the summary.
    fn fields(&self) -> BTreeMap<&'static str, Option<f64>>;
    /// How many schedules showed each of the known symptoms of the seed's rules, where they have names.
    fn by_symptom(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
}

/// What to keep of a run, and when to end it.
#[derive(Debug, Clone, Copy)]
pub struct Watch<R> {
    /// Keep lines.
    pub lines: bool,
    /// End as soon as this rule is broken.
    pub until: Option<R>,
}

impl<R> Default for Watch<R> {
    fn default() -> Self {
        Self { lines: false, until: None }
    }
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation<R> {
    /// Which.
    pub rule: R,
    /// When, in true time.
    pub at: u64,
    /// How.
    pub what: String,
}

/// How a check ended: in the words of what broke it, if it did.
pub type Verdict = Result<(), String>;

/// What became of one schedule.
#[derive(Debug, Clone)]
pub struct Outcome<R, F, T> {
    /// The first breach of each rule, in order of time.
    pub violations: Vec<Violation<R>>,
    /// What was injected.
    pub faults: FaultTally<F>,
    /// What else was counted.
    pub tally: T,
    /// True time in all.
    pub lived_nanos: u64,
    /// Faults of single calls: the node, the number of its call, and which. Kept with lines only.
    pub call_faults: Vec<(usize, u32, F)>,
    /// A number that differs if anything did.
    pub hash: u64,
    /// The record, if it was asked for.
    pub lines: Vec<Line>,
    /// How many events there were.
    pub events: u64,
}

impl<R: Named, F: Named, T: Default> Default for Outcome<R, F, T> {
    fn default() -> Self {
        Self {
            violations: Vec::new(),
            faults: FaultTally::default(),
            tally: T::default(),
            lived_nanos: 0,
            call_faults: Vec::new(),
            hash: 0,
            lines: Vec::new(),
            events: 0,
        }
    }
}

impl<R: Named, F, T> Outcome<R, F, T> {
    /// Whether this rule was broken.
    #[must_use]
    pub fn breaks(&self, rule: R) -> bool {
        self.violations.iter().any(|violation| violation.rule == rule)
    }
}

/// A change that makes a schedule smaller.
pub type Simpler<P> = Box<dyn Fn(&mut P)>;

/// A schedule that was drawn.
pub trait Plan: Clone {
    /// What can go wrong in it.
    type Fault: Named;

    /// The schedule of a seed.
    fn draw(seed: u64) -> Self;
    /// What all schedules have.
    fn course(&self) -> &Course<Self::Fault>;
    /// What all schedules have, to be made smaller.
    fn course_mut(&mut self) -> &mut Course<Self::Fault>;
    /// Changes that make it smaller, each to be tried alone: kinds of faults, nodes, slowness.
    fn simpler(&self) -> Vec<Simpler<Self>>;
}

/// What happens when, in any scenario.
#[derive(Debug, Clone)]
pub struct Course<F> {
    /// What it was drawn from.
    pub seed: u64,
    /// What the draws of the running world are derived from.
    pub key: u64,
    /// What happens at a moment of its own, in order.
    pub incidents: Vec<Incident<F>>,
    /// When the faults stop.
    pub heal_at: u64,
    /// When the schedule ends.
    pub end_at: u64,
    /// Faults of single calls that were taken away again: the node and the number of its call.
    pub spared_calls: BTreeSet<(usize, u32)>,
}

/// Something that happens once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incident<F> {
    /// When.
    pub at: u64,
    /// Until when, if it lasts.
    pub until: u64,
    /// What.
    pub fault: F,
    /// To whom.
    pub target: Target,
    /// Whatever else was drawn for it.
    pub detail: u64,
}

/// Whom an incident concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// This node.
    Node(usize),
    /// Whoever leads at that moment; nobody, if nobody does.
    Leader,
}

/// What a node is called in a report.
#[must_use]
pub fn name(node: usize) -> char {
    char::from(b'a' + u8::try_from(node).unwrap_or(0))
}
