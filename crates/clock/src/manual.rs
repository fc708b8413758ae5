//! A clock that moves only when it is told to.
//!
//! One [`ManualTime`] is the true time of a small world. Each node of that world reads it through a
//! [`ManualClock`] of its own, which may be wrong in the two ways that real clocks are: the wall is
//! off by a skew, and both readings run at a rate that is off by parts per million.
//!
//! ```text
//!   true time   0s ──────── 100s        node a: skew +3600 s, rate +10,000 ppm
//!   a.monotonic 0s ──────── 101s
//!   a.wall      3600s ───── 3701s
//! ```

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::{Clock, Monotonic, Sleep, WallTime};

const PPM: i128 = 1_000_000;

/// The true time of a world in which nothing passes by itself.
#[derive(Debug, Clone, Default)]
pub struct ManualTime {
    world: Arc<Mutex<World>>,
}

#[derive(Debug, Default)]
struct World {
    elapsed_nanos: u64,
    epoch_millis: i64,
    /// Who waits, by the true time at which to wake, then by order of arrival.
    sleepers: BTreeMap<(u64, u64), Waker>,
    arrivals: u64,
}

impl ManualTime {
    /// A world that begins at `epoch`.
    #[must_use]
    pub fn starting_at(epoch: WallTime) -> Self {
        let world = World { epoch_millis: epoch.as_millis(), ..World::default() };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// A node whose clocks are exact.
    #[must_use]
    pub fn clock(&self) -> ManualClock {
        self.node(0, 0)
    }

    /// A node whose wall is off by `skew_millis`, and whose clocks run `rate_ppm` parts per million
    /// fast (or, negative, slow).
    ///
    /// # Panics
    /// If `rate_ppm` would stop the clock or turn it back (−1,000,000 or less).
    #[must_use]
    pub fn node(&self, skew_millis: i64, rate_ppm: i64) -> ManualClock {
        assert!(i128::from(rate_ppm) > -PPM, "a clock at {rate_ppm} ppm does not move forward");
        ManualClock { time: self.clone(), rate_ppm, skew_millis: Arc::new(Mutex::new(skew_millis)) }
    }

    /// True time since the world began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.lock().elapsed_nanos)
    }

    /// Lets `duration` of true time pass, and wakes in their order those whose time has come.
    pub fn advance(&self, duration: Duration) {
        let target = {
            let mut world = self.lock();
            let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            world.elapsed_nanos = world.elapsed_nanos.saturating_add(nanos);
            world.elapsed_nanos
        };
        self.wake_until(target);
    }

    /// Jumps to the moment at which the next sleeper wakes, and wakes it. `None` if nobody sleeps.
    pub fn advance_to_next(&self) -> Option<Duration> {
        let next = {
            let mut world = self.lock();
            let (due, _) = *world.sleepers.keys().next()?;
            world.elapsed_nanos = world.elapsed_nanos.max(due);
            world.elapsed_nanos
        };
        self.wake_until(next);
        Some(Duration::from_nanos(next))
    }

