//! A small world to test in: a simulated cloud and cluster, faults at every call, checkers, the crash matrix.
//!
//! Nothing here waits: every call is answered at once, and time passes only where a test says so. A tick is
//! therefore polled once; one that is not done then has crashed.

mod checkers;
mod gate;
pub mod matrix;
mod scenario;
mod seed_rules;
mod world;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

pub use checkers::{Checker, Ledger, Moment, Symptom, Termination, Violation};
pub use gate::{Fault, Gate, Mode};
pub use scenario::Scenario;
pub use seed_rules::{OldWriter, SeedExecutor};
pub use world::{Measuring, World};

/// What a future answers at its first poll; `None` if it waits, as a crashed one does for ever.
pub fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
