//! The world: true time, the nodes, the network between them and the store, and what befalls them.
//!
//! ```text
//!   node ── step ──► call ── there ──► store ── back ──► answer ── step ──► node
//!                      │                 │        │
//!                 lost, late,       fails, or  lost: the node gives up at its time limit
//!                 twice, slow        hangs     and takes the outcome for unknown
//! ```
//!
//! A paused node takes nothing in: what reaches it waits until it resumes. Its clocks run on.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_clock::Monotonic;
use tenure_election::{
    Answer, Attempt, Call, CallId, Effect, Epoch, Event, Fence, FenceMark, Lock, LossReason, Me, News, Nonce,
    Now, OwnerId, Place, Rows, Timing,
};

use super::Watch;
use super::candidate::Candidate;
use super::checkers::{
    EpochsRise, GuardHolds, RowHistory, Rule, Verdict, Violation, at_most_one_leader, name, one_leader,
};
use super::outcome::Outcome;
use super::plan::{COOL_DOWN_MAX, Incident, NODES, Plan, Target, nanos};
use super::table::{Table, place};
use crate::calendar::Calendar;
use crate::draws::{Draw, Draws};
use crate::fault::Fault;
use crate::node_clock::{NodeClock, true_wall};
use crate::trace::Trace;

/// More than any schedule needs, by far: beyond it, somebody spins.
const EVENTS_MAX: u64 = 1_000_000;
/// How late a timer fires at most.
const TIMER_LATE_MAX: u64 = 2_000_000;
/// How long a process thinks between looking whether it leads and sending a guarded write.
const THINKING_MAX: u64 = 100_000_000;
/// The reaper leaves a `ttl` alone that is older than this: DynamoDB takes it for a mistake.
const FIVE_YEARS_SECONDS: i64 = 5 * 366 * 86_400;
/// A successor whom nobody knows.
const NOBODY: u8 = 9;

/// What the calendar holds. Small, because there are millions.
#[derive(Debug, Clone, Copy)]
enum Happening {
    /// A node's timer.
    Wake {
        node: u8,
        turn: u32,
    },
    /// A process starts.
    Start {
        node: u8,
        life: u32,
    },
    /// A node stands for election again.
    Stand {
        node: u8,
        life: u32,
    },
    /// A node is told to stop.
    Halt {
        node: u8,
        life: u32,
    },
    /// A node is told to hand over.
    Resign {
        node: u8,
        life: u32,
        to: Option<u8>,
    },
    /// A leader looks whether it leads, to write something.
    Work {
        node: u8,
        term: u32,
    },
    /// A leader that has looked sends its guarded write.
    Send {
        node: u8,
        life: u32,
        token: u32,
    },
    /// The guarded write reaches its resource.
    Guarded {
        guard: u8,
        token: u32,
    },
    /// A call reaches the store.
    Arrive {
        flight: u32,
    },
    /// A write reaches the store that nobody waits for any more.
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
    Begin {
        incident: u32,
    },
    End {
        incident: u32,
    },
    Heal,
    Converged,
}

/// A call under way.
#[derive(Debug)]
struct Flight {
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
enum Reading {
    Lock,
    Fence,
    LockAgain(Option<FenceMark>),
}

struct Node<C> {
    timing: Timing,
    clock: NodeClock,
    name: Arc<str>,
    about: Arc<BTreeMap<String, String>>,
    /// The process, if one runs.
    machine: Option<C>,
    owner: Option<OwnerId>,
    /// Counts processes.
    life: u32,
    steps: u64,
    calls: u32,
    call: Option<CallId>,
    /// The timer that is set, and its number: others in the calendar are void.
    wake: u64,
    turn: u32,
    /// The deadline for which `World::until` was worked out.
    deadline: Option<Monotonic>,
    epoch: Epoch,
    /// Counts terms.
    term: u32,
    token: u32,
    standing: bool,
    /// A stop is on its way, or was told.
    stopping: bool,
    told_to_stop: bool,
    gave_up: bool,
    restart_at: u64,
    paused: u32,
    cut_requests: u32,
    cut_replies: u32,
    unhealthy: u32,
    /// What waits until the node resumes.
    waiting: Vec<Happening>,
    draws: Draws,
    call_draws: Draws,
}

/// A leader crashed, and the others should notice.
struct Failover {
    at: u64,
    lease: u64,
    /// Those who watched undisturbed ever since, a bit each.
    watchers: u8,
}

#[derive(Default)]
struct Guard {
    highest: Option<Epoch>,
    holds: GuardHolds,
}

pub(super) struct World<'p, C, T> {
    plan: &'p Plan,
    watch: Watch,
    now: u64,
    calendar: Calendar<Happening>,
    nodes: Vec<Node<C>>,
    /// Until which true moment each node leads; in the past if it does not.
    until: [u64; NODES],
    /// Until when `led_nanos` counts.
    led_until: u64,
    table: T,
    place: Place,
    flights: Vec<Flight>,
    free: Vec<u32>,
    outages: u32,
    outage_hangs: bool,
    healed: bool,
    converged: bool,
    over: bool,
    elections: u32,
    work_draws: Draws,
    works: u64,
    guards: [Guard; 2],
    /// To whom each incident happened, and in which life.
    befell: Vec<Option<(u8, u32)>>,
    failover: Option<Failover>,
    epochs: EpochsRise,
    history: RowHistory,
    trace: Trace,
    outcome: Outcome,
}

