//! The cluster's one state item, as a value.
//!
//! Two things are kept apart that the old documents mix. The **action slot** (`scalingInProgress` and an
//! action id) says what is under way, and never expires by a clock. The **executor's lease** (`lockOwner`,
//! `leaseUntilMs`, and the `fence` that every write of the action checks) says who may carry it on.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

use tenure_planted as planted;

/// Most slots or nodes in one action: the item stays far below 400 KB.
pub const TARGETS_MAX: usize = 50;
/// Most instances of an old writer's list that are adopted: theirs knew no such bound as ours. A slot takes
/// less than 150 bytes.
pub const ADOPTED_MAX: usize = 1000;
/// How long after the lease ends an old writer still finds the lock ahead: longer than two ticks are apart.
pub const LOCK_GAP_SECONDS: i64 = 300;
/// Most entries that the inbox of interruptions and the list of nodes to leave alone may keep.
pub const ENTRIES_MAX: usize = 100;
/// The form of the item that this crate writes.
pub const SCHEMA_VERSION: i64 = 2;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Its text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// A scaling action: `1730000300-req-xyz`, or `sd-1730000900-req` of a scale-down.
    ActionId
}
text_id! {
    /// An instance of the cloud: `i-0abc…`.
    InstanceId
}

macro_rules! phases {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// As it is stored.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The one that is stored so.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|phase| phase.name() == text)
            }
        }
    };
}

phases! {
    /// How far a whole scale-up is.
    UpPhase {
        /// Some slot has not been launched.
        Launching = "LAUNCHING",
        /// All are launched or given up; nodes are awaited.
        Verifying = "VERIFYING",
        /// What did not join is being ended.
        Aborting = "ABORTING",
    }
}
phases! {
    /// How far one slot of a scale-up is.
    SlotPhase {
        /// Nothing is known to be launched.
        Planned = "PLANNED",
        /// An instance is recorded.
        Launched = "LAUNCHED",
        /// Its node was Ready.
        Joined = "JOINED",
        /// It is being ended. There is no way back.
        Reaping = "REAPING",
        /// It is gone.
        Reaped = "REAPED",
        /// It may be serving and is left alone.
        Kept = "KEPT",
    }
}
impl SlotPhase {
    /// Whether nothing more happens to the slot.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Joined | Self::Reaped | Self::Kept)
    }
}
phases! {
    /// How far one node of a scale-down is.
    NodePhase {
        /// Nothing was done to it.
        Planned = "PLANNED",
        /// It is being cordoned.
        Cordoning = "CORDONING",
        /// Its pods are being evicted.
        Draining = "DRAINING",
        /// Its instance is being ended. There is no way back.
        Terminating = "TERMINATING",
        /// Its instance is gone.
        Done = "DONE",
        /// It is being given back.
        Rollback = "ROLLBACK",
        /// It was given back.
        RolledBack = "ROLLED_BACK",
    }
}
phases! {
    /// How far a whole scale-down is, for people and old readers.
    DownPhase {
        /// Pods are being moved.
        Draining = "DRAINING",
        /// Instances are being ended.
        Terminating = "TERMINATING",
    }
}
phases! {
    /// Why an instance is about to go.
    InterruptKind {
        /// Its spot capacity is taken back.
        Spot = "spot",
        /// The cloud advises to move away.
        Rebalance = "rebalance",
    }
}

/// Where an instance is launched: frozen in its slot before the call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The subnet.
    pub subnet: String,
    /// `spot` or `on-demand`.
    pub market: String,
    /// The launch template's version.
    pub template: String,
}

/// One instance that a scale-up asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slot {
    /// How far it is.
    pub phase: SlotPhase,
    /// Which try this is, from 0.
    pub attempt: u32,
    /// The fence that authorised the attempt.
    pub authorised: i64,
    /// Where.
    pub place: Place,
    /// The instance, once it is known.
    pub instance: Option<InstanceId>,
}

