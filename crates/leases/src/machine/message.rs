//! What the machine is told, and what it says.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_clock::{Monotonic, WallTime};

use crate::attempt::{Attempt, Note, Presence};
use crate::holding::Ending;
use crate::lineage::StreamShards;
use crate::{Checkpoint, Lease, LeaseKey, WorkerId};

/// What a step may use of the outside.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// To measure with.
    pub monotonic: Monotonic,
    /// To store and show.
    pub wall: WallTime,
}

/// Who keeps leases.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Me {
    /// The worker's name.
    pub worker: WorkerId,
    /// Drawn anew by every process.
    pub incarnation: Arc<str>,
}

/// Whether anybody plans, as the election sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Planning {
    /// This worker does.
    Me,
    /// Another does.
    Other,
    /// Nobody does, or that is not known.
    Nobody,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The moment of [`Machine::wake_at`](super::Machine::wake_at) has come. Harmless at any other.
    Wake,
    /// A call was answered. Every call is, once: at its time limit with `Unknown` or `Failed`.
    Answered(CallId, Answer),
    /// From now on this worker may hold so many leases.
    Cap(usize),
    /// Who plans.
    Planner(Planning),
    /// The consumer of a lease asks for a checkpoint.
    Checkpoint {
        /// The lease.
        key: LeaseKey,
        /// To answer with.
        request: RequestId,
        /// How far.
        at: Checkpoint,
        /// What goes with it.
        marks: Option<Bytes>,
    },
    /// The consumer of a lease has drained it, or wants it no more.
    Give {
        /// The lease.
        key: LeaseKey,
        /// To answer with, if anybody waits.
        request: Option<RequestId>,
    },
    /// The consumer of a lease is busy and does not get on, or does again.
    Stuck {
        /// The lease.
        key: LeaseKey,
        /// Whether it is stuck.
        stuck: bool,
    },
    /// What a shard's reader measured, in KiB a second; stored with the next renewal.
    Measured {
        /// The lease.
        key: LeaseKey,
        /// So much.
        kbps: f64,
    },
    /// Give everything back, and end.
    Stop,
}

/// Tells the answers to several calls apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Tells the requests of consumers apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A scan showed this.
    Scanned(Scan),
    /// The nudge row says this.
    Nudge(u64),
    /// A read showed this row.
    Row(Option<Arc<Lease>>),
    /// The shards of every stream.
    Shards(Vec<StreamShards>),
    /// The write happened; of a lease's, the row as it is now (of a delete, as it was).
    Applied(Option<Arc<Lease>>),
    /// It did not: here is the row that refused it.
    Refused(Option<Arc<Lease>>),
    /// It may have happened.
    Unknown,
    /// It did not happen; or, of a read, there was no answer.
    Failed,
    /// There is a row that cannot be understood: it is left alone.
    Foreign(Arc<str>),
}

/// Everything that is stored. Our own rows were read before the leases.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scan {
    /// What the nudge row says.
    pub nudge: u64,
    /// What the settings row says.
    pub settings: Option<Duration>,
    /// The workers' rows.
    pub workers: Vec<Presence>,
    /// The leases: shared, not copied, because every worker knows all of them.
    pub leases: Vec<Arc<Lease>>,
    /// Rows that could not be understood, and why.
    pub bad: Vec<(LeaseKey, Arc<str>)>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
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

/// A request to the store or to the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Our own rows, then all leases. The leases must be read after the nudge row.
    Scan,
    /// The nudge row alone.
    Nudge,
    /// One lease.
    Read(LeaseKey),
    /// A conditional write of a lease.
    Write(Attempt),
    /// A conditional write of one of our own rows.
    Note(Note),
    /// The shards of every stream.
    List,
}

/// What whoever is concerned should know.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// The worker is known to the others, and takes leases from now on.
    Started,
    /// A lease is held: read its shard.
    Granted {
        /// The lease: where to begin, and with which marks.
        lease: Box<Lease>,
        /// The leases of its parents.
        parents: Vec<Lease>,
        /// Until when, unless it is renewed.
        deadline: Monotonic,
    },
    /// A lease was renewed.
    Extended {
        /// Which.
        key: LeaseKey,
        /// Until when.
        deadline: Monotonic,
    },
    /// A lease is to end: drain, checkpoint, give.
    GiveAsked {
        /// Which.
        key: LeaseKey,
        /// Why.
        how: Ending,
    },
    /// A lease is over: stop at once.
    Lost {
        /// Which.
        key: LeaseKey,
        /// Why.
        why: Loss,
    },
    /// A lease was given away in good order.
    Given {
        /// Which.
        key: LeaseKey,
        /// To whom it was promised; nobody, if it was given back.
        to: Option<WorkerId>,
    },
    /// What became of a request.
    Done {
        /// Which.
        request: RequestId,
        /// How it ended.
        outcome: Outcome,
    },
    /// Something that a person should know.
    Alarm(Alarm),
    /// The worker cannot go on. It ends by itself.
    Fatal(Fatal),
    /// The end.
    Stopped,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// The lease is not ours any more.
    Fenced,
    /// The checkpoint lies before the one that is stored.
    Behind,
    /// Too many requests wait.
    Busy,
}

/// Why a lease was lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The deadline passed: the process was paused, or the store did not answer.
    Expired,
    /// Somebody else has it.
    Superseded {
        /// Who, if anybody.
        by: Option<WorkerId>,
    },
    /// Its consumer was busy and did not get on.
    Stuck,
    /// Draining took longer than a handoff may take.
    SlowHandoff,
    /// Its row cannot be understood any more.
    BadRow,
    /// The worker stopped before it was drained.
    Stopped,
}

impl Loss {
    /// One lowercase word, for logs and metric labels.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Superseded { .. } => "superseded",
            Self::Stuck => "stuck",
            Self::SlowHandoff => "slow_handoff",
            Self::BadRow => "bad_row",
            Self::Stopped => "stopped",
        }
    }
}

/// What a person should know. It is said again when it was over in between.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alarm {
    /// The fleet may hold fewer leases than there are.
    Deficit {
        /// How many nobody may hold.
        leases: usize,
        /// How many workers as large as the largest would do.
        desired_workers: usize,
    },
    /// The consumer of a lease is busy and does not get on.
    Stuck(LeaseKey),
    /// A row cannot be understood; it is left alone.
    BadRow(LeaseKey, Arc<str>),
    /// Workers of another kind hold leases: nothing is planned beside them.
    Foreign(WorkerId),
}

/// Why a worker cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fatal {
    /// The application's leases last for another time.
    OtherLease {
        /// For so long.
        stored: Duration,
    },
    /// Another live process has this worker's name.
    SameWorker,
}
