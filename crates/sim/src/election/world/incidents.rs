//! What befalls nodes, rows and the store at a moment of its own, and how it ends.

use tenure_election::{Epoch, Event, Lock, Nonce};

use super::super::candidate::Candidate;
use super::super::checkers::{Rule, at_most_one_leader};
use super::super::fault::Fault;
use super::super::plan::NODES;
use super::super::table::Table;
use super::{Failover, Happening, NOBODY, Node, World, narrow};
use crate::calendar::nanos;
use crate::node_clock::true_wall;
use crate::scenario::{Incident, Named, Target, name};

/// The reaper leaves a `ttl` alone that is older than this: DynamoDB takes it for a mistake.
const FIVE_YEARS_SECONDS: i64 = 5 * 366 * 86_400;

impl<C: Candidate, T: Table> World<'_, C, T> {
    pub(super) fn begin(&mut self, number: u32) {
        let incident = self.plan.course.incidents[number as usize];
        let leader = self.until.iter().position(|until| *until > self.stage.now);
        let index = match incident.target {
            Target::Node(node) => Some(node),
            Target::Leader => leader,
        };
        let befell = match incident.fault {
            Fault::Outage => {
                self.outages += 1;
                self.outage_hangs = incident.detail & 1 == 1;
                self.failover = None;
                Some(0)
            }
            Fault::Reaped => self.reap().then_some(0),
            Fault::Deleted => self.delete().then_some(0),
            Fault::ResignAsked => self.table.ask_to_resign(Nonce(u128::from(incident.detail))).map(|_| 0),
            _ => index.filter(|index| self.befall(*index, &incident)),
        };
        let Some(index) = befell else { return };
        self.stage.outcome.faults.count(incident.fault);
        self.stage.trace.mix(u64::from(number));
        if concerns_a_node(incident.fault) {
            self.stage
                .trace
                .tell(self.stage.now, format_args!("! {} {}", incident.fault.name(), name(index)));
        } else {
            self.stage.trace.tell(self.stage.now, format_args!("! {}", incident.fault.name()));
        }
        self.befell[number as usize] = Some((narrow(index), self.nodes[index].life));
        if lasts(incident.fault) {
            self.stage.enter(incident.until, Happening::End { incident: number });
        }
        if incident.fault == Fault::Crash {
            let life = self.nodes[index].life;
            self.stage.enter(incident.until, Happening::Start { node: narrow(index), life });
        }
    }

    /// Something happens to one node; false if it cannot, as things are.
    pub(super) fn befall(&mut self, index: usize, incident: &Incident<Fault>) -> bool {
        let leads = self.until[index] > self.stage.now;
        let bit = 1 << index;
        let node = &mut self.nodes[index];
        let runs = node.machine.is_some();
        let (who, life) = (narrow(index), node.life);
        match incident.fault {
            Fault::Pause if runs => node.paused += 1,
            Fault::Crash if runs => {
                if leads {
                    self.begin_failover(index);
                }
                self.vanish(index);
            }
            Fault::Stop if runs && !node.stopping => {
                node.stopping = true;
                node.restart_at = incident.until;
                self.stage.enter(self.stage.now, Happening::Halt { node: who, life });
            }
            Fault::Partition => {
                node.cut_requests += 1;
                node.cut_replies += 1;
            }
            Fault::RequestsDropped => node.cut_requests += 1,
            Fault::RepliesDropped => node.cut_replies += 1,
            Fault::Unhealthy => node.unhealthy += 1,
            Fault::WallStep => node.clock.skew_millis = incident.detail.cast_signed(),
            Fault::Resign if runs => {
                self.stage.enter(self.stage.now, Happening::Resign { node: who, life, to: None })
            }
            Fault::ResignTo if runs => {
                let to = if incident.detail.is_multiple_of(8) { NOBODY } else { narrow((index + 1) % NODES) };
                self.stage.enter(self.stage.now, Happening::Resign { node: who, life, to: Some(to) });
            }
            _ => return false,
        }
        let disturbs = !matches!(incident.fault, Fault::WallStep | Fault::Unhealthy);
        if disturbs && let Some(failover) = &mut self.failover {
            failover.watchers &= !bit;
            if failover.watchers == 0 {
                self.failover = None;
            }
        }
        true
    }

    pub(super) fn begin_failover(&mut self, crashed: usize) {
        let watches = |node: &Node<C>| {
            node.machine.is_some()
                && node.standing
                && !node.stopping
                && node.paused + node.cut_requests + node.cut_replies == 0
        };
        let others = self.nodes.iter().enumerate().filter(|(index, node)| *index != crashed && watches(node));
        let watchers = others.map(|(index, _)| 1 << index).sum::<u8>();
        let lease = nanos(self.nodes[crashed].timing.lease);
        self.failover =
            (watchers != 0 && self.outages == 0).then_some(Failover { at: self.stage.now, lease, watchers });
    }

    pub(super) fn reap(&mut self) -> bool {
        let wall = true_wall(self.stage.now).as_seconds();
        let past = self.table.ttl().is_some_and(|ttl| ttl < wall && ttl > wall - FIVE_YEARS_SECONDS);
        past && self.delete()
    }

    pub(super) fn delete(&mut self) -> bool {
        let epoch = self.table.lock().and_then(|Lock { epoch, .. }| epoch);
        if !self.table.delete_lock() {
            return false;
        }
        self.failover = None;
        self.history.deleted(self.stage.now, epoch.unwrap_or(Epoch(0)));
        true
    }

    pub(super) fn end(&mut self, number: u32) {
        let incident = self.plan.course.incidents[number as usize];
        let Some((index, life)) = self.befell[number as usize] else { return };
        let index = usize::from(index);
        self.stage.trace.tell(self.stage.now, format_args!("! {} is over", incident.fault.name()));
        let node = &mut self.nodes[index];
        match incident.fault {
            Fault::Outage => self.outages -= 1,
            Fault::Partition => {
                node.cut_requests -= 1;
                node.cut_replies -= 1;
            }
            Fault::RequestsDropped => node.cut_requests -= 1,
            Fault::RepliesDropped => node.cut_replies -= 1,
            Fault::Unhealthy => node.unhealthy -= 1,
            Fault::Pause if node.life == life && node.paused > 0 => {
                node.paused -= 1;
                if node.paused == 0 {
                    self.resume(index, incident.detail & 1 == 1);
                }
            }
            _ => {}
        }
    }

    /// A node goes on where it stood: LD-1 is judged before anything reaches it.
    pub(super) fn resume(&mut self, index: usize, timer_first: bool) {
        let node = &mut self.nodes[index];
        let monotonic = node.clock.monotonic(self.stage.now);
        let says = node.machine.as_ref().is_some_and(|machine| machine.is_leader(monotonic));
        let waiting = std::mem::take(&mut node.waiting);
        if says != (self.until[index] > self.stage.now) {
            let what = format!("{} resumes and says {says} of its leading", name(index));
            self.stage.check(Rule::Ld1, Err(what));
        }
        let verdict = at_most_one_leader(self.stage.now, index, &self.until);
        self.stage.check(Rule::Ld1, verdict);
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

const fn concerns_a_node(fault: Fault) -> bool {
    !matches!(fault, Fault::Outage | Fault::Reaped | Fault::Deleted | Fault::ResignAsked)
}

const fn lasts(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Outage
            | Fault::Partition
            | Fault::RequestsDropped
            | Fault::RepliesDropped
            | Fault::Unhealthy
            | Fault::Pause
    )
}