impl<'p, C: Candidate, T: Table> World<'p, C, T> {
    pub(super) fn new(plan: &'p Plan, watch: Watch) -> Self {
        let about = Arc::new(BTreeMap::new());
        let nodes = plan.nodes.iter().enumerate().map(|(index, node)| Node {
            timing: node.timing,
            clock: NodeClock::new(node.clock_origin, node.rate_ppm, node.skew_millis),
            name: name(index).to_string().into(),
            about: Arc::clone(&about),
            machine: None,
            owner: None,
            life: 0,
            steps: 0,
            calls: 0,
            call: None,
            wake: u64::MAX,
            turn: 0,
            deadline: None,
            epoch: Epoch(0),
            term: 0,
            token: 0,
            standing: false,
            stopping: false,
            told_to_stop: false,
            gave_up: false,
            restart_at: 0,
            paused: 0,
            cut_requests: 0,
            cut_replies: 0,
            unhealthy: 0,
            waiting: Vec::new(),
            draws: Draws::new(plan.key, 2 * index as u64),
            call_draws: Draws::new(plan.key, 2 * index as u64 + 1),
        });
        let mut world = Self {
            plan,
            watch,
            now: 0,
            calendar: Calendar::new(),
            nodes: nodes.collect(),
            until: [0; NODES],
            led_until: 0,
            table: T::default(),
            place: place(),
            flights: Vec::with_capacity(16),
            free: Vec::with_capacity(16),
            outages: 0,
            outage_hangs: false,
            healed: false,
            converged: false,
            over: false,
            elections: 0,
            work_draws: Draws::new(plan.key, 1000),
            works: 0,
            guards: Default::default(),
            befell: vec![None; plan.incidents.len()],
            failover: None,
            epochs: EpochsRise::default(),
            history: RowHistory::default(),
            trace: Trace::new(watch.lines),
            outcome: Outcome::default(),
        };
        world.set_out();
        world
    }

    /// Enters what the plan says.
    fn set_out(&mut self) {
        for (index, node) in self.plan.nodes.iter().enumerate().filter(|(_, node)| node.present) {
            self.enter(node.starts_at, Happening::Start { node: narrow(index), life: 0 });
            if node.skew_millis != 0 {
                self.outcome.faults.count(Fault::WallSkew);
            }
            if node.rate_ppm != 0 {
                self.outcome.faults.count(Fault::RateError);
            }
            let timing = node.timing;
            self.trace.tell(
                0,
                format_args!(
                    "{} lease {:?} renew {:?} {:?} skew bound {:?}, wall off by {} ms, clock {} ppm fast",
                    name(index),
                    timing.lease,
                    timing.renew,
                    timing.on_renewal_error,
                    timing.skew,
                    node.skew_millis,
                    node.rate_ppm
                ),
            );
        }
        for (index, incident) in self.plan.incidents.iter().enumerate() {
            self.enter(incident.at, Happening::Begin { incident: wide(index) });
        }
        self.enter(self.plan.heal_at + 1, Happening::Heal);
    }

    pub(super) fn run(mut self) -> Outcome {
        while let Some((at, happening)) = self.calendar.next() {
            debug_assert!(at >= self.now, "time goes forward");
            self.now = at;
            self.happen(happening);
            if self.over {
                break;
            }
            if self.calendar.entered() > EVENTS_MAX {
                self.check(Rule::Bounded, Err("a million events, and no end".to_owned()));
                break;
            }
        }
        if !self.over {
            self.now = self.plan.end_at;
            if self.healed {
                let verdict = one_leader(self.now, &self.until);
                self.check(Rule::Ld4, verdict);
            }
        }
        self.count_led_until(self.now);
        self.outcome.lived_nanos = self.now;
        self.outcome.events = self.calendar.entered();
        (self.outcome.hash, self.outcome.lines) = self.trace.finish();
        self.outcome
    }

