//! Calls to the lock, the store, the stream and the database, and what becomes of them on the way.

use tenure_backend::Kind;
use tenure_cdc::checkpoint::Checkpoint;
use tenure_cdc::publisher::Answer;
use tenure_cdc::start::{ServerView, SlotView};
use tenure_store::Write;
use tenure_stream::identity::{Lane, Lsn, Position};
use tenure_stream::{HashKey, Put, Record};

use super::{Happening, Service, Session, World, narrow, wide};
use crate::calendar::SECOND;
use crate::cdc::checkers::Rule;
use crate::cdc::consumer::Seen;
use crate::cdc::event::Event;
use crate::cdc::fault::Fault;
use crate::cdc::pipeline::Pipeline;
use crate::draws::Draw;
use crate::scenario::{Named, name};

/// A call under way.
pub(super) struct Flight<P: Pipeline> {
    pub(super) node: u8,
    pub(super) life: u32,
    attempt: u32,
    call: Option<Call<P>>,
    sent_at: u64,
    by: u64,
    back: u64,
    /// Its reply gets lost.
    mute: bool,
    /// Some of its records are turned away.
    throttled: bool,
    /// The caller waits no more.
    over: bool,
    reply: Option<Reply>,
    draw: Draw,
}

/// What a node asks for.
pub(super) enum Call<P: Pipeline> {
    Acquire,
    Renew {
        epoch: u64,
    },
    Release {
        epoch: u64,
    },
    ReadRow,
    WriteRow(Write, RowWrite),
    Park {
        lane: Lane,
        id: Position,
        content: Event,
    },
    Put {
        call: P::Call,
        records: Vec<Record>,
    },
    /// Takes the slot, to read from there.
    Connect {
        from: Lsn,
    },
    /// Asks the server about itself and the slot.
    Ask,
}

/// Why the row is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowWrite {
    Stamp,
    Create,
    Advance,
}

/// What it is told.
#[derive(Debug)]
enum Reply {
    Failed,
    Locked(Option<u64>),
    Row(Option<Checkpoint>),
    Written(bool),
    Parked,
    Puts(Vec<Put>),
    Connected(Option<u32>),
    Busy,
    Views(ServerView, Option<SlotView>),
}

impl<P: Pipeline> Call<P> {
    const fn service(&self) -> Service {
        match self {
            Self::Acquire | Self::Renew { .. } | Self::Release { .. } => Service::Lock,
            Self::ReadRow | Self::WriteRow(..) | Self::Park { .. } => Service::Store,
            Self::Put { .. } => Service::Stream,
            Self::Connect { .. } | Self::Ask => Service::Postgres,
        }
    }

    /// Whether it can have an effect after its caller gave up.
    const fn lands_alone(&self) -> bool {
        matches!(self, Self::WriteRow(..) | Self::Park { .. } | Self::Put { .. })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Acquire => "asks for the lock",
            Self::Renew { .. } => "renews",
            Self::Release { .. } => "releases the lock",
            Self::ReadRow => "reads the row",
            Self::WriteRow(_, RowWrite::Stamp) => "stamps its fence on the row",
            Self::WriteRow(_, RowWrite::Create) => "creates the row",
            Self::WriteRow(_, RowWrite::Advance) => "writes the row",
            Self::Park { .. } => "parks",
            Self::Put { .. } => "puts",
            Self::Connect { .. } => "takes the slot",
            Self::Ask => "asks the server",
        }
    }
}

