//! Who should hold which lease: sticky and incremental, with no pause for anybody.
//!
//! - PL-1 Counts differ by at most one, as far as the caps allow.
//! - PL-2 A lease that has a live holder moves only to make PL-1 true: on a join exactly ⌊L/(W+1)⌋ move, on a
//!   death only those of the dead.
//! - PL-3 Nobody gets more than its cap. What does not fit is a deficit, which is said aloud.
//! - PL-4 What is pinned does not move: it has moved already in this interval, or is on its way.
//!
//! By bytes, loads are evened out instead of counts: as long as a move from the most loaded to the least
//! loaded lowers the higher of the two by a worthwhile part.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tenure_planted as planted;

use crate::settings::Balance;
use crate::{LeaseKey, WorkerId};

/// Two loads closer than this part of the mean are even.
const TOLERANCE: f64 = 0.1;
/// Most moves of one plan: the next plan goes on.
pub const MOVES_MAX: usize = 200;

/// A live worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub id: WorkerId,
    /// How many leases it may hold.
    pub cap: usize,
}

/// A lease that is ready to be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Its name. Parents sort before their children, and are placed first.
    pub key: LeaseKey,
    /// Its live holder, or whoever it is promised to.
    pub holder: Option<WorkerId>,
    /// Measured, if anybody measured.
    pub kbps: Option<f64>,
    /// It must stay where it is for now.
    pub pinned: bool,
}

/// What should happen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Leases that nobody has, and who should take them.
    pub placements: BTreeMap<LeaseKey, WorkerId>,
    /// Leases to hand over.
    pub moves: Vec<Move>,
    /// The most that a worker should hold, by count.
    pub share: usize,
    /// How many leases nobody may hold.
    pub deficit: usize,
    /// How many workers as large as the largest would do.
    pub desired_workers: usize,
}

/// One lease to hand over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub key: LeaseKey,
    /// From whom.
    pub from: WorkerId,
    /// To whom.
    pub to: WorkerId,
}

/// Shares leases out among workers.
#[must_use]
pub fn plan(workers: &[Worker], loads: &[Load], balance: Balance) -> Plan {
    let capacity = workers.iter().fold(0_usize, |sum, worker| sum.saturating_add(worker.cap));
    let largest = workers.iter().map(|worker| worker.cap).max().unwrap_or(0).max(1);
    let mut plan = Plan {
        share: loads.len().div_ceil(workers.len().max(1)),
        deficit: loads.len().saturating_sub(capacity),
        desired_workers: loads.len().div_ceil(largest),
        ..Plan::default()
    };
    let mut desk = Desk::new(workers, loads);
    match balance {
        Balance::Count => desk.by_count(&mut plan),
        Balance::Bytes => desk.by_bytes(&mut plan),
    }
    plan
}

/// Who has what while a plan is made.
struct Desk<'a> {
    seats: Vec<Seat<'a>>,
    /// Leases without a live holder.
    free: Vec<&'a Load>,
    mean_kbps: f64,
}

struct Seat<'a> {
    worker: &'a Worker,
    held: Vec<&'a Load>,
    target: usize,
    /// It had more than its cap to begin with, and gives those up by itself.
    sheds: bool,
}

impl<'a> Desk<'a> {
    fn new(workers: &'a [Worker], loads: &'a [Load]) -> Self {
        let mut workers: Vec<&Worker> = workers.iter().collect();
        workers.sort_by(|one, two| one.id.cmp(&two.id));
        let mut loads: Vec<&Load> = loads.iter().collect();
        loads.sort_by(|one, two| one.key.cmp(&two.key));
        let measured: Vec<f64> = loads.iter().filter_map(|load| load.kbps).collect();
        let mean_kbps =
            if measured.is_empty() { 1.0 } else { measured.iter().sum::<f64>() / measured.len() as f64 };
        let mut seats: Vec<Seat<'_>> = workers
            .into_iter()
            .map(|worker| Seat { worker, held: Vec::new(), target: 0, sheds: false })
            .collect();
        let mut free = Vec::new();
        let roster = Roster::new(seats.iter().map(|seat| &seat.worker.id));
        for load in loads {
            match load.holder.as_ref().and_then(|id| roster.find(id)) {
                Some(seat) => seats[seat].held.push(load),
                None => free.push(load),
            }
        }
        for seat in &mut seats {
            seat.sheds = seat.held.len() > seat.worker.cap;
        }
        Self { seats, free, mean_kbps: mean_kbps.max(f64::MIN_POSITIVE) }
    }

