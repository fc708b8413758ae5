//! The world: true time, the workers, the lease table, the stream, and what befalls them.
//!
//! ```text
//!   keeper ── call ──► table          granted, extended, lost, asked to give
//!     ▲  └────────────────────────────────────► consumer ── deliver ──► ledger
//!     └── checkpoint, give, stuck ◄──────────────┘
//! ```
//!
//! A paused worker takes nothing in: what reaches it waits until it resumes. Its clocks run on. If only its
//! keeper stalls, its consumers go on for as long as they believe that they may.

mod calls;
mod consuming;
mod ending;
mod foreigner;
mod incidents;

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_clock::Monotonic;
use tenure_leases::machine::{Alarm, Effect, Event, Fatal, Me, News, Now, Planning};
use tenure_leases::testing::LeaseTable;
use tenure_leases::{Checkpoint, WorkerId};

use self::calls::Flight;
use self::consuming::Consumer;
use super::checkers::{LastEnd, Rule, at_most_one_owner};
use super::fault::Fault;
use super::foreign::Foreign;
use super::keeper::Keeper;
use super::plan::{Names, NodePlan, Plan};
use super::stream::Stream;
use super::{Leases, Outcome, seed_rules};
use crate::calendar::nanos;
use crate::draws::{Draw, Draws};
use crate::node_clock::NodeClock;
use crate::scenario::{Verdict, Watch};
use crate::stage::{Stage, narrow, wide};

/// More than any schedule needs, by far: beyond it, somebody spins.
const EVENTS_MAX: u64 = 2_000_000;
/// How late a timer fires at most.
const TIMER_LATE_MAX: u64 = 2_000_000;
/// The streams of draws that belong to the world, and not to a worker.
const WORKLOAD: u64 = 100_001;
const CONSUMING: u64 = 100_002;
const ELECTION: u64 = 100_003;
/// The worker of another kind, where holders are listed.
const FOREIGNER: u16 = u16::MAX;

/// What the calendar holds. Small, because there are millions.
#[derive(Debug, Clone, Copy)]
enum Happening {
    /// A worker's timer.
    Wake {
        node: u16,
        turn: u32,
    },
    /// A process starts.
    Start {
        node: u16,
        life: u32,
    },
    /// A worker is told to stop.
    Halt {
        node: u16,
        life: u32,
    },
    /// A worker is told how many leases it may hold.
    Cap {
        node: u16,
        life: u32,
    },
    /// A worker hears who plans.
    Planning {
        node: u16,
        life: u32,
    },
    /// A worker is replaced by one with another cap.
    Deploy {
        node: u16,
        cap: u16,
    },
    /// Somebody is elected to plan.
    Elect {
        turn: u32,
    },
    /// A consumer takes records.
    Deliver {
        holding: u32,
    },
    /// It has processed them.
    Settle {
        holding: u32,
        batch: u32,
    },
    /// It should have by now.
    Overdue {
        holding: u32,
        batch: u32,
    },
    /// What it asks for reaches the keeper.
    Ask {
        holding: u32,
    },
    /// Its worker's keeper hears that it is stuck, or is no more.
    Stuck {
        holding: u32,
    },
    /// Records are written.
    Put,
    /// The worker of another kind does its work.
    Tick {
        turn: u32,
    },
    /// A call reaches the store.
    Arrive {
        flight: u32,
    },
    /// A write reaches the store that nobody waits for any more.
    Land {
        flight: u32,
    },
    /// A reply reaches its worker.
    Reply {
        flight: u32,
    },
    /// A worker's time limit for a call.
    GiveUp {
        flight: u32,
    },
    Begin {
        incident: u32,
    },
    End {
        incident: u32,
    },
    Heal,
    Converged,
    /// A large world has come to rest.
    Rest,
}

