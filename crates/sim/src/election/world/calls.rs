//! Calls on their way to the store and back, and what becomes of them there.

use tenure_clock::Monotonic;
use tenure_election::{Answer, Attempt, Call, CallId, Event, FenceMark, Rows};

use super::super::candidate::Candidate;
use super::super::checkers::Rule;
use super::super::fault::Fault;
use super::super::story::{Brief, Told};
use super::super::table::Table;
use super::{Happening, World, narrow, wide};
use crate::network::{CallFault, CallFaults, Departure, befalls};
use crate::node_clock::true_wall;
use crate::scenario::{Named, name};

/// A call under way.
#[derive(Debug)]
pub(super) struct Flight {
    node: u8,
    life: u32,
    id: CallId,
    /// The write; nothing for a read.
    attempt: Option<Attempt>,
    /// The true moment of its time limit.
    by: u64,
    back: u64,
    /// Whether the giving up is in the calendar.
    gives_up: bool,
    replies: bool,
    /// How far a read has come, if it is made of several.
    reading: Reading,
    several_reads: bool,
    answer: Option<Answer>,
    /// The node stood still at the time limit and beyond the reply, so the reply counts after all.
    answered_late: bool,
    /// How many entries of the calendar and of waiting nodes refer to it.
    held: u8,
}

/// The rows may be read at once, or in three steps with time between them. A LOCK row that is absent
/// before its FENCE row is read may be there after it; absent after it, it can be renewed no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Lock,
    Fence,
    LockAgain(Option<FenceMark>),
}

