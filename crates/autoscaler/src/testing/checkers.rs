//! What must hold: AS-1 to AS-9, each a function of its name, and the transition table.
//!
//! They are told of every write that was applied and of every effect that the cloud or the cluster accepted,
//! at the moment it happened, and once more at the end, after healing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tenure_store::Item;

use crate::observation::{Instance, Node, Pod, tags};
use crate::policy::{Policy, seconds};
use crate::rows::decode;
use crate::state::{Action, ActionId, InstanceId, NodePhase, SlotPhase, State};
use crate::table::{Name, explain_states};

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checker {
    /// AS-1: launched ≤ requested per action.
    As1,
    /// AS-2: no instance of ours outlives its action unrecorded; an action completes over what it recorded.
    As2,
    /// AS-3: min ≤ desired ≤ max.
    As3,
    /// AS-4: ended only if planned, drained or forced by policy, never a control-plane node.
    As4,
    /// AS-5: completed only grows, nothing is drained twice.
    As5,
    /// AS-6: one action at a time, and nothing is written over an old writer's lock while that is ahead.
    As6,
    /// AS-7: cooldown, after failures too, and after what an old writer completed.
    As7,
    /// AS-8: missing or stale metrics never scale down.
    As8,
    /// AS-9: no node stays cordoned without an action, and nobody else's cordon is lifted.
    As9,
    /// Every write is a row of the transition table.
    Table,
    /// After the faults, what was under way comes to its end.
    Heals,
}

impl Checker {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::As1,
        Self::As2,
        Self::As3,
        Self::As4,
        Self::As5,
        Self::As6,
        Self::As7,
        Self::As8,
        Self::As9,
        Self::Table,
        Self::Heals,
    ];

    /// As it is called in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::As1 => "AS-1",
            Self::As2 => "AS-2",
            Self::As3 => "AS-3",
            Self::As4 => "AS-4",
            Self::As5 => "AS-5",
            Self::As6 => "AS-6",
            Self::As7 => "AS-7",
            Self::As8 => "AS-8",
            Self::As9 => "AS-9",
            Self::Table => "table",
            Self::Heals => "heals",
        }
    }
}

/// What the old documents' rules are known to cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Symptom {
    /// An instance that nobody recorded.
    Orphan,
    /// More instances than were asked for.
    DoubleLaunch,
    /// A node that stays cordoned.
    LeakedCordon,
    /// A scale-up that completes without its instances.
    VacuousCompletion,
}

impl Symptom {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Orphan, Self::DoubleLaunch, Self::LeakedCordon, Self::VacuousCompletion];

    /// As it is called in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Orphan => "orphan",
            Self::DoubleLaunch => "double launch",
            Self::LeakedCordon => "leaked cordon",
            Self::VacuousCompletion => "vacuous completion",
        }
    }
}

/// Something that did not hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Violation {
    /// What was checked.
    pub checker: Checker,
    /// What it is known as, if it is one of those.
    pub symptom: Option<Symptom>,
    /// How it broke.
    pub what: String,
}

/// An instance that is told to end.
#[derive(Debug)]
pub struct Termination<'a> {
    /// The state at that moment.
    pub state: &'a State,
    /// Which.
    pub instance: &'a Instance,
    /// Its node.
    pub node: Option<&'a Node>,
    /// Pods on it that a drain would have moved.
    pub pods: usize,
}

/// When a write was applied, and by whom.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// When it was applied, in epoch seconds.
    pub now: i64,
    /// When it was sent: a pause is counted from there, however long the write was under way.
    pub sent: i64,
    /// Whether the metrics were fresh.
    pub measured: bool,
    /// Whether an old writer wrote it, beside ours: it is not held to our rules.
    pub by_old: bool,
}

/// What the checkers remember.
#[derive(Debug, Clone, PartialEq)]
pub struct Ledger {
    /// The same in all of a world's ledgers.
    policy: Arc<Policy>,
    has_table: bool,
    requested: BTreeMap<ActionId, i64>,
    launched: BTreeMap<String, BTreeSet<InstanceId>>,
    /// Instances for which TERMINATING or REAPING was ever durable.
    condemned: BTreeSet<InstanceId>,
    completed: BTreeSet<InstanceId>,
    killed: BTreeSet<InstanceId>,
    /// Actions that an old writer cleared under us: what was under way then lands late.
    cleared: BTreeSet<ActionId>,
    /// The lock that an old writer took last: its owner, and until when.
    old_lock: Option<(String, i64)>,
    /// When the last action ended, and whether it failed.
    ended: Option<(i64, bool)>,
    /// How many actions ended.
    pub ended_count: u32,
    /// What broke.
    pub violations: Vec<Violation>,
}

