//! Who keeps leases: the real machine, or the seed document's own rules.

use tenure_clock::Monotonic;
use tenure_leases::machine::{Effect, Event, Machine, Me, Now};
use tenure_leases::{LeaseKey, Timing};

/// What a worker runs.
pub trait Keeper {
    /// Whether it follows our rules. Otherwise only what can be judged from outside is.
    const OURS: bool;

    /// A process that just started.
    fn new(me: Me, cap: usize, timing: Timing) -> Self;
    /// See [`Machine::step`].
    fn step(&mut self, now: Now, event: Event) -> Vec<Effect>;
    /// See [`Machine::wake_at`].
    fn wake_at(&self) -> Monotonic;
    /// See [`Machine::may_deliver`].
    fn may_deliver(&self, key: &LeaseKey, now: Monotonic) -> bool;
    /// How many leases it says nobody may hold.
    fn deficit(&self, now: Monotonic) -> usize;
}

impl Keeper for Machine {
    const OURS: bool = true;

    fn new(me: Me, cap: usize, timing: Timing) -> Self {
        Self::new(me, cap, timing)
    }

    fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        self.step(now, event)
    }

    fn wake_at(&self) -> Monotonic {
        self.wake_at()
    }

    fn may_deliver(&self, key: &LeaseKey, now: Monotonic) -> bool {
        self.may_deliver(key, now)
    }

    fn deficit(&self, now: Monotonic) -> usize {
        self.view(now).deficit
    }
}
