//! The world: true time, a few nodes, and between them a lock, a store, a database and a stream.
//!
//! ```text
//!   lock ── campaign ──► row read ──► fence stamped ──► slot taken ──► begin? ──► run
//!                                                                       │          │ feed, put, park,
//!                                                              halts ◄──┘          │ write the row,
//!                                                   an operator accepts the gap    ▼ tell the slot
//! ```
//!
//! A paused node takes nothing in: what reaches it waits until it resumes. What it has sent goes on.

mod calls;
mod incidents;
mod leading;
mod running;

use std::collections::VecDeque;

use bytes::Bytes;
use tenure_cdc::checkpoint::{Checkpoint, CheckpointPlace, Checkpointer};
use tenure_clock::Monotonic;
use tenure_election::table_spec;
use tenure_store::{Item, TableSpec};
use tenure_stream::identity::{Era, Lsn};

use self::calls::Flight;
use super::checkers::{Ledger, Rule};
use super::pipeline::Pipeline;
use super::plan::{Plan, WORKLOAD_AFTER};
use super::shard_meter::ShardMeter;
use super::source::Source;
use super::stream::Stream;
use super::{Cdc, Outcome};
use crate::calendar::{MILLI, SECOND};
use crate::draws::{Draw, Draws};
use crate::scenario::{Watch, name};
use crate::stage::Stage;

/// More than any schedule needs, by far: beyond it, somebody spins.
const EVENTS_MAX: u64 = 1_000_000;
/// How often the server writes down where the slot is.
const PERSIST_EVERY: u64 = 7 * SECOND;
/// How late a timer fires at most.
const TIMER_LATE_MAX: u64 = 2 * MILLI;
/// A timer that is due is not set to this very moment.
const TIMER_MIN: u64 = MILLI / 10;
/// The streams of draws that belong to the world, and not to a node.
const WORKLOAD: u64 = 1001;
const SESSIONS: u64 = 1002;
const TABLE: &str = "tenure_coordination";

/// What the calendar holds.
#[derive(Debug, Clone, Copy)]
enum Happening {
    /// A transaction commits.
    Commit,
    /// The server writes down where the slot is.
    Persist,
    /// A process starts.
    Start {
        node: u8,
        life: u32,
    },
    /// A node asks for the lock.
    Campaign {
        node: u8,
        life: u32,
    },
    /// A leader without a run looks where it could begin.
    Look {
        node: u8,
        attempt: u32,
    },
    /// A leader renews its lock.
    Renew {
        node: u8,
        life: u32,
        epoch: u64,
    },
    /// A node's timer.
    Wake {
        node: u8,
        turn: u32,
    },
    /// A run takes in what has arrived.
    Feed {
        node: u8,
        session: u32,
    },
    /// Transactions reach a reader.
    Sent {
        session: u32,
        upto: u32,
    },
    /// The server says that it is there.
    Keepalive {
        session: u32,
    },
    /// And that reaches the reader.
    Named {
        session: u32,
        upto: u32,
        lsn: Lsn,
    },
    /// A reader notices that its session is over.
    HungUp {
        session: u32,
    },
    /// What a reader confirms reaches the server.
    Feedback {
        session: u32,
        lsn: Lsn,
    },
    /// A call reaches its service.
    Arrive {
        flight: u32,
    },
    /// A call reaches its service, and nobody waits for it any more.
    Land {
        flight: u32,
    },
    /// A reply reaches its node.
    Reply {
        flight: u32,
    },
    /// A node's time limit for a call.
    GiveUp {
        flight: u32,
    },
    /// An operator looks after a leader that halted.
    Operator,
    Begin {
        incident: u32,
    },
    End {
        incident: u32,
    },
    Heal,
}

/// What a node talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Stream,
    Store,
    Lock,
    Postgres,
}

