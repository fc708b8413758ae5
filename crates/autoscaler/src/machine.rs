//! Decides what happens next: no await, no clock, no draw.
//!
//! Everything is derived from the state item and from what was just seen, so any executor can go on where
//! another died. A step answers with a few effects: first conditional writes, then calls. Whoever carries
//! them out stops at the first write that fails, and asks again with what is there then. The calls of one
//! step do not depend on each other: one that fails is told as an answer, and keeps no other from being made.

mod decide;
mod down;
pub mod explain;
mod garbage;
mod up;

use std::collections::{BTreeMap, BTreeSet};

use md5::{Digest, Md5};
use tenure_planted as planted;

use crate::change::{Change, Stamp};
use crate::observation::{Answer, CordonMark, Instance, LaunchOrder, Observation};
use crate::policy::{Policy, millis, seconds};
use crate::state::{ADOPTED_MAX, Action, ActionId, InstanceId, Legacy, Slot, SlotPhase, State, Up, UpPhase};
use crate::table::LEGACY_OVER_SECONDS;

pub(crate) use decide::{begin_blockers, begin_down};
pub(crate) use down::may_be_evicted;

/// Once the lock is ahead by less, it is extended: the next tick may come a minute or two later.
const LOCK_LEFT_MIN_SECONDS: i64 = 120;

/// The moment, and who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now {
    /// The wall clock, in milliseconds.
    pub ms: i64,
    /// The executor that asks, unlike every other.
    pub owner: String,
    /// How long its own lease still lasts, by its own measure; 0 if it has none.
    pub lease_left_ms: i64,
}

impl Now {
    /// Whole seconds.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.ms.div_euclid(1000)
    }

    /// What the writes of this moment carry.
    #[must_use]
    pub fn stamp(&self, policy: &Policy) -> Stamp {
        Stamp {
            owner: self.owner.clone(),
            now_ms: self.ms,
            lease_ms: millis(policy.lease),
            skew_ms: millis(policy.skew),
        }
    }
}

/// How a pod is asked to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Manner {
    /// Only asked whether it may be.
    DryRun,
    /// Evicted, as its disruption budget allows.
    Evict,
    /// Deleted, whatever its budget says.
    Force,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// A conditional write of the state item.
    Write(Change),
    /// Launch an instance.
    Launch(LaunchOrder),
    /// Ask whether an instance may be ended.
    AskEnd(InstanceId),
    /// End an instance.
    Terminate(InstanceId),
    /// Tag an instance as one of the cluster: an old writer's lacks that.
    Enlist(InstanceId),
    /// Tag an instance as committed by the action.
    Commit {
        /// Which.
        instance: InstanceId,
        /// By which action.
        action: ActionId,
    },
    /// Tag an instance as a suspect since that epoch second.
    Suspect {
        /// Which.
        instance: InstanceId,
        /// Since when.
        epoch: i64,
    },
    /// Remove the start-up taint.
    Untaint {
        /// The node.
        node: String,
        /// The version that was seen.
        version: String,
    },
    /// Cordon a node and say who did.
    Cordon {
        /// The node.
        node: String,
        /// The version that was seen.
        version: String,
        /// Who.
        mark: CordonMark,
    },
    /// Give a node back: touch it, and uncordon it if the cordon is the action's.
    Release {
        /// The node.
        node: String,
        /// The version that was seen.
        version: String,
        /// The action that gives it back.
        action: ActionId,
        /// Whether it is uncordoned.
        uncordon: bool,
    },
    /// Evict a pod.
    Evict {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid: another pod of that name is left alone.
        uid: String,
        /// How.
        manner: Manner,
    },
}

impl Effect {
    /// What it is about, for people, and to know it again when it failed.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::Write(change) => format!("write `{}`", change.name().row().title),
            Self::Launch(order) => launch_of(order.slot, order.attempt),
            Self::AskEnd(id) => format!("ask whether instance {id} may be ended"),
            Self::Terminate(id) => format!("end instance {id}"),
            Self::Enlist(id) => format!("tag instance {id} as the cluster's"),
            Self::Commit { instance, .. } => format!("tag instance {instance} as committed"),
            Self::Suspect { instance, .. } => format!("tag instance {instance} as a suspect"),
            Self::Untaint { node, .. } => format!("remove the start-up taint of node {node}"),
            Self::Cordon { node, .. } => format!("cordon node {node}"),
            Self::Release { node, .. } => format!("give node {node} back"),
            Self::Evict { namespace, name, uid, manner } => {
                format!("{} pod {namespace}/{name} ({uid})", manner.verb())
            }
        }
    }
}

