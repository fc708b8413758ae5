//! A lease that this worker holds: what the keeper and the consumer have between them.
//!
//! The consumer gets a [`Holding`] for every lease and asks it whether it may still deliver, where to begin,
//! and to store checkpoints. The keeper has the other side: it moves the deadline, says when the lease is to
//! end, and carries out what is asked for.
//!
//! ```text
//!   granted ──► reading … checkpoint … ──► asked to give ──► drained ──► checkpoint ──► give
//!                    └──────────────────► lost: stop at once, checkpoints are refused
//! ```
//!
//! Invariant HO-1: nothing is delivered when [`Holding::is_valid`] is false.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{Checkpoint, Lease};

/// Requests that wait for the keeper, per lease. One checkpoint at a time is under way; the rest is slack.
const REQUESTS_MAX: usize = 8;

/// Nothing was measured.
const UNMEASURED: u64 = u64::MAX;

/// Why a lease is to end, or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It goes to another worker: finish what is under way, checkpoint, then [`Holding::give`].
    Handoff,
    /// This worker stops: finish what is under way, checkpoint, then [`Holding::give`].
    Stop,
    /// It is not ours any more: stop at once. Checkpoints are refused.
    Lost,
}

/// A lease that this worker holds. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Holding {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
    ending: watch::Receiver<Option<Ending>>,
}

#[derive(Debug)]
struct Shared {
    lease: Lease,
    parents: Vec<Lease>,
    clock: Arc<dyn Clock>,
    /// Until when it may be delivered, in nanoseconds of the monotonic clock.
    deadline: AtomicU64,
    /// Whether records have been taken that are not settled yet.
    busy: AtomicBool,
    /// When work was last taken up or got on.
    progressed: AtomicU64,
    /// What was measured and not yet stored, in thousandths of KiB a second; [`UNMEASURED`] otherwise.
    measured: AtomicU64,
}

/// What a consumer asks of the keeper.
#[derive(Debug)]
pub enum Request {
    /// Store how far the shard was processed, and what goes with it.
    Checkpoint {
        /// How far.
        at: Checkpoint,
        /// What the consumer keeps with it; `None` removes what is there.
        marks: Option<Bytes>,
        /// What became of it.
        reply: oneshot::Sender<Result<()>>,
    },
    /// It is drained: hand it over, or give it back.
    Give {
        /// Done.
        reply: oneshot::Sender<Result<()>>,
    },
}