    fn enter(&mut self, at: u64, happening: Happening) {
        // What would happen after the end does not.
        if at <= self.plan.end_at {
            self.calendar.enter(at, happening);
        }
    }

    fn check(&mut self, rule: Rule, verdict: Verdict) {
        let Err(what) = verdict else { return };
        if self.outcome.breaks(rule) {
            return;
        }
        self.trace.mix(rule as u64);
        self.trace.tell(self.now, format_args!("BROKEN {}: {what}", rule.name()));
        self.outcome.violations.push(Violation { rule, at: self.now, what });
        self.over |= self.watch.until == Some(rule);
    }

    // === what happens ===

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Wake { node, turn } => {
                let node = usize::from(node);
                if self.nodes[node].turn == turn {
                    self.nodes[node].wake = u64::MAX;
                    if self.nodes[node].paused == 0 {
                        self.step(node, Event::Wake);
                    }
                }
            }
            Happening::Start { node, life } => self.start(usize::from(node), life),
            Happening::Stand { node, life }
            | Happening::Halt { node, life }
            | Happening::Resign { node, life, .. }
            | Happening::Send { node, life, .. } => {
                let node = usize::from(node);
                if self.nodes[node].life == life && self.nodes[node].machine.is_some() {
                    self.reach(node, happening);
                }
            }
            Happening::Work { node, term } => {
                let node = usize::from(node);
                if self.nodes[node].term == term && self.nodes[node].machine.is_some() {
                    self.reach(node, happening);
                }
            }
            Happening::Guarded { guard, token } => self.guarded(usize::from(guard), token),
            Happening::Arrive { flight } => self.arrive(flight),
            Happening::Land { flight } => self.land(flight),
            Happening::Reply { flight } => self.reply(flight),
            Happening::GiveUp { flight } => self.give_up(flight),
            Happening::Begin { incident } => self.begin(incident),
            Happening::End { incident } => self.end(incident),
            Happening::Heal => {
                self.healed = true;
                self.trace.tell(self.now, format_args!("the faults stop"));
                self.enter(self.plan.converged_by(), Happening::Converged);
            }
            Happening::Converged => {
                let verdict = one_leader(self.now, &self.until);
                self.check(Rule::Ld4, verdict);
                self.converged = true;
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
            Happening::Stand { .. } => {
                if self.nodes[node].stopping {
                    return;
                }
                self.nodes[node].standing = true;
                let once = !self.healed && self.draw(node).bits() % 8 == 0;
                self.step(node, if once { Event::TryOnce } else { Event::Campaign });
            }
            Happening::Halt { .. } => {
                (self.nodes[node].told_to_stop, self.nodes[node].gave_up) = (true, true);
                self.step(node, Event::Stop);
            }
            Happening::Resign { to, .. } => {
                let to = to.map(|to| {
                    if to == NOBODY { "nobody".into() } else { self.nodes[usize::from(to)].name.clone() }
                });
                self.step(node, Event::Resign { to });
            }
            Happening::Work { term, .. } => self.work(node, term),
            Happening::Send { token, .. } => {
                let mut draw = self.work_draw();
                let guard = narrow(usize::from(draw.take() % 2 == 1));
                // Some are held up for as long as a term.
                let held_up = if draw.take() % 8 == 0 { 2 * nanos(self.nodes[node].timing.lease) } else { 0 };
                let at = self.now + self.latency(&mut draw) + draw.below(held_up);
                self.enter(at, Happening::Guarded { guard, token });
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

    fn work_draw(&mut self) -> Draw {
        self.works += 1;
        self.work_draws.at(self.works)
    }

    fn latency(&self, draw: &mut Draw) -> u64 {
        let network = &self.plan.network;
        network.latency_min + draw.below(network.latency_max - network.latency_min)
    }

    fn start(&mut self, index: usize, life: u32) {
        let node = &mut self.nodes[index];
        if node.life != life || node.machine.is_some() {
            return;
        }
        let mut owner = self.plan.key ^ u64::from(life) ^ ((index as u64) << 32);
        owner = Draws::new(owner, 7).at(0).bits();
        let owner = OwnerId::new(format!("{}-{owner:016x}", node.name)).expect("a name and digits");
        let me = Me { owner: owner.clone(), name: node.name.clone(), about: node.about.clone() };
        node.machine = Some(C::new(me, node.timing));
        node.owner = Some(owner);
        (node.stopping, node.told_to_stop, node.gave_up, node.standing) = (false, false, false, true);
        self.trace.tell(self.now, format_args!("{} starts", name(index)));
        self.step(index, Event::Campaign);
    }

    /// The process is gone, with all that it knew.
    fn vanish(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.machine = None;
        node.life += 1;
        node.call = None;
        node.wake = u64::MAX;
        node.turn += 1;
        node.deadline = None;
        node.paused = 0;
        node.standing = false;
        let waiting = std::mem::take(&mut node.waiting);
        for happening in waiting {
            if let Happening::Reply { flight } | Happening::GiveUp { flight } = happening {
                self.release(flight);
            }
        }
        self.set_until(index, 0);
    }

    // === steps ===

    fn step(&mut self, index: usize, event: Event) {
        let code = event_code(&event);
        let draw = self.draw(index);
        let node = &mut self.nodes[index];
        let Some(machine) = &mut node.machine else { return };
        let monotonic = node.clock.monotonic(self.now);
        // Unique by its upper half, random in its lower.
        let nonce = Nonce(
            (u128::from(index as u64 + 1) << 112) | (u128::from(node.steps) << 64) | u128::from(draw.bits()),
        );
        let now = Now { monotonic, wall: node.clock.wall(self.now), nonce, healthy: node.unhealthy == 0 };
        let effects = machine.step(now, event);
        let term = machine.term();
        let wake_at = machine.wake_at();
        self.trace.mix(self.now << 8 | (index as u64) << 4 | code);
        self.judge(index, term);
        for effect in effects {
            match effect {
                Effect::Call { id, by, call } => self.send(index, id, by, call),
                Effect::Tell(news) => self.hear(index, news),
            }
        }
        self.set_timer(index, wake_at, draw);
    }

    fn set_timer(&mut self, index: usize, wake_at: Monotonic, draw: Draw) {
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
        let due = node.clock.moment(wake_at).max(self.now + 1);
        if node.wake != due {
            node.wake = due;
            node.turn += 1;
            // The machine uses the lower bits.
            let late = ((draw.bits() >> 48) * TIMER_LATE_MAX) >> 16;
            let (node, turn) = (narrow(index), node.turn);
            self.enter(due + late, Happening::Wake { node, turn });
        }
    }

    /// Works out until when the node leads, and looks who else does.
    fn judge(&mut self, index: usize, term: Option<(Epoch, Monotonic)>) {
        let node = &mut self.nodes[index];
        let Some((epoch, deadline)) = term else {
            if node.deadline.take().is_some() {
                self.set_until(index, 0);
            }
            return;
        };
        if node.deadline == Some(deadline) && node.epoch == epoch {
            return;
        }
        (node.deadline, node.epoch) = (Some(deadline), epoch);
        let until = node.clock.moment(deadline);
        self.set_until(index, until);
        let verdict = at_most_one_leader(self.now, index, &self.until);
        self.check(Rule::Ld1, verdict);
    }

    fn set_until(&mut self, index: usize, until: u64) {
        self.until[index] = until;
        self.count_led_until(self.until.iter().copied().max().unwrap_or(0).min(self.plan.end_at));
    }

    /// Counts the time from now until then as led, instead of what was foreseen before.
    fn count_led_until(&mut self, until: u64) {
        let until = until.max(self.now);
        let foreseen = self.led_until.max(self.now);
        self.outcome.led_nanos = self.outcome.led_nanos + until - foreseen;
        self.led_until = until;
    }

    fn hear(&mut self, index: usize, news: News) {
        let (who, now) = (name(index), self.now);
        match news {
            News::Elected { epoch, .. } => {
                self.trace.mix(epoch.0);
                self.trace.tell(now, format_args!("{who} leads, epoch {epoch}"));
                self.elected(index, epoch);
            }
            News::Renewed { .. } => self.trace.note(now, format_args!("{who} renewed")),
            News::Lost(reason) => {
                self.trace.tell(now, format_args!("{who} lost its term: {}", reason.name()));
                self.nodes[index].standing = false;
                self.nodes[index].gave_up |= reason == LossReason::Resigned;
                if self.converged {
                    self.check(Rule::Ld4, Err(format!("{who} lost its term after all had healed")));
                }
                self.stand_later(index);
            }
            News::Declined => {
                self.trace.note(now, format_args!("{who} could not have it now"));
                self.nodes[index].standing = false;
                self.stand_later(index);
            }
            News::Released { confirmed } => {
                self.trace.tell(now, format_args!("{who} released, confirmed {confirmed}"));
                self.nodes[index].gave_up = self.nodes[index].told_to_stop;
            }
            News::ResignAsked(_) => {
                self.trace.tell(now, format_args!("{who} hears that it should hand over"));
                let life = self.nodes[index].life;
                self.enter(now + 1, Happening::Resign { node: narrow(index), life, to: None });
            }
            News::Trouble(trouble) => self.trace.tell(now, format_args!("{who} is troubled: {trouble:?}")),
            News::Stopped => self.stopped(index),
        }
    }

    fn elected(&mut self, index: usize, epoch: Epoch) {
        self.elections += 1;
        self.outcome.terms += 1;
        let node = &mut self.nodes[index];
        node.term += 1;
        node.gave_up = false;
        node.token = if C::FENCED { u32::try_from(epoch.0).unwrap_or(u32::MAX) } else { self.elections };
        let (term, told_to_stop) = (node.term, node.told_to_stop);
        if told_to_stop {
            self.check(Rule::StopJoins, Err(format!("{} was elected after its stop", name(index))));
        }
        if C::FENCED {
            let verdict = self.epochs.elected(epoch);
            self.check(Rule::Ld2, verdict);
        }
        if let Some(failover) = self.failover.take() {
            let thousandths = (self.now - failover.at) * 1000 / failover.lease;
            self.outcome.failovers.push(u32::try_from(thousandths).unwrap_or(u32::MAX));
        }
        let at = self.now + self.work_draw().below(self.plan.work_every_max);
        self.enter(at, Happening::Work { node: narrow(index), term });
    }

    fn stand_later(&mut self, index: usize) {
        if self.nodes[index].stopping {
            return;
        }
        let wait = self.draw(index).below(COOL_DOWN_MAX);
        let life = self.nodes[index].life;
        self.enter(self.now + wait, Happening::Stand { node: narrow(index), life });
    }

    fn stopped(&mut self, index: usize) {
        self.trace.tell(self.now, format_args!("{} stopped", name(index)));
        let machine = self.nodes[index].machine.as_ref();
        if machine.is_some_and(|machine| !machine.is_stopped() || machine.term().is_some()) {
            self.check(Rule::StopJoins, Err(format!("{} said it stopped, and did not", name(index))));
        }
        self.vanish(index);
        let node = &self.nodes[index];
        let (at, life) = (node.restart_at.max(self.now + 1), node.life);
        self.enter(at, Happening::Start { node: narrow(index), life });
    }

    // === calls ===

    fn send(&mut self, index: usize, id: CallId, by: Monotonic, call: Call) {
        if self.nodes[index].call.is_some() {
            self.check(Rule::OneCall, Err(format!("{} has two calls in flight", name(index))));
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
        let mut fault = if self.healed { None } else { self.plan.network.pick(draw.take()) };
        let (mut there, mut back) = (self.latency(&mut draw), self.latency(&mut draw));
        let coin = draw.take();
        if fault.is_some() {
            fault = self.fault_of_call(index, number, fault, attempt.is_some());
        }
        let write = attempt.is_some();
        let now = self.now;
        match &attempt {
            None => self.trace.note(now, format_args!("{} reads", name(index))),
            Some(attempt) => self.trace.tell(now, format_args!("{} sends {}", name(index), Brief(attempt))),
        }
        if let Some(fault) = fault {
            self.trace.tell(now, format_args!("  .. {}", fault.name()));
        }
        let flight = self.take_off(Flight {
            node: narrow(index),
            life,
            id,
            attempt,
            by,
            back,
            gives_up: false,
            replies: true,
            reading: Reading::Lock,
            several_reads: coin & 1 == 1,
            answer: None,
            answered_late: false,
            held: 0,
        });
        let capped = |at: u64| at.min(self.plan.heal_at.max(now + there));
        // A lost connection is noticed at once, a lost packet only at the time limit.
        let noticed = if coin & 2 == 2 { by.min(now + there + back) } else { by };
        if cut {
            return self.hold(by, Happening::GiveUp { flight }, flight);
        }
        match fault {
            None => self.fly(now + there, flight),
            Some(Fault::Throttled | Fault::Failed) => {
                self.flight(flight).answer = Some(Answer::Failed);
                self.hold(by.min(now + there + back), Happening::Reply { flight }, flight);
            }
            Some(Fault::RequestLost) => self.hold(by, Happening::GiveUp { flight }, flight),
            Some(Fault::ReplyLost) => {
                let arrives = now + there;
                self.flight(flight).replies = false;
                self.flight(flight).gives_up = true;
                self.hold(noticed, Happening::GiveUp { flight }, flight);
                self.hold(arrives, Happening::Arrive { flight }, flight);
            }
            Some(Fault::Late) => {
                let lands = capped(now + there + draw.below(self.plan.network.late_by_max));
                self.hold(noticed, Happening::GiveUp { flight }, flight);
                self.hold(lands, Happening::Land { flight }, flight);
            }
            Some(Fault::Duplicated) => {
                let lands = capped(now + there + draw.below(self.plan.network.late_by_max));
                self.fly(now + there, flight);
                self.hold(lands, Happening::Land { flight }, flight);
            }
            Some(_) => {
                let slow_by = draw.below(self.plan.network.slow_by_max);
                if write && coin & 4 == 4 {
                    there = capped(now + there + slow_by) - now;
                } else {
                    back += slow_by;
                    self.flight(flight).back = back;
                }
                self.fly(now + there, flight);
            }
        }
    }

    /// The fault that this call meets after all: not every fault can befall a read.
    fn fault_of_call(
        &mut self,
        index: usize,
        number: u32,
        fault: Option<Fault>,
        write: bool,
    ) -> Option<Fault> {
        let fault = match fault? {
            Fault::Late if !write => Fault::RequestLost,
            Fault::Duplicated if !write => return None,
            fault => fault,
        };
        if self.plan.spared_calls.contains(&(index, number)) {
            return None;
        }
        self.outcome.faults.count(fault);
        self.failover = None;
        if self.trace.has_lines() {
            self.outcome.call_faults.push((index, number, fault));
        }
        Some(fault)
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

    fn arrive(&mut self, flight: u32) {
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
                    let at = self.now + 2 * self.flight(flight).back;
                    self.fly(at, flight);
                    return self.release(flight);
                }
            }
        }
        self.send_back(flight, node);
        self.release(flight);
    }

    /// What a read shows; nothing if it goes on.
    fn read(&mut self, flight: u32) -> Option<Rows> {
        let Flight { reading, several_reads, .. } = *self.flight(flight);
        let (lock, fence) = match reading {
            Reading::Fence => {
                self.flight(flight).reading = Reading::LockAgain(self.table.fence());
                return None;
            }
            Reading::LockAgain(fence) => (self.table.lock(), fence),
            Reading::Lock => (self.table.lock(), None),
        };
        self.trace.mix(lock.as_ref().and_then(|lock| lock.rvn).map_or(0, |rvn| rvn.0 as u64));
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

    fn send_back(&mut self, flight: u32, node: usize) {
        let cut = self.nodes[node].cut_replies > 0;
        let now = self.now;
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
    fn land(&mut self, flight: u32) {
        if self.outages == 0 {
            self.failover = None;
            let _ = self.apply(flight);
        }
        self.release(flight);
    }

    fn apply(&mut self, flight: u32) -> Answer {
        let Some(attempt) = self.flight(flight).attempt.take() else { return Answer::Failed };
        let answer = self.table.write(&attempt);
        let applied = matches!(answer, Answer::Applied { .. });
        self.trace.mix(attempt.nonce().0 as u64 ^ u64::from(applied));
        self.trace.tell(self.now, format_args!("  store {} {}", Brief(&attempt), Outcomes(&answer)));
        if applied && C::FENCED {
            self.history.landed(self.now, &attempt);
            if let Attempt::Acquire(acquire) = &attempt {
                let verdict = self.epochs.landed(acquire.epoch);
                self.check(Rule::Ld2, verdict);
            }
        }
        self.flight(flight).attempt = Some(attempt);
        answer
    }

    fn reply(&mut self, flight: u32) {
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
            self.trace.note(self.now, format_args!("{} is answered: {}", name(node), Outcomes(&answer)));
            self.step(node, Event::Answered(id, answer));
        }
        self.release(flight);
    }

    fn give_up(&mut self, flight: u32) {
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
            self.trace.note(self.now, format_args!("{} gives up waiting: {}", name(node), Outcomes(&answer)));
            self.step(node, Event::Answered(id, answer));
        }
        self.release(flight);
    }

    /// Judges a write as it is sent, by what its sender could know at best.
    fn judge_write(&mut self, index: usize, attempt: &Attempt) {
        match attempt {
            Attempt::Acquire(_) => self.outcome.claims += 1,
            Attempt::Renew(_) | Attempt::Release(_) => self.outcome.leader_writes += 1,
        }
        if !C::FENCED {
            return;
        }
        let node = &self.nodes[index];
        let leads = self.until[index] > self.now;
        let who = name(index);
        match attempt {
            Attempt::Acquire(acquire) => {
                let over = acquire.over.as_ref();
                let own = over.is_some_and(|over| Some(&over.owner) == node.owner.as_ref());
                let expired = over.zip(node.timing.skew).is_some_and(|(over, bound)| {
                    let bound_millis = i64::try_from(bound.as_millis()).unwrap_or(i64::MAX);
                    true_wall(self.now).as_millis() >= over.ttl * 1000 + 1000 + bound_millis / 2
                });
                let verdict = self.history.claim_has_cause(self.now, acquire, own, expired);
                self.check(Rule::ClaimHasCause, verdict.map_err(|what| format!("{who} {what}")));
                if leads {
                    self.check(Rule::WriteHasCause, Err(format!("{who} claims what it leads")));
                }
            }
            Attempt::Renew(_) => {
                if !leads {
                    self.check(Rule::WriteHasCause, Err(format!("{who} renews without a term")));
                }
            }
            Attempt::Release(_) => {
                if !node.gave_up {
                    self.check(Rule::WriteHasCause, Err(format!("{who} releases what it did not give up")));
                }
            }
        }
    }

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
        self.enter(at, happening);
    }