fn launch_of(slot: u32, attempt: u32) -> String {
    format!("launch an instance for slot {slot} (attempt {attempt})")
}

impl Manner {
    const fn verb(self) -> &'static str {
        match self {
            Self::DryRun => "ask for the eviction of",
            Self::Evict => "evict",
            Self::Force => "delete",
        }
    }
}

/// What to do, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Writes first, then calls. Nothing, if there is nothing to do now.
    pub effects: Vec<Effect>,
    /// Why, for people.
    pub reasons: Vec<String>,
    /// Those of the reasons that keep something wanted from being done.
    pub blockers: Vec<String>,
}

impl Step {
    fn because(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], ..Self::default() }
    }

    fn blocked(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { blockers: vec![reason.clone()], ..Self::because(reason) }
    }

    fn write(change: Change, reason: impl Into<String>) -> Self {
        Self { effects: vec![Effect::Write(change)], ..Self::because(reason) }
    }
}

/// What must be seen before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Instances and nodes.
    pub machines: bool,
    /// Pods.
    pub pods: bool,
    /// Loads and lag.
    pub metrics: bool,
}

impl Needs {
    /// All there is.
    pub const ALL: Self = Self { machines: true, pods: true, metrics: true };

    /// Whether whoever saw this has seen that.
    #[must_use]
    pub const fn cover(self, that: Self) -> bool {
        (self.machines || !that.machines) && (self.pods || !that.pods) && (self.metrics || !that.metrics)
    }
}

/// What [`step`] must see to decide on this state.
#[must_use]
pub fn needs(state: &State, answers: &[Answer], now: &Now, policy: &Policy) -> Needs {
    let machines = Needs { machines: true, ..Needs::default() };
    if !state.is_migrated() {
        return Needs::default();
    }
    match state.action() {
        None => Needs::ALL,
        Some(Action::Legacy(legacy @ Legacy::Down(_))) if legacy_is_over(state, legacy, now, policy) => {
            machines
        }
        Some(Action::Legacy(_)) => Needs::default(),
        Some(_) if state.lock_owner.as_deref() != Some(&now.owner) => Needs::default(),
        Some(Action::Up(up)) if is_launching(state, &up, answers, now) => Needs::default(),
        Some(Action::Up(_)) => machines,
        Some(Action::Down(_)) => Needs { machines: true, pods: true, metrics: false },
    }
}

/// What happens next.
#[must_use]
pub fn step(state: &State, observation: &Observation, policy: &Policy, now: &Now) -> Step {
    if !state.is_migrated() {
        return Step::write(Change::Migrate, "the state item gets the form of this version");
    }
    let action = match state.action() {
        None => return idle(state, observation, policy, now),
        Some(Action::Legacy(legacy)) => return adopt(state, legacy, observation, policy, now),
        Some(action) => action,
    };
    if state.lock_owner.as_deref() != Some(&now.owner) {
        let owner = state.lock_owner.as_deref().unwrap_or("nobody");
        // An old writer took the lock over our action. It may be about to write what it does.
        let lock_limit = (now.ms - millis(policy.skew)).div_euclid(1000);
        if state.lock_owner.is_some()
            && state.old_lock().is_some_and(|until| until >= lock_limit)
            && !planted::is("autoscaler_takes_the_lock_back")
        {
            return Step::blocked(format!("{owner}, an old writer, holds the lock"));
        }
        return match state.lease_until_ms {
            Some(until) if until >= now.ms - millis(policy.skew) => {
                Step::blocked(format!("{owner} carries the action on"))
            }
            _ => Step::write(Change::TakeOver, format!("the lease of {owner} is over")),
        };
    }
    let mut course = Course {
        state: state.clone(),
        stamp: now.stamp(policy),
        observation,
        policy,
        now,
        changes: Vec::new(),
        calls: Vec::new(),
        reasons: Vec::new(),
    };
    match action {
        Action::Up(_) => up::go_on(&mut course),
        Action::Down(_) => down::go_on(&mut course),
        Action::Legacy(_) => {}
    }
    course.finish()
}