struct Node<K> {
    clock: NodeClock,
    name: WorkerId,
    /// The process, if one runs.
    machine: Option<K>,
    /// Counts processes.
    life: u32,
    /// It said that it takes leases.
    started: bool,
    stopping: bool,
    restart_at: u64,
    cap: usize,
    /// What it was told of that.
    cap_told: usize,
    /// When its process started.
    born_at: u64,
    /// What it was told about who plans.
    told: Planning,
    paused: u32,
    stalled: u32,
    cut_requests: u32,
    cut_replies: u32,
    /// Until when its consumers take long.
    slow_until: u64,
    /// What waits until it resumes.
    waiting: Vec<Happening>,
    /// The timer that is set, and its number: others in the calendar are void.
    wake: u64,
    turn: u32,
    calls: u32,
    steps: u64,
    /// Which holding it has of which shard.
    holds: BTreeMap<usize, u32>,
    /// The counter that was last sent for a shard, and when first, by its own clock.
    sent: BTreeMap<usize, (u64, Monotonic)>,
    /// How far each shard was, as it last saw.
    seen: BTreeMap<usize, u64>,
    /// When it received scans, as long as there is a worker of another kind.
    scans: Vec<u64>,
    draws: Draws,
    call_draws: Draws,
}

impl<K> Node<K> {
    const fn is_still(&self) -> bool {
        self.paused + self.stalled > 0
    }
}

/// What is known of a shard that nobody in the world knows.
#[derive(Debug, Clone)]
struct Shard {
    /// So many records were processed, without a gap.
    processed: u64,
    /// The highest that was delivered.
    delivered: u64,
    /// The checkpoint of its row, as it was last written.
    stored: Option<Checkpoint>,
    /// When its end was stored.
    ended: Option<u64>,
    /// Since when it can be read.
    ready_at: Option<u64>,
    last: LastEnd,
    /// When its row was last made.
    made_at: Option<u64>,
    /// Its row was deleted by hand, and is not back yet.
    torn: bool,
    was_torn: bool,
    /// When a planner last moved it, and which process of which worker.
    moved: Option<(u64, usize, u32)>,
    /// Who may deliver it, and until when.
    holders: Vec<(u16, u64)>,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            processed: 0,
            delivered: 0,
            stored: None,
            ended: None,
            ready_at: None,
            last: LastEnd::None,
            made_at: None,
            torn: false,
            was_torn: false,
            moved: None,
            holders: Vec::new(),
        }
    }
}

pub(super) struct World<'p, K> {
    plan: &'p Plan,
    stage: Stage<Leases, Happening>,
    nodes: Vec<Node<K>>,
    table: LeaseTable,
    stream: Stream,
    ledger: Vec<Shard>,
    consumers: Vec<Consumer>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    foreign: Foreign,
    planner: Option<u16>,
    second_planner: Option<u16>,
    nobody_plans: u32,
    /// No other planner follows before then.
    handover_not_before: u64,
    elections: u32,
    outages: u32,
    outage_hangs: bool,
    /// Rows are deleted by hand in this world.
    tears: bool,
    /// Two live workers with one name both took part once: the second came while the first stood still or was cut
    /// off. Rows tell them apart by nothing, so until one of them notices, each may take the other's writes for its
    /// own: what follows is judged only by whether it heals.
    twins: bool,
    healed: bool,
    converged: bool,
    work: (Draws, u64),
    consuming: (Draws, u64),
    electing: (Draws, u64),
    befell: Vec<Option<(u16, u32)>>,
    /// When all leases were first held in a large world, and how many writes that took.
    pub(super) all_held_at: Option<(u64, u64)>,
}