    fn release(&mut self, flight: u32) {
        let held = &mut self.flight(flight).held;
        *held -= 1;
        if *held == 0 {
            self.free.push(flight);
        }
    }

    // === guarded work ===

    fn work(&mut self, index: usize, term: u32) {
        let node = &self.nodes[index];
        let monotonic = node.clock.monotonic(self.now);
        if !node.machine.as_ref().is_some_and(|machine| machine.is_leader(monotonic)) {
            return;
        }
        let (life, token) = (node.life, node.token);
        let mut draw = self.work_draw();
        let (thinks, next) = (draw.below(THINKING_MAX), draw.below(self.plan.work_every_max));
        let node = narrow(index);
        self.enter(self.now + thinks, Happening::Send { node, life, token });
        self.enter(self.now + 1 + next, Happening::Work { node, term });
    }

    fn guarded(&mut self, guard: usize, token: u32) {
        let epoch = Epoch(u64::from(token));
        let admitted = match guard {
            _ if !C::FENCED => true,
            0 => Fence::new(self.place.clone(), epoch).admits(self.guards[0].highest),
            _ => self.table.admits(epoch),
        };
        self.trace.mix(u64::from(token) << 1 | u64::from(admitted));
        let what = if admitted { "accepted" } else { "refused" };
        self.trace.note(self.now, format_args!("  guard {guard} {what} a write of term {token}"));
        if !admitted {
            self.outcome.writes_refused += 1;
            return;
        }
        self.outcome.writes_accepted += 1;
        let guard = &mut self.guards[guard];
        guard.highest = guard.highest.max(Some(epoch));
        let verdict = guard.holds.accepted(u64::from(token));
        self.check(Rule::Ld3, verdict);
    }