impl<P: Pipeline> World<'_, P> {
    /// Sends a call; false if the process died of it.
    pub(super) fn send(&mut self, index: usize, call: Call<P>) -> bool {
        if let Some((left, last_happens)) = &mut self.nodes[index].crash_in {
            if *left > 0 {
                *left -= 1;
            } else {
                let last_happens = *last_happens;
                self.nodes[index].crash_in = None;
                if last_happens {
                    self.take_off(index, call);
                }
                self.stage.trace.tell(self.stage.now, format_args!("! {} crashes there", name(index)));
                self.vanish(index);
                return false;
            }
        }
        self.take_off(index, call);
        true
    }

    fn take_off(&mut self, index: usize, call: Call<P>) {
        let (now, heal_at) = (self.stage.now, self.plan.course.heal_at);
        let service = call.service();
        let network = self.plan.network;
        let node = &mut self.nodes[index];
        node.calls += 1;
        let (number, cut) = (node.calls, node.cut[service as usize] > 0);
        let mut draw = node.call_draws.at(u64::from(number));
        let (life, attempt) = (node.life, node.attempt);
        let picked = if self.healed { None } else { network.pick(draw.take()) };
        let (mut there, mut back) = (self.latency(&mut draw), self.latency(&mut draw));
        let coin = draw.take();
        let fault = picked.and_then(|fault| self.fault_of_call(index, number, fault, &call));
        self.tell_call(index, &call, fault);
        let flight = wide(self.flights.len());
        let alone = call.lands_alone();
        let by = now + network.time_limit;
        self.flights.push(Flight {
            node: narrow(index),
            life,
            attempt,
            call: Some(call),
            sent_at: now,
            by,
            back,
            mute: false,
            throttled: fault == Some(Fault::Throttled),
            over: false,
            reply: None,
            draw,
        });
        let capped = |at: u64| at.min(heal_at.max(now + there));
        self.stage.enter(by, Happening::GiveUp { flight });
        if cut {
            return;
        }
        match fault {
            None | Some(Fault::Throttled) => self.stage.enter(now + there, Happening::Arrive { flight }),
            Some(Fault::Failed) => {
                self.flights[flight as usize].reply = Some(Reply::Failed);
                self.stage.enter(now + there + back, Happening::Reply { flight });
            }
            Some(Fault::RequestLost) => {}
            Some(Fault::ReplyLost) => {
                self.flights[flight as usize].mute = true;
                self.stage.enter(now + there, Happening::Arrive { flight });
                if coin & 1 == 1 {
                    // A lost connection is noticed at once, a lost packet only at the time limit.
                    self.stage.enter(now + there + back, Happening::GiveUp { flight });
                }
            }
            Some(Fault::Late) => {
                let lands = capped(now + there + draw.below(network.late_by_max));
                self.stage.enter(lands, Happening::Land { flight });
                if coin & 1 == 1 {
                    self.stage.enter(now + there + back, Happening::GiveUp { flight });
                }
            }
            Some(Fault::Duplicated) => {
                let lands = capped(now + there + draw.below(network.late_by_max));
                self.stage.enter(now + there, Happening::Arrive { flight });
                self.stage.enter(lands, Happening::Land { flight });
            }
            Some(_) => {
                let slow_by = draw.below(network.slow_by_max);
                if alone && coin & 2 == 2 {
                    there = capped(now + there + slow_by) - now;
                } else {
                    back += slow_by;
                    self.flights[flight as usize].back = back;
                }
                self.stage.enter(now + there, Happening::Arrive { flight });
            }
        }
    }

    /// The fault that this call meets after all: not every fault can befall every call.
    fn fault_of_call(&mut self, index: usize, number: u32, fault: Fault, call: &Call<P>) -> Option<Fault> {
        let fault = match fault {
            Fault::Late if !call.lands_alone() => Fault::RequestLost,
            Fault::Duplicated if !call.lands_alone() => return None,
            Fault::Throttled if !matches!(call, Call::Put { .. }) => Fault::Failed,
            fault => fault,
        };
        if self.plan.course.spared_calls.contains(&(index, number)) {
            return None;
        }
        self.stage.outcome.faults.count(fault);
        if self.stage.trace.has_lines() {
            self.stage.outcome.call_faults.push((index, number, fault));
        }
        Some(fault)
    }

    fn tell_call(&mut self, index: usize, call: &Call<P>, fault: Option<Fault>) {
        let now = self.stage.now;
        self.stage.trace.mix(now << 4 | call.service() as u64);
        if !self.stage.trace.has_lines() {
            return;
        }
        let what = match call {
            Call::Put { records, .. } => {
                let between = self.between();
                let texts = records.iter().map(|record| {
                    let changes =
                        Event::read_all(&record.data, between).map(|event| event.change.to_string());
                    changes.collect::<Vec<_>>().join("+")
                });
                format!(" changes {}", texts.collect::<Vec<_>>().join(", "))
            }
            Call::Park { content, .. } => format!(" change {}", content.change),
            _ => String::new(),
        };
        let fault = fault.map_or_else(String::new, |fault| format!(" .. {}", fault.name()));
        let telling = !matches!(call, Call::Renew { .. } | Call::Acquire) || !fault.is_empty();
        let text = format!("{} {}{what}{fault}", name(index), call.name());
        if telling {
            self.stage.trace.tell(now, format_args!("{text}"));
        } else {
            self.stage.trace.note(now, format_args!("{text}"));
        }
    }

    /// How many bytes stand between two events of a record.
    pub(super) fn between(&self) -> usize {
        usize::from(P::FENCED && self.plan.settings.framing.holds_many())
    }

    // === there ===

    pub(super) fn arrive(&mut self, flight: u32) {
        let Flight { node, life, over, mute, back, .. } = self.flights[flight as usize];
        let index = usize::from(node);
        let Some(call) = self.flights[flight as usize].call.take() else { return };
        let alive = self.nodes[index].up && self.nodes[index].life == life && !over;
        if !alive && call.service() == Service::Postgres {
            // Its connection is gone, and with it what it asked for.
            return;
        }
        let reply = self.serve(flight, &call);
        self.flights[flight as usize].call = Some(call);
        let failed = matches!(reply, Reply::Failed);
        self.flights[flight as usize].reply = Some(reply);
        let cut = self.nodes[index].cut[self.service_of(flight) as usize] > 0;
        if (!mute || failed) && !cut {
            self.stage.enter(self.stage.now + back, Happening::Reply { flight });
        }
    }

    fn service_of(&self, flight: u32) -> Service {
        self.flights[flight as usize].call.as_ref().map_or(Service::Stream, Call::service)
    }

    /// Nobody waits for it any more, or the network brought it once more.
    pub(super) fn land(&mut self, flight: u32) {
        let Some(call) = self.flights[flight as usize].call.take() else { return };
        self.stage.trace.note(self.stage.now, format_args!("  late: {}", call.name()));
        let _ = self.serve(flight, &call);
        self.flights[flight as usize].call = Some(call);
    }

    fn serve(&mut self, flight: u32, call: &Call<P>) -> Reply {
        let out = match call.service() {
            Service::Stream => self.stream_outages > 0,
            Service::Store => self.store_outages > 0,
            Service::Lock | Service::Postgres => false,
        };
        if out {
            return Reply::Failed;
        }
        match call {
            Call::Acquire => {
                if self.lock.expires > self.stage.now {
                    return Reply::Locked(None);
                }
                self.lock.epoch += 1;
                self.lock.expires = self.stage.now + self.plan.lease;
                Reply::Locked(Some(self.lock.epoch))
            }
            Call::Renew { epoch } => {
                let held = *epoch == self.lock.epoch && self.lock.expires > self.stage.now;
                if held {
                    self.lock.expires = self.stage.now + self.plan.lease;
                }
                Reply::Locked(held.then_some(*epoch))
            }
            Call::Release { epoch } => {
                if *epoch == self.lock.epoch {
                    self.lock.expires = 0;
                }
                Reply::Locked(None)
            }
            Call::ReadRow => Reply::Row(self.checkpoint()),
            Call::WriteRow(write, _) => Reply::Written(self.apply_row(write)),
            Call::Park { id, content, .. } => {
                self.ledger.parked(id, content);
                self.check_ledger();
                Reply::Parked
            }
            Call::Put { records, .. } => Reply::Puts(self.put(flight, records)),
            Call::Connect { from } => self.connect(flight, *from),
            Call::Ask => Reply::Views(self.source.server(), self.source.slot_view()),
        }
    }

    fn put(&mut self, flight: u32, records: &[Record]) -> Vec<Put> {
        let Flight { throttled, draw, .. } = &mut self.flights[flight as usize];
        let turned_away = *throttled || self.storms > 0;
        let mut draws = *draw;
        let mut results = Vec::with_capacity(records.len());
        for record in records {
            let result = if record.size_bytes() > self.stream.record_bytes_max {
                Put::Refused { reason: "too large".to_owned() }
            } else if turned_away && draws.take() & 1 == 1 {
                Put::Throttled
            } else {
                self.store(record)
            };
            results.push(result);
        }
        self.flights[flight as usize].draw = draws;
        self.check_ledger();
        results
    }

    /// A record is in the stream.
    fn store(&mut self, record: &Record) -> Put {
        let between = self.between();
        let key = record.explicit_hash_key.unwrap_or(HashKey::MIN);
        let (shard, id, sequence) = self.stream.place(key);
        let tally = &mut self.stage.outcome.tally;
        for event in Event::read_all(&record.data, between) {
            debug_assert_eq!(self.plan.lanes.hash_key(event.lane), key, "a record is routed by its lane");
            self.stage.trace.mix(u64::from(event.change));
            tally.landed += 1;
            if self.ledger.landed(&event, &self.source) {
                tally.first += 1;
                tally.pointers += u64::from(event.pointer);
            }
            if !P::FENCED {
                continue;
            }
            let seen = shard.consumer.take(&event);
            match seen {
                Seen::New => tally.delivered += 1,
                Seen::Duplicate => tally.duplicates += 1,
                Seen::Zombie => tally.zombies += 1,
                Seen::Gap => {}
            }
            self.ledger.consumed(&event, seen);
        }
        if self.stage.trace.has_lines() {
            let changes =
                Event::read_all(&record.data, between).map(|event| event.change).collect::<Vec<_>>();
            self.stage.trace.tell(self.stage.now, format_args!("  landed: {changes:?} in {id}"));
        }
        Put::Stored { shard: id, sequence }
    }

    fn connect(&mut self, flight: u32, from: Lsn) -> Reply {
        let Flight { node, life, .. } = self.flights[flight as usize];
        let Some(slot) = self.source.slot.as_ref().filter(|slot| !slot.lost) else {
            return Reply::Connected(None);
        };
        if let Some(other) = slot.session {
            let session = &self.sessions[other as usize];
            let reader = &self.nodes[usize::from(session.node)];
            let unreachable = reader.paused > 0 || reader.cut[Service::Postgres as usize] > 0;
            let since = if session.left { session.left_at } else { reader.unreachable_since };
            let timed_out =
                (session.left || unreachable) && self.stage.now > since + self.plan.session_timeout;
            let died = reader.life != session.life;
            if !died && !timed_out && !self.plan.ends_old_session {
                return Reply::Busy;
            }
            self.end_session(other);
        }
        let Some(slot) = &mut self.source.slot else { return Reply::Connected(None) };
        let number = wide(self.sessions.len());
        let start = from.max(slot.confirmed);
        slot.session = Some(number);
        let sent = self.source.from(start);
        self.sessions.push(Session {
            node,
            life,
            alive: true,
            left: false,
            left_at: 0,
            start,
            sent,
            arrived: 0,
        });
        self.deliver(number);
        let first = self.stage.now + self.session_draw().below(SECOND);
        self.stage.enter(first, Happening::Keepalive { session: number });
        Reply::Connected(Some(number))
    }

    // === and back ===

    pub(super) fn reply(&mut self, flight: u32) {
        let Some(reply) = self.flights[flight as usize].reply.take() else { return };
        self.answered(flight, reply);
    }

    /// The time limit has passed: whatever it was, its outcome is unknown.
    pub(super) fn give_up(&mut self, flight: u32) {
        if let Some(Reply::Connected(Some(session))) = self.flights[flight as usize].reply
            && !self.flights[flight as usize].over
        {
            self.leave_session(session);
        }
        self.answered(flight, Reply::Failed);
    }

    fn answered(&mut self, flight: u32, reply: Reply) {
        let Flight { node, attempt, sent_at, over, by, .. } = self.flights[flight as usize];
        if over {
            return;
        }
        self.flights[flight as usize].over = true;
        let index = usize::from(node);
        let Some(call) = self.flights[flight as usize].call.as_ref() else { return };
        let unknown = if self.stage.now >= by { Kind::Unknown } else { Kind::Unavailable };
        match (call, &reply) {
            (Call::Acquire, Reply::Locked(Some(epoch))) => {
                let epoch = *epoch;
                if self.nodes[index].until <= self.stage.now && sent_at + self.plan.lease > self.stage.now {
                    self.elected(index, epoch, sent_at);
                } else {
                    self.campaign_later(index);
                }
                return;
            }
            (Call::Acquire, _) => return self.campaign_later(index),
            (Call::Renew { epoch }, Reply::Locked(held)) => {
                if self.nodes[index].epoch == *epoch && self.nodes[index].until > 0 {
                    match held {
                        Some(_) => {
                            self.nodes[index].until = self.nodes[index].until.max(sent_at + self.plan.lease)
                        }
                        None => self.step_down(index, "somebody else has the lock"),
                    }
                }
                return;
            }
            (Call::Renew { .. } | Call::Release { .. }, _) => return,
            _ => {}
        }
        if attempt != self.nodes[index].attempt {
            if let Reply::Connected(Some(session)) = reply {
                self.leave_session(session);
            }
            return;
        }
        match (call, reply) {
            (Call::ReadRow, Reply::Row(row)) => self.row_read(index, row),
            (Call::WriteRow(_, RowWrite::Advance), reply) => {
                self.row_advanced(
                    index,
                    matches!(reply, Reply::Written(true)),
                    matches!(reply, Reply::Written(false)),
                );
            }
            (Call::WriteRow(_, kind), reply) => {
                let kind = *kind;
                self.row_begun(index, kind, matches!(reply, Reply::Written(true)));
            }
            (Call::Park { lane, .. }, reply) => {
                let lane = *lane;
                self.parked(index, lane, matches!(reply, Reply::Parked));
            }
            (Call::Put { call, .. }, reply) => {
                let call = *call;
                let answer = match reply {
                    Reply::Puts(results) => Answer::Records(results),
                    _ => Answer::Failed(unknown),
                };
                self.put_answered(index, flight, call, answer);
            }
            (Call::Connect { .. }, Reply::Connected(session)) => self.connected(index, session),
            (Call::Ask, Reply::Views(server, slot)) => self.decide(index, &server, slot.as_ref()),
            _ => self.look_later(index, SECOND),
        }
    }

    /// The lanes of a call that has ended.
    pub(super) fn lanes_of(&self, flight: u32) -> Vec<Lane> {
        let Some(Call::Put { records, .. }) = &self.flights[flight as usize].call else { return Vec::new() };
        let first = |record: &Record| Event::read(&record.data).map(|(event, _)| event.lane);
        records.iter().filter_map(first).collect()
    }

    /// CD-6, CP-3 and CP-4, for a call that is about to be sent.
    pub(super) fn judge_call(&mut self, index: usize, records: &[Record]) {
        let node = &self.nodes[index];
        if node.until <= self.stage.now {
            self.stage.check(Rule::Cd6, Err(format!("{} sends after its term", name(index))));
        }
        let beside = self.nodes.iter().enumerate();
        let beside = beside
            .filter(|(other, node)| *other != index && node.run.is_some() && node.until > self.stage.now);
        self.stage.outcome.tally.two_leaders += u64::from(beside.count() > 0);
        if records.is_empty() {
            self.stage.check(Rule::Bounded, Err(format!("{} sends a call without records", name(index))));
        }
    }
}