struct Node<P: Pipeline> {
    up: bool,
    /// Counts processes.
    life: u32,
    clock_origin: u64,
    paused: u32,
    cut: [u32; 4],
    /// Since when the server cannot reach it.
    unreachable_since: u64,
    /// What waits until the node resumes.
    waiting: Vec<Happening>,
    epoch: u64,
    /// Until when it leads.
    until: u64,
    /// Counts attempts to begin; replies to older ones are void.
    attempt: u32,
    row: Option<Checkpoint>,
    /// The slot is taken, but nothing runs yet.
    session: Option<u32>,
    run: Option<Run<P>>,
    /// It will crash after so many more effects, and whether the last of them still happens.
    crash_in: Option<(u32, bool)>,
    restart_at: u64,
    wake: u64,
    turn: u32,
    calls: u32,
    steps: u64,
    draws: Draws,
    call_draws: Draws,
}

/// A leader's publisher, from the moment at which it began until its session or its term ends.
struct Run<P> {
    /// Its session, which has the same number as the run.
    session: u32,
    pipeline: P,
    checkpointer: Option<Checkpointer>,
    era: Era,
    epoch: u64,
    taken: usize,
    open: Option<(u32, u32)>,
    keepalives: VecDeque<(u32, Lsn)>,
    feeding: bool,
    told: Lsn,
    stopping: bool,
    /// Records under way on each lane.
    under: Vec<u32>,
    /// What it has sent to each shard.
    meter: ShardMeter,
    /// The last record that each lane sent: its first change.
    sent: Vec<Option<(u32, Bytes)>>,
    /// When the row was written, and how much was settled then.
    row_at: u64,
    row_events: u64,
    /// How much is settled by the write that is under way.
    writing_events: u64,
}

struct Session {
    node: u8,
    /// Which process of the node.
    life: u32,
    /// Alive as the server sees it.
    alive: bool,
    /// Left by its reader; the server may not know.
    left: bool,
    left_at: u64,
    start: Lsn,
    sent: Vec<u32>,
    arrived: u32,
}

#[derive(Default)]
struct Lock {
    epoch: u64,
    expires: u64,
}

pub(super) struct World<'p, P: Pipeline> {
    plan: &'p Plan,
    stage: Stage<Cdc, Happening>,
    nodes: Vec<Node<P>>,
    lock: Lock,
    place: CheckpointPlace,
    spec: TableSpec,
    row: Option<Item>,
    source: Source,
    sessions: Vec<Session>,
    stream: Stream,
    ledger: Ledger,
    flights: Vec<Flight<P>>,
    stream_outages: u32,
    store_outages: u32,
    storms: u32,
    lowered: u32,
    operator_called: bool,
    healed: bool,
    works: u64,
    work_draws: Draws,
    session_draws: Draws,
    befell: Vec<Option<(u8, u32)>>,
}

impl<'p, P: Pipeline> World<'p, P> {
    pub(super) fn new(plan: &'p Plan, watch: Watch<Rule>) -> Self {
        let key = plan.course.key;
        let nodes = plan.nodes.iter().enumerate().map(|(index, node)| Node {
            up: false,
            life: 0,
            clock_origin: node.clock_origin,
            paused: 0,
            cut: [0; 4],
            unreachable_since: 0,
            waiting: Vec::new(),
            epoch: 0,
            until: 0,
            attempt: 0,
            row: None,
            session: None,
            run: None,
            crash_in: None,
            restart_at: 0,
            wake: u64::MAX,
            turn: 0,
            calls: 0,
            steps: 0,
            draws: Draws::new(key, 2 * index as u64),
            call_draws: Draws::new(key, 2 * index as u64 + 1),
        });
        let source = Source::new(key, plan.lanes, plan.workload);
        let mut world = Self {
            plan,
            stage: Stage::new(plan.course.end_at, EVENTS_MAX, watch),
            nodes: nodes.collect(),
            lock: Lock::default(),
            place: CheckpointPlace { table: TABLE.into(), stream: "orders".into(), source: "shop".into() },
            spec: table_spec(TABLE),
            row: None,
            sessions: Vec::new(),
            stream: Stream::new(plan.shards, plan.lanes, plan.limits.bytes_per_record_max),
            ledger: Ledger::new(source.keys(), plan.lanes),
            source,
            flights: Vec::with_capacity(256),
            stream_outages: 0,
            store_outages: 0,
            storms: 0,
            lowered: 0,
            operator_called: false,
            healed: false,
            works: 0,
            work_draws: Draws::new(key, WORKLOAD),
            session_draws: Draws::new(key, SESSIONS),
            befell: vec![None; plan.course.incidents.len()],
        };
        world.set_out();
        world
    }