    fn by_count(&mut self, plan: &mut Plan) {
        self.set_targets();
        // Whoever lacks most; of those who lack the same, the first by name.
        let lacks = |seat: &Seat<'_>| seat.target.saturating_sub(seat.held.len());
        let mut lacking: BinaryHeap<(usize, Reverse<usize>)> =
            self.seats.iter().enumerate().map(|(at, seat)| (lacks(seat), Reverse(at))).collect();
        for load in std::mem::take(&mut self.free) {
            let Some((lacks @ 1.., Reverse(at))) = lacking.pop() else { break };
            self.seats[at].held.push(load);
            plan.placements.insert(load.key.clone(), self.seats[at].worker.id.clone());
            lacking.push((lacks - 1, Reverse(at)));
        }
        for from in 0..self.seats.len() {
            if self.seats[from].sheds {
                continue;
            }
            while self.seats[from].held.len() > self.seats[from].target && plan.moves.len() < MOVES_MAX {
                let Some(to) = (0..self.seats.len())
                    .find(|&to| !self.seats[to].sheds && self.seats[to].held.len() < self.seats[to].target)
                else {
                    return;
                };
                let is_placed = |load: &Load| plan.placements.contains_key(&load.key);
                // The last by name: what was there before stays.
                let movable = self.seats[from]
                    .held
                    .iter()
                    .rposition(|load| (!load.pinned || planted::is("moves_twice")) && !is_placed(load));
                let Some(movable) = movable else { break };
                self.shift(from, movable, to, plan);
            }
        }
    }

    /// PL-1 and PL-2: as even as the caps allow, and the odd ones stay with whoever has most already.
    fn set_targets(&mut self) {
        let mut left: usize = self.free.len() + self.seats.iter().map(|seat| seat.held.len()).sum::<usize>();
        let mut open: Vec<usize> = (0..self.seats.len()).collect();
        // Whoever is full takes no further part; the others share what is left.
        loop {
            if open.is_empty() {
                return;
            }
            let share = left / open.len();
            let full: Vec<usize> =
                open.iter().copied().filter(|&at| self.cap(at) <= share && self.cap(at) < left).collect();
            if full.is_empty() {
                break;
            }
            for at in full {
                self.seats[at].target = self.cap(at);
                left = left.saturating_sub(self.cap(at));
                open.retain(|&other| other != at);
            }
        }
        let (share, odd) = (left / open.len(), left % open.len());
        open.sort_by_key(|&at| (usize::MAX - self.seats[at].held.len(), at));
        for (rank, at) in open.into_iter().enumerate() {
            let spare = if planted::is("plan_is_uneven") { 2 } else { 0 };
            self.seats[at].target = (share + spare + usize::from(rank < odd)).min(self.cap(at));
        }
    }

    fn cap(&self, at: usize) -> usize {
        if planted::is("plan_ignores_cap") { usize::MAX } else { self.seats[at].worker.cap }
    }

    fn kbps(&self, load: &Load) -> f64 {
        load.kbps.unwrap_or(self.mean_kbps)
    }

    fn total(&self, at: usize) -> f64 {
        self.seats[at].held.iter().map(|load| self.kbps(load)).sum()
    }