impl<'p, K: Keeper> World<'p, K> {
    pub(super) fn new(plan: &'p Plan, watch: Watch<Rule>) -> Self {
        let key = plan.course.key;
        let nodes = plan.nodes.iter().enumerate().map(|(index, node)| Node {
            clock: NodeClock::new(node.clock_origin, node.rate_ppm, 0),
            name: WorkerId::from(""),
            machine: None,
            life: 0,
            started: false,
            stopping: false,
            restart_at: 0,
            cap: node.cap,
            cap_told: node.cap,
            born_at: 0,
            told: Planning::Nobody,
            paused: 0,
            stalled: 0,
            cut_requests: 0,
            cut_replies: 0,
            slow_until: 0,
            waiting: Vec::new(),
            wake: u64::MAX,
            turn: 0,
            calls: 0,
            steps: 0,
            holds: BTreeMap::new(),
            sent: BTreeMap::new(),
            seen: BTreeMap::new(),
            scans: Vec::new(),
            draws: Draws::new(key, 2 * index as u64),
            call_draws: Draws::new(key, 2 * index as u64 + 1),
        });
        let stream = Stream::new(plan.shards, plan.shards_max);
        let tears = plan.course.incidents.iter().any(|incident| incident.fault == Fault::RowDeleted);
        let large = plan.is_large();
        let mut world = Self {
            plan,
            stage: Stage::new(plan.course.end_at, if large { u64::MAX } else { EVENTS_MAX }, watch),
            nodes: nodes.collect(),
            table: LeaseTable::default(),
            ledger: vec![Shard { ready_at: Some(0), ..Shard::default() }; stream.shards.len()],
            stream,
            consumers: Vec::new(),
            flights: Vec::with_capacity(64),
            free: Vec::with_capacity(64),
            foreign: Foreign::default(),
            planner: None,
            second_planner: None,
            nobody_plans: 0,
            handover_not_before: 0,
            elections: 0,
            outages: 0,
            outage_hangs: false,
            tears,
            twins: false,
            healed: false,
            converged: false,
            work: (Draws::new(key, WORKLOAD), 0),
            consuming: (Draws::new(key, CONSUMING), 0),
            electing: (Draws::new(key, ELECTION), 0),
            befell: vec![None; plan.course.incidents.len()],
            all_held_at: None,
        };
        world.set_out();
        world
    }

    /// Enters what the plan says.
    fn set_out(&mut self) {
        let timing = &self.plan.timing;
        self.tell(format_args!(
            "lease {:?}, handoff {:?}, moves every {:?}, list {:?}, {} shards, {:?} names",
            timing.lease,
            timing.handoff,
            timing.move_interval,
            timing.list,
            self.plan.shards,
            self.plan.names
        ));
        for (index, node) in self.plan.nodes.iter().enumerate().filter(|(_, node)| node.present) {
            let NodePlan { starts_at, rate_ppm, cap, .. } = *node;
            if let Some(at) = starts_at {
                self.stage.enter(at, Happening::Start { node: narrow(index), life: 0 });
            }
            if rate_ppm != 0 {
                self.stage.outcome.faults.count(Fault::RateError);
            }
            self.tell(format_args!("worker {index} may hold {cap}, its clock is {rate_ppm} ppm fast"));
        }
        if self.plan.names == Names::Shared {
            self.stage.outcome.faults.count(Fault::SameName);
        }
        for (index, incident) in self.plan.course.incidents.iter().enumerate() {
            self.stage.enter(incident.at, Happening::Begin { incident: wide(index) });
        }
        if self.plan.workload.every_max > 0 {
            self.stage.enter(1, Happening::Put);
        }
        self.elect_within(self.plan.handover_max);
        self.stage.enter(self.plan.course.heal_at + 1, Happening::Heal);
    }

    pub(super) fn run(mut self) -> Outcome {
        self.play();
        self.into_outcome()
    }

    pub(super) fn play(&mut self) {
        while let Some(happening) = self.stage.take_next() {
            self.happen(happening);
        }
        if self.stage.spins() {
            self.stage.check(Rule::Bounded, Err("millions of events, and no end".to_owned()));
        } else if !self.stage.is_over() {
            self.stage.move_to_end();
            if self.healed {
                self.judge_end();
            }
        }
        self.count_up();
    }

    pub(super) fn into_outcome(self) -> Outcome {
        self.stage.finish()
    }