    /// Enters what the plan says.
    fn set_out(&mut self) {
        for (index, node) in self.plan.nodes.iter().enumerate().filter(|(_, node)| node.present) {
            self.stage.enter(node.starts_at, Happening::Start { node: narrow(index), life: 0 });
        }
        let Plan { lanes, lease, settings, limits, shards, .. } = self.plan;
        self.stage.trace.tell(
            0,
            format_args!(
                "{} lanes, {shards} shards, lease {} ms, up to {} events and {} calls under way, records of {} of at \
                 most {} bytes, {:?}",
                lanes.count(),
                lease / MILLI,
                settings.inflight_events_max,
                settings.calls_max,
                settings.record_bytes_max,
                limits.bytes_per_record_max,
                settings.framing,
            ),
        );
        for (index, incident) in self.plan.course.incidents.iter().enumerate() {
            self.stage.enter(incident.at, Happening::Begin { incident: wide(index) });
        }
        self.stage.enter(1, Happening::Commit);
        self.stage.enter(PERSIST_EVERY, Happening::Persist);
        self.stage.enter(self.plan.course.heal_at + 1, Happening::Heal);
    }

    pub(super) fn run(mut self) -> Outcome {
        while let Some(happening) = self.stage.take_next() {
            self.happen(happening);
        }
        if self.stage.spins() {
            self.stage.check(Rule::Bounded, Err("a million events, and no end".to_owned()));
        }
        if !self.stage.is_over() {
            self.stage.move_to_end();
            self.finish();
        }
        self.stage.outcome.tally.committed = self.source.changes.len() as u64;
        self.stage.finish()
    }

    /// What must be so when all has been well for a while.
    fn finish(&mut self) {
        self.ledger.committed(&self.source);
        let verdict = self.ledger.complete(&self.source, P::FENCED);
        self.stage.check(Rule::Cd1, verdict);
        if !P::FENCED {
            return;
        }
        let last = self.source.log.last().map(|number| self.source.transactions[*number as usize].end);
        let row = self.checkpoint().map(|row| row.lsn);
        if row < last {
            let what = format!("the row is at {row:?}, and the last commit ends at {last:?}");
            self.stage.check(Rule::Heals, Err(what));
        }
        let slot = self.source.slot.as_ref().map(|slot| slot.confirmed);
        if slot < last {
            let what = format!("the slot is at {slot:?}, and the last commit ends at {last:?}");
            self.stage.check(Rule::Heals, Err(what));
        }
    }

    fn check_ledger(&mut self) {
        for (rule, what) in std::mem::take(&mut self.ledger.broken) {
            if P::FENCED || matches!(rule, Rule::Cd1 | Rule::Cd3) {
                self.stage.check(rule, Err(what));
            }
        }
    }

