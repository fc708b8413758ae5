//! What the machine is told, and what it says.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_clock::{Monotonic, WallTime};

use crate::identity::{Epoch, Nonce, OwnerId};
use crate::lock::{Attempt, FenceMark, Lock, ResignRequest, Rows};

/// What a step may use of the outside.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// To measure with.
    pub monotonic: Monotonic,
    /// To store and show.
    pub wall: WallTime,
    /// Fresh for every step.
    pub nonce: Nonce,
    /// Whether the work makes progress; false holds renewals back.
    pub healthy: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The moment of [`Machine::wake_at`](super::Machine::wake_at) has come. Harmless at any other.
    Wake,
    /// A call was answered. Every call is, once: at its time limit with `Unknown` or `Failed`.
    Answered(CallId, Answer),
    /// Stand for election, until elected.
    Campaign,
    /// Stand once: if the shard cannot be had now, go back to watching and say so.
    TryOnce,
    /// Read, but do not stand.
    Watch,
    /// Do nothing until told; an answer that is under way still counts.
    Rest,
    /// Hand over, to a named candidate if one is given.
    Resign {
        /// The candidate's name.
        to: Option<Arc<str>>,
    },
    /// Release what is held, and end.
    Stop,
}

/// Tells the answers to several calls apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// A read showed these rows.
    Rows(Rows),
    /// The write happened.
    Applied {
        /// A request to hand over that stands in the row.
        resign: Option<ResignRequest>,
    },
    /// The LOCK row refused the write, and looks like this.
    RefusedByLock(Option<Lock>),
    /// The FENCE row refused the claim, and looks like this.
    RefusedByFence(Option<FenceMark>),
    /// The write may have happened.
    Unknown,
    /// It did not happen; or, of a read, there was no answer.
    Failed,
    /// There is a row that cannot be understood: it is left alone.
    Foreign(Arc<str>),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Make this call and answer it, at the latest at `by`.
    Call {
        /// To answer with.
        id: CallId,
        /// When to give up.
        by: Monotonic,
        /// What to ask.
        call: Call,
    },
    /// Tell whoever is concerned.
    Tell(News),
}

/// A request to the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    /// The rows as they are.
    Read,
    /// A conditional write.
    Write(Attempt),
}

/// What whoever is concerned should know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum News {
    /// A term began.
    Elected {
        /// Its number.
        epoch: Epoch,
        /// Until when, unless it is renewed.
        deadline: Monotonic,
    },
    /// The term was renewed.
    Renewed {
        /// Until when.
        deadline: Monotonic,
    },
    /// The term is over. No claim follows until [`Event::Campaign`].
    Lost(LossReason),
    /// The one attempt of [`Event::TryOnce`] found the shard taken.
    Declined,
    /// The row was released, or could not be.
    Released {
        /// False if no answer came in time or somebody else had it; it expires by itself.
        confirmed: bool,
    },
    /// An operator asks for a handover.
    ResignAsked(ResignRequest),
    /// Something that a person should mend; the machine goes on.
    Trouble(Trouble),
    /// The end.
    Stopped,
}

/// Why a term ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The deadline passed: the process was paused, or the store answered too late.
    Expired,
    /// Somebody else has the row.
    Superseded {
        /// Who, if the row is still there.
        by: Option<OwnerId>,
        /// Under which epoch, if it says one.
        epoch: Option<Epoch>,
    },
    /// Given up on purpose.
    Resigned,
    /// The health check held renewals back.
    Unhealthy,
    /// The store did not answer, or failed.
    StoreDown,
    /// The session that held an advisory lock ended or stopped answering.
    LeaderLockLost,
}

impl LossReason {
    /// One lowercase word, for logs and metric labels.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Superseded { .. } => "superseded",
            Self::Resigned => "resigned",
            Self::Unhealthy => "unhealthy",
            Self::StoreDown => "store_down",
            Self::LeaderLockLost => "leader_lock_lost",
        }
    }
}

/// What a person should mend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// A row under our key that we do not understand; never overwritten.
    ForeignRow(Arc<str>),
    /// A row of a Go process, although none were announced.
    GoRow,
    /// Another live process has this owner id.
    SameOwner,
}

/// Who stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Me {
    /// The id in the row.
    pub owner: OwnerId,
    /// The name by which others hand over.
    pub name: Arc<str>,
    /// What to tell the world when leading.
    pub about: Arc<BTreeMap<String, String>>,
}