    fn tell(&mut self, text: std::fmt::Arguments<'_>) {
        self.stage.trace.tell(self.stage.now, text);
    }

    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        self.stage.trace.note(self.stage.now, text);
    }

    fn check(&mut self, rule: Rule, verdict: Verdict) {
        let heals = matches!(rule, Rule::Ls5 | Rule::Ls6 | Rule::Ls7 | Rule::Cap | Rule::Bounded);
        if !self.twins || heals {
            self.stage.check(rule, verdict);
        }
    }

    /// Judges what our rules promise, and not the seed's.
    fn check_ours(&mut self, rule: Rule, verdict: Verdict) {
        if K::OURS {
            self.check(rule, verdict);
        }
    }

    fn lease_nanos(&self) -> u64 {
        nanos(self.plan.timing.lease)
    }

    // === what happens ===

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Wake { node, turn } => {
                let node = usize::from(node);
                if self.nodes[node].turn == turn {
                    self.nodes[node].wake = u64::MAX;
                    if !self.nodes[node].is_still() {
                        self.step(node, Event::Wake);
                    }
                }
            }
            Happening::Start { node, life } => self.start(usize::from(node), life),
            Happening::Halt { node, life }
            | Happening::Cap { node, life }
            | Happening::Planning { node, life } => {
                let node = usize::from(node);
                if self.nodes[node].life == life && self.nodes[node].machine.is_some() {
                    self.reach_keeper(node, happening);
                }
            }
            Happening::Deploy { node, cap } => self.deploy(usize::from(node), usize::from(cap)),
            Happening::Elect { turn } => {
                if turn == self.elections {
                    self.elect();
                }
            }
            Happening::Deliver { holding }
            | Happening::Settle { holding, .. }
            | Happening::Overdue { holding, .. } => {
                self.reach_consumer(holding, happening);
            }
            Happening::Ask { holding } | Happening::Stuck { holding } => {
                let consumer = &self.consumers[holding as usize];
                if !consumer.over {
                    let node = usize::from(consumer.node);
                    self.reach_keeper(node, happening);
                }
            }
            Happening::Put => self.put(),
            Happening::Tick { turn } => self.tick(turn),
            Happening::Arrive { flight } => self.arrive(flight),
            Happening::Land { flight } => self.land(flight),
            Happening::Reply { flight } => self.reply(flight),
            Happening::GiveUp { flight } => self.give_up(flight),
            Happening::Begin { incident } => self.begin(incident),
            Happening::End { incident } => self.end(incident),
            Happening::Heal => self.heal(),
            Happening::Converged => self.judge_converged(),
            Happening::Rest => self.stage.end(),
        }
    }

    /// Something reaches a keeper that runs: now, or when it goes on.
    fn reach_keeper(&mut self, node: usize, happening: Happening) {
        if self.nodes[node].is_still() {
            self.nodes[node].waiting.push(happening);
            return;
        }
        match happening {
            Happening::Halt { .. } => self.step(node, Event::Stop),
            Happening::Cap { .. } => {
                let cap = self.nodes[node].cap;
                self.nodes[node].cap_told = cap;
                self.step(node, Event::Cap(cap));
            }
            Happening::Planning { .. } => {
                let planning = self.planning_of(node);
                if planning != self.nodes[node].told {
                    self.nodes[node].told = planning;
                    self.tell(format_args!("worker {node} hears that it plans: {planning:?}"));
                    self.step(node, Event::Planner(planning));
                }
            }
            Happening::Ask { holding } => self.ask(holding),
            Happening::Stuck { holding } => self.say_stuck(holding),
            _ => {}
        }
    }

    fn draw(&mut self, node: usize) -> Draw {
        let node = &mut self.nodes[node];
        node.steps += 1;
        node.draws.at(node.steps)
    }

    fn start(&mut self, index: usize, life: u32) {
        let open = self.stream.open().len();
        let node = &mut self.nodes[index];
        if node.life != life || node.machine.is_some() {
            return;
        }
        node.name = worker_name(self.plan.names, index, life);
        if life > 0 && self.plan.names == Names::Kept {
            self.stage.outcome.faults.count(Fault::KeptName);
        }
        let incarnation: Arc<str> = format!("{index}-{life}").into();
        let me = Me { worker: node.name.clone(), incarnation };
        let cap = if K::OURS { node.cap } else { seed_rules::cap(open, self.plan.nodes[index].workers_seen) };
        node.machine = Some(K::new(me, cap, self.plan.timing));
        (node.cap, node.cap_told, node.born_at) = (cap, cap, self.stage.now);
        (node.started, node.stopping, node.told) = (false, false, Planning::Nobody);
        let name = node.name.clone();
        self.tell(format_args!("worker {index} starts as {name}, and may hold {cap}"));
        self.step(index, Event::Wake);
        self.tell_planning();
    }

    /// The process is gone, with all that it knew.
    fn vanish(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.machine = None;
        node.life += 1;
        node.wake = u64::MAX;
        node.turn += 1;
        (node.paused, node.stalled, node.started) = (0, 0, false);
        node.sent.clear();
        node.seen.clear();
        node.scans.clear();
        let waiting = std::mem::take(&mut node.waiting);
        for happening in waiting {
            if let Happening::Reply { flight } | Happening::GiveUp { flight } = happening {
                self.release(flight);
            }
        }
        let holds = std::mem::take(&mut self.nodes[index].holds);
        for (shard, holding) in holds {
            self.stage.outcome.tally.losses += 1;
            self.end_of_hold(shard, holding);
        }
        if self.second_planner == Some(narrow(index)) {
            self.second_planner = None;
        }
        if self.planner == Some(narrow(index)) {
            self.planner = None;
            self.elect_within(self.plan.handover_max);
        }
    }

    // === steps ===

    fn step(&mut self, index: usize, event: Event) {
        let draw = self.draw(index);
        let now = self.stage.now;
        let code = event_code(&event);
        let node = &mut self.nodes[index];
        let Some(machine) = &mut node.machine else { return };
        let reading = Now { monotonic: node.clock.monotonic(now), wall: node.clock.wall(now) };
        let effects = machine.step(reading, event);
        let wake_at = machine.wake_at();
        self.stage.trace.mix(now << 16 | (index as u64) << 8 | code);
        for effect in effects {
            match effect {
                Effect::Call { id, by, call } => self.send(index, id, by, call),
                Effect::Tell(news) => self.hear(index, news),
            }
        }
        self.set_timer(index, wake_at, draw);
    }

    fn set_timer(&mut self, index: usize, wake_at: Monotonic, draw: Draw) {
        let now = self.stage.now;
        let node = &mut self.nodes[index];
        if node.machine.is_none() {
            return;
        }
        if wake_at == Monotonic::NEVER {
            if node.wake != u64::MAX {
                node.wake = u64::MAX;
                node.turn += 1;
            }
            return;
        }
        let due = node.clock.moment(wake_at).max(now + 1);
        if node.wake != due {
            node.wake = due;
            node.turn += 1;
            let late = ((draw.bits() >> 48) * TIMER_LATE_MAX) >> 16;
            let turn = node.turn;
            self.stage.enter(due + late, Happening::Wake { node: narrow(index), turn });
        }
    }

    fn hear(&mut self, index: usize, news: News) {
        match news {
            News::Started => {
                self.nodes[index].started = true;
                self.tell(format_args!("worker {index} takes part"));
                let name = &self.nodes[index].name;
                self.twins |= self.nodes.iter().filter(|node| node.started && node.name == *name).count() > 1;
                self.tell_planning();
            }
            News::Granted { lease, deadline, .. } => self.granted(index, &lease, deadline),
            News::Extended { key, deadline } => self.extended(index, &key, deadline),
            News::GiveAsked { key, how } => self.give_asked(index, &key, how),
            News::Lost { key, why } => {
                self.tell(format_args!("worker {index} lost {key}: {}", why.name()));
                self.lost(index, &key, &why);
            }
            News::Given { key, to } => self.given(index, &key, to.as_ref()),
            News::Done { request, outcome } => self.done(request, outcome),
            News::Alarm(alarm) => {
                self.tell(format_args!("worker {index} alarms: {alarm:?}"));
                if let Alarm::BadRow(key, why) = alarm {
                    self.check(Rule::Bounded, Err(format!("row {key} is bad: {why}")));
                }
            }
            News::Fatal(fatal) => {
                self.tell(format_args!("worker {index} cannot go on: {fatal:?}"));
                self.stage.outcome.tally.same_name += u64::from(fatal == Fatal::SameWorker);
                let node = &mut self.nodes[index];
                node.stopping = true;
                let pause = self.lease_nanos() + self.draw(index).below(self.lease_nanos());
                self.nodes[index].restart_at = self.stage.now + pause;
            }
            News::Stopped => self.stopped(index),
        }
    }

    fn stopped(&mut self, index: usize) {
        self.tell(format_args!("worker {index} stopped"));
        if !self.nodes[index].holds.is_empty() {
            self.check(Rule::StopJoins, Err(format!("worker {index} said it stopped, and holds leases")));
        }
        self.vanish(index);
        let node = &self.nodes[index];
        let (at, life) = (node.restart_at.max(self.stage.now + 1), node.life);
        self.stage.enter(at, Happening::Start { node: narrow(index), life });
    }

    // === who may deliver ===

    /// Works out anew until when a worker may deliver a shard, and looks who else may: LS-1.
    fn set_until(&mut self, shard: usize, who: u16, until: u64) {
        let now = self.stage.now;
        let holders = &mut self.ledger[shard].holders;
        holders.retain(|holder| holder.0 != who && holder.1 > now);
        if until > now {
            holders.push((who, until));
            let verdict = at_most_one_owner(now, who, holders);
            self.check(Rule::Ls1, verdict.map_err(|what| format!("shard {shard}: {what}")));
        }
    }

    // === who plans ===

    fn planning_of(&self, node: usize) -> Planning {
        let node_id = Some(narrow(node));
        if self.nobody_plans > 0 {
            Planning::Nobody
        } else if self.planner == node_id || self.second_planner == node_id {
            Planning::Me
        } else if self.planner.is_some() {
            Planning::Other
        } else {
            self.nodes[node].told
        }
    }

    /// Whoever should believe something else hears so soon.
    fn tell_planning(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].machine.is_some() && self.planning_of(node) != self.nodes[node].told {
                let life = self.nodes[node].life;
                let at = self.stage.now + 1 + self.election_draw().below(self.lease_nanos() / 8);
                self.stage.enter(at, Happening::Planning { node: narrow(node), life });
            }
        }
    }

    fn elect_within(&mut self, longest: u64) {
        self.elections += 1;
        let soon = self.stage.now + 1 + self.election_draw().below(longest);
        let at = soon.max(self.handover_not_before);
        self.stage.enter(at, Happening::Elect { turn: self.elections });
    }

    fn elect(&mut self) {
        let stands = |node: &Node<K>| node.started && !node.stopping && !node.is_still();
        let standing: Vec<usize> = (0..self.nodes.len()).filter(|node| stands(&self.nodes[*node])).collect();
        if standing.is_empty() {
            return self.elect_within(self.lease_nanos() / 4);
        }
        let chosen = self.election_draw().below(standing.len() as u64);
        let chosen = standing[usize::try_from(chosen).unwrap_or(0)];
        self.planner = Some(narrow(chosen));
        self.tell(format_args!("worker {chosen} is elected to plan"));
        self.tell_planning();
    }

    fn election_draw(&mut self) -> Draw {
        self.electing.1 += 1;
        self.electing.0.at(self.electing.1)
    }
}

const fn event_code(event: &Event) -> u64 {
    match event {
        Event::Wake => 0,
        Event::Answered(..) => 1,
        Event::Cap(_) => 2,
        Event::Planner(_) => 3,
        Event::Checkpoint { .. } => 4,
        Event::Give { .. } => 5,
        Event::Stuck { .. } => 6,
        Event::Measured { .. } => 7,
        Event::Stop => 8,
    }
}

fn worker_name(names: Names, index: usize, life: u32) -> WorkerId {
    let name = match names {
        Names::Fresh => format!("w{index:04}-{life}"),
        Names::Shared if index < 2 => "w0000".to_owned(),
        Names::Kept | Names::Shared => format!("w{index:04}"),
    };
    WorkerId::from(name.as_str())
}