    // === what happens ===

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Commit => self.commit(),
            Happening::Persist => {
                if let Some(slot) = &mut self.source.slot {
                    slot.persisted = slot.confirmed;
                }
                self.stage.enter(self.stage.now + PERSIST_EVERY, Happening::Persist);
            }
            Happening::Start { node, life } => self.start(usize::from(node), life),
            Happening::Campaign { node, life } | Happening::Renew { node, life, .. } => {
                let node = usize::from(node);
                if self.nodes[node].up && self.nodes[node].life == life {
                    self.reach(node, happening);
                }
            }
            Happening::Look { node, attempt } => {
                let node = usize::from(node);
                if self.nodes[node].up && self.nodes[node].attempt == attempt {
                    self.reach(node, happening);
                }
            }
            Happening::Wake { node, turn } => {
                let node = usize::from(node);
                if self.nodes[node].turn == turn {
                    self.nodes[node].wake = u64::MAX;
                    if self.nodes[node].paused == 0 {
                        self.drive(node);
                    }
                }
            }
            Happening::Feed { node, session } => {
                let node = usize::from(node);
                if self.nodes[node].run.as_ref().is_some_and(|run| run.session == session) {
                    self.reach(node, happening);
                }
            }
            Happening::Sent { session, .. }
            | Happening::Named { session, .. }
            | Happening::HungUp { session } => {
                let node = usize::from(self.sessions[session as usize].node);
                let reads = self.nodes[node].session == Some(session)
                    || self.nodes[node].run.as_ref().is_some_and(|run| run.session == session);
                let session = &self.sessions[session as usize];
                if !reads && (session.left || self.nodes[node].life != session.life) {
                    return;
                }
                // Its reader may not know yet that it has the slot.
                if !reads || self.nodes[node].cut[Service::Postgres as usize] > 0 {
                    // It is sent again until it arrives.
                    self.stage.enter(self.stage.now + SECOND / 2, happening);
                } else {
                    self.reach(node, happening);
                }
            }
            Happening::Keepalive { session } => self.keepalive(session),
            Happening::Feedback { session, lsn } => self.feedback(session, lsn),
            Happening::Arrive { flight } => self.arrive(flight),
            Happening::Land { flight } => self.land(flight),
            Happening::Reply { flight } | Happening::GiveUp { flight } => {
                let Flight { node, life, .. } = self.flights[flight as usize];
                let node = usize::from(node);
                if self.nodes[node].up && self.nodes[node].life == life {
                    self.reach(node, happening);
                }
            }
            Happening::Operator => self.accept_gap(),
            Happening::Begin { incident } => self.begin(incident),
            Happening::End { incident } => self.end(incident),
            Happening::Heal => {
                self.healed = true;
                self.stage.trace.tell(self.stage.now, format_args!("the faults stop"));
            }
        }
    }

    /// Something reaches a process that runs: now, or when it resumes.
    fn reach(&mut self, node: usize, happening: Happening) {
        if self.nodes[node].paused > 0 {
            self.nodes[node].waiting.push(happening);
            return;
        }
        match happening {
            Happening::Campaign { .. } => self.campaign(node),
            Happening::Renew { epoch, .. } => self.renew(node, epoch),
            Happening::Look { .. } => self.look(node),
            Happening::Feed { .. } => self.feed(node),
            Happening::Sent { session, upto } => {
                let session = &mut self.sessions[session as usize];
                session.arrived = session.arrived.max(upto);
                self.feed_soon(node);
            }
            Happening::Named { session, upto, lsn } => {
                let session = &mut self.sessions[session as usize];
                session.arrived = session.arrived.max(upto);
                if let Some(run) = &mut self.nodes[node].run {
                    run.keepalives.push_back((upto, lsn));
                }
                self.feed_soon(node);
            }
            Happening::HungUp { .. } => {
                self.stage.trace.tell(self.stage.now, format_args!("{} has lost its session", name(node)));
                self.look_later(node, SECOND);
            }
            Happening::Reply { flight } => self.reply(flight),
            Happening::GiveUp { flight } => self.give_up(flight),
            _ => {}
        }
    }

    fn draw(&mut self, node: usize) -> Draw {
        let node = &mut self.nodes[node];
        node.steps += 1;
        node.draws.at(node.steps)
    }

    fn latency(&self, draw: &mut Draw) -> u64 {
        let network = &self.plan.network;
        network.latency_min + draw.below(network.latency_max - network.latency_min)
    }

    fn session_draw(&mut self) -> Draw {
        self.works += 1;
        self.session_draws.at(self.works)
    }

    fn monotonic(&self, node: usize, at: u64) -> Monotonic {
        Monotonic::from_nanos(self.nodes[node].clock_origin + at)
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        self.row.as_ref().and_then(|row| Checkpoint::read(row).ok())
    }

    // === the database ===

    fn commit(&mut self) {
        let committed = self.source.transactions.len() as u64;
        let mut draw = self.work_draws.at(committed);
        if !self.source.quiet {
            if draw.below(3) == 0 {
                let bytes = draw.below(500);
                self.source.idle(bytes);
            }
            self.source.commit();
            self.ledger.committed(&self.source);
            let number = wide(self.source.transactions.len() - 1);
            if self.stage.trace.has_lines() {
                let transaction = &self.source.transactions[number as usize];
                let text = format!(
                    "commit {} to {}: changes {:?}",
                    transaction.commit, transaction.end, transaction.changes
                );
                self.stage.trace.note(self.stage.now, format_args!("{text}"));
            }
            if let Some(session) = self.source.slot.as_ref().and_then(|slot| slot.session) {
                self.sessions[session as usize].sent.push(number);
                self.deliver(session);
            }
        }
        let next = self.stage.now + 1 + draw.below(self.plan.workload.every_max);
        if next < self.plan.course.heal_at + WORKLOAD_AFTER {
            self.stage.enter(next, Happening::Commit);
        }
    }

    /// What the session has sent arrives, some time.
    fn deliver(&mut self, session: u32) {
        let mut draw = self.session_draw();
        let upto = wide(self.sessions[session as usize].sent.len());
        let at = self.stage.now + self.latency(&mut draw);
        self.stage.enter(at, Happening::Sent { session, upto });
    }

    fn keepalive(&mut self, number: u32) {
        let session = &self.sessions[number as usize];
        if !session.alive {
            return;
        }
        let upto = wide(session.sent.len());
        let mut draw = self.session_draw();
        if draw.below(2) == 0 && !self.source.quiet {
            let bytes = draw.below(300);
            self.source.idle(bytes);
        }
        let lsn = self.source.end;
        self.source.named.insert(lsn);
        let at = self.stage.now + self.latency(&mut draw);
        self.stage.enter(at, Happening::Named { session: number, upto, lsn });
        let next = self.stage.now + MILLI * 200 + draw.below(2 * SECOND);
        self.stage.enter(next, Happening::Keepalive { session: number });
    }

    fn feedback(&mut self, session: u32, lsn: Lsn) {
        let Some(slot) = &mut self.source.slot else { return };
        if slot.session != Some(session) || !self.sessions[session as usize].alive {
            return;
        }
        slot.confirmed = slot.confirmed.max(lsn);
        self.stage.trace.mix(lsn.0);
        self.stage.trace.note(self.stage.now, format_args!("  the slot is told {lsn}"));
        if !self.source.diverged {
            let verdict = self.ledger.acknowledged(lsn, &self.source);
            self.stage.check(Rule::Cd2, verdict);
        }
        if P::FENCED && self.checkpoint().is_none_or(|row| row.lsn < lsn) {
            let what = format!("the slot is told {lsn}, which the row does not hold");
            self.stage.check(Rule::RowFirst, Err(what));
        }
    }

    /// The server ends a session.
    fn end_session(&mut self, number: u32) {
        let session = &mut self.sessions[number as usize];
        if !session.alive {
            return;
        }
        session.alive = false;
        if let Some(slot) = &mut self.source.slot
            && slot.session == Some(number)
        {
            slot.session = None;
        }
        let mut draw = self.session_draw();
        let at = self.stage.now + self.latency(&mut draw);
        self.stage.enter(at, Happening::HungUp { session: number });
    }

    /// A reader ends its session; the server hears of it if it can.
    fn leave_session(&mut self, number: u32) {
        let session = &mut self.sessions[number as usize];
        (session.left, session.left_at) = (true, self.stage.now);
        let node = usize::from(session.node);
        if self.nodes[node].cut[Service::Postgres as usize] == 0 {
            self.end_session(number);
        }
    }
}

/// There are three nodes.
fn narrow(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// There are far fewer of anything than four thousand million.
fn wide(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
