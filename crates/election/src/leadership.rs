//! What an elected leader holds.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tokio::sync::{mpsc, oneshot, watch};

use crate::elector::Command;
use crate::fence::Fence;
use crate::lock::ResignRequest;
use crate::machine::LossReason;

/// A term under way: whether it still holds, until when, and the fence for what it guards.
///
/// Clones speak of the same term. A term that is over never holds again, even if the same process is
/// elected once more: that is another term.
#[derive(Clone)]
pub struct Term {
    shared: Arc<Shared>,
}

struct Shared {
    fence: Fence,
    clock: Arc<dyn Clock>,
    /// Nanoseconds of the clock; 0 once the term is over.
    deadline: AtomicU64,
    /// Why the term will have ended if nothing comes between now and the deadline.
    failing: Mutex<Option<LossReason>>,
    lost: watch::Sender<Option<LossReason>>,
    resign_asked: watch::Sender<Option<ResignRequest>>,
}

impl Term {
    pub(crate) fn new(fence: Fence, deadline: Monotonic, clock: Arc<dyn Clock>) -> Self {
        let shared = Shared {
            fence,
            clock,
            deadline: AtomicU64::new(deadline.as_nanos()),
            failing: Mutex::new(None),
            lost: watch::Sender::new(None),
            resign_asked: watch::Sender::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn renewed(&self, deadline: Monotonic) {
        // Never from 0: what is over stays over.
        let _ = self.shared.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
            (current != 0).then_some(deadline.as_nanos())
        });
    }

    pub(crate) fn failing(&self, reason: Option<&LossReason>) {
        let mut failing = self.lock_failing();
        if failing.as_ref() != reason {
            *failing = reason.cloned();
        }
    }

    fn lock_failing(&self) -> MutexGuard<'_, Option<LossReason>> {
        self.shared.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn over(&self, reason: LossReason) {
        self.shared.deadline.store(0, Ordering::Release);
        self.shared.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(reason);
            first
        });
    }

    pub(crate) fn asked_to_resign(&self, request: ResignRequest) {
        self.shared.resign_asked.send_replace(Some(request));
    }

    /// Until when the term holds if it is not renewed, for a guard that stands outside this process; long
    /// past once the term is over.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        Monotonic::from_nanos(self.shared.deadline.load(Ordering::Acquire))
    }

    /// Whether the term still holds. Costs one reading of a clock that counts suspended time, so a
    /// process that was paused knows at once.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.shared.clock.monotonic() < self.deadline()
    }

    /// How long the term holds if it is not renewed; zero once it is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline().since(self.shared.clock.monotonic())
    }

    /// The proof to carry along with guarded writes.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.shared.fence
    }

    /// Waits until the term is over, and says why. At the deadline it returns, whether or not anybody
    /// noticed otherwise.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub async fn lost(&self) -> LossReason {
        let mut lost = self.shared.lost.subscribe();
        loop {
            if let Some(reason) = lost.borrow_and_update().clone() {
                return reason;
            }
            let deadline = self.deadline();
            tokio::select! {
                biased;
                changed = lost.changed() => if changed.is_err() { return LossReason::Expired },
                // Once it is over, the reason follows.
                () = self.shared.clock.sleep_until(deadline), if deadline.as_nanos() != 0 => {
                    // Renewed meanwhile, or over without anybody having said so.
                    if self.deadline() <= deadline && lost.borrow().is_none() {
                        return self.lock_failing().clone().unwrap_or(LossReason::Expired);
                    }
                }
            }
        }
    }

    /// Runs `work` while the term holds; it is dropped at the deadline, or when the term is lost.
    ///
    /// # Errors
    /// Why the term ended.
    ///
    /// # Cancel safety
    /// As `work`.
    pub async fn guard<F: Future>(&self, work: F) -> Result<F::Output, LossReason> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        poll_fn(|cx| {
            if let Poll::Ready(reason) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(reason));
            }
            // After the machine was suspended the clock knows at once, and a timer only a little later.
            if !self.is_valid() {
                let reason = self.shared.lost.borrow().clone().or_else(|| self.lock_failing().clone());
                return Poll::Ready(Err(reason.unwrap_or(LossReason::Expired)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Waits until an operator asks for a handover (`tenure resign`), and says to whom. End the work,
    /// then [`Leadership::resign`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait; the request stays.
    pub async fn resign_asked(&self) -> Option<Arc<str>> {
        let mut asked = self.shared.resign_asked.subscribe();
        loop {
            if let Some(request) = asked.borrow_and_update().as_ref() {
                return request.to.clone();
            }
            if asked.changed().await.is_err() {
                return pending().await;
            }
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("fence", &self.shared.fence)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Being the leader. Dropping it gives the shard up, as [`Leadership::resign`] does, without waiting.
#[derive(Debug)]
pub struct Leadership {
    term: Term,
    commands: mpsc::Sender<Command>,
    /// Dropped with this value: the elector takes that for a resignation.
    _held: oneshot::Sender<()>,
}

impl Leadership {
    pub(crate) fn new(term: Term, commands: mpsc::Sender<Command>) -> (Self, oneshot::Receiver<()>) {
        let (held, dropped) = oneshot::channel();
        (Self { term, commands, _held: held }, dropped)
    }

    /// The term, to hand to whoever works under it.
    #[must_use]
    pub const fn term(&self) -> &Term {
        &self.term
    }

    /// Hands over: releases the shard at once, to the named candidate if one is given (the others then
    /// hold back for a lease). End the guarded work first.
    ///
    /// # Errors
    /// `Unknown` if the release could not be confirmed: the shard is free when the lease has run out.
    /// `Fenced` if the term was over already.
    ///
    /// # Cancel safety
    /// Once polled, the release happens even if this is dropped.
    pub async fn resign(self, to: Option<&str>) -> Result<()> {
        let (done, released) = oneshot::channel();
        let command = Command::Resign { epoch: self.fence().epoch(), to: to.map(Arc::from), done };
        let (shard, epoch) = (self.fence().shard(), self.fence().epoch());
        // A command that cannot be sent comes back with `done`, and would be waited for for ever.
        let asked = self.commands.send(command).await.is_ok();
        if asked && released.await == Ok(true) {
            return Ok(());
        }
        Err(match &*self.shared.lost.borrow() {
            Some(reason) if *reason != LossReason::Resigned => Error::new(
                Kind::Fenced,
                format!("resign from shard `{shard}`: epoch {epoch} was over already, {}", reason.name()),
            ),
            _ => Error::new(
                Kind::Unknown,
                format!("resign from shard `{shard}`: not confirmed, it is free when the lease has run out"),
            ),
        })
    }
}

impl Deref for Leadership {
    type Target = Term;
    fn deref(&self) -> &Term {
        &self.term
    }
}