    fn wake_until(&self, target: u64) {
        loop {
            let waker = {
                let mut world = self.lock();
                match world.sleepers.first_key_value() {
                    Some((&(due, _), _)) if due <= target => world.sleepers.pop_first(),
                    _ => return,
                }
            };
            // Woken outside the lock: a waker may run the task at once, which reads the clock.
            if let Some((_, waker)) = waker {
                waker.wake();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One node's view of a [`ManualTime`].
#[derive(Debug, Clone)]
pub struct ManualClock {
    time: ManualTime,
    rate_ppm: i64,
    skew_millis: Arc<Mutex<i64>>,
}

impl ManualClock {
    /// Steps this node's wall, as an operator or NTP would: the monotonic reading does not move.
    pub fn set_skew_millis(&self, skew_millis: i64) {
        *self.skew_millis.lock().unwrap_or_else(PoisonError::into_inner) = skew_millis;
    }

    /// What this node's clock shows after `true_nanos` of true time.
    fn shown(&self, true_nanos: u64) -> u64 {
        clamp(i128::from(true_nanos) * (PPM + i128::from(self.rate_ppm)) / PPM)
    }

    /// The first true moment at which this node's clock shows at least `shown_nanos`.
    fn true_moment(&self, shown_nanos: u64) -> u64 {
        let rate = PPM + i128::from(self.rate_ppm);
        clamp((i128::from(shown_nanos) * PPM + rate - 1) / rate)
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> WallTime {
        let world = self.time.lock();
        let shown_millis = i64::try_from(self.shown(world.elapsed_nanos) / 1_000_000).unwrap_or(i64::MAX);
        let skew_millis = *self.skew_millis.lock().unwrap_or_else(PoisonError::into_inner);
        WallTime::from_millis(world.epoch_millis.saturating_add(shown_millis).saturating_add(skew_millis))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_nanos(self.shown(self.time.lock().elapsed_nanos))
    }

    fn sleep_until(&self, deadline: Monotonic) -> Sleep<'_> {
        let due = self.true_moment(deadline.as_nanos());
        let mut place = Place { time: &self.time, key: None };
        Box::pin(poll_fn(move |cx| {
            // Taken whole: a closure that named only the fields would copy them and drop the place.
            let place = &mut place;
            let mut world = place.time.lock();
            if let Some(key) = place.key.take() {
                world.sleepers.remove(&key);
            }
            if world.elapsed_nanos >= due {
                return Poll::Ready(());
            }
            if due == u64::MAX {
                // It never comes, so there is nothing to jump to.
                return Poll::Pending;
            }
            world.arrivals += 1;
            let key = (due, world.arrivals);
            world.sleepers.insert(key, cx.waker().clone());
            place.key = Some(key);
            Poll::Pending
        }))
    }
}

/// A sleeper's place in the queue, given up when the sleep is dropped.
struct Place<'a> {
    time: &'a ManualTime,
    key: Option<(u64, u64)>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.time.lock().sleepers.remove(&key);
        }
    }
}

fn clamp(nanos: i128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_moves_the_wall_and_rate_moves_both() {
        let time = ManualTime::starting_at(WallTime::from_millis(1_000_000));
        let node = time.node(3_600_000, 10_000);
        time.advance(Duration::from_secs(100));
        assert_eq!(node.monotonic(), Monotonic::from_nanos(101_000_000_000));
        assert_eq!(node.wall().as_millis(), 1_000_000 + 3_600_000 + 101_000);
        node.set_skew_millis(-5);
        assert_eq!(node.wall().as_millis(), 1_000_000 - 5 + 101_000);
        assert_eq!(node.monotonic(), Monotonic::from_nanos(101_000_000_000));
    }

    #[tokio::test]
    async fn sleepers_wake_in_order_of_true_time() {
        let time = ManualTime::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        // The fast node's 10 s are over before the exact node's 10 s.
        for (name, rate_ppm, seconds) in [("exact", 0, 10), ("fast", 50_000, 10), ("short", 0, 1)] {
            let (clock, order) = (time.node(0, rate_ppm), order.clone());
            tasks.push(tokio::spawn(async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                order.lock().unwrap().push(name);
            }));
        }
        tokio::task::yield_now().await;
        while time.advance_to_next().is_some() {
            tokio::task::yield_now().await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["short", "fast", "exact"]);
        assert_eq!(time.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test]
    async fn a_dropped_sleep_leaves_the_queue() {
        let time = ManualTime::default();
        let clock = time.clock();
        let past = crate::within(&clock, Monotonic::from_nanos(0), clock.sleep(Duration::from_secs(1))).await;
        assert_eq!(past, Err(crate::Elapsed));
        assert_eq!(time.advance_to_next(), None);
    }

    #[test]
    #[should_panic(expected = "does not move forward")]
    fn a_stopped_clock_is_refused() {
        let _ = ManualTime::default().node(0, -1_000_000);
    }
}
