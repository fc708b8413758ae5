//! The machine's own clocks.
#![allow(clippy::disallowed_methods, reason = "this is the one file that the ban points to")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Clock, Monotonic, Sleep, WallTime};

/// The longest stretch slept in one go.
///
/// Tokio's timer stops while the machine is suspended. Sleeping in stretches and reading
/// CLOCK_BOOTTIME between them bounds how late a sleeper wakes after a resume.
const STRETCH_MAX: Duration = Duration::from_secs(5);

/// CLOCK_REALTIME for the wall, CLOCK_BOOTTIME for measuring, tokio's timer for sleeping.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> WallTime {
        let now = clock_gettime(ClockId::Realtime);
        WallTime::from_millis(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
    }

    fn monotonic(&self) -> Monotonic {
        let now = clock_gettime(ClockId::Boottime);
        Monotonic::from_nanos(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
    }

    fn sleep_until(&self, deadline: Monotonic) -> Sleep<'_> {
        Box::pin(async move {
            loop {
                let left = deadline.since(self.monotonic());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(STRETCH_MAX)).await;
            }
        })
    }
}

/// Blocks the calling thread. For threads of our own that wait on a lock of another process,
/// where no task can be woken.
pub fn pause_thread(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::within;

    #[tokio::test]
    async fn sleeping_reaches_the_deadline() {
        let deadline = SystemClock.deadline(Duration::from_millis(5));
        SystemClock.sleep_until(deadline).await;
        assert!(SystemClock.monotonic() >= deadline);
    }

    #[tokio::test]
    async fn within_prefers_a_finished_future_and_ends_a_stuck_one() {
        let past = Monotonic::from_nanos(0);
        assert_eq!(within(&SystemClock, past, async { 7 }).await, Ok(7));
        assert_eq!(within(&SystemClock, past, std::future::pending::<()>()).await, Err(crate::Elapsed));
    }
}