    // === incidents ===

    fn begin(&mut self, number: u32) {
        let incident = self.plan.incidents[number as usize];
        let leader = self.until.iter().position(|until| *until > self.now);
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
        self.outcome.faults.count(incident.fault);
        self.trace.mix(u64::from(number));
        if concerns_a_node(incident.fault) {
            self.trace.tell(self.now, format_args!("! {} {}", incident.fault.name(), name(index)));
        } else {
            self.trace.tell(self.now, format_args!("! {}", incident.fault.name()));
        }
        self.befell[number as usize] = Some((narrow(index), self.nodes[index].life));
        if lasts(incident.fault) {
            self.enter(incident.until, Happening::End { incident: number });
        }
        if incident.fault == Fault::Crash {
            let life = self.nodes[index].life;
            self.enter(incident.until, Happening::Start { node: narrow(index), life });
        }
    }

    /// Something happens to one node; false if it cannot, as things are.
    fn befall(&mut self, index: usize, incident: &Incident) -> bool {
        let leads = self.until[index] > self.now;
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
                self.enter(self.now, Happening::Halt { node: who, life });
            }
            Fault::Partition => {
                node.cut_requests += 1;
                node.cut_replies += 1;
            }
            Fault::RequestsDropped => node.cut_requests += 1,
            Fault::RepliesDropped => node.cut_replies += 1,
            Fault::Unhealthy => node.unhealthy += 1,
            Fault::WallStep => node.clock.skew_millis = incident.detail.cast_signed(),
            Fault::Resign if runs => self.enter(self.now, Happening::Resign { node: who, life, to: None }),
            Fault::ResignTo if runs => {
                let to = if incident.detail % 8 == 0 { NOBODY } else { narrow((index + 1) % NODES) };
                self.enter(self.now, Happening::Resign { node: who, life, to: Some(to) });
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

    fn begin_failover(&mut self, crashed: usize) {
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
            (watchers != 0 && self.outages == 0).then_some(Failover { at: self.now, lease, watchers });
    }

    fn reap(&mut self) -> bool {
        let wall = true_wall(self.now).as_seconds();
        let past = self.table.ttl().is_some_and(|ttl| ttl < wall && ttl > wall - FIVE_YEARS_SECONDS);
        past && self.delete()
    }

    fn delete(&mut self) -> bool {
        let epoch = self.table.lock().and_then(|Lock { epoch, .. }| epoch);
        if !self.table.delete_lock() {
            return false;
        }
        self.failover = None;
        self.history.deleted(self.now, epoch.unwrap_or(Epoch(0)));
        true
    }

    fn end(&mut self, number: u32) {
        let incident = self.plan.incidents[number as usize];
        let Some((index, life)) = self.befell[number as usize] else { return };
        let index = usize::from(index);
        self.trace.tell(self.now, format_args!("! {} is over", incident.fault.name()));
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
    fn resume(&mut self, index: usize, timer_first: bool) {
        let node = &mut self.nodes[index];
        let monotonic = node.clock.monotonic(self.now);
        let says = node.machine.as_ref().is_some_and(|machine| machine.is_leader(monotonic));
        let waiting = std::mem::take(&mut node.waiting);
        if says != (self.until[index] > self.now) {
            let what = format!("{} resumes and says {says} of its leading", name(index));
            self.check(Rule::Ld1, Err(what));
        }
        let verdict = at_most_one_leader(self.now, index, &self.until);
        self.check(Rule::Ld1, verdict);
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

const fn event_code(event: &Event) -> u64 {
    match event {
        Event::Wake => 0,
        Event::Answered(_, answer) => match answer {
            Answer::Rows(_) => 1,
            Answer::Applied { .. } => 2,
            Answer::RefusedByLock(_) => 3,
            Answer::RefusedByFence(_) => 4,
            Answer::Unknown => 5,
            Answer::Failed => 6,
            Answer::Foreign(_) => 7,
        },
        Event::Campaign => 8,
        Event::TryOnce => 9,
        Event::Watch => 10,
        Event::Rest => 11,
        Event::Resign { .. } => 12,
        Event::Stop => 13,
    }
}

/// There are three nodes.
fn narrow(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// There are far fewer incidents and calls in flight than four thousand million.
fn wide(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// A write in a few words.
struct Brief<'a>(&'a Attempt);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Attempt::Acquire(acquire) => {
                let owner = acquire.owner.as_str().chars().next().unwrap_or('?');
                write!(f, "claim of {owner}, epoch {}, rvn {}", acquire.epoch, Short(acquire.rvn))?;
                match &acquire.over {
                    Some(over) => write!(
                        f,
                        ", over {}",
                        over.rvn.map_or_else(|| "a foreign row".to_owned(), |rvn| Short(rvn).to_string())
                    ),
                    None => f.write_str(", over no row"),
                }
            }
            Attempt::Renew(renew) => {
                write!(
                    f,
                    "renewal of epoch {}, rvn {} to {}",
                    renew.epoch,
                    Short(renew.current),
                    Short(renew.fresh)
                )
            }
            Attempt::Release(release) => {
                write!(
                    f,
                    "release of epoch {}, rvn {} to {}",
                    release.epoch,
                    Short(release.current),
                    Short(release.fresh)
                )?;
                release.reserved_for.as_ref().map_or(Ok(()), |name| write!(f, ", for {name}"))
            }
        }
    }
}

/// The part of a nonce by which this world tells it from others: node and step.
struct Short(Nonce);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (node, step) = ((self.0.0 >> 112) as u64, (self.0.0 >> 64) as u64 & 0xffff_ffff_ffff);
        match node {
            0 => write!(f, "?"),
            node => write!(f, "{}{step}", name(usize::try_from(node - 1).unwrap_or(0))),
        }
    }
}

