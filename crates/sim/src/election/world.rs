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

mod calls;
mod incidents;

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_clock::Monotonic;
use tenure_election::{
    Answer, CallId, Effect, Epoch, Event, Fence, LossReason, Me, News, Nonce, Now, OwnerId, Place, Timing,
};

use self::calls::Flight;
use super::candidate::Candidate;
use super::checkers::{
    EpochsRise, GuardHolds, RowHistory, Rule, at_most_one_leader, deadline_from_send, one_leader,
    term_stays_over,
};
use super::fault::Fault;
use super::plan::{COOL_DOWN_MAX, NODES, Owners, Plan};
use super::table::{Table, place};
use super::{Election, Outcome};
use crate::calendar::nanos;
use crate::draws::{Draw, Draws};
use crate::node_clock::NodeClock;
use crate::scenario::{Watch, name};
use crate::stage::Stage;

/// More than any schedule needs, by far: beyond it, somebody spins.
const EVENTS_MAX: u64 = 1_000_000;
/// How late a timer fires at most.
const TIMER_LATE_MAX: u64 = 2_000_000;
/// How long a process thinks between looking whether it leads and sending a guarded write.
const THINKING_MAX: u64 = 100_000_000;
/// A nonce of this world says who made it: the node above this bit, and below it the number of its step.
const NODE_SHIFT: u32 = 112;
const STEP_MAX: u64 = (1 << (NODE_SHIFT - 64)) - 1;
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

struct Node<C> {
    timing: Timing,
    clock: NodeClock,
    name: Arc<str>,
    about: Arc<BTreeMap<String, String>>,
    /// The process, if one runs.
    machine: Option<C>,
    /// Counts processes.
    life: u32,
    steps: u64,
    /// How many steps there were before this process.
    born: u64,
    calls: u32,
    call: Option<CallId>,
    /// The timer that is set, and its number: others in the calendar are void.
    wake: u64,
    turn: u32,
    /// The last write, and when it was first sent.
    sent: (Nonce, Monotonic),
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

impl<C> Node<C> {
    /// Whether the process that runs now made this nonce, as node number `index`.
    fn wrote(&self, index: usize, nonce: Nonce) -> bool {
        let step = (nonce.0 >> 64) as u64 & STEP_MAX;
        nonce.0 >> NODE_SHIFT == index as u128 + 1 && step > self.born
    }
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
    stage: Stage<Election, Happening>,
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
    elections: u32,
    work_draws: Draws,
    works: u64,
    guards: [Guard; 2],
    /// To whom each incident happened, and in which life.
    befell: Vec<Option<(u8, u32)>>,
    failover: Option<Failover>,
    epochs: EpochsRise,
    history: RowHistory,
}

impl<'p, C: Candidate, T: Table> World<'p, C, T> {
    pub(super) fn new(plan: &'p Plan, watch: Watch<Rule>) -> Self {
        let about = Arc::new(BTreeMap::new());
        let nodes = plan.nodes.iter().enumerate().map(|(index, node)| Node {
            timing: node.timing,
            clock: NodeClock::new(node.clock_origin, node.rate_ppm, node.skew_millis),
            name: node_name(plan, index),
            about: Arc::clone(&about),
            machine: None,
            life: 0,
            steps: 0,
            born: 0,
            calls: 0,
            call: None,
            wake: u64::MAX,
            turn: 0,
            sent: (Nonce(0), Monotonic::default()),
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
            draws: Draws::new(plan.course.key, 2 * index as u64),
            call_draws: Draws::new(plan.course.key, 2 * index as u64 + 1),
        });
        let mut world = Self {
            plan,
            stage: Stage::new(plan.course.end_at, EVENTS_MAX, watch),
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
            elections: 0,
            work_draws: Draws::new(plan.course.key, 1000),
            works: 0,
            guards: Default::default(),
            befell: vec![None; plan.course.incidents.len()],
            failover: None,
            epochs: EpochsRise::default(),
            history: RowHistory::default(),
        };
        world.set_out();
        world
    }

