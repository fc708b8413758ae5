//! The real machine, in every order of events within a bound.
//!
//! Two candidates, a table, a clock of true time that counts in tenths of a second, and a few faults. A
//! lease lasts 20 ticks; the clocks of the candidates run at both ends of the rate bound. Between two
//! ticks every call is served, in any order, unless a fault delays it: a delayed call reaches the store
//! at any later moment, its answer comes at any later moment, and both may come after its sender gave up
//! or not at all. The other faults are in [`Fault`]. Whenever a fault can strike it does, in one branch.
//!
//! Every state has a moment, so the number of states is bounded by the horizon; and the number of faults is
//! bounded per scenario, because each multiplies the states by about a thousand. The scenarios differ in
//! settings and in the faults that matter to them; each prints how many states it has.

use std::sync::Arc;
use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_clock::{Monotonic, WallTime};
use tenure_election::testing::LockTable;
use tenure_election::{
    Answer, Attempt, Call, CallId, Effect, Epoch, Event, Fence, Machine, Me, News, Nonce, Now,
    OnRenewalError, OwnerId, Place, Settings, ShardId, Skew,
};

use self::Fault::{Crash, Delay, Pause, Reap, Resign, Sicken, Stop};

const TICK: Duration = Duration::from_millis(100);
const RATE_ERROR_PPM: u32 = 10_000;
/// Leases of everybody who could lead, and one poll, on the slowest clock.
const HEALED_AFTER_TICKS: u16 = 52;

#[test]
fn clocks_that_drift() {
    check(&Scenario { faults: 2, kinds: &[Delay, Pause, Crash, Reap], ..Scenario::new("drift") });
}

#[test]
fn leaders_that_retry() {
    check(&Scenario {
        // So often, and so early in a second, that a retry can bear the `ttl` of the first try.
        settings: Settings {
            on_renewal_error: OnRenewalError::RetryUntilDeadline,
            poll: Some(TICK * 3),
            ..settings()
        },
        wall_millis: [100, 0],
        faults: 2,
        kinds: &[Delay, Pause, Resign],
        ..Scenario::new("retry")
    });
}

#[test]
fn leaders_that_leave() {
    check(&Scenario { faults: 2, kinds: &[Delay, Resign, Stop, Sicken], ..Scenario::new("leave") });
}

#[test]
fn leases_that_differ() {
    let long = Settings { lease: TICK * 30, renew: TICK * 12, ..settings() };
    check(&Scenario {
        first_settings: Some(long),
        faults: 1,
        kinds: &[Delay, Pause, Crash],
        horizon: 48,
        ..Scenario::new("leases")
    });
}

#[test]
fn wall_clocks_within_a_bound() {
    check(&Scenario {
        settings: Settings { skew: Skew::Bounded(TICK * 10), ..settings() },
        wall_millis: [-500, 500],
        faults: 2,
        kinds: &[Delay, Pause, Crash],
        ..Scenario::new("skew")
    });
}

#[test]
fn two_processes_with_one_owner_id() {
    check(&Scenario {
        owners: ["x", "x"],
        faults: 1,
        kinds: &[Delay, Pause, Crash],
        ..Scenario::new("owner")
    });
}

#[test]
fn faults_that_end() {
    check(&Scenario {
        faults: 2,
        kinds: &[Delay, Crash],
        faults_until: 3,
        horizon: HEALED_AFTER_TICKS + 8,
        ..Scenario::new("heal")
    });
}

fn settings() -> Settings {
    Settings {
        lease: TICK * 20,
        renew: TICK * 8,
        poll: Some(TICK * 6),
        rate_error_ppm: RATE_ERROR_PPM,
        ..Settings::balanced()
    }
}

