//! What a write does to the state, as a value.
//!
//! [`Change::apply`] says what the state is afterwards; the table in `table.rs` says when it may happen and
//! which attributes are written. The two together are the write.

use std::collections::{BTreeMap, BTreeSet};

use tenure_backend::{Error, Result};

use crate::state::{
    ADOPTED_MAX, ActionId, DownNode, DownPhase, ENTRIES_MAX, InstanceId, Interrupt, NodePhase, Place,
    SCHEMA_VERSION, Slot, SlotPhase, State, TARGETS_MAX, UpPhase,
};
use crate::table::Name;

/// Who writes, and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The executor, unlike every other.
    pub owner: String,
    /// Its wall clock, in milliseconds.
    pub now_ms: i64,
    /// How long its lease lasts.
    pub lease_ms: i64,
    /// By how much clocks may differ.
    pub skew_ms: i64,
}

impl Stamp {
    /// Whole seconds.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.now_ms.div_euclid(1000)
    }
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ending {
    /// Workers at the end.
    pub workers: i64,
    /// Before this, in epoch seconds, nothing new begins.
    pub next_allowed: i64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// Nodes that are left alone until an epoch second.
    pub backoff: BTreeMap<InstanceId, i64>,
    /// Interruptions that are answered: their instances are gone, or others have joined for them.
    pub answered: BTreeSet<InstanceId>,
}

/// One change of the state item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// The item gets the form of this version.
    Migrate,
    /// The windows of stabilisation, and the number of workers.
    Windows {
        /// Since when pods wait; 0 if none does.
        pending_since: i64,
        /// Since when nodes idle; 0 if none does.
        idle_since: i64,
        /// Workers now.
        workers: i64,
    },
    /// The number of actions catches up with what was seen: the item was lost.
    Recount {
        /// The highest number of an action that was seen.
        seq: i64,
    },
    /// Nothing new begins.
    Pause,
    /// New actions may begin.
    Resume,
    /// An instance will be taken away.
    Interrupt {
        /// Which.
        instance: InstanceId,
        /// Why, and when that was told.
        interrupt: Interrupt,
    },
    /// A scale-up begins.
    BeginUp {
        /// Its id.
        action: ActionId,
        /// Where each instance is launched first.
        places: Vec<Place>,
        /// When it is given up, in epoch seconds.
        deadline: i64,
    },
    /// A scale-down begins.
    BeginDown {
        /// Its id.
        action: ActionId,
        /// Instances, with their nodes' names and uids.
        nodes: BTreeMap<InstanceId, (String, String)>,
        /// When it is given up, in epoch seconds.
        deadline: i64,
    },
    /// An old writer's scale-up becomes ours.
    AdoptUp {
        /// When it is given up, in epoch seconds.
        deadline: i64,
    },
    /// An old writer's scale-down becomes ours.
    AdoptDown {
        /// The names of the nodes that were found.
        nodes: BTreeMap<InstanceId, String>,
        /// When it is given up, in epoch seconds.
        deadline: i64,
    },
    /// The flag that an old writer left goes away.
    Clear,
    /// Another executor carries the action on.
    TakeOver,
    /// The lease is extended.
    Renew,
    /// An old writer recorded instances after its scale-up had been adopted.
    Admit {
        /// Which.
        instances: BTreeSet<InstanceId>,
    },
    /// A slot's instance is known.
    Record {
        /// The slot.
        slot: u32,
        /// Its instance.
        instance: InstanceId,
    },
    /// A slot is tried elsewhere.
    Retarget {
        /// The slot.
        slot: u32,
        /// Where.
        place: Place,
    },
    /// The nodes of these slots were Ready.
    Join {
        /// The slots.
        slots: BTreeSet<u32>,
    },
    /// These slots are given up; with the instances that were found for them.
    Reap {
        /// The slots.
        slots: BTreeMap<u32, Option<InstanceId>>,
    },
    /// The instances of these slots are gone.
    Reaped {
        /// The slots.
        slots: BTreeSet<u32>,
    },
    /// The instances of these slots may be serving: they are left alone.
    Keep {
        /// The slots.
        slots: BTreeSet<u32>,
    },
    /// What did not join is ended.
    Abort,
    /// Every slot joined.
    CompleteUp(Ending),
    /// Some slot did not.
    FailUp(Ending),
    /// These nodes are being cordoned.
    Cordon {
        /// Their instances.
        nodes: BTreeSet<InstanceId>,
    },
    /// These nodes are being emptied.
    Drain {
        /// Their instances.
        nodes: BTreeSet<InstanceId>,
    },
    /// These instances are being ended.
    Terminate {
        /// Which.
        nodes: BTreeSet<InstanceId>,
    },
    /// An instance is gone.
    MarkDone {
        /// Which.
        instance: InstanceId,
    },
    /// An instance is gone, and an old writer marked it as done before us.
    NoteDone {
        /// Which.
        instance: InstanceId,
    },
    /// These nodes are being given back.
    Rollback {
        /// Their instances.
        nodes: BTreeSet<InstanceId>,
    },
    /// These nodes were given back.
    RolledBack {
        /// Their instances.
        nodes: BTreeSet<InstanceId>,
    },
    /// Every node is gone.
    CompleteDown(Ending),
    /// Some node was given back.
    FailDown(Ending),
}

