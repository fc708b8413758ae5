//! Calls on their way to the store and back, and what becomes of them there.

use std::ops::Bound;

use tenure_clock::Monotonic;
use tenure_leases::machine::{Answer, Call, CallId, Event, Scan};
use tenure_leases::{Attempt, WorkerId};

use super::super::checkers::{
    LastEnd, Rule, checkpoint_advances, checkpoint_is_processed, made_where_it_was, moves_once,
};
use super::super::fault::Fault;
use super::super::keeper::Keeper;
use super::super::stream::behind;
use super::{Happening, World};
use crate::calendar::nanos;
use crate::network::{CallFaults, Departure, befalls};
use crate::scenario::Named;
use crate::stage::{narrow, wide};

/// A scan reads our own rows first, and then the leases in two pages, with time between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Own,
    First,
    Last,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Flight {
    node: u16,
    life: u32,
    id: CallId,
    call: Call,
    /// The true moment of its time limit.
    by: u64,
    back: u64,
    /// Whether the giving up is in the calendar.
    gives_up: bool,
    replies: bool,
    answered: bool,
    page: Page,
    scan: Scan,
    answer: Option<Answer>,
    /// How many entries of the calendar and of waiting workers refer to it.
    held: u8,
}

impl<K: Keeper> World<'_, K> {
    pub(super) fn send(&mut self, index: usize, id: CallId, by: Monotonic, call: Call) {
        if let Call::Write(attempt) = &call {
            self.judge_write(index, attempt);
        }
        let write = matches!(call, Call::Write(_) | Call::Note(_));
        let (now, healed) = (self.stage.now, self.healed);
        let node = &mut self.nodes[index];
        node.calls += 1;
        let by = node.clock.moment(by);
        let mut draw = node.call_draws.at(u64::from(node.calls));
        let (number, life, cut) = (node.calls, node.life, node.cut_requests > 0);
        let network = &self.plan.network;
        let fault = if healed { None } else { network.pick(draw.take()) };
        let (there, back) = (network.latency(&mut draw), network.latency(&mut draw));
        let coin = draw.take();
        let spared = self.plan.course.spared_calls.contains(&(index, number));
        let fault = fault.and_then(|fault| befalls(fault, write)).filter(|_| !spared && !cut);
        if let Some(fault) = fault.map(Fault::of_call) {
            self.stage.outcome.faults.count(fault);
            if self.stage.trace.has_lines() {
                self.stage.outcome.call_faults.push((index, number, fault));
            }
        }
        if self.stage.trace.has_lines() {
            match &call {
                Call::Write(Attempt::Renew { .. }) if fault.is_none() => {}
                Call::Write(attempt) => self.tell(format_args!("worker {index} sends {}", brief(attempt))),
                Call::Note(note) => self.note(format_args!("worker {index} sends {}", note.name())),
                call => self.note(format_args!("worker {index} asks {call:?}")),
            }
            if let Some(fault) = fault.map(Fault::of_call) {
                self.tell(format_args!("  .. {}", fault.name()));
            }
        }
        let heal_at = self.plan.course.heal_at;
        let departure = Departure { now, by, heal_at, fault, write, cut, there, back, coin };
        let route = departure.route(&self.plan.network, &mut draw);
        let flight = self.take_off(Flight {
            node: narrow(index),
            life,
            id,
            call,
            by,
            back: route.back,
            gives_up: false,
            replies: route.replies,
            answered: false,
            page: Page::Own,
            scan: Scan::default(),
            answer: None,
            held: 0,
        });
        if let Some(at) = route.fails {
            self.flight(flight).answer = Some(Answer::Failed);
            self.hold(at, Happening::Reply { flight }, flight);
        }
        if let Some(at) = route.given_up {
            self.flight(flight).gives_up = true;
            self.hold(at, Happening::GiveUp { flight }, flight);
        }
        if let Some(at) = route.arrives {
            self.fly(at, flight);
        }
        if let Some(at) = route.lands {
            self.hold(at, Happening::Land { flight }, flight);
        }
    }

    /// On its way to the store; should it be there only after the time limit, its caller gives up.
    fn fly(&mut self, arrives: u64, flight: u32) {
        if arrives > self.flight(flight).by {
            self.give_up_in_time(flight);
        }
        self.hold(arrives, Happening::Arrive { flight }, flight);
    }

    fn give_up_in_time(&mut self, flight: u32) {
        let Flight { gives_up, by, .. } = self.flight(flight);
        if !*gives_up {
            *gives_up = true;
            let by = *by;
            self.hold(by, Happening::GiveUp { flight }, flight);
        }
    }

    pub(super) fn arrive(&mut self, flight: u32) {
        if self.outages > 0 {
            if self.outage_hangs {
                self.give_up_in_time(flight);
            } else {
                self.flight(flight).answer = Some(Answer::Failed);
                self.send_back(flight);
            }
            return self.release(flight);
        }
        match self.carry_out(flight, false) {
            Some(answer) => {
                self.flight(flight).answer = Some(answer);
                self.send_back(flight);
            }
            None => {
                let at = self.stage.now + 1 + self.flight(flight).back / 2;
                self.fly(at, flight);
            }
        }
        self.release(flight);
    }

    /// What the store says; nothing if a scan goes on. Whoever sent what comes late is not judged by what it knows now.
    fn carry_out(&mut self, flight: u32, late: bool) -> Option<Answer> {
        let page = self.flight(flight).page;
        let by = Some(usize::from(self.flight(flight).node)).filter(|_| !late);
        let call = std::mem::replace(&mut self.flight(flight).call, Call::Nudge);
        let answer = match &call {
            Call::Scan => {
                self.stage.outcome.tally.reads += 1;
                self.page(flight, page)
            }
            Call::Nudge => {
                self.stage.outcome.tally.reads += 1;
                Some(Answer::Nudge(self.table.nudge))
            }
            Call::Read(key) => {
                self.stage.outcome.tally.reads += 1;
                Some(Answer::Row(self.table.leases.get(key).cloned()))
            }
            Call::List => Some(Answer::Shards(self.stream.listed())),
            Call::Note(note) => {
                self.stage.outcome.tally.writes += 1;
                Some(self.table.note(note))
            }
            Call::Write(attempt) => Some(self.apply(by, attempt)),
        };
        self.flight(flight).call = call;
        answer
    }

    fn page(&mut self, flight: u32, page: Page) -> Option<Answer> {
        let mut scan = std::mem::take(&mut self.flight(flight).scan);
        let leases = &self.table.leases;
        match page {
            Page::Own => {
                scan.nudge = self.table.nudge;
                scan.settings = self.table.settings;
                scan.workers = self.table.workers.values().cloned().collect();
            }
            Page::First => {
                scan.leases = leases.values().take(leases.len() / 2).cloned().collect();
            }
            Page::Last => {
                // The second page goes on where the first ended.
                let last = scan.leases.last().map(|lease| lease.key.clone());
                let after = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                scan.leases.extend(leases.range((after, Bound::Unbounded)).map(|(_, lease)| lease.clone()));
                return Some(Answer::Scanned(scan));
            }
        }
        let slot = self.flight(flight);
        slot.scan = scan;
        slot.page = if page == Page::Own { Page::First } else { Page::Last };
        None
    }

    fn send_back(&mut self, flight: u32) {
        let now = self.stage.now;
        let node = usize::from(self.flight(flight).node);
        let cut = self.nodes[node].cut_replies > 0;
        let Flight { back, by, replies, .. } = self.flight(flight);
        let (at, by) = (now + *back, *by);
        if !*replies || cut {
            return self.give_up_in_time(flight);
        }
        if at > by {
            return self.give_up_in_time(flight);
        }
        self.hold(at, Happening::Reply { flight }, flight);
    }

    /// A write that nobody waits for any more, or that the network brought once more.
    pub(super) fn land(&mut self, flight: u32) {
        if self.outages == 0 {
            let _ = self.carry_out(flight, true);
        }
        self.release(flight);
    }

    pub(super) fn reply(&mut self, flight: u32) {
        self.answer(flight, Happening::Reply { flight });
    }

    pub(super) fn give_up(&mut self, flight: u32) {
        self.answer(flight, Happening::GiveUp { flight });
    }

    /// An answer, or the time limit, reaches the caller; what comes first counts.
    fn answer(&mut self, flight: u32, happening: Happening) {
        let Flight { node, life, id, answered, .. } = *self.flight(flight);
        let node = usize::from(node);
        if self.nodes[node].life != life || self.nodes[node].machine.is_none() || answered {
            return self.release(flight);
        }
        if self.nodes[node].is_still() {
            self.nodes[node].waiting.push(happening);
            return;
        }
        let in_flight = self.flight(flight);
        in_flight.answered = true;
        let write = matches!(in_flight.call, Call::Write(_) | Call::Note(_));
        let given_up = if write { Answer::Unknown } else { Answer::Failed };
        let answer = match happening {
            Happening::Reply { .. } => in_flight.answer.take().unwrap_or(Answer::Failed),
            _ => given_up,
        };
        if let Answer::Scanned(scan) = &answer {
            if self.foreign.alive {
                self.nodes[node].scans.push(self.stage.now);
            }
            if self.tears {
                for lease in &scan.leases {
                    // Whoever holds it goes by its own writes.
                    let shard = self.stream.of(&lease.key);
                    if let Some(shard) = shard.filter(|shard| !self.nodes[node].holds.contains_key(shard)) {
                        let seen = behind(&lease.checkpoint, &self.stream.shards[shard]);
                        self.nodes[node].seen.insert(shard, seen);
                    }
                }
            }
        }
        if self.stage.trace.has_lines() {
            match &answer {
                Answer::Scanned(scan) => {
                    let leases = scan.leases.len();
                    self.note(format_args!("worker {node} has scanned {leases} leases"));
                }
                answer => self.note(format_args!("worker {node} is answered: {}", told(answer))),
            }
        }
        self.step(node, Event::Answered(id, answer));
        self.release(flight);
    }

    // === writes ===

    /// Carries out a write, and judges what it did. `by` is a worker of ours.
    pub(super) fn apply(&mut self, by: Option<usize>, attempt: &Attempt) -> Answer {
        self.stage.outcome.tally.writes += 1;
        let was = self.table.leases.get(attempt.key()).cloned();
        let answer = self.table.write(attempt);
        let applied = matches!(answer, Answer::Applied(_));
        if self.stage.trace.has_lines() {
            let text = format!("  store: {} {}", brief(attempt), told(&answer));
            match attempt {
                Attempt::Renew { .. } if applied => self.note(format_args!("{text}")),
                _ => self.tell(format_args!("{text}")),
            }
        }
        let Some(shard) = self.stream.of(attempt.key()) else { return answer };
        self.stage.trace.mix((shard as u64) << 1 | u64::from(applied));
        if applied {
            self.landed(by, shard, attempt, was.and_then(|lease| lease.owner.clone()));
        }
        answer
    }

    fn landed(&mut self, by: Option<usize>, shard: usize, attempt: &Attempt, owner: Option<WorkerId>) {
        let now = self.stage.now;
        let about = |what: String| format!("shard {shard}: {what}");
        match attempt {
            Attempt::Checkpoint { at, .. } => {
                let listed = &self.stream.shards[shard];
                let record = &self.ledger[shard];
                let (count, closed, passed) = (listed.count, listed.closed, behind(at, listed));
                let before = record.stored.clone().unwrap_or(tenure_leases::Checkpoint::TrimHorizon);
                let processed = record.processed;
                self.check(Rule::Ls2, checkpoint_advances(&before, at).map_err(about));
                let verdict = checkpoint_is_processed(at, passed, processed, count, closed);
                self.check(Rule::Ls3, verdict.map_err(about));
                self.ledger[shard].stored = Some(at.clone());
                if at.is_end() && self.ledger[shard].ended.is_none() {
                    self.ended(shard);
                }
            }
            Attempt::Create(lease) => {
                let made = behind(&lease.checkpoint, &self.stream.shards[shard]);
                // Whoever holds it goes by its own writes, and stores again what it has not heard of.
                // What was read to its end is not remembered for ever.
                let known = by.filter(|_| lease.owner.is_none() && self.ledger[shard].ended.is_none());
                let known = known.and_then(|node| self.nodes[node].seen.get(&shard).copied());
                // The counter of a row that nobody remembers begins anew.
                let restores = |index: usize| lease.owner.is_some() && by == Some(index);
                for (_, node) in self.nodes.iter_mut().enumerate().filter(|(index, _)| !restores(*index)) {
                    node.sent.remove(&shard);
                }
                let record = &mut self.ledger[shard];
                let (ended, torn) = (record.ended.is_some(), std::mem::take(&mut record.torn));
                record.made_at = Some(now);
                record.stored = Some(lease.checkpoint.clone());
                let processed = record.processed;
                self.stage.outcome.tally.restored += u64::from(torn);
                self.check(Rule::Ls7, made_where_it_was(made, processed, known).map_err(about));
                if self.is_torn_below(shard) {
                    // Nobody may remember what was read: then it is read again.
                    self.ledger[shard].last = LastEnd::None;
                } else if ended && !lease.checkpoint.is_end() {
                    self.check(Rule::Ls2, Err(about("its row is made anew after its end".to_owned())));
                }
            }
            Attempt::Delete { finished, .. } if !finished || self.ledger[shard].ended.is_none() => {
                self.check(Rule::Ls7, Err(about("its row is deleted before its end".to_owned())));
            }
            Attempt::BeginHandoff { .. } => {
                self.stage.outcome.tally.moves += 1;
                self.moved(by, shard);
            }
            Attempt::Take { me, .. } => {
                // Whoever takes what another may still deliver has moved it.
                let robbed = owner.is_some_and(|owner| owner != *me)
                    && self.ledger[shard].holders.iter().any(|holder| holder.1 > now);
                if robbed {
                    self.moved(by, shard);
                } else {
                    // Its holder was gone: what follows is another story.
                    self.ledger[shard].moved = None;
                }
            }
            _ => {}
        }
    }

    /// Whether the row of this shard, or of one that descends from it, was ever deleted by hand.
    fn is_torn_below(&self, shard: usize) -> bool {
        let children = (shard + 1..self.stream.shards.len())
            .filter(|child| self.stream.shards[*child].parents.contains(&shard));
        self.ledger[shard].was_torn || children.into_iter().any(|child| self.is_torn_below(child))
    }

    fn moved(&mut self, by: Option<usize>, shard: usize) {
        let now = self.stage.now;
        let Some(mover) = by else { return };
        let (born_at, life) = (self.nodes[mover].born_at, self.nodes[mover].life);
        let before = self.ledger[shard].moved.replace((now, mover, life));
        // Another who lived then may have missed it: what it last saw was that nobody had the lease.
        let could_know =
            |(at, who, of): &(u64, usize, u32)| !K::OURS || (*who, *of) == (mover, life) || born_at > *at;
        let since = before.filter(could_know).map(|(at, ..)| now - at);
        // The planner's clock may be fast.
        let interval = nanos(self.plan.timing.move_interval);
        let interval = interval - interval * u64::from(self.plan.rate_error_ppm) / 1_000_000;
        self.check(Rule::Ls6, moves_once(since, interval).map_err(|what| format!("shard {shard}: {what}")));
    }

    /// The end of a shard is stored: its children may be read.
    fn ended(&mut self, shard: usize) {
        self.ledger[shard].ended = Some(self.stage.now);
        self.stage.outcome.tally.ended += 1;
        for child in 0..self.stream.shards.len() {
            let parents = &self.stream.shards[child].parents;
            if parents.contains(&shard) && parents.iter().all(|parent| self.ledger[*parent].ended.is_some()) {
                self.ledger[child].ready_at = Some(self.stage.now);
            }
        }
    }

    /// Judges a write as it is sent, by what its sender could know at best.
    fn judge_write(&mut self, index: usize, attempt: &Attempt) {
        let Some(shard) = self.stream.of(attempt.key()) else { return };
        let lease = self.plan.timing.lease;
        let node = &mut self.nodes[index];
        let monotonic = node.clock.monotonic(self.stage.now);
        let counter = match attempt {
            Attempt::Renew { counter, .. }
            | Attempt::Take { counter, .. }
            | Attempt::Checkpoint { counter, .. } => Some(counter + 1),
            Attempt::Create(lease) if lease.owner.is_some() => Some(lease.counter),
            _ => None,
        };
        if let Some(counter) = counter
            && node.sent.get(&shard).is_none_or(|sent| sent.0 != counter)
        {
            node.sent.insert(shard, (counter, monotonic));
        }
        let holding = node.holds.get(&shard).map(|holding| &self.consumers[*holding as usize]);
        match attempt {
            Attempt::Renew { .. } => {
                let Some(consumer) = holding else { return };
                if consumer.said_stuck {
                    self.check_ours(
                        Rule::StuckGivesUp,
                        Err(format!("worker {index} renews shard {shard}, which is stuck")),
                    );
                } else if consumer
                    .asked_at
                    .is_some_and(|at| monotonic >= at + self.plan.timing.handoff + lease)
                {
                    let what =
                        format!("worker {index} renews shard {shard}, which it should have given long ago");
                    self.check_ours(Rule::SlowGivesUp, Err(what));
                }
            }
            Attempt::Take { .. } => {
                let unfinished =
                    node.holds.keys().filter(|shard| self.ledger[**shard].ended.is_none()).count();
                let cap = node.cap_told;
                if unfinished >= cap {
                    let what = format!("worker {index} takes shard {shard}, and holds {unfinished} of {cap}");
                    self.check_ours(Rule::Cap, Err(what));
                }
            }
            Attempt::BeginHandoff { .. } if self.has_seen_the_foreigner(index) => {
                let what = format!("worker {index} moves shard {shard} beside a worker of another kind");
                self.check_ours(Rule::ForeignAlone, Err(what));
            }
            _ => {}
        }
    }

    // === flights ===

    fn take_off(&mut self, flight: Flight) -> u32 {
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

    fn flight(&mut self, flight: u32) -> &mut Flight {
        &mut self.flights[flight as usize]
    }

    fn hold(&mut self, at: u64, happening: Happening, flight: u32) {
        self.flight(flight).held += 1;
        self.stage.enter(at, happening);
    }

    pub(super) fn release(&mut self, flight: u32) {
        let slot = self.flight(flight);
        slot.held -= 1;
        if slot.held == 0 {
            slot.scan = Scan::default();
            slot.answer = None;
            self.free.push(flight);
        }
    }
}