/// Explores every state, and fails with the shortest way to one that breaks a property.
fn check(scenario: &Scenario) {
    let checker =
        scenario.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{}: {} states, {} steps deep, {} faults, {} ticks",
        scenario.name,
        checker.unique_state_count(),
        checker.max_depth(),
        scenario.faults,
        scenario.horizon
    );
    for property in scenario.properties() {
        let is_found = checker.discovery(property.name);
        match (property.expectation, is_found) {
            (stateright::Expectation::Sometimes, None) => panic!("never: {}", property.name),
            (stateright::Expectation::Always, Some(path)) => {
                let actions = path.into_actions();
                panic!("{}: {} is broken by {actions:?}", scenario.name, property.name);
            }
            _ => {}
        }
    }
}

// === the model ===

#[derive(Debug, Clone)]
struct Scenario {
    name: &'static str,
    settings: Settings,
    /// Those of the first candidate, if they differ.
    first_settings: Option<Settings>,
    owners: [&'static str; 2],
    wall_millis: [i64; 2],
    faults: u8,
    kinds: &'static [Fault],
    /// No fault begins after this tick.
    faults_until: u16,
    horizon: u16,
}

impl Scenario {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            settings: settings(),
            first_settings: None,
            owners: ["a", "b"],
            // Nothing is assumed of them unless a scenario says so.
            wall_millis: [0, 3_600_000],
            faults: 0,
            kinds: &[],
            faults_until: 19,
            horizon: 34,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// A call takes longer than no time: it lands and is answered at any moments, or never.
    Delay,
    /// A process stands still, and goes on at any later moment.
    Pause,
    /// A process ends and another takes its place; what it sent may still land.
    Crash,
    /// The LOCK row is deleted, whatever its `ttl`.
    Reap,
    /// A leader hands over.
    Resign,
    /// A candidate is told to end.
    Stop,
    /// A candidate's health check fails until its term is over.
    Sicken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    /// The call in flight reaches the store and is answered.
    Serve(usize),
    /// A delayed call reaches the store.
    Land(usize),
    /// The answer to a delayed call arrives.
    Hear(usize),
    /// A write reaches the store that nobody waits for any more.
    LandLate(usize),
    Resume(usize),
    Strike(Fault, usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    tick: u16,
    nodes: Vec<Node>,
    table: LockTable,
    /// Writes whose sender gave up or ended before they reached the store.
    late: Vec<Attempt>,
    faults_left: u8,
    /// The epoch of the last acquisition, and whose it was.
    epoch: u64,
    leader: Option<usize>,
    /// The highest epoch that a guarded resource saw.
    guard: Option<Epoch>,
    failed_over: bool,
    landed_late: bool,
    /// Since when nothing went wrong, and whether anybody has led since.
    calm_since: u16,
    led: bool,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    machine: Machine,
    call: Option<Flight>,
    paused: bool,
    healthy: bool,
    asked_to_stop: bool,
    stopped: bool,
    /// Nonces drawn in this tick.
    draws: u8,
    /// The last term, and the last that was over.
    epoch: u64,
    over: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Flight {
    id: CallId,
    by: Monotonic,
    is_write: bool,
    /// Until it reached the store.
    call: Option<Call>,
    answer: Option<Answer>,
    delayed: bool,
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let nodes = (0..2).map(|index| Node::new(self.machine(index))).collect();
        let mut world = World {
            tick: 0,
            nodes,
            table: LockTable::default(),
            late: Vec::new(),
            faults_left: self.faults,
            epoch: 0,
            leader: None,
            guard: None,
            failed_over: false,
            landed_late: false,
            calm_since: 0,
            led: false,
            broken: None,
        };
        for index in 0..2 {
            self.step(&mut world, index, Event::Campaign);
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let kinds = if world.faults_left > 0 && world.tick <= self.faults_until { self.kinds } else { &[] };
        let mut served = true;
        for (index, node) in world.nodes.iter().enumerate() {
            match &node.call {
                Some(Flight { delayed: false, .. }) => {
                    served = false;
                    actions.push(Action::Serve(index));
                    if kinds.contains(&Delay) {
                        actions.push(Action::Strike(Delay, index));
                    }
                }
                Some(Flight { call: Some(_), .. }) => actions.push(Action::Land(index)),
                _ => {}
            }
        }
        // Nothing else happens before whatever was not delayed is served.
        if !served {
            return;
        }
        for (index, node) in world.nodes.iter().enumerate() {
            if node.paused {
                actions.push(Action::Resume(index));
            } else if let Some(Flight { answer: Some(_), .. }) = node.call {
                actions.push(Action::Hear(index));
            }
            for &kind in kinds {
                let can = match kind {
                    Delay | Reap => false,
                    Pause => !node.paused && !node.stopped,
                    Crash => !node.stopped,
                    Resign => !node.paused && node.machine.term().is_some(),
                    Stop => !node.paused && !node.asked_to_stop,
                    Sicken => node.healthy && node.machine.term().is_some(),
                };
                if can {
                    actions.push(Action::Strike(kind, index));
                }
            }
        }
        if kinds.contains(&Reap) && world.table.rows.lock.is_some() {
            actions.push(Action::Strike(Reap, 0));
        }
        // A late write that is refused changes nothing and tells nobody.
        let applies =
            |attempt: &Attempt| matches!(world.table.clone().write(attempt), Answer::Applied { .. });
        let late = world.late.iter().enumerate().filter(|(_, attempt)| applies(attempt));
        actions.extend(late.map(|(index, _)| Action::LandLate(index)));
        actions.push(Action::Tick);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Tick => self.tick(&mut world),
            Action::Serve(index) => {
                world.land(index);
                self.hear(&mut world, index);
            }
            Action::Land(index) => world.land(index),
            Action::Hear(index) => self.hear(&mut world, index),
            Action::LandLate(index) => {
                let attempt = world.late.remove(index);
                world.write(&attempt);
                world.landed_late = true;
                world.disturb();
            }
            Action::Resume(index) => {
                world.nodes[index].paused = false;
                // What has arrived meanwhile is heard before anything else.
                if world.nodes[index].call.as_ref().is_some_and(|flight| flight.answer.is_some()) {
                    self.hear(&mut world, index);
                }
                self.catch_up(&mut world, index);
            }
            Action::Strike(fault, index) => {
                world.faults_left -= 1;
                self.strike(&mut world, fault, index);
            }
        }
        self.observe(&mut world);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("LD-1 one leader at a time", |model: &Self, world: &World| {
                (0..2).filter(|&index| model.leads(world, index)).count() <= 1
            }),
            Property::always("LD-2 epochs rise", |_, world: &World| world.broken != Some("LD-2")),
            Property::always("LD-3 a guard admits no epoch below the highest it saw", |_, world: &World| {
                let admitted = |node: &Node| node.epoch > 0 && fence(node.epoch).admits(world.guard);
                world.nodes.iter().all(|node| !admitted(node) || Some(Epoch(node.epoch)) >= world.guard)
            }),
            Property::always("LD-3 the FENCE row admits the newest term alone", |_, world: &World| {
                world.nodes.iter().all(|node| {
                    node.epoch == 0 || node.epoch == world.epoch || !world.table.admits(Epoch(node.epoch))
                })
            }),
            Property::always("LD-4 somebody leads once faults have ended", |_, world: &World| {
                world.broken != Some("LD-4")
            }),
            Property::always("E-5 the FENCE row knows of every leader", |model: &Self, world: &World| {
                let fence = world.table.rows.fence.map_or(0, |mark| mark.epoch.0);
                (0..2).all(|index| !model.leads(world, index) || world.nodes[index].epoch <= fence)
            }),
            Property::always("E-6 what was released stays so until it is claimed", |_, world: &World| {
                world.broken != Some("E-6")
            }),
            Property::always("E-9 who has stopped does not lead", |model: &Self, world: &World| {
                (0..2).all(|index| !world.nodes[index].stopped || !model.leads(world, index))
            }),
            Property::always("E-10 a term that is over stays over", |_, world: &World| {
                world.broken != Some("E-10")
            }),
            Property::always("E-11 no renewal without health", |_, world: &World| {
                world.broken != Some("E-11")
            }),
            Property::always("a step leads to rest", |_, world: &World| world.broken != Some("spins")),
            Property::sometimes("somebody is elected", |_, world: &World| world.epoch > 0),
            Property::sometimes("leadership moves", |_, world: &World| world.failed_over),
            // One fault alone leaves nothing behind that a retry has not overtaken.
            Property::sometimes("a late write lands", |model: &Self, world: &World| {
                world.landed_late || model.faults < 2 || model.faults_until < model.horizon / 2
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.tick <= self.horizon
    }
}

// === what actions do ===

impl Scenario {
    fn machine(&self, index: usize) -> Machine {
        let name = ["a", "b"][index];
        let settings = self.first_settings.as_ref().filter(|_| index == 0).unwrap_or(&self.settings);
        let me =
            Me { owner: OwnerId::new(self.owners[index]).unwrap(), name: name.into(), about: Arc::default() };
        Machine::new(me, settings.timing(false).unwrap())
    }

    /// What the candidate's clock shows: the first runs slow and the second fast, as far as is allowed.
    fn local(&self, world: &World, index: usize) -> Monotonic {
        let rate_ppm = [1_000_000 - RATE_ERROR_PPM, 1_000_000 + RATE_ERROR_PPM][index];
        let passed = TICK * u32::from(world.tick);
        Monotonic::default() + Duration::from_secs(1000) + passed * rate_ppm / 1_000_000
    }

    fn leads(&self, world: &World, index: usize) -> bool {
        world.nodes[index].machine.is_leader(self.local(world, index))
    }

    fn tick(&self, world: &mut World) {
        world.tick += 1;
        for index in 0..2 {
            world.nodes[index].draws = 0;
            self.catch_up(world, index);
        }
        let live = |node: &Node| !node.paused && !node.asked_to_stop;
        if world.tick - world.calm_since > HEALED_AFTER_TICKS && !world.led && world.nodes.iter().any(live) {
            world.broken = Some("LD-4");
        }
    }

    /// Whatever is due for a candidate that runs.
    fn catch_up(&self, world: &mut World, index: usize) {
        // A handful of wakes can follow each other; more mean that time does not get on.
        for _ in 0..10 {
            let (local, node) = (self.local(world, index), &mut world.nodes[index]);
            if node.paused {
                return;
            }
            let given_up = node.call.take_if(|flight| flight.by <= local);
            if let Some(flight) = given_up {
                let answer = if flight.is_write { Answer::Unknown } else { Answer::Failed };
                if let Some(Call::Write(attempt)) = flight.call {
                    world.late.push(attempt);
                }
                self.step(world, index, Event::Answered(flight.id, answer));
            } else if node.machine.wake_at() <= local {
                self.step(world, index, Event::Wake);
            } else {
                return;
            }
        }
        world.broken = Some("spins");
    }

    fn hear(&self, world: &mut World, index: usize) {
        if let Some(Flight { id, answer: Some(answer), .. }) = world.nodes[index].call.take() {
            self.step(world, index, Event::Answered(id, answer));
        }
    }

    fn strike(&self, world: &mut World, fault: Fault, index: usize) {
        world.disturb();
        let node = &mut world.nodes[index];
        match fault {
            Delay => {
                if let Some(flight) = &mut node.call {
                    flight.delayed = true;
                }
            }
            Pause => node.paused = true,
            Crash => {
                let call = node.call.take();
                let (epoch, over) = (node.epoch, node.epoch);
                *node = Node { epoch, over, ..Node::new(self.machine(index)) };
                if let Some(Flight { call: Some(Call::Write(attempt)), .. }) = call {
                    world.late.push(attempt);
                }
                self.step(world, index, Event::Campaign);
            }
            Reap => world.table.delete_lock(),
            Resign => self.step(world, index, Event::Resign { to: None }),
            Stop => {
                node.asked_to_stop = true;
                self.step(world, index, Event::Stop);
            }
            Sicken => node.healthy = false,
        }
    }

    fn step(&self, world: &mut World, index: usize, event: Event) {
        let monotonic = self.local(world, index);
        let wall = WallTime::from_millis(self.wall_millis[index]) + TICK * u32::from(world.tick);
        let node = &mut world.nodes[index];
        node.draws += 1;
        // Fresh for every step, the same in whichever order the candidates act, and without jitter.
        let nonce = Nonce(
            ((index as u128 + 1) << 96) | (u128::from(world.tick) << 64) | (u128::from(node.draws) << 48),
        );
        let now = Now { monotonic, wall, nonce, healthy: node.healthy };
        let mut lost = false;
        for effect in node.machine.step(now, event) {
            match effect {
                Effect::Call { id, by, call } => {
                    let is_write = matches!(call, Call::Write(_));
                    if matches!(call, Call::Write(Attempt::Renew(_))) && !now.healthy {
                        world.broken = Some("E-11");
                    }
                    node.call =
                        Some(Flight { id, by, is_write, call: Some(call), answer: None, delayed: false });
                }
                Effect::Tell(News::Elected { epoch, .. }) => {
                    if epoch.0 <= world.epoch {
                        world.broken = Some("LD-2");
                    }
                    world.failed_over |= world.leader.is_some_and(|leader| leader != index);
                    (node.epoch, world.epoch, world.leader) = (epoch.0, epoch.0, Some(index));
                    // It stamps its epoch on what it guards.
                    if fence(epoch.0).admits(world.guard) {
                        world.guard = world.guard.max(Some(epoch));
                    }
                }
                Effect::Tell(News::Lost(_)) => {
                    node.over = node.over.max(node.epoch);
                    node.healthy = true;
                    lost = true;
                }
                Effect::Tell(News::Stopped) => node.stopped = true,
                Effect::Tell(_) => {}
            }
        }
        if lost && !node.asked_to_stop {
            self.step(world, index, Event::Campaign);
        }
    }

    /// What holds of every state, wherever it came from.
    fn observe(&self, world: &mut World) {
        for index in 0..2 {
            let local = self.local(world, index);
            let (leads, node) = (self.leads(world, index), &mut world.nodes[index]);
            world.led |= leads;
            match node.machine.term() {
                Some((epoch, _)) if leads && epoch.0 <= node.over => world.broken = Some("E-10"),
                Some((epoch, deadline)) if local >= deadline => node.over = node.over.max(epoch.0),
                _ => {}
            }
        }
        if world
            .nodes
            .iter()
            .any(|node| node.paused || node.call.as_ref().is_some_and(|flight| flight.delayed))
        {
            world.disturb();
        }
    }
}

impl World {
    /// A call reaches the store.
    fn land(&mut self, index: usize) {
        let Some(flight) = &mut self.nodes[index].call else { return };
        let answer = match flight.call.take() {
            Some(Call::Read) => Some(Answer::Rows(self.table.read())),
            Some(Call::Write(attempt)) => Some(self.write(&attempt)),
            None => None,
        };
        if let Some(flight) = &mut self.nodes[index].call {
            flight.answer = answer;
        }
    }

    fn write(&mut self, attempt: &Attempt) -> Answer {
        let is_released = |table: &LockTable| table.rows.lock.as_ref().is_some_and(|lock| lock.is_released());
        let was_released = is_released(&self.table);
        let answer = self.table.write(attempt);
        if was_released && !is_released(&self.table) && !matches!(attempt, Attempt::Acquire(_)) {
            self.broken = Some("E-6");
        }
        answer
    }

    fn disturb(&mut self) {
        (self.calm_since, self.led) = (self.tick, false);
    }
}

impl Node {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            call: None,
            paused: false,
            healthy: true,
            asked_to_stop: false,
            stopped: false,
            draws: 0,
            epoch: 0,
            over: 0,
        }
    }
}

fn fence(epoch: u64) -> Fence {
    let place = Place { table: "elections".to_owned(), shard: ShardId::new("shard").unwrap() };
    Fence::new(place, Epoch(epoch))
}