/// An answer in a few words.
struct Outcomes<'a>(&'a Answer);

impl std::fmt::Display for Outcomes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let row = |lock: &Option<Lock>| match lock {
            Some(lock) => {
                let owner = lock.owner.as_str().chars().next().unwrap_or('?');
                let epoch = lock.epoch.map_or(0, |epoch| epoch.0);
                let rvn = lock.rvn.map_or_else(|| "?".to_owned(), |rvn| Short(rvn).to_string());
                format!("{owner} epoch {epoch} ttl {} rvn {rvn}", lock.ttl)
            }
            None => "no row".to_owned(),
        };
        match self.0 {
            Answer::Rows(rows) => match &rows.lock {
                Some(_) => f.write_str(&row(&rows.lock)),
                None => write!(f, "no row, fence {:?}", rows.fence.map(|mark| mark.epoch.0)),
            },
            Answer::Applied { .. } => f.write_str("applied"),
            Answer::RefusedByLock(lock) => write!(f, "refused: {}", row(lock)),
            Answer::RefusedByFence(mark) => write!(f, "refused: fence {:?}", mark.map(|mark| mark.epoch.0)),
            Answer::Unknown => f.write_str("unknown"),
            Answer::Failed => f.write_str("failed"),
            Answer::Foreign(what) => write!(f, "foreign: {what}"),
        }
    }
}