fn idle(state: &State, observation: &Observation, policy: &Policy, now: &Now) -> Step {
    if let Some((change, reason)) = recount(state, observation) {
        return Step::write(change, reason);
    }
    let mut step = decide::decide(state, observation, policy, now);
    let begins =
        |effect: &Effect| matches!(effect, Effect::Write(Change::BeginUp { .. } | Change::BeginDown { .. }));
    if !step.effects.iter().any(begins) {
        garbage::collect(state, observation, policy, now, &mut step);
        step.effects.retain(|effect| !observation.failed(&effect.what()));
    }
    step
}

/// The item was lost and made anew, and what its earlier actions left would be nobody's.
pub(crate) fn recount(state: &State, observation: &Observation) -> Option<(Change, String)> {
    let seen = garbage::highest_number(observation);
    let known = state.action_seq();
    (seen > known && !planted::is("autoscaler_number_starts_anew")).then(|| {
        let reason = format!("an action {seen} left its mark, and the item knows of {known}: it was lost");
        (Change::Recount { seq: seen }, reason)
    })
}

/// What ended actions left behind, and what is done about it.
pub(crate) fn garbage(state: &State, observation: &Observation, policy: &Policy, now: &Now) -> Step {
    let mut step = Step::default();
    garbage::collect(state, observation, policy, now, &mut step);
    step
}

/// Judged by what the old writer wrote, never by what is left of ours: its lock is past, or its action began
/// long ago, or it left neither.
fn legacy_is_over(state: &State, legacy: Legacy<'_>, now: &Now, policy: &Policy) -> bool {
    let began = match legacy {
        _ if planted::is("autoscaler_theft_by_own_start") => {
            state.up_started_epoch.into_iter().chain(state.down_started_epoch).min()
        }
        Legacy::Up(_) => state.up_started_epoch,
        Legacy::Down(_) => state.down_started_epoch,
        Legacy::Nameless => None,
    };
    let lock = state.old_lock();
    let lock_limit = (now.ms - millis(policy.skew)).div_euclid(1000);
    lock.is_some_and(|until| until < lock_limit)
        || began.is_some_and(|epoch| epoch < now.epoch() - LEGACY_OVER_SECONDS)
        || (lock.is_none() && began.is_none())
}

fn adopt(state: &State, legacy: Legacy<'_>, observation: &Observation, policy: &Policy, now: &Now) -> Step {
    if !legacy_is_over(state, legacy, now, policy) {
        return Step::blocked("an old writer's action is under way");
    }
    let targets = match legacy {
        Legacy::Up(_) => state.up_instance_ids.as_ref(),
        Legacy::Down(_) => state.down_targets.as_ref(),
        Legacy::Nameless => None,
    };
    if let Some(targets) = targets.filter(|targets| targets.len() > ADOPTED_MAX) {
        return Step::blocked(format!(
            "an old writer's action names {} instances, at most {ADOPTED_MAX} are adopted: shorten its list by hand; nothing scales until then",
            targets.len()
        ));
    }
    match legacy {
        Legacy::Nameless => Step::write(Change::Clear, "an old writer left its flag and no action"),
        Legacy::Up(id) => Step::write(
            Change::AdoptUp { deadline: now.epoch() + seconds(policy.join_timeout) },
            format!("an old writer left scale-up {id}"),
        ),
        Legacy::Down(id) => {
            let matches = observation.matches();
            let named = |id: &InstanceId| Some((id.clone(), matches.node_of(id)?.name.clone()));
            let nodes = state.down_targets.iter().flatten().filter_map(named).collect();
            Step::write(
                Change::AdoptDown { nodes, deadline: now.epoch() + seconds(policy.drain_timeout) },
                format!("an old writer left scale-down {id}"),
            )
        }
    }
}

/// Whether the next thing is a launch, for which nothing need be seen.
fn is_launching(state: &State, up: &Up<'_>, answers: &[Answer], now: &Now) -> bool {
    up.phase == UpPhase::Launching && !is_late(state, now) && next_launch(up.slots, answers).is_some()
        || answers.iter().any(|answer| {
            matches!(answer, Answer::Launched { slot, attempt, .. }
            if up.slots.get(slot).is_some_and(|slot| {
                slot.phase == SlotPhase::Planned && slot.attempt == *attempt
            }))
        }) && up.phase != UpPhase::Aborting
}

fn is_late(state: &State, now: &Now) -> bool {
    state.action_deadline_epoch.is_none_or(|deadline| now.epoch() >= deadline)
}

