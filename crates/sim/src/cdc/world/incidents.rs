//! What befalls nodes, the slot, the server, the store and the stream, and how it ends.

use tenure_stream::identity::Lsn;

use super::{Happening, Service, World, narrow};
use crate::cdc::fault::Fault;
use crate::cdc::pipeline::Pipeline;
use crate::cdc::plan::lowered_limit;
use crate::scenario::{Incident, Named, Target, name};

impl<P: Pipeline> World<'_, P> {
    pub(super) fn begin(&mut self, number: u32) {
        let incident = self.plan.course.incidents[number as usize];
        let leader = self.nodes.iter().position(|node| node.until > self.stage.now);
        let index = match incident.target {
            Target::Node(node) => Some(node % self.nodes.len()),
            Target::Leader => leader,
        };
        let befell = match incident.fault {
            Fault::StreamOutage => bump(&mut self.stream_outages),
            Fault::StoreOutage => bump(&mut self.store_outages),
            Fault::ThrottleStorm => bump(&mut self.storms),
            Fault::LimitLowered => {
                self.stream.record_bytes_max = lowered_limit();
                bump(&mut self.lowered)
            }
            Fault::Split => self.stream.split(incident.detail),
            Fault::Merge => self.stream.merge(incident.detail),
            Fault::LockLost => {
                let held = self.lock.expires > self.stage.now;
                self.lock.expires = 0;
                held
            }
            Fault::PostgresCrash
            | Fault::Promotion
            | Fault::SlotNotPromoted
            | Fault::SlotDropped
            | Fault::SlotRecreated
            | Fault::SlotInvalidated
            | Fault::SlotAdvanced
            | Fault::Restored => self.befall_server(&incident),
            _ => index.is_some_and(|index| self.befall(index, &incident)),
        };
        if !befell {
            return;
        }
        self.stage.outcome.faults.count(incident.fault);
        self.stage.trace.mix(u64::from(number));
        let index = index.unwrap_or(0);
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
    }

    fn befall(&mut self, index: usize, incident: &Incident<Fault>) -> bool {
        let now = self.stage.now;
        let node = &mut self.nodes[index];
        match incident.fault {
            Fault::Pause if node.up => {
                if node.paused == 0 {
                    node.unreachable_since = now;
                }
                node.paused += 1;
            }
            Fault::Crash if node.up => {
                node.restart_at = incident.until;
                self.vanish(index);
            }
            Fault::CrashAtEffect if node.up => {
                let detail = u32::try_from(incident.detail % 8).unwrap_or(0);
                node.restart_at = incident.until;
                node.crash_in = Some((detail, incident.detail & 8 == 8));
            }
            Fault::Handover if P::FENCED && node.paused == 0 => {
                let Some(run) = &mut node.run else { return false };
                run.stopping = true;
                self.drive(index);
            }
            fault => {
                let Some(service) = cut_from(fault) else { return false };
                if service == Service::Postgres && node.cut[service as usize] == 0 {
                    node.unreachable_since = now;
                }
                node.cut[service as usize] += 1;
            }
        }
        true
    }

    /// Something happens to the database; false if it cannot, or would mean nothing.
    fn befall_server(&mut self, incident: &Incident<Fault>) -> bool {
        // Before there is a row, the pipeline has not begun, and there is nothing to lose.
        let row = self.checkpoint().map(|row| row.lsn);
        let known =
            row.or_else(|| self.source.slot.as_ref().filter(|_| !P::FENCED).map(|slot| slot.confirmed));
        let Some(known) = known else { return false };
        let session = self.source.slot.as_ref().and_then(|slot| slot.session);
        let happens = match incident.fault {
            Fault::PostgresCrash | Fault::Promotion => true,
            // One trouble at a time: the next begins when an operator has dealt with the last.
            _ => self.source.slot.is_some() && !self.source.disturbed,
        };
        let advances_to = self.place_beyond(known, incident.detail);
        if !happens || (incident.fault == Fault::SlotAdvanced && advances_to.is_none()) {
            return false;
        }
        if incident.fault == Fault::Restored {
            let back = usize::try_from(incident.detail % 4).unwrap_or(0);
            if !self.source.restore(known, back, incident.detail & 64 == 64) {
                return false;
            }
        }
        if let Some(session) = session {
            self.end_session(session);
        }
        let source = &mut self.source;
        match incident.fault {
            Fault::PostgresCrash | Fault::Promotion => {
                if let Some(slot) = &mut source.slot {
                    slot.confirmed = slot.persisted;
                }
                if incident.fault == Fault::Promotion {
                    source.promote();
                }
            }
            Fault::SlotNotPromoted => {
                source.slot = None;
                source.promote();
            }
            Fault::SlotDropped => source.slot = None,
            Fault::SlotRecreated => source.make_slot(),
            Fault::SlotInvalidated => {
                if let Some(slot) = &mut source.slot {
                    slot.lost = true;
                }
            }
            Fault::SlotAdvanced => {
                if let (Some(slot), Some(lsn)) = (&mut source.slot, advances_to) {
                    (slot.confirmed, slot.persisted) = (lsn, lsn);
                }
            }
            _ => {}
        }
        source.disturbed |= !matches!(incident.fault, Fault::PostgresCrash | Fault::Promotion);
        true
    }

    /// The end of a transaction that the row does not hold.
    fn place_beyond(&self, known: Lsn, detail: u64) -> Option<Lsn> {
        let ends = self.source.log.iter().map(|number| self.source.transactions[*number as usize].end);
        let beyond = ends.filter(|end| *end > known).collect::<Vec<_>>();
        let pick = usize::try_from(detail % beyond.len().max(1) as u64).unwrap_or(0);
        beyond.get(pick).copied()
    }

    /// The process is gone, with all that it knew.
    pub(super) fn vanish(&mut self, index: usize) {
        self.leave(index);
        let node = &mut self.nodes[index];
        node.up = false;
        node.life += 1;
        node.until = 0;
        node.paused = 0;
        node.crash_in = None;
        node.wake = u64::MAX;
        node.turn += 1;
        node.waiting.clear();
        let (at, life) = (node.restart_at.max(self.stage.now + 1), node.life);
        self.stage.enter(at, Happening::Start { node: narrow(index), life });
    }

    pub(super) fn end(&mut self, number: u32) {
        let incident = self.plan.course.incidents[number as usize];
        let Some((index, life)) = self.befell[number as usize] else { return };
        let index = usize::from(index);
        self.stage.trace.tell(self.stage.now, format_args!("! {} is over", incident.fault.name()));
        let node = &mut self.nodes[index];
        match incident.fault {
            Fault::StreamOutage => self.stream_outages -= 1,
            Fault::StoreOutage => self.store_outages -= 1,
            Fault::ThrottleStorm => self.storms -= 1,
            Fault::LimitLowered => {
                self.lowered -= 1;
                if self.lowered == 0 {
                    self.stream.record_bytes_max = self.plan.limits.bytes_per_record_max;
                }
            }
            Fault::Pause if node.life == life && node.paused > 0 => {
                node.paused -= 1;
                if node.paused == 0 {
                    self.resume(index, incident.detail & 1 == 1);
                }
            }
            fault => {
                if let Some(service) = cut_from(fault) {
                    node.cut[service as usize] -= 1;
                }
            }
        }
    }

    /// A node goes on where it stood.
    fn resume(&mut self, index: usize, timer_first: bool) {
        let waiting = std::mem::take(&mut self.nodes[index].waiting);
        if timer_first {
            self.drive(index);
        }
        for happening in waiting {
            // What it does first may end it: then the rest finds nobody.
            self.happen(happening);
        }
        self.drive(index);
        if self.nodes[index].up && self.nodes[index].until > 0 && self.nodes[index].until <= self.stage.now {
            self.step_down(index, "its term is over");
        }
    }
}

fn bump(count: &mut u32) -> bool {
    *count += 1;
    true
}

const fn cut_from(fault: Fault) -> Option<Service> {
    match fault {
        Fault::CutFromStream => Some(Service::Stream),
        Fault::CutFromStore => Some(Service::Store),
        Fault::CutFromLock => Some(Service::Lock),
        Fault::CutFromPostgres => Some(Service::Postgres),
        _ => None,
    }
}

const fn concerns_a_node(fault: Fault) -> bool {
    cut_from(fault).is_some()
        || matches!(fault, Fault::Pause | Fault::Crash | Fault::CrashAtEffect | Fault::Handover)
}

const fn lasts(fault: Fault) -> bool {
    cut_from(fault).is_some()
        || matches!(
            fault,
            Fault::Pause
                | Fault::StreamOutage
                | Fault::StoreOutage
                | Fault::ThrottleStorm
                | Fault::LimitLowered
        )
}
