//! The writes of a keeper, as data: `rows.rs` makes conditions of them, `testing.rs` plain comparisons.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Checkpoint, Lease, LeaseKey, WorkerId};

/// A write of one lease row. Each raises the counter, but for [`Attempt::BeginHandoff`].
#[derive(Debug, Clone, PartialEq)]
pub enum Attempt {
    /// The row is put, if there is none.
    Create(Box<Lease>),
    /// The counter rises by one, if it is `counter` and the lease is mine, or mine to give.
    Renew {
        /// The lease.
        key: LeaseKey,
        /// The counter as it is.
        counter: u64,
        /// Who renews.
        me: WorkerId,
        /// What was measured since, in KiB a second.
        kbps: Option<f64>,
    },
    /// The lease becomes mine, if its counter is `counter`.
    Take {
        /// The lease.
        key: LeaseKey,
        /// The counter as it is.
        counter: u64,
        /// Who takes.
        me: WorkerId,
        /// Whose it was, as far as known.
        from: Option<WorkerId>,
    },
    /// The checkpoint moves, on the conditions of a renewal, and counts as one.
    Checkpoint {
        /// The lease.
        key: LeaseKey,
        /// The counter as it is.
        counter: u64,
        /// Who holds it.
        me: WorkerId,
        /// How far.
        at: Checkpoint,
        /// What the consumer keeps with it; `None` removes what is there.
        marks: Option<Bytes>,
    },
    /// The lease is promised to `to`, if it is plainly `from`'s.
    BeginHandoff {
        /// The lease.
        key: LeaseKey,
        /// Who holds it.
        from: WorkerId,
        /// Who is to have it.
        to: WorkerId,
    },
    /// The promise is kept, if it still stands as it did.
    FinishHandoff {
        /// The lease.
        key: LeaseKey,
        /// The counter as it is.
        counter: u64,
        /// Who gives.
        from: WorkerId,
        /// Who has it from now on.
        to: WorkerId,
    },
    /// The lease is nobody's, if it is plainly mine.
    Evict {
        /// The lease.
        key: LeaseKey,
        /// The counter as it is.
        counter: u64,
        /// Who gives it up.
        me: WorkerId,
    },
    /// The row goes away, if nothing happened to it.
    Delete {
        /// The lease.
        key: LeaseKey,
        /// The counter as it is.
        counter: u64,
        /// Whether it must be at its end (otherwise its shard is gone, and it must be nobody's).
        finished: bool,
    },
}

impl Attempt {
    /// The lease that it is about.
    #[must_use]
    pub fn key(&self) -> &LeaseKey {
        match self {
            Self::Create(lease) => &lease.key,
            Self::Renew { key, .. }
            | Self::Take { key, .. }
            | Self::Checkpoint { key, .. }
            | Self::BeginHandoff { key, .. }
            | Self::FinishHandoff { key, .. }
            | Self::Evict { key, .. }
            | Self::Delete { key, .. } => key,
        }
    }

    /// One lowercase word, for logs and metric labels.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Renew { .. } => "renew",
            Self::Take { .. } => "take",
            Self::Checkpoint { .. } => "checkpoint",
            Self::BeginHandoff { .. } => "begin_handoff",
            Self::FinishHandoff { .. } => "finish_handoff",
            Self::Evict { .. } => "evict",
            Self::Delete { .. } => "delete",
        }
    }
}

/// A worker, as it describes itself in its row of the coordination table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Presence {
    /// Its name.
    pub worker: WorkerId,
    /// Drawn anew by every process: two with one name can be told apart.
    pub incarnation: Arc<str>,
    /// How many leases it may hold; 0 while it leaves.
    pub cap: u64,
    /// Whether it holds any: then its renewals show that it lives.
    pub holding: bool,
    /// Rises with every write.
    pub counter: u64,
    /// When the row may be swept away, in seconds of the wall clock.
    pub expires: i64,
}

/// A write of one of our own rows, beside the lease table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// For how long leases last, if that is not said yet.
    Settings {
        /// So long.
        lease: Duration,
    },
    /// Who I am, if my row is absent or mine; or, with `over`, if it is still exactly that.
    Presence {
        /// The row.
        me: Presence,
        /// The incarnation and counter of a row that another process left behind.
        over: Option<(Arc<str>, u64)>,
    },
    /// My row goes away, if it is mine.
    Leave {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Arc<str>,
    },
    /// Something changed: everybody, look.
    Nudge,
}

impl Note {
    /// One lowercase word, for logs and metric labels.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Settings { .. } => "settings",
            Self::Presence { .. } => "presence",
            Self::Leave { .. } => "leave",
            Self::Nudge => "nudge",
        }
    }
}
