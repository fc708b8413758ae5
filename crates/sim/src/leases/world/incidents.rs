//! What befalls workers, rows, the stream and the store at a moment of its own, and how it ends.

use tenure_leases::machine::Event;

use super::super::checkers::{LastEnd, Rule, at_most_one_owner};
use super::super::fault::Fault;
use super::super::keeper::Keeper;
use super::super::plan::{CAP_PLENTY, DEPTH_MAX};
use super::{Happening, Shard, World};
use crate::scenario::{Incident, Named, Target};
use crate::stage::narrow;

impl<K: Keeper> World<'_, K> {
    pub(super) fn begin(&mut self, number: u32) {
        let incident = self.plan.course.incidents[number as usize];
        // It may last beyond what is left after a schedule was made smaller.
        let target = match incident.target {
            Target::Node(node) => {
                Some(node).filter(|node| self.plan.nodes.get(*node).is_some_and(|node| node.present))
            }
            Target::Leader => self.planner.map(usize::from),
        };
        let befell = match incident.fault {
            Fault::Outage => {
                self.outages += 1;
                self.outage_hangs = incident.detail & 1 == 1;
                Some(0)
            }
            Fault::Split | Fault::Merge => self.reshard(&incident).then_some(0),
            Fault::RowDeleted => self.delete_row(incident.detail).then_some(0),
            Fault::PresenceDeleted => self.delete_presence(incident.detail).then_some(0),
            Fault::Foreign => self.foreigner_comes().then_some(0),
            Fault::NoPlanner => {
                self.nobody_plans += 1;
                self.planner = None;
                self.tell_planning();
                Some(0)
            }
            Fault::LateHandover => self.planner.take().map(|planner| {
                self.handover_not_before = self.handover_not_before.max(incident.until);
                self.elect_within(1);
                usize::from(planner)
            }),
            Fault::Deploy => self.roll_out(&incident).then_some(0),
            _ => target.filter(|index| self.befall(*index, &incident)),
        };
        let Some(index) = befell else { return };
        self.stage.outcome.faults.count(incident.fault);
        self.stage.trace.mix(u64::from(number));
        if concerns_a_worker(incident.fault) {
            self.tell(format_args!("! {} worker {index}", incident.fault.name()));
        } else {
            self.tell(format_args!("! {}", incident.fault.name()));
        }
        self.befell[number as usize] = Some((narrow(index), self.nodes[index].life));
        if lasts(incident.fault) {
            self.stage.enter(incident.until, Happening::End { incident: number });
        }
        if matches!(incident.fault, Fault::Crash | Fault::Restart) {
            let at = if incident.fault == Fault::Crash { incident.until } else { self.stage.now + 1 };
            let life = self.nodes[index].life;
            self.stage.enter(at, Happening::Start { node: narrow(index), life });
        }
    }

    /// Something happens to one worker; false if it cannot, as things are.
    fn befall(&mut self, index: usize, incident: &Incident<Fault>) -> bool {
        let node = &mut self.nodes[index];
        let runs = node.machine.is_some();
        match incident.fault {
            Fault::Pause if runs => node.paused += 1,
            Fault::KeeperStalled if runs => node.stalled += 1,
            Fault::Crash | Fault::Restart if runs => self.vanish(index),
            Fault::Leave if runs && !node.stopping => self.halt(index, incident.until),
            Fault::Partition => {
                node.cut_requests += 1;
                node.cut_replies += 1;
            }
            Fault::RequestsDropped => node.cut_requests += 1,
            Fault::RepliesDropped => node.cut_replies += 1,
            Fault::SlowConsumer | Fault::StuckConsumer => {
                node.slow_until = node.slow_until.max(incident.until)
            }
            Fault::Join if !runs && node.life == 0 => {
                self.stage.enter(self.stage.now, Happening::Start { node: narrow(index), life: 0 });
            }
            Fault::CapChange if K::OURS => {
                let cap = self.drawn_cap(incident.detail);
                self.set_cap(index, cap);
            }
            Fault::CapChange => {}
            Fault::TwoPlanners if runs && self.planner != Some(narrow(index)) => {
                self.second_planner = Some(narrow(index));
                self.tell_planning();
            }
            _ => return false,
        }
        true
    }

    fn drawn_cap(&self, detail: u64) -> usize {
        let open = self.stream.open().len();
        if detail & 3 == 0 { CAP_PLENTY } else { 1 + usize::try_from(detail >> 2).unwrap_or(0) % (open + 2) }
    }

    fn halt(&mut self, index: usize, restart_at: u64) {
        let node = &mut self.nodes[index];
        node.stopping = true;
        node.restart_at = restart_at;
        let life = node.life;
        self.stage.enter(self.stage.now, Happening::Halt { node: narrow(index), life });
        if self.planner == Some(narrow(index)) {
            // It resigns: the next follows soon.
            self.planner = None;
            self.elect_within(self.plan.handover_max / 8 + 1);
        }
    }

    /// Worker after worker is stopped and comes back, with another cap and another idea of how many there are.
    fn roll_out(&mut self, incident: &Incident<Fault>) -> bool {
        let workers = self.nodes.len() as u64;
        let gap = (incident.until - incident.at) / workers + 1;
        let cap = u16::try_from(self.drawn_cap(incident.detail)).unwrap_or(u16::MAX);
        for index in 0..self.nodes.len() {
            let at = self.stage.now + index as u64 * gap;
            if at < self.plan.course.heal_at {
                self.stage.enter(at, Happening::Deploy { node: narrow(index), cap });
            }
        }
        true
    }

    pub(super) fn deploy(&mut self, index: usize, cap: usize) {
        if self.healed {
            return;
        }
        if K::OURS {
            self.set_cap(index, cap);
        }
        if self.nodes[index].machine.is_some() && !self.nodes[index].stopping {
            self.tell(format_args!("! worker {index} is replaced"));
            self.halt(index, 0);
        }
    }

    fn reshard(&mut self, incident: &Incident<Fault>) -> bool {
        let open = self.stream.open();
        let shard = open[usize::try_from(incident.detail % open.len() as u64).unwrap_or(0)];
        let now = self.stage.now;
        let done = match incident.fault {
            Fault::Split => self.stream.split(now, shard, DEPTH_MAX),
            _ => self.stream.merge(now, shard, DEPTH_MAX),
        };
        if !done {
            return false;
        }
        self.ledger.resize(self.stream.shards.len(), Shard::default());
        self.tell(format_args!("shard {shard} is resharded: there are {} now", self.stream.shards.len()));
        for closed in open {
            if self.stream.shards[closed].closed {
                self.wake_readers(closed);
            }
        }
        true
    }

    /// Deletes a row that has been there for a while: nobody can put back what nobody has seen.
    fn delete_row(&mut self, detail: u64) -> bool {
        let long_ago = self.stage.now.saturating_sub(self.lease_nanos());
        let is_old = |shard: &usize| {
            let is_there = self.table.leases.contains_key(&self.stream.shards[*shard].key);
            is_there && self.ledger[*shard].made_at.is_some_and(|at| at < long_ago)
        };
        let old: Vec<usize> = (0..self.ledger.len()).filter(is_old).collect();
        if old.is_empty() {
            return false;
        }
        let shard = old[usize::try_from(detail % old.len() as u64).unwrap_or(0)];
        self.table.leases.remove(&self.stream.shards[shard].key);
        self.tell(format_args!("the row of shard {shard} is deleted"));
        let record = &mut self.ledger[shard];
        (record.torn, record.was_torn, record.last, record.moved) = (true, true, LastEnd::None, None);
        true
    }

    fn delete_presence(&mut self, detail: u64) -> bool {
        let count = self.table.workers.len() as u64;
        if count == 0 {
            return false;
        }
        let place = usize::try_from(detail % count).unwrap_or(0);
        let Some(worker) = self.table.workers.keys().nth(place).cloned() else { return false };
        self.table.workers.remove(&worker);
        self.tell(format_args!("the row of worker {worker} is deleted"));
        true
    }

    pub(super) fn end(&mut self, number: u32) {
        let incident = self.plan.course.incidents[number as usize];
        let Some((index, life)) = self.befell[number as usize] else { return };
        let index = usize::from(index);
        self.tell(format_args!("! {} is over", incident.fault.name()));
        let node = &mut self.nodes[index];
        match incident.fault {
            Fault::Outage => self.outages -= 1,
            Fault::Partition => {
                node.cut_requests -= 1;
                node.cut_replies -= 1;
            }
            Fault::RequestsDropped => node.cut_requests -= 1,
            Fault::RepliesDropped => node.cut_replies -= 1,
            Fault::Pause if node.life == life && node.paused > 0 => {
                node.paused -= 1;
                self.resume(index, incident.detail & 1 == 1);
            }
            Fault::KeeperStalled if node.life == life && node.stalled > 0 => {
                node.stalled -= 1;
                self.resume(index, incident.detail & 1 == 1);
            }
            Fault::NoPlanner => {
                self.nobody_plans = self.nobody_plans.saturating_sub(1);
                if self.planner.is_none() {
                    self.elect_within(self.plan.handover_max);
                }
            }
            Fault::TwoPlanners if self.second_planner == Some(narrow(index)) => {
                self.second_planner = None;
                self.tell_planning();
            }
            Fault::Foreign => self.foreigner_dies(),
            _ => {}
        }
    }

    /// A worker goes on where it stood: LS-1 is judged before anything reaches it.
    fn resume(&mut self, index: usize, timer_first: bool) {
        let now = self.stage.now;
        let shards: Vec<usize> = self.nodes[index].holds.keys().copied().collect();
        for shard in shards {
            let verdict = at_most_one_owner(now, narrow(index), &self.ledger[shard].holders);
            self.check(
                Rule::Ls1,
                verdict.map_err(|what| format!("shard {shard}, as a worker resumes: {what}")),
            );
        }
        if self.nodes[index].is_still() {
            return;
        }
        let waiting = std::mem::take(&mut self.nodes[index].waiting);
        if timer_first {
            self.step(index, Event::Wake);
        }
        for happening in waiting {
            // What it does first may end it: then the rest finds nobody.
            self.happen(happening);
        }
        self.step(index, Event::Wake);
    }
}

const fn concerns_a_worker(fault: Fault) -> bool {
    !matches!(
        fault,
        Fault::Outage
            | Fault::Split
            | Fault::Merge
            | Fault::RowDeleted
            | Fault::PresenceDeleted
            | Fault::Foreign
            | Fault::NoPlanner
            | Fault::Deploy
    )
}

const fn lasts(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Outage
            | Fault::Partition
            | Fault::RequestsDropped
            | Fault::RepliesDropped
            | Fault::Pause
            | Fault::KeeperStalled
            | Fault::NoPlanner
            | Fault::TwoPlanners
            | Fault::Foreign
    )
}