impl<C: Candidate, T: Table> World<'_, C, T> {
    pub(super) fn send(&mut self, index: usize, id: CallId, by: Monotonic, call: Call) {
        if self.nodes[index].call.is_some() {
            self.stage.check(Rule::OneCall, Err(format!("{} has two calls in flight", name(index))));
        }
        let attempt = match call {
            Call::Read => None,
            Call::Write(attempt) => Some(attempt),
        };
        if let Some(attempt) = &attempt {
            self.judge_write(index, attempt);
        }
        let node = &mut self.nodes[index];
        node.call = Some(id);
        node.calls += 1;
        let by = node.clock.moment(by);
        let mut draw = node.call_draws.at(u64::from(node.calls));
        let (number, life, cut) = (node.calls, node.life, node.cut_requests > 0);
        let network = &self.plan.network;
        let fault = if self.healed { None } else { network.pick(draw.take()) };
        let (there, back) = (network.latency(&mut draw), network.latency(&mut draw));
        let coin = draw.take();
        let fault = fault.and_then(|fault| self.fault_of_call(index, number, fault, attempt.is_some()));
        let write = attempt.is_some();
        let now = self.stage.now;
        match &attempt {
            None => self.stage.trace.note(now, format_args!("{} reads", name(index))),
            Some(attempt) => {
                self.stage.trace.tell(now, format_args!("{} sends {}", name(index), Brief(attempt)))
            }
        }
        if let Some(fault) = fault {
            self.stage.trace.tell(now, format_args!("  .. {}", Fault::of_call(fault).name()));
        }
        let heal_at = self.plan.course.heal_at;
        let route = Departure { now, by, heal_at, fault, write, cut, there, back, coin }
            .route(&self.plan.network, &mut draw);
        let flight = self.take_off(Flight {
            node: narrow(index),
            life,
            id,
            attempt,
            by,
            back: route.back,
            gives_up: route.given_up.is_some(),
            replies: route.replies,
            reading: Reading::Lock,
            several_reads: coin & 1 == 1,
            answer: None,
            answered_late: false,
            held: 0,
        });
        if let Some(at) = route.fails {
            self.flight(flight).answer = Some(Answer::Failed);
            self.hold(at, Happening::Reply { flight }, flight);
        }
        if let Some(at) = route.given_up {
            self.hold(at, Happening::GiveUp { flight }, flight);
        }
        if let Some(at) = route.arrives {
            self.fly(at, flight);
        }
        if let Some(at) = route.lands {
            self.hold(at, Happening::Land { flight }, flight);
        }
    }

    /// The fault that this call meets after all: not every fault can befall a read.
    fn fault_of_call(
        &mut self,
        index: usize,
        number: u32,
        fault: CallFault,
        write: bool,
    ) -> Option<CallFault> {
        let met =
            befalls(fault, write).filter(|_| !self.plan.course.spared_calls.contains(&(index, number)))?;
        let fault = Fault::of_call(met);
        self.stage.outcome.faults.count(fault);
        self.failover = None;
        if self.stage.trace.has_lines() {
            self.stage.outcome.call_faults.push((index, number, fault));
        }
        Some(met)
    }

    /// On its way to the store; should it be there only after the time limit, its caller gives up.
    pub(super) fn fly(&mut self, arrives: u64, flight: u32) {
        if arrives > self.flight(flight).by {
            self.give_up_in_time(flight);
        }
        self.hold(arrives, Happening::Arrive { flight }, flight);
    }

    pub(super) fn give_up_in_time(&mut self, flight: u32) {
        let Flight { gives_up, by, .. } = self.flight(flight);
        if !*gives_up {
            *gives_up = true;
            let by = *by;
            self.hold(by, Happening::GiveUp { flight }, flight);
        }
    }

    pub(super) fn arrive(&mut self, flight: u32) {
        let node = usize::from(self.flight(flight).node);
        if self.outages > 0 {
            if self.outage_hangs {
                self.give_up_in_time(flight);
            } else {
                self.flight(flight).answer = Some(Answer::Failed);
                self.send_back(flight, node);
            }
            return self.release(flight);
        }
        if self.flight(flight).attempt.is_some() {
            let answer = self.apply(flight);
            self.flight(flight).answer = Some(answer);
        } else {
            match self.read(flight) {
                Some(rows) => self.flight(flight).answer = Some(Answer::Rows(rows)),
                None => {
                    let at = self.stage.now + 2 * self.flight(flight).back;
                    self.fly(at, flight);
                    return self.release(flight);
                }
            }
        }
        self.send_back(flight, node);
        self.release(flight);
    }

    /// What a read shows; nothing if it goes on.
    pub(super) fn read(&mut self, flight: u32) -> Option<Rows> {
        let Flight { reading, several_reads, .. } = *self.flight(flight);
        let (lock, fence) = match reading {
            Reading::Fence => {
                self.flight(flight).reading = Reading::LockAgain(self.table.fence());
                return None;
            }
            Reading::LockAgain(fence) => (self.table.lock(), fence),
            Reading::Lock => (self.table.lock(), None),
        };
        self.stage.trace.mix(lock.as_ref().and_then(|lock| lock.rvn).map_or(0, |rvn| rvn.0 as u64));
        match (lock, reading) {
            (Some(lock), _) => Some(Rows { lock: Some(lock), fence: None }),
            (None, Reading::Lock) if several_reads => {
                self.flight(flight).reading = Reading::Fence;
                None
            }
            (None, Reading::Lock) => Some(Rows { lock: None, fence: self.table.fence() }),
            (None, _) => Some(Rows { lock: None, fence }),
        }
    }

    pub(super) fn send_back(&mut self, flight: u32, node: usize) {
        let cut = self.nodes[node].cut_replies > 0;
        let now = self.stage.now;
        let Flight { back, by, replies, .. } = self.flight(flight);
        let (at, by) = (now + *back, *by);
        if !*replies || cut {
            return self.give_up_in_time(flight);
        }
        if at > by {
            self.give_up_in_time(flight);
        }
        self.hold(at, Happening::Reply { flight }, flight);
    }

    /// A write that nobody waits for any more, or that the network brought once more.
    pub(super) fn land(&mut self, flight: u32) {
        if self.outages == 0 {
            self.failover = None;
            let _ = self.apply(flight);
        }
        self.release(flight);
    }

    pub(super) fn apply(&mut self, flight: u32) -> Answer {
        let Some(attempt) = self.flight(flight).attempt.take() else { return Answer::Failed };
        let answer = self.table.write(&attempt);
        let applied = matches!(answer, Answer::Applied { .. });
        self.stage.trace.mix(attempt.nonce().0 as u64 ^ u64::from(applied));
        self.stage.trace.tell(self.stage.now, format_args!("  store {} {}", Brief(&attempt), Told(&answer)));
        if applied && C::FENCED {
            let Flight { node, life, .. } = *self.flight(flight);
            let verdict = self.history.landed(self.stage.now, (node, life), &attempt);
            self.stage.check(Rule::ReleaseStays, verdict);
            if let Attempt::Acquire(acquire) = &attempt {
                let verdict = self.epochs.landed(acquire.epoch);
                self.stage.check(Rule::Ld2, verdict);
            }
        }
        self.flight(flight).attempt = Some(attempt);
        answer
    }

    pub(super) fn reply(&mut self, flight: u32) {
        let Flight { node, life, id, .. } = *self.flight(flight);
        let node = usize::from(node);
        let to = &mut self.nodes[node];
        if to.life == life && to.call == Some(id) {
            if to.paused > 0 {
                let waits_for_limit = to.waiting.iter().any(
                    |waiting| matches!(waiting, Happening::GiveUp { flight: other } if *other == flight),
                );
                if waits_for_limit {
                    // Both are there when it resumes, and either may be looked at first.
                    let Flight { answered_late, several_reads, .. } = self.flight(flight);
                    *answered_late = *several_reads;
                    return self.release(flight);
                }
                return to.waiting.push(Happening::Reply { flight });
            }
            to.call = None;
            let answer = self.flight(flight).answer.take().unwrap_or(Answer::Failed);
            self.stage
                .trace
                .note(self.stage.now, format_args!("{} is answered: {}", name(node), Told(&answer)));
            self.step(node, Event::Answered(id, answer));
        }
        self.release(flight);
    }

    pub(super) fn give_up(&mut self, flight: u32) {
        let Flight { node, life, id, answered_late, .. } = *self.flight(flight);
        let node = usize::from(node);
        let to = &mut self.nodes[node];
        if to.life == life && to.call == Some(id) {
            if to.paused > 0 {
                return to.waiting.push(Happening::GiveUp { flight });
            }
            to.call = None;
            let in_flight = self.flight(flight);
            let given_up = if in_flight.attempt.is_some() { Answer::Unknown } else { Answer::Failed };
            let answer = in_flight.answer.take().filter(|_| answered_late).unwrap_or(given_up);
            self.stage
                .trace
                .note(self.stage.now, format_args!("{} gives up waiting: {}", name(node), Told(&answer)));
            self.step(node, Event::Answered(id, answer));
        }
        self.release(flight);
    }

    /// Judges a write as it is sent, by what its sender could know at best.
    pub(super) fn judge_write(&mut self, index: usize, attempt: &Attempt) {
        match attempt {
            Attempt::Acquire(_) => self.stage.outcome.tally.claims += 1,
            Attempt::Renew(_) | Attempt::Release(_) => self.stage.outcome.tally.leader_writes += 1,
        }
        if !C::FENCED {
            return;
        }
        let node = &mut self.nodes[index];
        if node.sent.0 != attempt.nonce() {
            node.sent = (attempt.nonce(), node.clock.monotonic(self.stage.now));
        }
        let node = &self.nodes[index];
        let leads = self.until[index] > self.stage.now;
        let (who, process) = (name(index), (narrow(index), node.life));
        let (verb, healthy) = match attempt {
            Attempt::Acquire(_) => ("claims", node.unhealthy == 0),
            Attempt::Renew(_) => ("renews", node.unhealthy == 0),
            Attempt::Release(_) => ("releases", true),
        };
        match attempt {
            Attempt::Acquire(acquire) => {
                let over = acquire.over.as_ref();
                let own = over.and_then(|over| over.rvn).is_some_and(|rvn| node.wrote(index, rvn));
                let expired = node.timing.skew.is_some_and(|bound| {
                    let bound_millis = i64::try_from(bound.as_millis()).unwrap_or(i64::MAX);
                    let past = |ttl: i64| {
                        true_wall(self.stage.now).as_millis() >= ttl * 1000 + 1000 + bound_millis / 2
                    };
                    // An absent row was swept, because it was past.
                    over.is_none_or(|over| past(over.ttl))
                });
                let verdict = self.history.claim_has_cause(self.stage.now, process, acquire, own, expired);
                self.stage.check(Rule::ClaimHasCause, verdict.map_err(|what| format!("{who} {what}")));
                if leads {
                    self.stage.check(Rule::WriteHasCause, Err(format!("{who} claims what it leads")));
                }
            }
            Attempt::Renew(_) => {
                if !leads {
                    self.stage.check(Rule::WriteHasCause, Err(format!("{who} renews without a term")));
                }
            }
            Attempt::Release(_) => {
                if !node.gave_up {
                    self.stage
                        .check(Rule::WriteHasCause, Err(format!("{who} releases what it did not give up")));
                }
            }
        }
        if !healthy {
            self.stage.check(Rule::HealthGates, Err(format!("{who} {verb} and is unhealthy")));
        }
    }

    pub(super) fn take_off(&mut self, flight: Flight) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.flights[slot as usize] = flight;
                slot
            }
            None => {
                self.flights.push(flight);
                wide(self.flights.len() - 1)
            }
        }
    }

    pub(super) fn flight(&mut self, flight: u32) -> &mut Flight {
        &mut self.flights[flight as usize]
    }

    pub(super) fn hold(&mut self, at: u64, happening: Happening, flight: u32) {
        self.flight(flight).held += 1;
        self.stage.enter(at, happening);
    }

    pub(super) fn release(&mut self, flight: u32) {
        let held = &mut self.flight(flight).held;
        *held -= 1;
        if *held == 0 {
            self.free.push(flight);
        }
    }
}
