//! How a node comes to publish: the lock, the row, the slot, and the decision where to begin.

use tenure_cdc::checkpoint::{Checkpoint, Checkpointer};
use tenure_cdc::start::{self, ServerView, SlotView};
use tenure_clock::{Entropy, WallTime};
use tenure_election::Epoch;
use tenure_store::{Effect, Write};
use tenure_stream::Limits;
use tenure_stream::identity::{Era, Lsn};

use super::calls::{Call, RowWrite};
use super::{Happening, Run, World, narrow};
use crate::calendar::SECOND;
use crate::cdc::checkers::Rule;
use crate::cdc::pipeline::{Pipeline, Setup};
use crate::cdc::shard_meter::ShardMeter;
use crate::cdc::source::SLOT;
use crate::scenario::name;

/// How long a node waits before it asks for the lock again, at most.
const CAMPAIGN_EVERY: u64 = SECOND;
/// How long an operator takes, at most.
const OPERATOR_TAKES: u64 = 5 * SECOND;

impl<P: Pipeline> World<'_, P> {
    pub(super) fn start(&mut self, index: usize, life: u32) {
        let node = &mut self.nodes[index];
        if node.life != life || node.up {
            return;
        }
        node.up = true;
        self.stage.trace.tell(self.stage.now, format_args!("{} starts", name(index)));
        self.campaign(index);
    }

    pub(super) fn campaign(&mut self, index: usize) {
        if self.nodes[index].until <= self.stage.now {
            self.send(index, Call::Acquire);
        }
    }

    pub(super) fn campaign_later(&mut self, index: usize) {
        let wait = self.draw(index).below(CAMPAIGN_EVERY);
        let life = self.nodes[index].life;
        self.stage.enter(self.stage.now + wait, Happening::Campaign { node: narrow(index), life });
    }

    /// The lock was granted, for a call that was sent then.
    pub(super) fn elected(&mut self, index: usize, epoch: u64, sent_at: u64) {
        let node = &mut self.nodes[index];
        (node.epoch, node.until) = (epoch, sent_at + self.plan.lease);
        let life = node.life;
        self.stage.trace.tell(self.stage.now, format_args!("{} leads, epoch {epoch}", name(index)));
        let at = self.stage.now + self.plan.lease / 3;
        self.stage.enter(at, Happening::Renew { node: narrow(index), life, epoch });
        self.look(index);
    }

    pub(super) fn renew(&mut self, index: usize, epoch: u64) {
        let node = &self.nodes[index];
        if node.epoch != epoch || node.until == 0 {
            return;
        }
        if node.until <= self.stage.now {
            return self.step_down(index, "its term is over");
        }
        let life = node.life;
        self.send(index, Call::Renew { epoch });
        let at = self.stage.now + self.plan.lease / 3;
        self.stage.enter(at, Happening::Renew { node: narrow(index), life, epoch });
    }

    /// The term is over, as the node sees it.
    pub(super) fn step_down(&mut self, index: usize, why: &str) {
        self.stage.trace.tell(self.stage.now, format_args!("{} steps down: {why}", name(index)));
        self.leave(index);
        self.nodes[index].until = 0;
        self.campaign_later(index);
    }

    /// Ends what it does as a leader; what it has sent goes on.
    pub(super) fn leave(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.attempt += 1;
        let run = node.run.take().map(|run| run.session);
        let sessions = [node.session.take(), run];
        for session in sessions.into_iter().flatten() {
            self.leave_session(session);
        }
    }

    /// Begins anew, later, if it still leads then.
    pub(super) fn look_later(&mut self, index: usize, wait: u64) {
        self.leave(index);
        let wait = self.draw(index).below(wait);
        let attempt = self.nodes[index].attempt;
        self.stage.enter(self.stage.now + wait, Happening::Look { node: narrow(index), attempt });
    }

    pub(super) fn look(&mut self, index: usize) {
        if self.nodes[index].until <= self.stage.now {
            return self.step_down(index, "its term is over");
        }
        self.nodes[index].attempt += 1;
        if P::FENCED {
            self.send(index, Call::ReadRow);
        } else {
            self.send(index, Call::Connect { from: Lsn(0) });
        }
    }

    pub(super) fn row_read(&mut self, index: usize, row: Option<Checkpoint>) {
        let epoch = Epoch(self.nodes[index].epoch);
        self.nodes[index].row.clone_from(&row);
        match row {
            Some(row) if row.fence > epoch => self.step_down(index, "the row has a higher fence"),
            row => {
                let from = row.map_or(Lsn(0), |row| row.lsn);
                self.send(index, Call::Connect { from });
            }
        }
    }

    /// The slot is held, or there is none.
    ///
    /// Only now is the fence stamped on the row: whoever accepts a gap ends this session first, so a row that is
    /// still as it was is what this session can rely on.
    pub(super) fn connected(&mut self, index: usize, session: Option<u32>) {
        let epoch = Epoch(self.nodes[index].epoch);
        self.nodes[index].session = session;
        match &self.nodes[index].row {
            Some(row) => {
                // Nothing but the fence: where the server is will be judged by what the row said before.
                let stamp = self.place.advance(&Checkpoint { fence: epoch, ..row.clone() });
                self.send(index, Call::WriteRow(stamp, RowWrite::Stamp));
            }
            None => {
                self.send(index, Call::Ask);
            }
        }
    }

    pub(super) fn row_begun(&mut self, index: usize, kind: RowWrite, landed: bool) {
        if !landed {
            return self.look_later(index, SECOND);
        }
        if kind == RowWrite::Create {
            return self.begin_run(index);
        }
        self.send(index, Call::Ask);
    }

    /// Decides where to begin. The slot is held by then, so that nobody moves it in between.
    pub(super) fn decide(&mut self, index: usize, server: &ServerView, slot: Option<&SlotView>) {
        if !P::FENCED {
            return match (slot, self.nodes[index].session) {
                (Some(SlotView { lost: None, .. }), Some(_)) => self.begin_run(index),
                (Some(SlotView { lost: None, .. }), None) => self.look_later(index, SECOND),
                _ => {
                    // A missing slot is made anew, and nobody asks what was in between.
                    self.source.make_slot();
                    self.look_later(index, SECOND);
                }
            };
        }
        let row = self.nodes[index].row.clone();
        match start::begin(row.as_ref(), SLOT, slot, server, self.plan.lanes) {
            Err(refusal) => {
                self.stage.trace.tell(self.stage.now, format_args!("{} halts: {refusal}", name(index)));
                self.stage.outcome.tally.halts += 1;
                let stale = row.as_ref().is_some_and(|row| row.era != self.ledger.era());
                if !self.source.disturbed && !stale {
                    let what = format!("{} halts without a cause: {refusal}", name(index));
                    self.stage.check(Rule::HaltHasCause, Err(what));
                }
                if !self.operator_called {
                    self.operator_called = true;
                    let takes = SECOND + self.session_draw().below(OPERATOR_TAKES);
                    self.stage.enter(self.stage.now + takes, Happening::Operator);
                }
                self.look_later(index, 2 * SECOND);
            }
            Ok(_) if self.nodes[index].session.is_none() => self.look_later(index, SECOND),
            Ok(lsn) => {
                let epoch = Epoch(self.nodes[index].epoch);
                match row {
                    Some(row) => {
                        let timeline = server.timeline;
                        self.nodes[index].row = Some(Checkpoint { timeline, lsn, fence: epoch, ..row });
                        self.begin_run(index);
                    }
                    None => {
                        let row = Checkpoint {
                            system_id: server.system_id.clone(),
                            timeline: server.timeline,
                            slot: SLOT.into(),
                            lsn,
                            era: Era(1),
                            lanes: self.plan.lanes,
                            fence: epoch,
                            updated: WallTime::from_millis(0),
                        };
                        let create = self.place.create(&row);
                        self.nodes[index].row = Some(row);
                        self.send(index, Call::WriteRow(create, RowWrite::Create));
                    }
                }
            }
        }
    }

    fn begin_run(&mut self, index: usize) {
        let Some(session) = self.nodes[index].session.take() else { return };
        let reads_from = self.sessions[session as usize].start;
        let row = self.nodes[index].row.clone();
        let (confirmed, era) = row.as_ref().map_or((reads_from, Era(1)), |row| (row.lsn, row.era));
        self.stage.trace.mix(confirmed.0);
        self.stage.trace.tell(
            self.stage.now,
            format_args!("{} begins at {confirmed}, reads from {reads_from}, era {}", name(index), era.0),
        );
        if self.sessions[session as usize].alive {
            self.judge_beginning(index, reads_from, era);
        }
        self.stage.outcome.tally.runs += 1;
        let now = self.monotonic(index, self.stage.now);
        let lanes = usize::from(self.plan.lanes.count());
        let limits = Limits { bytes_per_record_max: self.stream.record_bytes_max, ..self.plan.limits };
        let checkpointer = row.map(|row| {
            Checkpointer::new(row.lsn, self.plan.checkpoint_every, self.plan.idle_checkpoint_every, now)
        });
        let entropy = Entropy::seeded(self.draw(index).bits());
        let setup = Setup {
            settings: self.plan.settings.clone(),
            limits,
            lanes: self.plan.lanes,
            era,
            confirmed,
            entropy,
        };
        let node = &mut self.nodes[index];
        node.run = Some(Run {
            session,
            pipeline: P::new(setup),
            checkpointer,
            era,
            epoch: node.epoch,
            taken: 0,
            open: None,
            keepalives: std::collections::VecDeque::new(),
            feeding: false,
            told: Lsn(0),
            stopping: false,
            under: vec![0; lanes],
            meter: ShardMeter::default(),
            sent: vec![None; lanes],
            row_at: self.stage.now,
            row_events: 0,
            writing_events: 0,
        });
        self.feed_soon(index);
        self.drive(index);
    }

    /// CD-5: nothing is missing between what is in the stream and what this run will read.
    fn judge_beginning(&mut self, index: usize, reads_from: Lsn, era: Era) {
        let who = name(index);
        let verdict = if self.source.diverged {
            Err(format!("{who} begins on a log that lost what was published"))
        } else if P::FENCED && era != self.ledger.era() {
            Err(format!("{who} begins under era {}, and a gap was accepted since", era.0))
        } else {
            self.ledger
                .settled_below(reads_from, &self.source)
                .map_err(|what| format!("{who} begins: {what}"))
        };
        self.stage.check(Rule::Cd5, verdict);
    }

    // === the row ===

    /// A write reaches the row; whether it was applied.
    pub(super) fn apply_row(&mut self, write: &Write) -> bool {
        let before = self.checkpoint();
        let Ok(Some(Effect::Store(item))) = write.decide(&self.spec, self.row.as_ref()) else {
            self.stage.outcome.tally.rows_refused += 1;
            return false;
        };
        self.row = Some(item);
        self.stage.outcome.tally.rows += 1;
        let Some(after) = self.checkpoint() else { return true };
        self.stage.trace.mix(after.lsn.0 ^ after.fence.0 << 40);
        self.stage.trace.note(
            self.stage.now,
            format_args!("  the row is at {}, era {}, fence {}", after.lsn, after.era.0, after.fence),
        );
        if let Some(before) = before.filter(|before| before.era == after.era)
            && (after.lsn < before.lsn || after.fence < before.fence)
        {
            let what = format!(
                "the row goes from {} of fence {} to {} of fence {}",
                before.lsn, before.fence, after.lsn, after.fence
            );
            self.stage.check(Rule::RowForward, Err(what));
        }
        if !self.source.diverged && after.era == self.ledger.era() {
            let verdict = self.ledger.settled_below(after.lsn, &self.source);
            self.stage.check(Rule::Cd1, verdict.map_err(|what| format!("by the row, {what}")));
        }
        true
    }

    /// An operator looks at a leader that halted, and accepts the gap if there is one.
    pub(super) fn accept_gap(&mut self) {
        self.operator_called = false;
        let row = self.checkpoint();
        let (server, slot) = (self.source.server(), self.source.slot_view());
        if start::begin(row.as_ref(), SLOT, slot.as_ref(), &server, self.plan.lanes).is_ok() {
            return;
        }
        if let Some(session) = self.source.slot.as_ref().and_then(|slot| slot.session) {
            self.end_session(session);
        }
        // The slot first: until the row follows, it is beyond the row, and nobody begins.
        self.source.make_slot();
        let lsn = self.source.end;
        let era = match row {
            Some(row) => {
                let era = Era(row.era.0 + 1);
                let write = self.place.begin_era(&Checkpoint { timeline: server.timeline, lsn, era, ..row });
                let Ok(Some(Effect::Store(item))) = write.decide(&self.spec, self.row.as_ref()) else {
                    return;
                };
                self.row = Some(item);
                era
            }
            None => Era(1),
        };
        self.stage
            .trace
            .tell(self.stage.now, format_args!("an operator accepts the gap: era {}, from {lsn}", era.0));
        self.stage.outcome.tally.eras += 1;
        self.ledger.begin_era(era, &self.source);
        self.source.disturbed = false;
        self.source.diverged = false;
        self.source.quiet = false;
    }
}
