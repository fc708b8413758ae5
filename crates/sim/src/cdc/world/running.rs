//! A leader at work: takes in what the server sends, publishes it, writes the row, tells the slot.

use tenure_cdc::checkpoint::{Checkpoint, Checkpointer};
use tenure_cdc::publisher::{Answer, Barrier, Link, Offer, Parked, Refused};
use tenure_stream::Record;
use tenure_stream::identity::{Lane, Lsn, Position};

use super::calls::{Call, RowWrite};
use super::{Happening, Run, Service, TIMER_LATE_MAX, TIMER_MIN, World, narrow};
use crate::calendar::{MILLI, SECOND, nanos};
use crate::cdc::checkers::Rule;
use crate::cdc::event::{EVENT_BYTES_MIN, Event};
use crate::cdc::pipeline::{Pipeline, Task};
use crate::scenario::name;

/// Every record has the same: it is the lane that routes.
const PARTITION_KEY: &str = "k";
/// Most events that are taken in at one moment.
const FEED_MAX: u64 = 6;
/// How long a reader takes between two such moments, at most.
const FEED_EVERY: u64 = 4 * MILLI;
/// By how much the last event may pass the bound in bytes.
const BYTES_OVER_MAX: usize = 4096;

impl<P: Pipeline> World<'_, P> {
    pub(super) fn feed_soon(&mut self, index: usize) {
        let wait = self.draw(index).below(FEED_EVERY);
        let Some(run) = &mut self.nodes[index].run else { return };
        if !run.feeding {
            run.feeding = true;
            let session = run.session;
            self.stage.enter(self.stage.now + wait, Happening::Feed { node: narrow(index), session });
        }
    }

    pub(super) fn feed(&mut self, index: usize) {
        let budget = 1 + self.draw(index).below(FEED_MAX);
        let coin = self.draw(index);
        let Some(mut run) = self.nodes[index].run.take() else { return };
        run.feeding = false;
        let mut more = true;
        for _ in 0..budget {
            more = !run.stopping && self.feed_one(index, &mut run, coin.bits());
            if !more {
                break;
            }
        }
        let (events, bytes) = run.pipeline.inflight();
        let settings = &self.plan.settings;
        let lanes = usize::from(self.plan.lanes.count());
        let bounded = events <= settings.inflight_events_max.max(lanes) + lanes
            && bytes <= settings.inflight_bytes_max + BYTES_OVER_MAX;
        self.nodes[index].run = Some(run);
        if !bounded {
            let what = format!("{} has {events} events of {bytes} bytes under way", name(index));
            self.stage.check(Rule::InflightBounded, Err(what));
        }
        if more {
            self.feed_soon(index);
        }
        self.drive(index);
    }

    /// Takes in one event, or one end of a transaction; false if there is none, or no room.
    fn feed_one(&mut self, index: usize, run: &mut Run<P>, coin: u64) -> bool {
        let Some((number, next)) = run.open else {
            return self.feed_next(run);
        };
        let transaction = &self.source.transactions[number as usize];
        let (commit, end, changes) = (transaction.commit, transaction.end, transaction.changes.clone());
        if coin.is_multiple_of(16) {
            // The server says how far it has read, in the middle of what it sends.
            run.pipeline.idle(if coin & 16 == 0 { commit } else { end });
        }
        if next >= changes.end {
            run.pipeline.commit(end);
            run.open = None;
            return true;
        }
        if self.source.changes[next as usize].key.is_none() {
            match run.pipeline.barrier() {
                Barrier::None => run.pipeline.barrier_begin(),
                Barrier::Ready => {}
                Barrier::Draining | Barrier::Settling => return false,
            }
            if run.pipeline.barrier() != Barrier::Ready {
                return false;
            }
            let group = self.source.changes[next as usize].barrier;
            let mut next = next;
            while next < changes.end
                && self.source.changes[next as usize].key.is_none()
                && self.source.changes[next as usize].barrier == group
            {
                self.offer(index, run, next, commit);
                next += 1;
            }
            run.pipeline.barrier_offered();
            run.open = Some((number, next));
            return true;
        }
        if !run.pipeline.wants_more() {
            return false;
        }
        self.offer(index, run, next, commit);
        run.open = Some((number, next + 1));
        true
    }

    fn feed_next(&mut self, run: &mut Run<P>) -> bool {
        let session = &self.sessions[run.session as usize];
        if let Some((upto, lsn)) = run.keepalives.front().copied()
            && run.taken >= upto as usize
        {
            run.keepalives.pop_front();
            run.pipeline.idle(lsn);
            return true;
        }
        if run.taken >= session.arrived as usize || !run.pipeline.wants_more() {
            return false;
        }
        let number = session.sent[run.taken];
        run.taken += 1;
        run.pipeline.begin();
        run.open = Some((number, self.source.transactions[number as usize].changes.start));
        true
    }

    fn offer(&mut self, index: usize, run: &mut Run<P>, number: u32, commit: Lsn) {
        let change = &self.source.changes[number as usize];
        let id = Position { era: run.era, commit, change: change.lsn, k: change.k };
        let Link { prev, floor } = run.pipeline.link(change.lane);
        let size = change.size.max(EVENT_BYTES_MIN);
        let mut event = Event {
            change: number,
            id,
            lane: change.lane,
            prev,
            floor,
            leader: run.epoch,
            run: run.session,
            pointer: false,
        };
        let mut bytes = Vec::with_capacity(size);
        event.write(size, &mut bytes);
        let mut parked = None;
        if !run.pipeline.fits(PARTITION_KEY, size) {
            parked = Some(Parked { content: bytes.into(), reason: None });
            event.pointer = true;
            bytes = Vec::with_capacity(EVENT_BYTES_MIN);
            event.write(0, &mut bytes);
        }
        let now = self.monotonic(index, self.stage.now);
        let offer = Offer { lane: change.lane, id, partition_key: PARTITION_KEY, bytes: &bytes, parked };
        run.pipeline.offer(now, offer);
    }

    // === what it does ===

    /// Does what is to be done now, and sets the timer for the rest.
    pub(super) fn drive(&mut self, index: usize) {
        let life = self.nodes[index].life;
        let Some(mut run) = self.nodes[index].run.take() else { return };
        let leads = self.nodes[index].until > self.stage.now;
        let now = self.monotonic(index, self.stage.now);
        let mut dead = false;
        if run.pipeline.asks_for_shards(now) {
            self.tell_shards(index, &mut run);
        }
        while let Some(task) = run.pipeline.poll(now, leads) {
            if !self.carry_out(index, &mut run, task) {
                dead = true;
                break;
            }
        }
        if !dead && leads {
            dead = !self.write_row(index, &mut run);
        }
        if dead || self.nodes[index].life != life {
            self.leave_session(run.session);
            return;
        }
        self.tell_slot(index, &mut run);
        let settled = run.checkpointer.as_ref().map_or(Lsn(0), Checkpointer::feedback);
        let drained = run.stopping && run.pipeline.inflight().0 == 0 && settled >= run.pipeline.confirmed();
        let hungry = !run.stopping && self.is_hungry(&run);
        let wakes = [
            run.pipeline.wake(),
            run.checkpointer.as_ref().and_then(|checkpointer| {
                checkpointer.wake(run.pipeline.confirmed(), run.pipeline.settled_events())
            }),
        ];
        let epoch = run.epoch;
        self.nodes[index].run = Some(run);
        if !leads {
            return self.step_down(index, "its term is over");
        }
        if drained {
            if self.send(index, Call::Release { epoch }) {
                self.step_down(index, "it hands over");
            }
            return;
        }
        if hungry {
            self.feed_soon(index);
        }
        let origin = self.nodes[index].clock_origin;
        let wake =
            wakes.into_iter().flatten().min().map_or(u64::MAX, |at| at.as_nanos().saturating_sub(origin));
        self.set_timer(index, wake.min(self.nodes[index].until));
    }

    /// The stream says which shards there are, or is not reached.
    fn tell_shards(&self, index: usize, run: &mut Run<P>) {
        let reached = self.nodes[index].cut[Service::Stream as usize] == 0 && self.stream_outages == 0;
        let open = if reached { self.stream.open_shards() } else { Vec::new() };
        run.pipeline.shards(&open);
        if reached {
            run.meter.learn(self.stage.now, open);
        }
    }

    /// Whether there is something to take in, and room.
    fn is_hungry(&self, run: &Run<P>) -> bool {
        if run.feeding {
            return false;
        }
        let arrived = self.sessions[run.session as usize].arrived as usize;
        let something = run.open.is_some() || run.taken < arrived || !run.keepalives.is_empty();
        something && (run.pipeline.wants_more() || run.pipeline.barrier() == Barrier::Ready)
    }

    fn set_timer(&mut self, index: usize, due: u64) {
        let due = due.max(self.stage.now + TIMER_MIN);
        if self.nodes[index].wake == due {
            return;
        }
        let late = self.draw(index).below(TIMER_LATE_MAX);
        let node = &mut self.nodes[index];
        (node.wake, node.turn) = (due, node.turn + 1);
        let turn = node.turn;
        self.stage.enter(due + late, Happening::Wake { node: narrow(index), turn });
    }

    /// Carries out one task; false if the process died of it.
    fn carry_out(&mut self, index: usize, run: &mut Run<P>, task: Task<P::Call>) -> bool {
        match task {
            Task::Call(call, records) => {
                self.judge_call(index, &records);
                if P::FENCED {
                    records.iter().for_each(|record| self.judge_record(index, run, record));
                }
                self.send(index, Call::Put { call, records })
            }
            Task::Store(lane, id, parked) => {
                let Some((content, _)) = Event::read(&parked.content) else { return true };
                self.send(index, Call::Park { lane, id, content })
            }
            Task::Replace(refused) => {
                self.replace(index, run, &refused);
                true
            }
        }
    }

    /// CP-3 and CP-4, for a record that is about to be sent.
    fn judge_record(&mut self, index: usize, run: &mut Run<P>, record: &Record) {
        let Some((first, _)) = Event::read(&record.data) else { return };
        let lane = usize::from(first.lane.0);
        run.under[lane] += 1;
        let verdict = run.meter.send(self.stage.now, record, &self.plan.settings);
        self.stage.check(Rule::ShardRate, verdict.map_err(|what| format!("{}: {what}", name(index))));
        if run.under[lane] > 1 {
            let what = format!("{} has two records of lane {lane} under way", name(index));
            self.stage.check(Rule::OneUnderWay, Err(what));
        }
        if let Some((change, bytes)) = &run.sent[lane]
            && *change == first.change
            && *bytes != record.data
            && Event::read(bytes).is_some_and(|(before, _)| before.pointer == first.pointer)
        {
            let what = format!("{} sends change {change} again, and not as it was", name(index));
            self.stage.check(Rule::SameBytes, Err(what));
        }
        run.sent[lane] = Some((first.change, record.data.clone()));
    }

    /// What the stream refuses becomes pointers.
    fn replace(&mut self, index: usize, run: &mut Run<P>, refused: &Refused) {
        let floor = run.pipeline.link(refused.lane).floor;
        let pointers = refused.events.iter().filter_map(|one| {
            let (event, _) = Event::read(&one.bytes)?;
            let pointer = Event { prev: one.prev, floor, pointer: true, ..event };
            let mut bytes = Vec::with_capacity(EVENT_BYTES_MIN);
            pointer.write(0, &mut bytes);
            let parked = Parked { content: one.bytes.clone(), reason: Some(refused.reason.clone()) };
            Some((bytes, parked))
        });
        let pointers = pointers.collect();
        let now = self.monotonic(index, self.stage.now);
        run.pipeline.replace(now, refused.lane, pointers);
    }

    fn write_row(&mut self, index: usize, run: &mut Run<P>) -> bool {
        let Some(checkpointer) = &mut run.checkpointer else { return true };
        let Some(row) = self.nodes[index].row.clone() else { return true };
        let (confirmed, events) = (run.pipeline.confirmed(), run.pipeline.settled_events());
        let now = self.monotonic(index, self.stage.now);
        let checkpointer = checkpointer.poll(now, confirmed, events, run.stopping);
        let Some(lsn) = checkpointer else { return true };
        let rare = nanos(self.plan.idle_checkpoint_every);
        if events == run.row_events && !run.stopping && self.stage.now < run.row_at + rare {
            let what = format!("{} writes the row for nothing but idle progress", name(index));
            self.stage.check(Rule::IdleIsRare, Err(what));
        }
        run.writing_events = events;
        let write = self.place.advance(&Checkpoint { lsn, ..row });
        self.send(index, Call::WriteRow(write, RowWrite::Advance))
    }

    fn tell_slot(&mut self, index: usize, run: &mut Run<P>) {
        let settled = match &run.checkpointer {
            Some(checkpointer) => checkpointer.feedback(),
            None => run.pipeline.confirmed(),
        };
        if settled <= run.told {
            return;
        }
        run.told = settled;
        if self.nodes[index].cut[Service::Postgres as usize] == 0 {
            let mut draw = self.session_draw();
            let at = self.stage.now + self.latency(&mut draw);
            self.stage.enter(at, Happening::Feedback { session: run.session, lsn: settled });
        }
    }

    // === what comes back ===

    pub(super) fn put_answered(&mut self, index: usize, flight: u32, call: P::Call, answer: Answer) {
        let lanes = if P::FENCED { self.lanes_of(flight) } else { Vec::new() };
        let now = self.monotonic(index, self.stage.now);
        let Some(run) = &mut self.nodes[index].run else { return };
        for lane in lanes {
            run.under[usize::from(lane.0)] -= 1;
        }
        run.pipeline.answered(now, call, answer);
        self.drive(index);
    }

    pub(super) fn parked(&mut self, index: usize, lane: Lane, durable: bool) {
        let now = self.monotonic(index, self.stage.now);
        let Some(run) = &mut self.nodes[index].run else { return };
        run.pipeline.stored(now, lane, durable);
        self.drive(index);
    }

    pub(super) fn row_advanced(&mut self, index: usize, landed: bool, refused: bool) {
        let (now, at) = (self.monotonic(index, self.stage.now), self.stage.now);
        let Some(run) = &mut self.nodes[index].run else { return };
        if refused {
            self.stage.trace.tell(self.stage.now, format_args!("{} may not write the row", name(index)));
            return self.look_later(index, SECOND);
        }
        let Some(checkpointer) = &mut run.checkpointer else { return };
        checkpointer.written(now, landed);
        run.row_at = at;
        if landed {
            run.row_events = run.writing_events;
        }
        self.drive(index);
    }
}