    fn by_bytes(&mut self, plan: &mut Plan) {
        let mut free = std::mem::take(&mut self.free);
        // The largest first: what is small fits in anywhere.
        free.sort_by(|one, two| {
            self.kbps(two).total_cmp(&self.kbps(one)).then_with(|| one.key.cmp(&two.key))
        });
        for load in free {
            let Some(at) = self.least_loaded() else { break };
            self.seats[at].held.push(load);
            plan.placements.insert(load.key.clone(), self.seats[at].worker.id.clone());
        }
        let all: f64 = (0..self.seats.len()).map(|at| self.total(at)).sum();
        let worthwhile = all / self.seats.len().max(1) as f64 * TOLERANCE;
        let mut moved = std::collections::BTreeSet::new();
        while plan.moves.len() < MOVES_MAX {
            let Some(to) = self.least_loaded() else { return };
            let heaviest = (0..self.seats.len())
                .filter(|&at| at != to && !self.seats[at].sheds)
                .max_by(|&one, &two| self.total(one).total_cmp(&self.total(two)).then(two.cmp(&one)));
            let Some(from) = heaviest else { return };
            let (high, low) = (self.total(from), self.total(to));
            // The one that leaves the two most even.
            let best = (0..self.seats[from].held.len())
                .filter(|&at| {
                    let load = self.seats[from].held[at];
                    !load.pinned && !moved.contains(&load.key) && !plan.placements.contains_key(&load.key)
                })
                .map(|at| {
                    let kbps = self.kbps(self.seats[from].held[at]);
                    (at, (high - kbps).max(low + kbps))
                })
                .min_by(|one, two| one.1.total_cmp(&two.1));
            match best {
                Some((at, higher)) if high - higher > worthwhile => {
                    moved.insert(self.seats[from].held[at].key.clone());
                    self.shift(from, at, to, plan);
                }
                _ => return,
            }
        }
    }

    fn least_loaded(&self) -> Option<usize> {
        (0..self.seats.len())
            .filter(|&at| self.seats[at].held.len() < self.seats[at].worker.cap)
            .min_by(|&one, &two| self.total(one).total_cmp(&self.total(two)).then(one.cmp(&two)))
    }

    fn shift(&mut self, from: usize, at: usize, to: usize, plan: &mut Plan) {
        let load = self.seats[from].held.remove(at);
        self.seats[to].held.push(load);
        plan.moves.push(Move {
            key: load.key.clone(),
            from: self.seats[from].worker.id.clone(),
            to: self.seats[to].worker.id.clone(),
        });
    }
}

/// Finds workers by name: a plan asks as often as there are leases, and a large fleet is not searched for each.
pub(crate) struct Roster<'a> {
    /// At least half of them are empty. Whoever finds its slot taken has the next that is free.
    slots: Vec<Option<(&'a WorkerId, usize)>>,
}

impl<'a> Roster<'a> {
    /// Workers, by their number in this order. Of two with one name, the first is found.
    pub(crate) fn new(workers: impl ExactSizeIterator<Item = &'a WorkerId>) -> Self {
        let mut slots = vec![None; (2 * workers.len()).next_power_of_two().max(2)];
        for (number, id) in workers.enumerate() {
            let at = probe(&slots, id);
            slots[at].get_or_insert((id, number));
        }
        Self { slots }
    }

    /// The number of a worker.
    pub(crate) fn find(&self, id: &WorkerId) -> Option<usize> {
        self.slots[probe(&self.slots, id)].map(|(_, number)| number)
    }
}

/// The slot of a worker, or the free one where it would be.
fn probe(slots: &[Option<(&WorkerId, usize)>], id: &WorkerId) -> usize {
    let hash = id.as_str().bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        // FNV-1a.
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // The high bits are the better mixed ones.
    let mut at = (hash ^ (hash >> 15)) as usize & (slots.len() - 1);
    while slots[at].is_some_and(|(other, _)| other != id) {
        at = (at + 1) & (slots.len() - 1);
    }
    at
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod tests;