/// The first planned slot whose attempt has not been answered in this tick.
fn next_launch<'a>(slots: &'a BTreeMap<u32, Slot>, answers: &[Answer]) -> Option<(u32, &'a Slot)> {
    let answered = |number: u32, attempt: u32| {
        let failed = launch_of(number, attempt);
        answers.iter().any(|answer| match answer {
            Answer::Failed { what, .. } => *what == failed,
            Answer::Launched { slot, attempt: tried, .. }
            | Answer::NoCapacity { slot, attempt: tried, .. }
            | Answer::LaunchRefused { slot, attempt: tried, .. } => *slot == number && *tried == attempt,
            _ => false,
        })
    };
    slots
        .iter()
        .find(|(number, slot)| slot.phase == SlotPhase::Planned && !answered(**number, slot.attempt))
        .map(|(number, slot)| (*number, slot))
}

/// One step of an action that is ours: the writes so far, and the state after them.
struct Course<'a> {
    state: State,
    stamp: Stamp,
    observation: &'a Observation,
    policy: &'a Policy,
    now: &'a Now,
    changes: Vec<Change>,
    calls: Vec<Effect>,
    reasons: Vec<String>,
}

impl Course<'_> {
    /// Adds a write; what follows sees the state after it.
    fn write(&mut self, change: Change) {
        match change.apply(&self.state, &self.stamp) {
            Ok(after) => {
                self.state = after;
                self.changes.push(change);
            }
            Err(error) => self.reasons.push(error.chain()),
        }
    }

    /// Adds a call, unless it failed in this tick: the next one tries again.
    fn call(&mut self, effect: Effect) {
        if !self.failed(&effect) {
            self.calls.push(effect);
        }
    }

    fn failed(&self, effect: &Effect) -> bool {
        self.observation.failed(&effect.what())
    }

    /// Ends an instance, unless it was told so in this tick.
    fn terminate(&mut self, id: &InstanceId) {
        let told = [Answer::Terminated(id.clone()), Answer::NotFound(id.clone())];
        if !told.iter().any(|answer| self.answered(answer)) {
            self.call(Effect::Terminate(id.clone()));
        }
    }

    /// Interruptions that need no worker any more: their instances are gone; and of those that the action had seen
    /// when it began, the oldest, one for each worker that joined.
    fn answered_interrupts(&self, joined: usize) -> BTreeSet<InstanceId> {
        let is_live = |id: &InstanceId| self.observation.instance(id).is_some_and(Instance::is_live);
        let (live, gone): (Vec<_>, Vec<_>) = self.state.interrupted().partition(|(id, _)| is_live(id));
        let mut seen: Vec<_> =
            live.into_iter().filter(|(_, interrupt)| interrupt.seq != self.state.action_seq()).collect();
        seen.sort_by_key(|(_, interrupt)| interrupt.at);
        gone.into_iter().chain(seen.into_iter().take(joined)).map(|(id, _)| id.clone()).collect()
    }

    /// Why an instance may not be ended, as the cloud answered in this tick.
    fn unendable(&self, id: &InstanceId) -> Option<String> {
        self.observation.answers.iter().find_map(|answer| match answer {
            Answer::Unendable { instance, why } if instance == id => Some(why.clone()),
            _ => None,
        })
    }

    fn says(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    fn answered(&self, wanted: &Answer) -> bool {
        self.observation.answers.contains(wanted)
    }

    /// Between reading a node and changing it lies a fenced write, and no call is made on the last of a
    /// lease. Even while there is nothing to do, the lock stays ahead of old writers.
    fn finish(mut self) -> Step {
        let lock_left = self.state.lock_until_epoch.unwrap_or(0) - self.now.epoch();
        if self.changes.is_empty() && self.state.action().is_some() && lock_left < LOCK_LEFT_MIN_SECONDS {
            self.changes.push(Change::Renew);
        }
        let changes_node = |call: &Effect| matches!(call, Effect::Cordon { .. } | Effect::Release { .. });
        let short = self.now.lease_left_ms < self.stamp.lease_ms / 2;
        if self.changes.is_empty() && !self.calls.is_empty() && (short || self.calls.iter().any(changes_node))
        {
            self.changes.push(Change::Renew);
        }
        let effects = self.changes.into_iter().map(Effect::Write).chain(self.calls).collect();
        Step { effects, reasons: self.reasons, blockers: Vec::new() }
    }
}

/// The same for the same attempt, whoever asks: the cloud launches once.
fn client_token(cluster: &str, action: &ActionId, slot: u32, attempt: u32) -> String {
    let digest = Md5::digest(format!("{cluster}\n{action}\n{slot}\n{attempt}"));
    digest.iter().fold(String::with_capacity(32), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}