/// One node that a scale-down takes away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DownNode {
    /// How far it is.
    pub phase: NodePhase,
    /// The node's name.
    pub node: String,
    /// The node's uid, so that another node of that name is not taken for it. Empty if an old writer
    /// planned it: then a cordon without an owner is that writer's.
    pub uid: String,
}

/// An instance that will be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interrupt {
    /// Why.
    pub kind: InterruptKind,
    /// When that was told, in epoch seconds.
    pub at: i64,
    /// How many actions there had been: a later one has seen it.
    pub seq: i64,
}

impl Interrupt {
    /// One that is told now. The write that stores it knows how many actions there have been.
    #[must_use]
    pub const fn told(kind: InterruptKind, at: i64) -> Self {
        Self { kind, at, seq: 0 }
    }
}

/// The state item. An attribute that is not there is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "each field is the attribute of its name; `rows.rs` has their table")]
pub struct State {
    pub schema_version: Option<i64>,
    pub rev: Option<i64>,
    pub fence: Option<i64>,
    pub action_seq: Option<i64>,
    pub scaling_in_progress: Option<bool>,
    pub last_scale_epoch: Option<i64>,
    pub pending_since_epoch: Option<i64>,
    pub idle_since_epoch: Option<i64>,
    pub worker_count: Option<i64>,
    pub lock_owner: Option<String>,
    pub lock_until_epoch: Option<i64>,
    pub lease_until_ms: Option<i64>,
    pub action_deadline_epoch: Option<i64>,
    pub plan_for: Option<ActionId>,
    pub up_action_id: Option<ActionId>,
    pub up_started_epoch: Option<i64>,
    pub up_requested: Option<i64>,
    pub up_instance_ids: Option<Vec<InstanceId>>,
    pub up_phase: Option<UpPhase>,
    pub up_slots: Option<BTreeMap<u32, Slot>>,
    pub down_action_id: Option<ActionId>,
    pub down_started_epoch: Option<i64>,
    pub down_phase: Option<DownPhase>,
    pub down_targets: Option<Vec<InstanceId>>,
    pub down_completed: Option<Vec<InstanceId>>,
    pub down_nodes: Option<BTreeMap<InstanceId, DownNode>>,
    pub fail_count: Option<i64>,
    pub next_allowed_epoch: Option<i64>,
    pub last_failure: Option<String>,
    pub node_backoff: Option<BTreeMap<InstanceId, i64>>,
    pub interrupts: Option<BTreeMap<InstanceId, Interrupt>>,
    pub paused: Option<bool>,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// A scale-up of ours.
    Up(Up<'a>),
    /// A scale-down of ours.
    Down(Down<'a>),
    /// What an old writer left, to be adopted once its time is over.
    Legacy(Legacy<'a>),
}

/// A scale-up of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Up<'a> {
    /// Its id.
    pub id: &'a ActionId,
    /// How far it is.
    pub phase: UpPhase,
    /// Its slots.
    pub slots: &'a BTreeMap<u32, Slot>,
}

/// A scale-down of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Down<'a> {
    /// Its id.
    pub id: &'a ActionId,
    /// Its nodes.
    pub nodes: &'a BTreeMap<InstanceId, DownNode>,
}

/// What an old writer left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legacy<'a> {
    /// A scale-up.
    Up(&'a ActionId),
    /// A scale-down.
    Down(&'a ActionId),
    /// The flag alone.
    Nameless,
}

impl State {
    /// Whether the item has the form that this crate writes.
    #[must_use]
    pub fn is_migrated(&self) -> bool {
        self.schema_version.is_some_and(|version| version >= SCHEMA_VERSION)
    }

    /// What is under way.
    ///
    /// Slots and nodes belong to the action that `planFor` names. If an old writer stole the item after an
    /// outage, the action id is another: then that one is under way, and what we left is garbage.
    #[must_use]
    pub fn action(&self) -> Option<Action<'_>> {
        let planned = |id: &ActionId| self.plan_for.as_ref() == Some(id);
        match (&self.up_action_id, &self.down_action_id) {
            (Some(id), None) if planned(id) => self.own_up(id),
            (None, Some(id)) if planned(id) => self.own_down(id),
            (Some(up), Some(down)) => Some(self.stolen(up, down)),
            (Some(id), None) => Some(Action::Legacy(Legacy::Up(id))),
            (None, Some(id)) => Some(Action::Legacy(Legacy::Down(id))),
            (None, None) if self.scaling_in_progress == Some(true) => Some(Action::Legacy(Legacy::Nameless)),
            (None, None) => None,
        }
    }

    /// Two ids: the one that is not ours was put there last; of two old ones, the later.
    fn stolen<'a>(&'a self, up: &'a ActionId, down: &'a ActionId) -> Action<'a> {
        let newer_up = if self.plan_for.as_ref() == Some(up) {
            false
        } else if self.plan_for.as_ref() == Some(down) {
            true
        } else {
            self.up_started_epoch >= self.down_started_epoch
        };
        Action::Legacy(if newer_up { Legacy::Up(up) } else { Legacy::Down(down) })
    }

    fn own_up<'a>(&'a self, id: &'a ActionId) -> Option<Action<'a>> {
        Some(match &self.up_slots {
            Some(slots) => Action::Up(Up { id, phase: self.up_phase.unwrap_or(UpPhase::Launching), slots }),
            None => Action::Legacy(Legacy::Up(id)),
        })
    }

    fn own_down<'a>(&'a self, id: &'a ActionId) -> Option<Action<'a>> {
        Some(match &self.down_nodes {
            Some(nodes) => Action::Down(Down { id, nodes }),
            None => Action::Legacy(Legacy::Down(id)),
        })
    }

    /// The id of what is under way, if it has one.
    #[must_use]
    pub fn action_id(&self) -> Option<&ActionId> {
        match self.action()? {
            Action::Up(up) => Some(up.id),
            Action::Down(down) => Some(down.id),
            Action::Legacy(Legacy::Up(id) | Legacy::Down(id)) => Some(id),
            Action::Legacy(Legacy::Nameless) => None,
        }
    }

    /// What our own writes put into `lockUntilEpoch`: the action's deadline, or past the next tick.
    #[must_use]
    pub fn own_lock(&self) -> Option<i64> {
        let lease = self.lease_until_ms?.div_euclid(1000) + 1;
        let gap = if planted::is("autoscaler_lock_ends_with_lease") { 0 } else { LOCK_GAP_SECONDS };
        Some(self.action_deadline_epoch.unwrap_or(0).max(lease + gap))
    }

    /// Until when an old writer holds the lock. It takes the lock only once ours is past, so its
    /// `lockUntilEpoch` is never the one that we wrote.
    #[must_use]
    pub fn old_lock(&self) -> Option<i64> {
        self.lock_until_epoch.filter(|until| self.own_lock() != Some(*until))
    }

    /// The fence; 0 before the first action.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.fence.unwrap_or(0)
    }

    /// How many actions there were.
    #[must_use]
    pub fn action_seq(&self) -> i64 {
        self.action_seq.unwrap_or(0)
    }

    /// Whether a person asked that nothing new begins.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused == Some(true)
    }

    /// The instances that will be taken away.
    pub fn interrupted(&self) -> impl Iterator<Item = (&InstanceId, &Interrupt)> {
        self.interrupts.iter().flatten()
    }
}

impl Action<'_> {
    /// Whether it is a scale-up of ours with a slot that names the instance, and in which phase.
    #[must_use]
    pub fn slot_of(&self, instance: &InstanceId) -> Option<SlotPhase> {
        match self {
            Self::Up(up) => {
                up.slots.values().find(|slot| slot.instance.as_ref() == Some(instance)).map(|slot| slot.phase)
            }
            _ => None,
        }
    }
}