impl Change {
    /// Its row in the table.
    #[must_use]
    pub const fn name(&self) -> Name {
        match self {
            Self::Migrate => Name::Migrate,
            Self::Windows { .. } => Name::Windows,
            Self::Recount { .. } => Name::Recount,
            Self::Pause => Name::Pause,
            Self::Resume => Name::Resume,
            Self::Interrupt { .. } => Name::Interrupt,
            Self::BeginUp { .. } => Name::BeginUp,
            Self::BeginDown { .. } => Name::BeginDown,
            Self::AdoptUp { .. } => Name::AdoptUp,
            Self::AdoptDown { .. } => Name::AdoptDown,
            Self::Clear => Name::Clear,
            Self::TakeOver => Name::TakeOver,
            Self::Renew => Name::Renew,
            Self::Admit { .. } => Name::Admit,
            Self::Record { .. } => Name::Record,
            Self::Retarget { .. } => Name::Retarget,
            Self::Join { .. } => Name::Join,
            Self::Reap { .. } => Name::Reap,
            Self::Reaped { .. } => Name::Reaped,
            Self::Keep { .. } => Name::Keep,
            Self::Abort => Name::Abort,
            Self::CompleteUp(_) => Name::CompleteUp,
            Self::FailUp(_) => Name::FailUp,
            Self::Cordon { .. } => Name::Cordon,
            Self::Drain { .. } => Name::Drain,
            Self::Terminate { .. } => Name::Terminate,
            Self::MarkDone { .. } => Name::MarkDone,
            Self::NoteDone { .. } => Name::NoteDone,
            Self::Rollback { .. } => Name::Rollback,
            Self::RolledBack { .. } => Name::RolledBack,
            Self::CompleteDown(_) => Name::CompleteDown,
            Self::FailDown(_) => Name::FailDown,
        }
    }

