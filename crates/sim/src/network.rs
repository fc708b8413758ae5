//! What becomes of calls on their way to a store and back, in any scenario.

use tenure_clock::Entropy;

use crate::draws::{Draw, one_in, spread};
use crate::scenario::Named;

/// The faults that a single call can meet. A scenario has a fault of its own for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// It is turned away.
    Throttled,
    /// It fails before it reaches the store.
    Failed,
    /// It never arrives, and is never answered.
    RequestLost,
    /// It is carried out, and its reply is lost.
    ReplyLost,
    /// It arrives long after its caller gave up.
    Late,
    /// It is carried out, and once more later.
    Duplicated,
    /// It takes long.
    Slow,
}

/// All of them, in the order in which a draw picks them.
pub const CALL_FAULTS: [CallFault; 7] = [
    CallFault::Throttled,
    CallFault::Failed,
    CallFault::RequestLost,
    CallFault::ReplyLost,
    CallFault::Late,
    CallFault::Duplicated,
    CallFault::Slow,
];

/// What becomes of calls.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// The quickest way there or back.
    pub latency_min: u64,
    /// The slowest, where nothing is wrong.
    pub latency_max: u64,
    /// Of 65,536 calls, how many meet each of [`CALL_FAULTS`].
    pub rates: [u64; CALL_FAULTS.len()],
    /// By how much a slow call is, at most.
    pub slow_by_max: u64,
    /// How late a late or duplicated write lands, at most.
    pub late_by_max: u64,
}

impl Network {
    /// Draws which faults there are, and how often. One world in four has calls that never fail.
    #[must_use]
    pub fn draw_rates(entropy: &Entropy) -> [u64; CALL_FAULTS.len()] {
        let calm = one_in(entropy, 4);
        CALL_FAULTS.map(|_| {
            let on = one_in(entropy, 3) && !calm;
            let rate = spread(entropy, 1 << 6, 1 << 13);
            if on { rate } else { 0 }
        })
    }

    /// Makes a fault more frequent, if it is not so already.
    pub fn at_least(&mut self, fault: CallFault, rate: u64) {
        for (slot, other) in self.rates.iter_mut().zip(CALL_FAULTS) {
            if other == fault {
                *slot = rate.max(*slot);
            }
        }
    }

    /// The fault that sixteen random bits pick, if any.
    #[must_use]
    pub fn pick(&self, bits: u64) -> Option<CallFault> {
        let mut below = 0;
        self.rates.iter().zip(CALL_FAULTS).find_map(|(rate, fault)| {
            below += rate;
            (bits < below).then_some(fault)
        })
    }

    /// How long one way takes.
    #[must_use]
    pub const fn latency(&self, draw: &mut Draw) -> u64 {
        self.latency_min + draw.below(self.latency_max - self.latency_min)
    }
}

/// Not every fault can befall a read: what cannot land twice is only lost.
#[must_use]
pub const fn befalls(fault: CallFault, write: bool) -> Option<CallFault> {
    match fault {
        CallFault::Late if !write => Some(CallFault::RequestLost),
        CallFault::Duplicated if !write => None,
        fault => Some(fault),
    }
}

/// The fault of a scenario that stands for a call's.
pub trait CallFaults: Named {
    /// That fault.
    fn of_call(fault: CallFault) -> Self;
}

/// When a call does what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// When it reaches the store, and its reply goes back.
    pub arrives: Option<u64>,
    /// When it reaches the store, and nobody waits for it.
    pub lands: Option<u64>,
    /// When it is answered that it failed.
    pub fails: Option<u64>,
    /// When its caller gives up, unless answered before. Otherwise only if the answer would be too late.
    pub given_up: Option<u64>,
    /// How long the way back takes.
    pub back: u64,
    /// Whether its reply gets through.
    pub replies: bool,
}

/// A call that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Departure {
    /// Now.
    pub now: u64,
    /// Its time limit.
    pub by: u64,
    /// Nothing is late beyond this moment.
    pub heal_at: u64,
    /// What it meets.
    pub fault: Option<CallFault>,
    /// Whether it changes anything.
    pub write: bool,
    /// Nothing gets through.
    pub cut: bool,
    /// How long the way there takes.
    pub there: u64,
    /// How long the way back takes.
    pub back: u64,
    /// Three bits for what else is drawn.
    pub coin: u64,
}

impl Departure {
    /// When it does what.
    #[must_use]
    pub fn route(self, network: &Network, draw: &mut Draw) -> Route {
        let Self { now, by, heal_at, fault, write, cut, mut there, mut back, coin } = self;
        let none = Route { arrives: None, lands: None, fails: None, given_up: None, back, replies: true };
        if cut {
            return Route { given_up: Some(by), ..none };
        }
        let capped = |at: u64| at.min(heal_at.max(now + there));
        // A lost connection is noticed at once, a lost packet only at the time limit.
        let noticed = if coin & 2 == 2 { by.min(now + there + back) } else { by };
        match fault {
            None => Route { arrives: Some(now + there), ..none },
            Some(CallFault::Throttled | CallFault::Failed) => {
                Route { fails: Some(by.min(now + there + back)), ..none }
            }
            Some(CallFault::RequestLost) => Route { given_up: Some(by), ..none },
            Some(CallFault::ReplyLost) => {
                Route { arrives: Some(now + there), given_up: Some(noticed), replies: false, ..none }
            }
            Some(CallFault::Late) => {
                let lands = capped(now + there + draw.below(network.late_by_max));
                Route { lands: Some(lands), given_up: Some(noticed), ..none }
            }
            Some(CallFault::Duplicated) => {
                let lands = capped(now + there + draw.below(network.late_by_max));
                Route { arrives: Some(now + there), lands: Some(lands), ..none }
            }
            Some(CallFault::Slow) => {
                let slow_by = draw.below(network.slow_by_max);
                if write && coin & 4 == 4 {
                    there = capped(now + there + slow_by) - now;
                } else {
                    back += slow_by;
                }
                Route { arrives: Some(now + there), back, ..none }
            }
        }
    }
}