impl Hash for Ledger {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            policy: _,
            has_table,
            requested,
            launched,
            condemned,
            completed,
            killed,
            cleared,
            old_lock,
            ended,
            ended_count,
            violations,
        } = self;
        (has_table, requested, launched, condemned, completed, killed).hash(state);
        (cleared, old_lock, ended, ended_count, violations).hash(state);
    }
}

impl Ledger {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy: Arc::new(policy),
            has_table: true,
            requested: BTreeMap::new(),
            launched: BTreeMap::new(),
            condemned: BTreeSet::new(),
            completed: BTreeSet::new(),
            killed: BTreeSet::new(),
            cleared: BTreeSet::new(),
            old_lock: None,
            ended: None,
            ended_count: 0,
            violations: Vec::new(),
        }
    }

    /// The writers know no table.
    pub fn without_table(&mut self) {
        self.has_table = false;
    }

    fn broken(&mut self, checker: Checker, symptom: Option<Symptom>, what: String) {
        self.violations.push(Violation { checker, symptom, what });
    }

    // === what is told ===

    /// A write was applied.
    pub fn wrote(
        &mut self,
        moment: &Moment,
        before: &Item,
        after: &Item,
        machines: &[(&Instance, Option<&Node>)],
    ) {
        let (Ok(old), Ok(new)) = (decode(before), decode(after)) else { return };
        let explained = explain_states(&old, &new).map_err(|error| error.chain());
        self.moved(moment, (&old, &new), &explained, machines);
    }

    /// A write was applied that led from one state to the other, as the table explains it.
    pub fn moved(
        &mut self,
        moment: &Moment,
        (old, new): (&State, &State),
        explained: &Result<Name, String>,
        machines: &[(&Instance, Option<&Node>)],
    ) {
        let Moment { now, sent, measured, by_old } = *moment;
        let ours = !by_old;
        if by_old && (&old.lock_owner, old.lock_until_epoch) != (&new.lock_owner, new.lock_until_epoch) {
            self.old_lock = new.lock_owner.clone().zip(new.lock_until_epoch);
        }
        if ours && self.has_table {
            match explained {
                Ok(name) => self.as_6_respects_old_locks(now, *name, old),
                Err(why) => self.broken(Checker::Table, None, why.clone()),
            }
        }
        let (was, is) = (old.action_id().cloned(), new.action_id().cloned());
        if ours {
            self.as_6_one_action(old, new);
            self.as_5_completed_grows(old, new);
        }
        if was.is_none() && is.is_some() && ours {
            self.as_7_cooldown(now, old);
            self.as_3_bounds(new, machines);
            self.as_8_measured(new, measured);
        }
        if let Some(action) = is.as_ref().filter(|_| was != is) {
            self.requested.insert(action.clone(), new.up_requested.unwrap_or(0));
        }
        if let Some(action) = was.as_ref().filter(|_| by_old && was != is) {
            self.cleared.insert(action.clone());
        }
        if was.is_some() && is.is_none() {
            let failed = new.last_scale_epoch == old.last_scale_epoch;
            if ours {
                self.as_2_completes_with_its_instances(old, failed);
            }
            // What an old writer cleared leaves nothing that could hold us back.
            if ours || !failed {
                self.ended = Some((sent, failed));
            }
            self.ended_count += 1;
        }
        self.remember_condemned(new);
    }

    fn remember_condemned(&mut self, state: &State) {
        let reaping = state.up_slots.iter().flatten().filter_map(|(_, slot)| {
            slot.instance.clone().filter(|_| matches!(slot.phase, SlotPhase::Reaping | SlotPhase::Reaped))
        });
        let terminating = state
            .down_nodes
            .iter()
            .flatten()
            .filter(|(_, node)| matches!(node.phase, NodePhase::Terminating | NodePhase::Done))
            .map(|(id, _)| id.clone());
        self.condemned.extend(reaping.chain(terminating));
        // The old documents know no phase of a single node: the plan is all they have.
        if !self.has_table {
            self.condemned.extend(state.down_targets.iter().flatten().cloned());
        }
        self.completed.extend(state.down_completed.iter().flatten().cloned());
    }

    /// An instance was launched.
    pub fn launched(&mut self, instance: &Instance) {
        let action = instance.tag(tags::ACTION).unwrap_or_default().to_owned();
        self.launched.entry(action.clone()).or_default().insert(instance.id.clone());
        self.as_1_launched_as_requested(&action);
    }

    /// An instance is told to end, by us.
    pub fn terminated(&mut self, termination: &Termination<'_>) {
        self.as_4_planned_and_drained(termination);
    }

    /// Somebody else ended an instance.
    pub fn killed_by_others(&mut self, id: &InstanceId) {
        self.killed.insert(id.clone());
    }

    /// A node was cordoned for an action.
    pub fn cordoned(&mut self, state: &State, node: &str, action: &ActionId) {
        if self.has_table && state.action_id() != Some(action) && !self.cleared.contains(action) {
            let what = format!("node {node} is cordoned for {action}, which is not under way");
            self.broken(Checker::As9, Some(Symptom::LeakedCordon), what);
        }
    }

    /// A node was uncordoned.
    pub fn uncordoned(&mut self, before: &Node, by_person: bool) {
        if by_person && before.unschedulable && before.cordoned_by.is_none() {
            let what = format!("the cordon that a person put on node {} is lifted", before.name);
            self.broken(Checker::As9, None, what);
        }
    }

    /// A pod was evicted from a node.
    pub fn evicted(&mut self, pod: &Pod, instance: Option<&InstanceId>, forced: bool) {
        if let Some(id) = instance.filter(|id| self.completed.contains(*id)) {
            self.broken(Checker::As5, None, format!("{id} is drained again after it was completed"));
        }
        if !pod.is_drained() {
            self.broken(Checker::As4, None, format!("pod {} belongs to its node and is evicted", pod.name));
        }
        if forced && self.policy.force_after.is_none() {
            self.broken(Checker::As4, None, format!("pod {} is deleted against the policy", pod.name));
        }
    }

    /// The faults are over and the world had time to heal.
    pub fn at_the_end<'a>(
        &mut self,
        state: &State,
        instances: &[&Instance],
        live_nodes: impl Iterator<Item = &'a Node>,
        cordoned_by_person: &BTreeSet<String>,
    ) {
        if let Some(action) = state.action() {
            self.broken(Checker::Heals, None, format!("still under way: {action:?}"));
        }
        self.as_2_no_orphan(instances);
        self.as_9_no_leaked_cordon(state, live_nodes, cordoned_by_person);
    }

    // === the checkers ===

    fn as_1_launched_as_requested(&mut self, action: &str) {
        let launched = self.launched.get(action).map_or(0, BTreeSet::len);
        let requested = self.requested.get(action).copied().unwrap_or(0);
        if i64::try_from(launched).unwrap_or(i64::MAX) > requested {
            let what = format!("{action} asked for {requested} instances and launched {launched}");
            self.broken(Checker::As1, Some(Symptom::DoubleLaunch), what);
        }
    }

    fn as_2_no_orphan(&mut self, instances: &[&Instance]) {
        let orphans: Vec<_> = instances
            .iter()
            .filter(|instance| instance.is_live() && instance.tag(tags::ACTION).is_some())
            .filter(|instance| instance.tag(tags::COMMITTED).is_none())
            .map(|instance| instance.id.clone())
            .collect();
        for id in orphans {
            let what = format!("instance {id} outlives its action, and nobody committed it");
            self.broken(Checker::As2, Some(Symptom::Orphan), what);
        }
    }

    fn as_2_completes_with_its_instances(&mut self, old: &State, failed: bool) {
        let recorded = old.up_instance_ids.as_ref().map_or(0, Vec::len);
        let requested = old.up_requested.unwrap_or(0);
        if !failed && old.up_action_id.is_some() && i64::try_from(recorded).unwrap_or(0) < requested {
            let what = format!("a scale-up of {requested} completed with {recorded} instances");
            self.broken(Checker::As2, Some(Symptom::VacuousCompletion), what);
        }
    }

    fn as_3_bounds(&mut self, new: &State, machines: &[(&Instance, Option<&Node>)]) {
        let leaving = |id: &InstanceId| new.interrupted().any(|(other, _)| other == id);
        // Without the cluster's tag, nobody can tell that an instance is the cluster's unless its node says so.
        // A Ready node that names nobody keeps everything from beginning; one that is not Ready may be what is
        // left of an instance that has ended.
        let known = |instance: &Instance, node: Option<&Node>| {
            let says_so = |node: &Node| node.claimed_instance() == Some(instance.id.as_str());
            instance.tag(tags::CLUSTER).is_some() || node.is_some_and(|node| node.ready || says_so(node))
        };
        let workers = || {
            machines
                .iter()
                .filter(|(_, node)| !node.is_some_and(|node| node.control_plane))
                .filter(|(instance, node)| known(instance, *node))
                .filter(|(instance, _)| instance.is_live() && !leaving(&instance.id))
        };
        if let (Some(_), Some(requested)) = (&new.up_action_id, new.up_requested) {
            // What an ended action left is about to be collected.
            let orphan = |instance: &Instance| {
                self.has_table
                    && instance.tag(tags::ACTION).is_some()
                    && instance.tag(tags::COMMITTED).is_none()
            };
            let live = workers().filter(|(instance, _)| !orphan(instance)).count();
            let desired = i64::try_from(live).unwrap_or(0) + requested;
            if desired > i64::from(self.policy.workers_max) {
                let what = format!("{desired} workers are more than {}", self.policy.workers_max);
                self.broken(Checker::As3, None, what);
            }
        }
        if let Some(targets) = &new.down_targets {
            let ready = workers().filter(|(_, node)| node.is_some_and(|node| node.ready)).count();
            let left = (ready + self.killed.len()).saturating_sub(targets.len());
            if left < self.policy.workers_min as usize {
                let what = format!("{left} workers are fewer than {}", self.policy.workers_min);
                self.broken(Checker::As3, None, what);
            }
        }
    }

    fn as_4_planned_and_drained(&mut self, termination: &Termination<'_>) {
        let Termination { state, instance, node, pods } = termination;
        let id = &instance.id;
        let orphan = instance.tag(tags::ACTION).is_some()
            && instance.tag(tags::COMMITTED).is_none()
            && instance.tag(tags::ACTION) != state.action_id().map(ActionId::as_str);
        if !self.condemned.contains(id) && !orphan {
            self.broken(Checker::As4, None, format!("{id} is ended, and no plan says so"));
        }
        if node.is_some_and(|node| node.control_plane) {
            self.broken(Checker::As4, None, format!("{id} runs the control plane and is ended"));
        }
        if *pods > 0 {
            self.broken(Checker::As4, None, format!("{id} is ended with {pods} pods on it"));
        }
    }

    fn as_5_completed_grows(&mut self, old: &State, new: &State) {
        if old.down_action_id.is_none() || old.down_action_id != new.down_action_id {
            return;
        }
        let (was, is) =
            (old.down_completed.clone().unwrap_or_default(), new.down_completed.clone().unwrap_or_default());
        let distinct: BTreeSet<_> = is.iter().collect();
        if !is.starts_with(&was) || distinct.len() != is.len() {
            self.broken(Checker::As5, None, format!("completed went from {was:?} to {is:?}"));
        }
    }

    fn as_6_one_action(&mut self, old: &State, new: &State) {
        if let (Some(was), Some(is)) = (old.action_id(), new.action_id())
            && was != is
        {
            self.broken(Checker::As6, None, format!("{is} begins while {was} is under way"));
        }
        if new.up_action_id.is_some() && new.down_action_id.is_some() {
            self.broken(Checker::As6, None, "a scale-up and a scale-down are under way".to_owned());
        }
    }

    /// An old writer's lock, once taken, is waited for: only what persons ask for is written.
    fn as_6_respects_old_locks(&mut self, now: i64, name: Name, old: &State) {
        let Some((owner, until)) = &self.old_lock else { return };
        let persons = matches!(name, Name::Migrate | Name::Pause | Name::Resume | Name::Interrupt);
        let held = old.lock_owner.as_ref() == Some(owner) && old.lock_until_epoch == Some(*until);
        if held && now < *until && !persons {
            let what = format!("`{}` is written over the lock of {owner}", name.row().title);
            self.broken(Checker::As6, None, what);
        }
    }

    fn as_7_cooldown(&mut self, now: i64, old: &State) {
        let since_last = now - old.last_scale_epoch.unwrap_or(0);
        if self.has_table && since_last < seconds(self.policy.cooldown) {
            let what = format!("an action begins {since_last} s after `lastScaleEpoch`");
            self.broken(Checker::As7, None, what);
        }
        let Some((ended, failed)) = self.ended else { return };
        let pause = if failed {
            Policy::backoff_seconds(old.fail_count.unwrap_or(1) - 1)
        } else {
            seconds(self.policy.cooldown)
        };
        if now - ended < pause {
            let what = format!("an action begins {} s after another ended, not {pause} s", now - ended);
            self.broken(Checker::As7, None, what);
        }
    }

    fn as_8_measured(&mut self, new: &State, measured: bool) {
        if new.down_action_id.is_some() && !measured {
            self.broken(Checker::As8, None, "a scale-down begins without fresh metrics".to_owned());
        }
    }

    fn as_9_no_leaked_cordon<'a>(
        &mut self,
        state: &State,
        live_nodes: impl Iterator<Item = &'a Node>,
        cordoned_by_person: &BTreeSet<String>,
    ) {
        let in_plan = |node: &Node| match state.action() {
            Some(Action::Down(down)) => down.nodes.values().any(|planned| planned.node == node.name),
            _ => false,
        };
        let leaked: Vec<_> = live_nodes
            .filter(|node| node.unschedulable && !in_plan(node) && !cordoned_by_person.contains(&node.name))
            .map(|node| node.name.clone())
            .collect();
        for node in leaked {
            let what = format!("node {node} stays cordoned, and no action is under way");
            self.broken(Checker::As9, Some(Symptom::LeakedCordon), what);
        }
    }
}
