//! Who stands: the real machine, or the seed document's own rules.

use tenure_clock::Monotonic;
use tenure_election::{Effect, Epoch, Event, Machine, Me, Now, Timing};

/// What a node runs.
pub trait Candidate {
    /// Whether its terms are numbered, its writes fenced and its followers silent. Without that, only
    /// what can be judged from outside is.
    const FENCED: bool;

    /// A process that just started.
    fn new(me: Me, timing: Timing) -> Self;
    /// See [`Machine::step`].
    fn step(&mut self, now: Now, event: Event) -> Vec<Effect>;
    /// See [`Machine::wake_at`].
    fn wake_at(&self) -> Monotonic;
    /// See [`Machine::is_leader`].
    fn is_leader(&self, now: Monotonic) -> bool;
    /// See [`Machine::term`].
    fn term(&self) -> Option<(Epoch, Monotonic)>;
    /// See [`Machine::is_stopped`].
    fn is_stopped(&self) -> bool;
}

impl Candidate for Machine {
    const FENCED: bool = true;

    fn new(me: Me, timing: Timing) -> Self {
        Self::new(me, timing)
    }

    fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        self.step(now, event)
    }

    fn wake_at(&self) -> Monotonic {
        self.wake_at()
    }

    fn is_leader(&self, now: Monotonic) -> bool {
        self.is_leader(now)
    }

    fn term(&self) -> Option<(Epoch, Monotonic)> {
        self.term()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped()
    }
}