/// A write in a few words.
fn brief(attempt: &Attempt) -> String {
    let key = attempt.key().as_str().trim_start_matches("shardId-").trim_start_matches('0');
    let key = if key.is_empty() { "0" } else { key };
    match attempt {
        Attempt::Create(lease) => {
            format!("create {key} at {:?}, counter {}", lease.checkpoint, lease.counter)
        }
        Attempt::Renew { counter, me, .. } => format!("renew {key} by {me}, counter {counter}"),
        Attempt::Take { counter, me, from, .. } => {
            let from = from.as_ref().map_or("nobody", |from| from.as_str());
            format!("take {key} by {me} from {from}, counter {counter}")
        }
        Attempt::Checkpoint { counter, me, at, .. } => {
            format!("checkpoint {key} by {me} at {at:?}, counter {counter}")
        }
        Attempt::BeginHandoff { from, to, .. } => format!("begin handoff {key} from {from} to {to}"),
        Attempt::FinishHandoff { counter, from, to, .. } => {
            format!("finish handoff {key} from {from} to {to}, counter {counter}")
        }
        Attempt::Evict { counter, me, .. } => format!("evict {key} by {me}, counter {counter}"),
        Attempt::Delete { counter, finished, .. } => {
            format!("delete {key}, counter {counter}, finished {finished}")
        }
    }
}

/// An answer in a few words.
fn told(answer: &Answer) -> String {
    let row = |row: &Option<std::sync::Arc<tenure_leases::Lease>>| match row {
        Some(lease) => {
            let name = |side: &Option<WorkerId>| side.as_ref().map_or("-".to_owned(), ToString::to_string);
            let (owner, giver) = (name(&lease.owner), name(&lease.giver));
            format!("owner {owner} giver {giver} counter {} at {:?}", lease.counter, lease.checkpoint)
        }
        None => "no row".to_owned(),
    };
    match answer {
        Answer::Applied(lease) => format!("applied: {}", row(lease)),
        Answer::Refused(lease) => format!("refused: {}", row(lease)),
        Answer::Row(lease) => row(lease),
        Answer::Nudge(counter) => format!("nudge {counter}"),
        Answer::Shards(_) => "shards".to_owned(),
        Answer::Scanned(_) => "a scan".to_owned(),
        Answer::Unknown => "unknown".to_owned(),
        Answer::Failed => "failed".to_owned(),
        Answer::Foreign(why) => format!("foreign: {why}"),
    }
}