impl Holding {
    /// The lease as it was when it was taken: where to begin, and with which marks.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.shared.lease
    }

    /// The leases of its parents as they were then, for what they kept with their last checkpoint.
    #[must_use]
    pub fn parents(&self) -> &[Lease] {
        &self.shared.parents
    }

    /// Whether records may be delivered now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.shared.clock.monotonic() < self.deadline()
    }

    /// Until when records may be delivered, as far as is known now.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        Monotonic::from_nanos(self.shared.deadline.load(Ordering::Acquire))
    }

    /// How the lease is to end, if that has been said.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        *self.ending.borrow()
    }

    /// Completes when the lease is to end, or to end otherwise than `known`.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn ends(&self, known: Option<Ending>) -> Ending {
        let mut ending = self.ending.clone();
        match ending.wait_for(|ending| ending.is_some() && *ending != known).await {
            Ok(ending) => ending.unwrap_or(Ending::Lost),
            // The keeper is gone.
            Err(_) => Ending::Lost,
        }
    }

    /// Stores how far the shard was processed. What it is past must be processed.
    ///
    /// # Errors
    /// `Fenced` if the lease is not ours any more; anything else may be tried again.
    ///
    /// # Cancel safety
    /// A call that is dropped may still be carried out.
    pub async fn checkpoint(&self, at: Checkpoint, marks: Option<Bytes>) -> Result<()> {
        self.ask(|reply| Request::Checkpoint { at, marks, reply }).await
    }

    /// Gives the lease away: to whom it was promised, or back.
    ///
    /// # Errors
    /// As [`Holding::checkpoint`].
    pub async fn give(&self) -> Result<()> {
        self.ask(|reply| Request::Give { reply }).await
    }

    /// Says that records were taken, or got on, or (with `busy` false) that nothing is under way. A lease
    /// that is busy and makes no progress for long is not renewed.
    pub fn progress(&self, busy: bool) {
        self.shared.progressed.store(self.shared.clock.monotonic().as_nanos(), Ordering::Release);
        self.shared.busy.store(busy, Ordering::Release);
    }

    /// Says how much is read, in KiB a second: leases may be shared out by it. Stored with the next renewal.
    pub fn measured(&self, kbps: f64) {
        // Beyond what a shard can carry, and what is no number, is no measurement.
        if (0.0..1e12).contains(&kbps) {
            self.shared.measured.store((kbps * 1000.0) as u64, Ordering::Release);
        }
    }

    async fn ask(&self, request: impl FnOnce(oneshot::Sender<Result<()>>) -> Request) -> Result<()> {
        let gone = || {
            Error::new(
                Kind::Fenced,
                format!("lease {} is no longer kept: stop reading its shard", self.lease().key),
            )
        };
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The keeper's side of a [`Holding`].
#[derive(Debug)]
pub struct KeeperSide {
    shared: Arc<Shared>,
    /// What the consumer asks for.
    pub requests: mpsc::Receiver<Request>,
    ending: watch::Sender<Option<Ending>>,
}

impl KeeperSide {
    /// Both sides of a lease that was taken, valid until `deadline`.
    #[must_use]
    pub fn grant(
        clock: Arc<dyn Clock>,
        lease: Lease,
        parents: Vec<Lease>,
        deadline: Monotonic,
    ) -> (Self, Holding) {
        let progressed = AtomicU64::new(clock.monotonic().as_nanos());
        let (asks, requests) = mpsc::channel(REQUESTS_MAX);
        let (ending, watched) = watch::channel(None);
        let shared = Arc::new(Shared {
            lease,
            parents,
            clock,
            deadline: AtomicU64::new(deadline.as_nanos()),
            busy: AtomicBool::new(false),
            progressed,
            measured: AtomicU64::new(UNMEASURED),
        });
        let holding = Holding { shared: Arc::clone(&shared), requests: asks, ending: watched };
        (Self { shared, requests, ending }, holding)
    }

    /// Moves the deadline: a renewal or a checkpoint was applied. What is over stays over.
    pub fn extend(&self, deadline: Monotonic) {
        let later = |current: u64| (current != 0).then(|| current.max(deadline.as_nanos()));
        let _ = self.shared.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// It is drained: nothing more may be delivered, although it is not given yet.
    pub fn close(&self) {
        self.shared.deadline.store(0, Ordering::Release);
    }

    /// Says that the lease is to end. [`Ending::Lost`] also ends its validity, and nothing follows it.
    pub fn end(&self, how: Ending) {
        if how == Ending::Lost {
            self.shared.deadline.store(0, Ordering::Release);
        }
        self.ending.send_if_modified(|ending| {
            let changes = *ending != Some(Ending::Lost) && *ending != Some(how);
            if changes {
                *ending = Some(how);
            }
            changes
        });
    }

    /// Since when the consumer has been busy without getting on. `None`: it is idle.
    #[must_use]
    pub fn stuck_since(&self) -> Option<Monotonic> {
        self.shared
            .busy
            .load(Ordering::Acquire)
            .then(|| Monotonic::from_nanos(self.shared.progressed.load(Ordering::Acquire)))
    }

    /// What was measured since this was last asked, in KiB a second.
    #[must_use]
    pub fn take_measured(&self) -> Option<f64> {
        match self.shared.measured.swap(UNMEASURED, Ordering::AcqRel) {
            UNMEASURED => None,
            thousandths => Some(thousandths as f64 / 1000.0),
        }
    }

    /// Whether the consumer still has it.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.requests.is_closed()
    }
}
