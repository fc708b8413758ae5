//! The gate that every call of one executor goes through: it counts, crashes, loses replies, and lets a
//! second executor run while the first is stalled inside a call.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_backend::{Error, Kind, Result};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The process dies before it is sent.
    CrashBefore,
    /// The process dies after it had its effect, before the answer is read.
    CrashAfter,
    /// It has its effect, and the caller is told that nobody knows.
    ReplyLost,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CrashBefore, Self::CrashAfter, Self::ReplyLost];
}

/// A fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The number of the call, from 0.
    pub call: u32,
    /// What becomes of it.
    pub mode: Mode,
}

type Hook = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Where the calls of one executor go through.
#[derive(Clone, Default)]
pub struct Gate {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    calls: Vec<&'static str>,
    fault: Option<Fault>,
    fault_met: bool,
    stall: Option<(u32, Hook)>,
    stall_met: bool,
}

impl Gate {
    /// A gate at which nothing goes wrong.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// A gate with one fault.
    #[must_use]
    pub fn with_fault(fault: Option<Fault>) -> Self {
        let gate = Self::default();
        gate.lock().fault = fault;
        gate
    }

    /// The call so many after the next one meets a fault.
    pub fn arm(&self, ahead: u32, mode: Mode) {
        let mut inner = self.lock();
        let next = u32::try_from(inner.calls.len()).unwrap_or(u32::MAX);
        inner.fault = Some(Fault { call: next.saturating_add(ahead), mode });
        inner.fault_met = false;
    }

    /// While the call of that number is under way, `hook` runs first.
    pub fn stall(
        &self,
        call: u32,
        hook: impl FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + 'static,
    ) {
        let mut inner = self.lock();
        inner.stall = Some((call, Box::new(hook)));
        inner.stall_met = false;
    }

    /// The calls that came through.
    #[must_use]
    pub fn calls(&self) -> Vec<&'static str> {
        self.lock().calls.clone()
    }

    /// Whether the fault happened.
    #[must_use]
    pub fn met_fault(&self) -> bool {
        self.lock().fault_met
    }

    /// Whether the stall happened.
    #[must_use]
    pub fn met_stall(&self) -> bool {
        self.lock().stall_met
    }

    /// Lets one call through. An effect whose reply is lost may have happened; a read did not.
    pub(super) async fn pass<T>(
        &self,
        name: &'static str,
        is_effect: bool,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (mode, hook) = {
            let mut inner = self.lock();
            let number = u32::try_from(inner.calls.len()).unwrap_or(u32::MAX);
            inner.calls.push(name);
            let mode = inner.fault.filter(|fault| fault.call == number).map(|fault| fault.mode);
            inner.fault_met |= mode.is_some();
            let hook = if inner.stall.as_ref().is_some_and(|(at, _)| *at == number) {
                inner.stall_met = true;
                inner.stall.take().map(|(_, hook)| hook)
            } else {
                None
            };
            (mode, hook)
        };
        if let Some(hook) = hook {
            hook().await;
        }
        if mode == Some(Mode::CrashBefore) {
            return pending().await;
        }
        let answer = call.await;
        match mode {
            None | Some(Mode::CrashBefore) => answer,
            Some(Mode::CrashAfter) => pending().await,
            Some(Mode::ReplyLost) => {
                let kind = if is_effect { Kind::Unknown } else { Kind::Unavailable };
                Err(Error::new(kind, format!("injected: the reply to {name} was lost")))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("calls", &self.lock().calls.len()).finish_non_exhaustive()
    }
}
