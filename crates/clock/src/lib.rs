//! The one door to time and randomness.
//!
//! Everything that waits, measures, dates or draws goes through a [`Clock`] and an [`Entropy`] that
//! somebody passed in. In production they are [`SystemClock`] and [`Entropy::system`]; in a test or a
//! simulation they are a [`ManualClock`] and [`Entropy::seeded`], and the run can be replayed.
//!
//! Two kinds of reading, never mixed:
//! - [`WallTime`] is stored and shown. It may jump, and another machine's differs.
//! - [`Monotonic`] is measured with. It counts suspended time (CLOCK_BOOTTIME), so a lease does not
//!   outlive a closed laptop lid.

mod entropy;
mod manual;
mod system;
mod time;

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

pub use entropy::Entropy;
pub use manual::{ManualClock, ManualTime};
pub use system::{SystemClock, pause_thread};
pub use time::{Monotonic, WallTime};

/// A boxed future of a clock's sleep.
pub type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Reads and waits for time. Usable as `Arc<dyn Clock>`.
pub trait Clock: Debug + Send + Sync {
    /// What a calendar would say. For storing and showing, never for measuring.
    fn wall(&self) -> WallTime;

    /// Time since some fixed moment of this machine, suspended time included. For measuring.
    fn monotonic(&self) -> Monotonic;

    /// Completes once [`Clock::monotonic`] has reached `deadline`.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait; nothing else.
    fn sleep_until(&self, deadline: Monotonic) -> Sleep<'_>;

    /// Completes after `duration` of monotonic time.
    ///
    /// # Cancel safety
    /// As [`Clock::sleep_until`].
    fn sleep(&self, duration: Duration) -> Sleep<'_> {
        self.sleep_until(self.monotonic() + duration)
    }

    /// The monotonic reading `duration` from now: what callers hand to a backend as their deadline.
    fn deadline(&self, duration: Duration) -> Monotonic {
        self.monotonic() + duration
    }
}

/// The deadline passed before the future was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

/// Runs `future` until it is done or `deadline` passes on `clock`, whichever is first.
///
/// A future that is ready at its first poll wins, even if the deadline has passed.
///
/// # Cancel safety
/// As `future`, which is dropped at the deadline.
pub async fn within<F: Future>(
    clock: &dyn Clock,
    deadline: Monotonic,
    future: F,
) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = clock.sleep_until(deadline);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