    /// The state afterwards, `rev` apart: the table adds to it.
    ///
    /// # Errors
    /// `Invalid` if the change does not fit the state: a slot or node that is not there, an instance that
    /// is known already, or more targets than an action may have.
    pub fn apply(&self, seen: &State, stamp: &Stamp) -> Result<State> {
        let mut state = seen.clone();
        match self {
            Self::Migrate => migrate(&mut state),
            Self::Windows { pending_since, idle_since, workers } => {
                state.pending_since_epoch = Some(*pending_since);
                state.idle_since_epoch = Some(*idle_since);
                state.worker_count = Some(*workers);
            }
            Self::Recount { seq } => state.action_seq = Some((*seq).max(state.action_seq())),
            Self::Pause => state.paused = Some(true),
            Self::Resume => state.paused = Some(false),
            Self::Interrupt { instance, interrupt } => {
                let seq = state.action_seq();
                let inbox = state.interrupts.get_or_insert_default();
                inbox.insert(instance.clone(), Interrupt { seq, ..*interrupt });
                // The oldest goes: by now its instance has gone too.
                if inbox.len() > ENTRIES_MAX
                    && let Some(oldest) =
                        inbox.iter().min_by_key(|(_, entry)| entry.at).map(|(id, _)| id.clone())
                {
                    inbox.remove(&oldest);
                }
            }
            Self::BeginUp { action, places, deadline } => {
                bounded(places.len())?;
                let fence = state.fence() + 1;
                // What an old writer cleared of an earlier action, it cleared in part.
                remove_down(&mut state);
                begin(&mut state, action, *deadline, stamp);
                state.up_action_id = Some(action.clone());
                state.up_started_epoch = Some(stamp.epoch());
                state.up_requested = i64::try_from(places.len()).ok();
                state.up_instance_ids = Some(Vec::new());
                state.up_phase = Some(UpPhase::Launching);
                state.up_slots = Some((0..).zip(places.iter().map(|place| planned(place, fence))).collect());
            }
            Self::BeginDown { action, nodes, deadline } => {
                bounded(nodes.len())?;
                remove_up(&mut state);
                begin(&mut state, action, *deadline, stamp);
                state.down_action_id = Some(action.clone());
                state.down_started_epoch = Some(stamp.epoch());
                state.down_phase = Some(DownPhase::Draining);
                state.down_targets = Some(nodes.keys().cloned().collect());
                state.down_completed = Some(Vec::new());
                let entry = |(node, uid): &(String, String)| DownNode {
                    phase: NodePhase::Planned,
                    node: node.clone(),
                    uid: uid.clone(),
                };
                state.down_nodes = Some(nodes.iter().map(|(id, names)| (id.clone(), entry(names))).collect());
            }
            Self::AdoptUp { deadline } => adopt_up(&mut state, *deadline, stamp)?,
            Self::AdoptDown { nodes, deadline } => adopt_down(&mut state, nodes, *deadline, stamp)?,
            Self::Clear => end(&mut state),
            Self::TakeOver => {
                state.scaling_in_progress = Some(true);
                state.fence = Some(state.fence() + 1);
                state.lock_owner = Some(stamp.owner.clone());
            }
            Self::Renew => {}
            Self::Admit { instances } => admit(&mut state, instances)?,
            Self::Record { slot, instance } => {
                let ids = state.up_instance_ids.get_or_insert_default();
                if ids.contains(instance) {
                    return Err(Error::invalid(format!("instance {instance} is recorded already")));
                }
                ids.push(instance.clone());
                let slot = slot_mut(&mut state, *slot)?;
                slot.phase = SlotPhase::Launched;
                slot.instance = Some(instance.clone());
                settle_up_phase(&mut state);
            }
            Self::Retarget { slot, place } => {
                let fence = state.fence();
                let slot = slot_mut(&mut state, *slot)?;
                slot.attempt += 1;
                slot.authorised = fence;
                slot.place = place.clone();
            }
            Self::Join { slots } => {
                for slot in slots {
                    slot_mut(&mut state, *slot)?.phase = SlotPhase::Joined;
                }
            }
            Self::Reap { slots } => {
                for (slot, found) in slots {
                    let slot = slot_mut(&mut state, *slot)?;
                    slot.phase = SlotPhase::Reaping;
                    if slot.instance.is_none() {
                        slot.instance = found.clone();
                    }
                }
                settle_up_phase(&mut state);
            }
            Self::Reaped { slots } => {
                for slot in slots {
                    slot_mut(&mut state, *slot)?.phase = SlotPhase::Reaped;
                }
            }
            Self::Keep { slots } => {
                for slot in slots {
                    slot_mut(&mut state, *slot)?.phase = SlotPhase::Kept;
                }
            }
            Self::Abort => state.up_phase = Some(UpPhase::Aborting),
            Self::CompleteUp(ending)
            | Self::FailUp(ending)
            | Self::CompleteDown(ending)
            | Self::FailDown(ending) => finish(&mut state, ending, stamp),
            Self::Cordon { nodes } => node_phase(&mut state, nodes, NodePhase::Cordoning)?,
            Self::Drain { nodes } => node_phase(&mut state, nodes, NodePhase::Draining)?,
            Self::Terminate { nodes } => {
                node_phase(&mut state, nodes, NodePhase::Terminating)?;
                state.down_phase = Some(DownPhase::Terminating);
            }
            Self::MarkDone { instance } => {
                let completed = state.down_completed.get_or_insert_default();
                if completed.contains(instance) {
                    return Err(Error::invalid(format!("instance {instance} is completed already")));
                }
                completed.push(instance.clone());
                node_phase(&mut state, &[instance.clone()].into(), NodePhase::Done)?;
            }
            Self::NoteDone { instance } => {
                if !state.down_completed.iter().flatten().any(|other| other == instance) {
                    return Err(Error::invalid(format!("instance {instance} is not completed")));
                }
                node_phase(&mut state, &[instance.clone()].into(), NodePhase::Done)?;
            }
            Self::Rollback { nodes } => node_phase(&mut state, nodes, NodePhase::Rollback)?,
            Self::RolledBack { nodes } => node_phase(&mut state, nodes, NodePhase::RolledBack)?,
        }
        if self.name().row().extends_lease() {
            extend(&mut state, stamp);
        }
        Ok(state)
    }
}

