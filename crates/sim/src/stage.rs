//! Where a world plays: true time, what will happen, what was broken, and the record of it.
//!
//! Every scenario's world has one, and adds who plays and by which rules.

use crate::calendar::Calendar;
use crate::scenario::{Named, OutcomeOf, Scenario, Verdict, Violation, Watch};
use crate::trace::Trace;

/// See the module. `H` is what happens in this world.
pub struct Stage<S: Scenario, H> {
    /// True time.
    pub now: u64,
    /// The record.
    pub trace: Trace,
    /// What became of the schedule so far.
    pub outcome: OutcomeOf<S>,
    calendar: Calendar<H>,
    watch: Watch<S::Rule>,
    end_at: u64,
    events_max: u64,
    over: bool,
}

impl<S: Scenario, H> Stage<S, H> {
    /// An empty one, for a schedule that ends at `end_at`. Beyond `events_max` events, somebody spins.
    #[must_use]
    pub fn new(end_at: u64, events_max: u64, watch: Watch<S::Rule>) -> Self {
        Self {
            now: 0,
            trace: Trace::new(watch.lines),
            outcome: OutcomeOf::<S>::default(),
            calendar: Calendar::new(),
            watch,
            end_at,
            events_max,
            over: false,
        }
    }

    /// Enters something for `at`. What would happen after the end does not.
    pub fn enter(&mut self, at: u64, happening: H) {
        if at <= self.end_at {
            self.calendar.enter(at, happening);
        }
    }

    /// What happens next, at its time; nothing when all is over.
    pub fn take_next(&mut self) -> Option<H> {
        if self.over || self.spins() {
            return None;
        }
        let (at, happening) = self.calendar.take_next()?;
        debug_assert!(at >= self.now, "time goes forward");
        self.now = at;
        Some(happening)
    }

    /// Whether there were more events than any schedule has.
    #[must_use]
    pub const fn spins(&self) -> bool {
        self.calendar.entered() > self.events_max
    }

    /// Whether the run ended before its time, because what was watched for has happened.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Ends the run here.
    pub const fn end(&mut self) {
        self.over = true;
    }

    /// Notes a breach: the first of each rule.
    pub fn check(&mut self, rule: S::Rule, verdict: Verdict) {
        let Err(what) = verdict else { return };
        if self.outcome.breaks(rule) {
            return;
        }
        self.trace.mix(rule.index() as u64);
        self.trace.tell(self.now, format_args!("BROKEN {}: {what}", rule.name()));
        self.outcome.violations.push(Violation { rule, at: self.now, what });
        self.over |= self.watch.until.is_some_and(|until| until == rule);
    }

    /// Moves on to the end of the schedule, unless it was ended before.
    pub const fn move_to_end(&mut self) {
        if !self.over {
            self.now = self.end_at;
        }
    }

    /// What became of the schedule.
    #[must_use]
    pub fn finish(mut self) -> OutcomeOf<S> {
        self.outcome.lived_nanos = self.now;
        self.outcome.events = self.calendar.entered();
        (self.outcome.hash, self.outcome.lines) = self.trace.finish();
        self.outcome
    }
}

/// The number of a node, small enough for a calendar of millions.
#[must_use]
pub fn narrow(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

/// There are far fewer incidents and calls in flight than four thousand million.
#[must_use]
pub fn wide(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