    /// Enters what the plan says.
    fn set_out(&mut self) {
        for (index, node) in self.plan.nodes.iter().enumerate().filter(|(_, node)| node.present) {
            self.stage.enter(node.starts_at, Happening::Start { node: narrow(index), life: 0 });
            if node.skew_millis != 0 {
                self.stage.outcome.faults.count(Fault::WallSkew);
            }
            if node.rate_ppm != 0 {
                self.stage.outcome.faults.count(Fault::RateError);
            }
            let timing = node.timing;
            self.stage.trace.tell(
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
        match self.plan.owners {
            Owners::Fresh => {}
            Owners::Kept => self.stage.trace.tell(0, format_args!("each node keeps its owner id")),
            Owners::Shared => {
                self.stage.outcome.faults.count(Fault::SharedOwner);
                self.stage.trace.tell(0, format_args!("a and b have one owner id"));
            }
        }
        for (index, incident) in self.plan.course.incidents.iter().enumerate() {
            self.stage.enter(incident.at, Happening::Begin { incident: wide(index) });
        }
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
            if self.healed {
                let verdict = one_leader(self.stage.now, &self.until);
                self.stage.check(Rule::Ld4, verdict);
            }
        }
        self.count_led_until(self.stage.now);
        self.stage.finish()
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
                self.stage.trace.tell(self.stage.now, format_args!("the faults stop"));
                self.stage.enter(self.plan.converged_by(), Happening::Converged);
            }
            Happening::Converged => {
                let verdict = one_leader(self.stage.now, &self.until);
                self.stage.check(Rule::Ld4, verdict);
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
                let once = !self.healed && self.draw(node).bits().is_multiple_of(8);
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
                let held_up =
                    if draw.take().is_multiple_of(8) { 2 * nanos(self.nodes[node].timing.lease) } else { 0 };
                let at = self.stage.now + self.latency(&mut draw) + draw.below(held_up);
                self.stage.enter(at, Happening::Guarded { guard, token });
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
        self.plan.network.latency(draw)
    }

    fn start(&mut self, index: usize, life: u32) {
        let node = &mut self.nodes[index];
        if node.life != life || node.machine.is_some() {
            return;
        }
        let owner = match self.plan.owners {
            Owners::Fresh => format!("{}-{:016x}", node.name, owner_digits(self.plan, index, life)),
            // The id that was given is the name, too.
            Owners::Kept | Owners::Shared => node.name.to_string(),
        };
        let owner = OwnerId::new(owner).expect("a name and digits");
        let me = Me { owner, name: node.name.clone(), about: node.about.clone() };
        node.machine = Some(C::new(me, node.timing));
        node.born = node.steps;
        if life > 0 && self.plan.owners == Owners::Kept {
            self.stage.outcome.faults.count(Fault::KeptOwner);
        }
        (node.stopping, node.told_to_stop, node.gave_up, node.standing) = (false, false, false, true);
        self.stage.trace.tell(self.stage.now, format_args!("{} starts", name(index)));
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
        let monotonic = node.clock.monotonic(self.stage.now);
        // Unique by its upper half, random in its lower.
        let nonce = Nonce(
            (u128::from(index as u64 + 1) << NODE_SHIFT)
                | (u128::from(node.steps) << 64)
                | u128::from(draw.bits()),
        );
        let now =
            Now { monotonic, wall: node.clock.wall(self.stage.now), nonce, healthy: node.unhealthy == 0 };
        let effects = machine.step(now, event);
        let term = machine.term();
        let wake_at = machine.wake_at();
        self.stage.trace.mix(self.stage.now << 8 | (index as u64) << 4 | code);
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
        let due = node.clock.moment(wake_at).max(self.stage.now + 1);
        if node.wake != due {
            node.wake = due;
            node.turn += 1;
            // The machine uses the lower bits.
            let late = ((draw.bits() >> 48) * TIMER_LATE_MAX) >> 16;
            let (node, turn) = (narrow(index), node.turn);
            self.stage.enter(due + late, Happening::Wake { node, turn });
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
        if C::FENCED {
            let from_send = deadline_from_send(deadline, node.sent.1, node.timing.validity);
            let stays_over = term_stays_over(self.stage.now, epoch, node.epoch, self.until[index]);
            let who = |what| format!("{} {what}", name(index));
            self.stage.check(Rule::DeadlineFromSend, from_send.map_err(who));
            self.stage.check(Rule::TermStaysOver, stays_over.map_err(who));
        }
        let node = &mut self.nodes[index];
        (node.deadline, node.epoch) = (Some(deadline), epoch);
        let until = node.clock.moment(deadline);
        self.set_until(index, until);
        let verdict = at_most_one_leader(self.stage.now, index, &self.until);
        self.stage.check(Rule::Ld1, verdict);
    }

    fn set_until(&mut self, index: usize, until: u64) {
        self.until[index] = until;
        self.count_led_until(self.until.iter().copied().max().unwrap_or(0).min(self.plan.course.end_at));
    }

    /// Counts the time from now until then as led, instead of what was foreseen before.
    fn count_led_until(&mut self, until: u64) {
        let until = until.max(self.stage.now);
        let foreseen = self.led_until.max(self.stage.now);
        self.stage.outcome.tally.led_nanos = self.stage.outcome.tally.led_nanos + until - foreseen;
        self.led_until = until;
    }

    fn hear(&mut self, index: usize, news: News) {
        let (who, now) = (name(index), self.stage.now);
        match news {
            News::Elected { epoch, .. } => {
                self.stage.trace.mix(epoch.0);
                self.stage.trace.tell(now, format_args!("{who} leads, epoch {epoch}"));
                self.elected(index, epoch);
            }
            News::Renewed { .. } => self.stage.trace.note(now, format_args!("{who} renewed")),
            News::Lost(reason) => {
                self.stage.trace.tell(now, format_args!("{who} lost its term: {}", reason.name()));
                self.nodes[index].standing = false;
                self.nodes[index].gave_up |= reason == LossReason::Resigned;
                if self.converged {
                    self.stage.check(Rule::Ld4, Err(format!("{who} lost its term after all had healed")));
                }
                self.stand_later(index);
            }
            News::Declined => {
                self.stage.trace.note(now, format_args!("{who} could not have it now"));
                self.nodes[index].standing = false;
                self.stand_later(index);
            }
            News::Released { confirmed } => {
                self.stage.trace.tell(now, format_args!("{who} released, confirmed {confirmed}"));
                self.nodes[index].gave_up = self.nodes[index].told_to_stop;
            }
            News::ResignAsked(_) => {
                self.stage.trace.tell(now, format_args!("{who} hears that it should hand over"));
                let life = self.nodes[index].life;
                self.stage.enter(now + 1, Happening::Resign { node: narrow(index), life, to: None });
            }
            News::Trouble(trouble) => {
                self.stage.trace.tell(now, format_args!("{who} is troubled: {trouble:?}"))
            }
            News::Stopped => self.stopped(index),
        }
    }

    fn elected(&mut self, index: usize, epoch: Epoch) {
        self.elections += 1;
        self.stage.outcome.tally.terms += 1;
        let node = &mut self.nodes[index];
        node.term += 1;
        node.gave_up = false;
        node.token = if C::FENCED { u32::try_from(epoch.0).unwrap_or(u32::MAX) } else { self.elections };
        let (term, told_to_stop) = (node.term, node.told_to_stop);
        if told_to_stop {
            self.stage.check(Rule::StopJoins, Err(format!("{} was elected after its stop", name(index))));
        }
        if C::FENCED {
            let verdict = self.epochs.elected(epoch);
            self.stage.check(Rule::Ld2, verdict);
        }
        if let Some(failover) = self.failover.take() {
            let thousandths = (self.stage.now - failover.at) * 1000 / failover.lease;
            let thousandths = u32::try_from(thousandths).unwrap_or(u32::MAX);
            *self.stage.outcome.tally.failovers.entry(thousandths).or_default() += 1;
        }
        let at = self.stage.now + self.work_draw().below(self.plan.work_every_max);
        self.stage.enter(at, Happening::Work { node: narrow(index), term });
    }

    fn stand_later(&mut self, index: usize) {
        if self.nodes[index].stopping {
            return;
        }
        let wait = self.draw(index).below(COOL_DOWN_MAX);
        let life = self.nodes[index].life;
        self.stage.enter(self.stage.now + wait, Happening::Stand { node: narrow(index), life });
    }

    fn stopped(&mut self, index: usize) {
        self.stage.trace.tell(self.stage.now, format_args!("{} stopped", name(index)));
        let machine = self.nodes[index].machine.as_ref();
        if machine.is_some_and(|machine| !machine.is_stopped() || machine.term().is_some()) {
            self.stage.check(Rule::StopJoins, Err(format!("{} said it stopped, and did not", name(index))));
        }
        self.vanish(index);
        let node = &self.nodes[index];
        let (at, life) = (node.restart_at.max(self.stage.now + 1), node.life);
        self.stage.enter(at, Happening::Start { node: narrow(index), life });
    }

    // === guarded work ===

    fn work(&mut self, index: usize, term: u32) {
        let node = &self.nodes[index];
        let monotonic = node.clock.monotonic(self.stage.now);
        if !node.machine.as_ref().is_some_and(|machine| machine.is_leader(monotonic)) {
            return;
        }
        let (life, token) = (node.life, node.token);
        let mut draw = self.work_draw();
        let (thinks, next) = (draw.below(THINKING_MAX), draw.below(self.plan.work_every_max));
        let node = narrow(index);
        self.stage.enter(self.stage.now + thinks, Happening::Send { node, life, token });
        self.stage.enter(self.stage.now + 1 + next, Happening::Work { node, term });
    }

    fn guarded(&mut self, guard: usize, token: u32) {
        let epoch = Epoch(u64::from(token));
        let admitted = match guard {
            _ if !C::FENCED => true,
            0 => Fence::new(self.place.clone(), epoch).admits(self.guards[0].highest),
            _ => self.table.admits(epoch),
        };
        self.stage.trace.mix(u64::from(token) << 1 | u64::from(admitted));
        let what = if admitted { "accepted" } else { "refused" };
        self.stage.trace.note(self.stage.now, format_args!("  guard {guard} {what} a write of term {token}"));
        if !admitted {
            self.stage.outcome.tally.writes_refused += 1;
            return;
        }
        self.stage.outcome.tally.writes_accepted += 1;
        let guard = &mut self.guards[guard];
        guard.highest = guard.highest.max(Some(epoch));
        let verdict = guard.holds.accepted(u64::from(token));
        self.stage.check(Rule::Ld3, verdict);
    }
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

/// What a node is called by the others; its owner id, where that was given.
fn node_name(plan: &Plan, index: usize) -> Arc<str> {
    match plan.owners {
        Owners::Fresh => name(index).to_string().into(),
        Owners::Shared if index < 2 => format!("ab-{:016x}", owner_digits(plan, 0, 0)).into(),
        Owners::Kept | Owners::Shared => {
            format!("{}-{:016x}", name(index), owner_digits(plan, index, 0)).into()
        }
    }
}

const fn owner_digits(plan: &Plan, index: usize, life: u32) -> u64 {
    Draws::new(plan.course.key ^ life as u64 ^ ((index as u64) << 32), 7).at(0).bits()
}

/// There are three nodes.
fn narrow(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// There are far fewer incidents and calls in flight than four thousand million.
fn wide(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