fn bounded(targets: usize) -> Result<()> {
    if (1..=TARGETS_MAX).contains(&targets) {
        return Ok(());
    }
    Err(Error::invalid(format!("an action has {targets} targets: give 1 to {TARGETS_MAX}")))
}

fn adoptable(targets: usize) -> Result<()> {
    if targets <= ADOPTED_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("an old writer's action has {targets} targets: at most {ADOPTED_MAX} fit")))
}

fn planned(place: &Place, fence: i64) -> Slot {
    Slot { phase: SlotPhase::Planned, attempt: 0, authorised: fence, place: place.clone(), instance: None }
}

fn migrate(state: &mut State) {
    state.schema_version = Some(SCHEMA_VERSION);
    state.scaling_in_progress.get_or_insert(false);
    for zero in [
        &mut state.last_scale_epoch,
        &mut state.fence,
        &mut state.action_seq,
        &mut state.fail_count,
        &mut state.next_allowed_epoch,
    ] {
        zero.get_or_insert(0);
    }
    state.interrupts.get_or_insert_default();
    state.node_backoff.get_or_insert_default();
}

fn begin(state: &mut State, action: &ActionId, deadline: i64, stamp: &Stamp) {
    state.scaling_in_progress = Some(true);
    state.plan_for = Some(action.clone());
    state.fence = Some(state.fence() + 1);
    state.action_seq = Some(state.action_seq() + 1);
    state.action_deadline_epoch = Some(deadline);
    state.lock_owner = Some(stamp.owner.clone());
    // What waited or idled is answered: it has to last anew.
    state.pending_since_epoch = Some(0);
    state.idle_since_epoch = Some(0);
}

/// An old writer may steal only once `lockUntilEpoch` is past: so it mirrors the action's deadline, and once
/// that is near, lies past the next tick.
fn extend(state: &mut State, stamp: &Stamp) {
    state.lease_until_ms = Some(stamp.now_ms + stamp.lease_ms);
    state.lock_until_epoch = state.own_lock();
}

/// The instances of an old writer have no slots: each that it recorded becomes one.
fn adopt_up(state: &mut State, deadline: i64, stamp: &Stamp) -> Result<()> {
    let Some(action) = state.up_action_id.clone() else {
        return Err(Error::invalid("there is no scale-up to adopt"));
    };
    let mut ids = state.up_instance_ids.take().unwrap_or_default();
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    adoptable(ids.len())?;
    let started = state.up_started_epoch;
    let requested = state.up_requested;
    remove_down(state);
    begin(state, &action, deadline, stamp);
    let fence = state.fence();
    let launched = |id: &InstanceId| adopted(id, fence);
    state.up_slots = Some((0..).zip(ids.iter().map(launched)).collect());
    state.up_phase = Some(UpPhase::Verifying);
    state.up_started_epoch = Some(started.unwrap_or_else(|| stamp.epoch()));
    // It asked for at least one: a list that is empty is no success.
    state.up_requested = Some(requested.unwrap_or(0).max(i64::try_from(ids.len()).unwrap_or(0)).max(1));
    state.up_instance_ids = Some(ids);
    Ok(())
}

/// Launched by an old writer, nobody knows where.
fn adopted(id: &InstanceId, fence: i64) -> Slot {
    let nowhere = Place { subnet: String::new(), market: String::new(), template: String::new() };
    Slot { phase: SlotPhase::Launched, instance: Some(id.clone()), ..planned(&nowhere, fence) }
}

fn admit(state: &mut State, instances: &BTreeSet<InstanceId>) -> Result<()> {
    let fence = state.fence();
    let slots = state.up_slots.get_or_insert_default();
    adoptable(slots.len() + instances.len())?;
    let next = slots.keys().next_back().map_or(0, |last| last + 1);
    for (number, id) in (next..).zip(instances) {
        if slots.values().any(|slot| slot.instance.as_ref() == Some(id)) {
            return Err(Error::invalid(format!("instance {id} has a slot already")));
        }
        slots.insert(number, adopted(id, fence));
    }
    Ok(())
}

/// Every target that is not completed is begun again from the start: each step may be repeated.
fn adopt_down(
    state: &mut State,
    names: &BTreeMap<InstanceId, String>,
    deadline: i64,
    stamp: &Stamp,
) -> Result<()> {
    let Some(action) = state.down_action_id.clone() else {
        return Err(Error::invalid("there is no scale-down to adopt"));
    };
    let targets = state.down_targets.clone().unwrap_or_default();
    adoptable(targets.len())?;
    let completed = state.down_completed.clone().unwrap_or_default();
    let started = state.down_started_epoch;
    remove_up(state);
    begin(state, &action, deadline, stamp);
    let entry = |id: &InstanceId| DownNode {
        phase: if completed.contains(id) { NodePhase::Done } else { NodePhase::Planned },
        node: names.get(id).cloned().unwrap_or_default(),
        uid: String::new(),
    };
    state.down_nodes = Some(targets.iter().map(|id| (id.clone(), entry(id))).collect());
    state.down_phase.get_or_insert(DownPhase::Draining);
    state.down_started_epoch = Some(started.unwrap_or_else(|| stamp.epoch()));
    state.down_targets = Some(targets);
    state.down_completed = Some(completed);
    Ok(())
}

fn finish(state: &mut State, ending: &Ending, stamp: &Stamp) {
    state.interrupts.get_or_insert_default().retain(|id, _| !ending.answered.contains(id));
    let now = stamp.epoch();
    let backoff = state.node_backoff.get_or_insert_default();
    backoff.retain(|_, until| *until > now);
    backoff.extend(ending.backoff.iter().map(|(id, until)| (id.clone(), *until)));
    while backoff.len() > ENTRIES_MAX {
        let soonest = backoff.iter().min_by_key(|(_, until)| **until).map(|(id, _)| id.clone());
        soonest.and_then(|id| backoff.remove(&id));
    }
    match &ending.failure {
        None => {
            state.last_scale_epoch = Some(now);
            state.fail_count = Some(0);
            state.last_failure = None;
        }
        Some(why) => {
            state.fail_count = Some(state.fail_count.unwrap_or(0) + 1);
            state.last_failure = Some(why.clone());
        }
    }
    state.worker_count = Some(ending.workers);
    state.next_allowed_epoch = Some(ending.next_allowed);
    end(state);
}

fn end(state: &mut State) {
    state.scaling_in_progress = Some(false);
    remove_up(state);
    remove_down(state);
    state.plan_for = None;
    state.lock_owner = None;
    state.lock_until_epoch = None;
    state.lease_until_ms = None;
    state.action_deadline_epoch = None;
}

fn remove_up(state: &mut State) {
    state.up_action_id = None;
    state.up_started_epoch = None;
    state.up_requested = None;
    state.up_instance_ids = None;
    state.up_phase = None;
    state.up_slots = None;
}

fn remove_down(state: &mut State) {
    state.down_action_id = None;
    state.down_started_epoch = None;
    state.down_phase = None;
    state.down_targets = None;
    state.down_completed = None;
    state.down_nodes = None;
}

fn slot_mut(state: &mut State, number: u32) -> Result<&mut Slot> {
    state
        .up_slots
        .as_mut()
        .and_then(|slots| slots.get_mut(&number))
        .ok_or_else(|| Error::invalid(format!("the scale-up has no slot {number}")))
}

fn node_phase(state: &mut State, nodes: &BTreeSet<InstanceId>, phase: NodePhase) -> Result<()> {
    for id in nodes {
        let node = state
            .down_nodes
            .as_mut()
            .and_then(|nodes| nodes.get_mut(id))
            .ok_or_else(|| Error::invalid(format!("the scale-down has no instance {id}")))?;
        node.phase = phase;
    }
    Ok(())
}

/// A scale-up is verifying once no slot waits to be launched.
fn settle_up_phase(state: &mut State) {
    let waits = state.up_slots.iter().flatten().any(|(_, slot)| slot.phase == SlotPhase::Planned);
    if state.up_phase == Some(UpPhase::Launching) && !waits {
        state.up_phase = Some(UpPhase::Verifying);
    }
}
