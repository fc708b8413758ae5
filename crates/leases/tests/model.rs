//! The real machine, in every order of events within a bound.
//!
//! Two workers, the lease table, a stream of two shards that may be split, and a clock of true time that counts in
//! seconds. A lease lasts 6 ticks; the clocks of the workers run at both ends of the rate bound. Between two ticks every
//! call is served, unless a fault delays it: a delayed call reaches the store at any later moment, its answer comes at
//! any later moment, and both may come after its sender gave up or not at all. The other faults are in [`Fault`].
//! Whenever a fault can strike it does, in one branch.
//!
//! Each scenario begins when the fleet has settled, and its number of states is bounded by its horizon and its faults.
//! It prints how many it has. `TENURE_LONG=1` adds a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use tenure_clock::{Monotonic, WallTime};
use tenure_leases::lineage::StreamShards;
use tenure_leases::machine::{
    Answer, Call, CallId, Effect, Event, Machine, Me, News, Now, Outcome, Planning, RequestId,
};
use tenure_leases::testing::LeaseTable;
use tenure_leases::{Attempt, Checkpoint, LeaseKey, Settings, Timing, WorkerId};
use tenure_stream::{HashKey, HashRange, Shard, ShardId};

use self::Fault::{Crash, Delay, Die, Elect, Pause, Split, Stop};

const TICK: Duration = Duration::from_secs(1);
const RATE_ERROR_PPM: u32 = 10_000;
/// A reader stores a checkpoint so often.
const CHECKPOINT_EVERY: u16 = 3;
/// The fleet has settled by then.
const SETTLED: u16 = 16;
/// Once nothing has gone wrong for so long, every lease is held: a lease runs out (6), whoever should take it is given
/// time and may be full (5), a handoff may run into its limit and then out (10), and everybody looks now and then.
const HEALED_AFTER: u16 = 27;

// === scenarios ===

#[test]
fn calls_that_are_late() {
    check(&Scenario { faults: more(2), kinds: &[Delay], horizon: 18, ..Scenario::new("late") });
}

#[test]
fn calls_that_are_served_in_any_order() {
    let (faults, kinds) = (1, &[Delay, Pause, Crash]);
    check(&Scenario { any_order: true, faults, kinds, horizon: 18, ..Scenario::new("order") });
}

#[test]
fn workers_that_pause_and_die() {
    check(&Scenario { faults: 2, kinds: &[Delay, Pause, Crash, Die], horizon: 18, ..Scenario::new("die") });
}

#[test]
fn a_worker_that_joins() {
    let (faults, kinds) = (2, &[Delay, Pause, Die]);
    check(&Scenario { joins: true, faults, kinds, horizon: 18, ..Scenario::new("join") });
}

#[test]
fn a_worker_that_leaves() {
    let (faults, kinds) = (2, &[Delay, Stop, Pause, Elect]);
    check(&Scenario { faults, kinds, horizon: 16, ..Scenario::new("leave") });
}

#[test]
fn a_shard_that_is_split() {
    let (faults, kinds) = (2, &[Split, Crash, Pause]);
    check(&Scenario { faults, kinds, horizon: 16, ..Scenario::new("split") });
}

#[test]
fn a_name_that_is_used_again() {
    let (faults, kinds) = (2, &[Crash, Pause]);
    check(&Scenario { kept_names: true, faults, kinds, horizon: 18, ..Scenario::new("name") });
}

#[test]
fn faults_that_end() {
    check(&Scenario {
        faults: 2,
        kinds: &[Delay, Crash, Die, Stop, Split],
        faults_for: 2,
        horizon: HEALED_AFTER + 6,
        ..Scenario::new("heal")
    });
}

// === what must be caught ===

#[test]
fn a_lease_that_is_believed_for_too_long_is_caught() {
    let flawed = Scenario { faults: 1, kinds: &[Pause], ..Scenario::new("believes") };
    caught(&Scenario { flaw: Some(Flaw::BelievesForLong), ..flawed }, "LS-1 one owner at a time");
}

#[test]
fn a_take_without_its_counter_is_caught() {
    let flawed = Scenario { faults: 2, kinds: &[Delay, Pause], ..Scenario::new("takes") };
    caught(&Scenario { flaw: Some(Flaw::TakesAnyCounter), ..flawed }, "LS-1 one owner at a time");
}

#[test]
fn a_checkpoint_without_its_fence_is_caught() {
    let flawed = Scenario { faults: 2, kinds: &[Delay, Pause], ..Scenario::new("fence") };
    caught(&Scenario { flaw: Some(Flaw::StoresAnyCheckpoint), ..flawed }, "LS-2 checkpoints never go back");
}

#[test]
fn a_lease_that_nobody_may_take_is_caught() {
    let flawed = Scenario { faults: 1, kinds: &[Die], horizon: HEALED_AFTER + 6, ..Scenario::new("lost") };
    caught(
        &Scenario { flaw: Some(Flaw::NobodyTakes), ..flawed },
        "LS-5 every lease is held once faults have ended",
    );
}

fn settings() -> Settings {
    Settings {
        lease: TICK * 6,
        renew: Some(TICK * 2),
        scan: Some(TICK * 2),
        nudge: Some(TICK * 2),
        rate_error_ppm: RATE_ERROR_PPM,
        handoff_timeout: TICK * 4,
        move_interval: Some(TICK),
        list_interval: TICK * 6,
        stop_timeout: TICK * 8,
        ..Settings::default()
    }
}

fn long() -> bool {
    std::env::var_os("TENURE_LONG").is_some()
}

/// One fault more, where there is time.
fn more(faults: u8) -> u8 {
    faults + u8::from(long())
}

/// Explores every state, and fails with the shortest way to one that breaks a property.
fn check(scenario: &Scenario) {
    let (found, missing) = explore(scenario);
    assert_eq!(found, None, "{} is broken", scenario.name);
    assert_eq!(missing, [""; 0], "{} never comes to this", scenario.name);
}

/// The positive control: a flaw in the world around the machine is found.
#[track_caller]
fn caught(scenario: &Scenario, property: &str) {
    let (found, _) = explore(scenario);
    let (broken, actions) = found.expect("the flaw shows");
    println!("{}: {broken} by {actions}", scenario.name);
    assert_eq!(broken, property, "{actions}");
}

fn explore(scenario: &Scenario) -> (Option<(&'static str, String)>, Vec<&'static str>) {
    let model = scenario.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = model.spawn_bfs().join();
    println!(
        "{}: {} states, {} steps deep, {} faults, {} ticks",
        scenario.name,
        checker.unique_state_count(),
        checker.max_depth(),
        scenario.faults,
        scenario.horizon
    );
    let (mut broken, mut missing) = (None, Vec::new());
    for property in scenario.properties() {
        match (property.expectation, checker.discovery(property.name)) {
            (Expectation::Sometimes, None) => missing.push(property.name),
            (Expectation::Always, Some(path)) => {
                broken = Some((property.name, format!("{:?}", path.into_actions())));
            }
            _ => {}
        }
    }
    (broken, missing)
}

// === the model ===

#[derive(Debug, Clone)]
struct Scenario {
    name: &'static str,
    /// The second worker comes when the first has settled.
    joins: bool,
    /// A process that follows another has its name.
    kept_names: bool,
    flaw: Option<Flaw>,
    faults: u8,
    kinds: &'static [Fault],
    /// No fault strikes later than so many ticks after the beginning.
    faults_for: u16,
    horizon: u16,
    /// The workers are served in either order.
    any_order: bool,
}

impl Scenario {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            joins: false,
            kept_names: false,
            flaw: None,
            faults: 0,
            kinds: &[],
            faults_for: 7,
            horizon: 18,
            any_order: false,
        }
    }
}

/// What is wrong in the world around the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// A worker trusts its own lease for longer than others wait.
    BelievesForLong,
    /// The table takes a counter for any other.
    TakesAnyCounter,
    /// The table stores a checkpoint whoever holds the lease.
    StoresAnyCheckpoint,
    /// The table refuses whoever wants to take a lease.
    NobodyTakes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// A scan, a read or a write takes longer than no time: it lands and is answered at any moments, or never.
    Delay,
    /// A process stands still, and goes on at any later moment.
    Pause,
    /// A process ends and another takes its place; what it sent may still land.
    Crash,
    /// A process ends.
    Die,
    /// A worker is told to end.
    Stop,
    /// A worker is told to plan, and the other does not know.
    Elect,
    /// The first shard is split.
    Split,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    /// What a worker has asked for reaches the store in order, and is answered.
    Serve(usize),
    /// A delayed call reaches the store.
    Land(usize, usize),
    /// The answer to a delayed call arrives.
    Hear(usize, usize),
    /// A write reaches the store that nobody waits for any more.
    LandLate(usize),
    Resume(usize),
    Strike(Fault, usize),
    Hinder(usize, usize),
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct World {
    tick: u16,
    nodes: Vec<Node>,
    table: LeaseTable,
    /// Who was last elected to plan.
    planner: usize,
    is_split: bool,
    /// Writes whose sender gave up or ended before they reached the store.
    late: Vec<Said<Attempt>>,
    faults_left: u8,
    /// Shards whose end is stored.
    ended: BTreeSet<LeaseKey>,
    handed_over: bool,
    taken_over: bool,
    /// Since when nothing went wrong.
    calm_since: u16,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct Node {
    machine: Machine,
    life: u8,
    flights: Vec<Flight>,
    paused: bool,
    /// It has not come, has ended, or has died.
    absent: bool,
    asked_to_stop: bool,
    readers: BTreeMap<LeaseKey, Reader>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct Flight {
    id: CallId,
    by: Monotonic,
    is_write: bool,
    /// Until it reached the store.
    call: Option<Said<Call>>,
    answer: Option<Said<Answer>>,
    delayed: bool,
}

/// Whoever reads the shard of a lease.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Reader {
    /// So many records are stored.
    stored: u64,
    asked: bool,
    /// The end is stored.
    ended: bool,
    /// What was asked for and is not answered yet.
    wish: Option<Wish>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wish {
    Checkpoint,
    End,
    Give,
}

/// What was said, told apart by its words.
#[derive(Debug, Clone, PartialEq)]
struct Said<T>(T);

impl<T: fmt::Debug> Hash for Said<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut words = Words(state);
        // Hashing does not fail.
        let _ = write!(words, "{:?}", self.0);
    }
}

struct Words<'a, H>(&'a mut H);

impl<H: Hasher> fmt::Write for Words<'_, H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let absent = |index| self.joins && index == 1;
        let node = |index| Node { absent: absent(index), ..Node::new(self.machine(index, 0)) };
        let mut world = World {
            tick: 0,
            nodes: (0..2).map(node).collect(),
            table: LeaseTable::default(),
            planner: 0,
            is_split: false,
            late: Vec::new(),
            faults_left: self.faults,
            ended: BTreeSet::new(),
            handed_over: false,
            taken_over: false,
            calm_since: 0,
            broken: None,
        };
        for index in (0..2).filter(|index| !absent(*index)) {
            self.begin(&mut world, index);
        }
        while world.tick < SETTLED {
            self.serve_all(&mut world);
            self.tick(&mut world);
        }
        self.serve_all(&mut world);
        if self.joins {
            world.nodes[1].absent = false;
            self.begin(&mut world, 1);
        }
        (world.calm_since, world.handed_over, world.taken_over) = (world.tick, false, false);
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let strikes = world.faults_left > 0 && world.tick <= SETTLED + self.faults_for;
        let kinds = if strikes { self.kinds } else { &[] };
        let mut served = true;
        for (index, node) in world.nodes.iter().enumerate() {
            if (!served && !self.any_order) || node.flights.iter().all(|flight| flight.delayed) {
                continue;
            }
            served = false;
            actions.push(Action::Serve(index));
            if kinds.contains(&Delay) {
                let flights = node.flights.iter().enumerate();
                let hindered = flights.filter(|(_, flight)| !flight.delayed && flight.matters());
                actions.extend(hindered.map(|(at, _)| Action::Hinder(index, at)));
            }
        }
        // Nothing else happens before whatever was not delayed is served.
        if !served {
            return;
        }
        for (index, node) in world.nodes.iter().enumerate() {
            if node.paused {
                actions.push(Action::Resume(index));
            }
            for (at, flight) in node.flights.iter().enumerate() {
                if flight.call.is_some() {
                    actions.push(Action::Land(index, at));
                } else if !node.paused {
                    actions.push(Action::Hear(index, at));
                }
            }
            for &kind in kinds {
                let can = match kind {
                    Delay => false,
                    Pause => !node.paused && !node.absent,
                    Crash | Die => !node.absent,
                    Stop => !node.paused && !node.absent && !node.asked_to_stop,
                    Elect => !node.paused && !node.absent && world.planner != index,
                    Split => index == 0 && !world.is_split,
                };
                if can {
                    actions.push(Action::Strike(kind, index));
                }
            }
        }
        // A late write that is refused changes nothing and tells nobody.
        let applies = |attempt: &Attempt| matches!(world.table.clone().write(attempt), Answer::Applied(_));
        let late = world.late.iter().enumerate().filter(|(_, attempt)| applies(&attempt.0));
        actions.extend(late.map(|(index, _)| Action::LandLate(index)));
        actions.push(Action::Tick);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Tick => self.tick(&mut world),
            Action::Serve(index) => self.serve(&mut world, index),
            Action::Land(index, at) => self.land(&mut world, index, at),
            Action::Hear(index, at) => self.hear(&mut world, index, at),
            Action::LandLate(index) => {
                let attempt = world.late.remove(index);
                self.write(&mut world, &attempt.0);
                world.calm_since = world.tick;
            }
            Action::Resume(index) => {
                world.nodes[index].paused = false;
                self.catch_up(&mut world, index);
                if world.planner == index {
                    self.step(&mut world, index, Event::Planner(Planning::Me));
                }
            }
            Action::Hinder(index, at) => {
                world.faults_left -= 1;
                world.nodes[index].flights[at].delayed = true;
            }
            Action::Strike(fault, index) => {
                world.faults_left -= 1;
                self.strike(&mut world, fault, index);
            }
        }
        let hindered = |node: &Node| node.paused || node.flights.iter().any(|flight| flight.delayed);
        if world.nodes.iter().any(hindered) || matches!(action, Action::Strike(..)) {
            world.calm_since = world.tick;
        }
        world.nodes.iter_mut().for_each(|node| node.machine.number_calls_anew());
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("LS-1 one owner at a time", |model: &Self, world: &World| {
                model.keys(world).iter().all(|key| model.owners(world, key) <= 1)
            }),
            Property::always("LS-2 checkpoints never go back", |_, world: &World| {
                world.broken != Some("LS-2")
            }),
            Property::always("LS-4 a child after its parent", |_, world: &World| {
                world.broken != Some("LS-4")
            }),
            Property::always("LS-5 every lease is held once faults have ended", |_, world: &World| {
                world.broken != Some("LS-5")
            }),
            Property::always("LE-13 who has stopped holds nothing", |_, world: &World| {
                world.broken != Some("LE-13")
            }),
            Property::always("a step leads to rest", |_, world: &World| world.broken != Some("spins")),
            Property::sometimes("both hold leases", |_, world: &World| {
                world.nodes.iter().all(|node| node.machine.held().next().is_some())
            }),
            Property::sometimes("a lease is handed over", |model: &Self, world: &World| {
                world.handed_over || !model.joins
            }),
            Property::sometimes("a lease changes hands", |_, world: &World| {
                world.taken_over || world.handed_over
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.tick <= SETTLED + self.horizon
    }
}

// === what actions do ===

impl Scenario {
    fn timing(&self) -> Timing {
        let timing = settings().timing().unwrap();
        match self.flaw {
            Some(Flaw::BelievesForLong) => Timing { validity: timing.lease * 3 / 2, ..timing },
            _ => timing,
        }
    }

    fn machine(&self, index: usize, life: u8) -> Machine {
        let name = ["a", "b"][index];
        let worker = if self.kept_names { name.to_owned() } else { format!("{name}{life}") };
        let incarnation = format!("{name}-{life}").as_str().into();
        Machine::new(Me { worker: WorkerId::from(worker.as_str()), incarnation }, 80, self.timing())
    }

    /// What the worker's clock shows: the first runs slow and the second fast, as far as is allowed.
    fn local(&self, world: &World, index: usize) -> Monotonic {
        let rate_ppm = [1_000_000 - RATE_ERROR_PPM, 1_000_000 + RATE_ERROR_PPM][index];
        let passed = TICK * u32::from(world.tick);
        Monotonic::default() + Duration::from_secs(1000) + passed * rate_ppm / 1_000_000
    }

    fn keys(&self, world: &World) -> Vec<LeaseKey> {
        listed(world.is_split).iter().map(|shard| LeaseKey::of_shard(&shard.id)).collect()
    }

    /// How many workers may deliver the records of a lease, by their own clocks.
    fn owners(&self, world: &World, key: &LeaseKey) -> usize {
        let may = |index: &usize| {
            let node = &world.nodes[*index];
            !node.absent && node.machine.may_deliver(key, self.local(world, *index))
        };
        (0..2).filter(may).count()
    }

    fn begin(&self, world: &mut World, index: usize) {
        self.step(world, index, Event::Wake);
        let planning = if world.planner == index { Planning::Me } else { Planning::Other };
        self.step(world, index, Event::Planner(planning));
    }

    fn tick(&self, world: &mut World) {
        world.tick += 1;
        for index in 0..2 {
            self.catch_up(world, index);
        }
        let lives = world.nodes.iter().any(|node| !node.absent && !node.asked_to_stop);
        if world.tick - world.calm_since > HEALED_AFTER && lives {
            let is_free = |key: &LeaseKey| !world.ended.contains(key) && self.owners(world, key) == 0;
            let waits = |key: &LeaseKey| {
                world.is_split && parent_of(key).is_some_and(|parent| !world.ended.contains(&parent))
            };
            if self.keys(world).iter().any(|key| is_free(key) && !waits(key)) {
                world.broken = Some("LS-5");
            }
        }
    }

    /// Whatever is due for a worker that runs, and then what its readers do.
    fn catch_up(&self, world: &mut World, index: usize) {
        // A handful of wakes can follow each other; more mean that time does not get on.
        for _ in 0..20 {
            let (local, node) = (self.local(world, index), &mut world.nodes[index]);
            if node.paused || node.absent {
                return;
            }
            if let Some(at) = node.flights.iter().position(|flight| flight.by <= local) {
                let flight = node.flights.remove(at);
                let answer = if flight.is_write { Answer::Unknown } else { Answer::Failed };
                if let Some(Said(Call::Write(attempt))) = flight.call {
                    world.late.push(Said(attempt));
                }
                self.step(world, index, Event::Answered(flight.id, answer));
            } else if node.machine.wake_at() <= local {
                self.step(world, index, Event::Wake);
            } else {
                return self.read(world, index);
            }
        }
        world.broken = Some("spins");
    }

    /// What the readers of a worker do in a tick.
    fn read(&self, world: &mut World, index: usize) {
        let keys: Vec<LeaseKey> = world.nodes[index].readers.keys().cloned().collect();
        for key in keys {
            let is_closed = world.is_split && number(&key) == 0;
            let reader = world.nodes[index].readers.get_mut(&key).filter(|reader| reader.wish.is_none());
            let Some(reader) = reader else { continue };
            let wish = match reader {
                Reader { ended: true, .. } => Wish::Give,
                _ if is_closed => Wish::End,
                Reader { asked: true, .. } => Wish::Give,
                _ if world.tick.is_multiple_of(CHECKPOINT_EVERY) => Wish::Checkpoint,
                _ => continue,
            };
            reader.wish = Some(wish);
            let next = Checkpoint::At { sequence: (reader.stored + 1).into(), sub: 0 };
            let request = RequestId(number(&key));
            let event = match wish {
                Wish::Checkpoint => Event::Checkpoint { key, request, at: next, marks: None },
                Wish::End => Event::Checkpoint { key, request, at: Checkpoint::ShardEnd, marks: None },
                Wish::Give => Event::Give { key, request: Some(request) },
            };
            self.step(world, index, event);
        }
    }

    fn serve_all(&self, world: &mut World) {
        while let Some(index) = (0..2).find(|index| !world.nodes[*index].flights.is_empty()) {
            self.serve(world, index);
        }
    }

    fn serve(&self, world: &mut World, index: usize) {
        let flights = std::mem::take(&mut world.nodes[index].flights);
        let (delayed, served): (Vec<_>, Vec<_>) = flights.into_iter().partition(|flight| flight.delayed);
        world.nodes[index].flights = delayed;
        for flight in served {
            if let Some(Said(call)) = flight.call {
                let answer = self.carry_out(world, &call);
                self.step(world, index, Event::Answered(flight.id, answer));
            }
        }
    }

    fn land(&self, world: &mut World, index: usize, at: usize) {
        if let Some(Said(call)) = world.nodes[index].flights[at].call.take() {
            let answer = self.carry_out(world, &call);
            world.nodes[index].flights[at].answer = Some(Said(answer));
        }
    }

    fn hear(&self, world: &mut World, index: usize, at: usize) {
        let flight = world.nodes[index].flights.remove(at);
        if let Some(Said(answer)) = flight.answer {
            self.step(world, index, Event::Answered(flight.id, answer));
        }
    }

    fn strike(&self, world: &mut World, fault: Fault, index: usize) {
        let node = &mut world.nodes[index];
        match fault {
            Delay => {}
            Pause => node.paused = true,
            Crash | Die => {
                let life = node.life + 1;
                let flights = std::mem::take(&mut node.flights);
                let absent = fault == Die;
                *node = Node { life, absent, ..Node::new(self.machine(index, life)) };
                world.late.extend(unlanded(flights));
                self.hand_planning_over(world, index);
                if !absent {
                    self.begin(world, index);
                }
            }
            Stop => {
                node.asked_to_stop = true;
                self.hand_planning_over(world, index);
                self.step(world, index, Event::Stop);
            }
            Elect => {
                world.planner = index;
                self.step(world, index, Event::Planner(Planning::Me));
            }
            Split => world.is_split = true,
        }
    }

    /// Whoever planned does not any more, and the other is elected if it is there.
    fn hand_planning_over(&self, world: &mut World, index: usize) {
        let other = 1 - index;
        if world.planner == index && !world.nodes[other].absent {
            world.planner = other;
            // Otherwise it hears so when it goes on.
            if !world.nodes[other].paused {
                self.step(world, other, Event::Planner(Planning::Me));
            }
        }
    }

    fn step(&self, world: &mut World, index: usize, event: Event) {
        let monotonic = self.local(world, index);
        let wall = WallTime::from_millis(1_700_000_000_000) + TICK * u32::from(world.tick);
        let effects = world.nodes[index].machine.step(Now { monotonic, wall }, event);
        for effect in effects {
            match effect {
                Effect::Call { id, by, call } => {
                    let is_write = matches!(call, Call::Write(_) | Call::Note(_));
                    let call = Some(Said(call));
                    let flight = Flight { id, by, is_write, call, answer: None, delayed: false };
                    world.nodes[index].flights.push(flight);
                }
                Effect::Tell(news) => self.hear_news(world, index, news),
            }
        }
    }

    fn hear_news(&self, world: &mut World, index: usize, news: News) {
        let node = &mut world.nodes[index];
        match news {
            News::Granted { lease, .. } => {
                let stored = match &lease.checkpoint {
                    Checkpoint::At { sequence, .. } => sequence.as_u64().unwrap_or(0),
                    _ => 0,
                };
                if parent_of(&lease.key).is_some_and(|parent| !world.ended.contains(&parent)) {
                    world.broken = Some("LS-4");
                }
                world.taken_over |= lease.owner_switches > 1 || stored > 0;
                let reader = Reader { stored, asked: false, ended: false, wish: None };
                node.readers.insert(lease.key.clone(), reader);
            }
            News::GiveAsked { key, .. } => {
                if let Some(reader) = node.readers.get_mut(&key) {
                    reader.asked = true;
                }
            }
            News::Given { key, to } => {
                world.handed_over |= to.is_some();
                node.readers.remove(&key);
            }
            News::Lost { key, .. } => drop(node.readers.remove(&key)),
            News::Done { request, outcome } => {
                let reader = node.readers.iter_mut().find(|(key, _)| number(key) == request.0);
                if let Some((_, reader)) = reader {
                    match (reader.wish.take(), outcome) {
                        (Some(Wish::Checkpoint), Outcome::Done) => reader.stored += 1,
                        (Some(Wish::End), Outcome::Done) => reader.ended = true,
                        _ => {}
                    }
                }
            }
            News::Stopped => {
                if !node.readers.is_empty() {
                    world.broken = Some("LE-13");
                }
                node.absent = true;
                world.late.extend(unlanded(std::mem::take(&mut node.flights)));
            }
            // A process that may not run beside another of its name.
            News::Fatal(_) => node.asked_to_stop = true,
            News::Started | News::Extended { .. } | News::Alarm(_) => {}
        }
    }

    // === the store ===

    fn carry_out(&self, world: &mut World, call: &Call) -> Answer {
        match call {
            Call::Scan => Answer::Scanned(world.table.scan()),
            Call::Nudge => Answer::Nudge(world.table.nudge),
            Call::Read(key) => Answer::Row(world.table.leases.get(key).cloned()),
            Call::Write(attempt) => self.write(world, attempt),
            Call::Note(note) => world.table.note(note),
            Call::List => Answer::Shards(vec![StreamShards { stream: None, shards: listed(world.is_split) }]),
        }
    }

    fn write(&self, world: &mut World, attempt: &Attempt) -> Answer {
        let was = world.table.leases.get(attempt.key()).cloned();
        let mut attempt = attempt.clone();
        let current = was.as_ref().map(|lease| (lease.counter, lease.owner.clone()));
        match (self.flaw, &mut attempt, current) {
            (Some(Flaw::NobodyTakes), Attempt::Take { .. }, Some((_, Some(_)))) => {
                return Answer::Refused(was);
            }
            (Some(Flaw::TakesAnyCounter), Attempt::Take { counter, .. }, Some((now, _))) => *counter = now,
            (
                Some(Flaw::StoresAnyCheckpoint),
                Attempt::Checkpoint { counter, me, .. },
                Some((now, owner)),
            ) => {
                (*counter, *me) = (now, owner.unwrap_or_else(|| me.clone()));
            }
            _ => {}
        }
        let answer = world.table.write(&attempt);
        if let (Answer::Applied(_), Attempt::Checkpoint { key, at, .. }) = (&answer, &attempt) {
            if was.is_some_and(|lease| *at < lease.checkpoint) {
                world.broken = Some("LS-2");
            }
            if at.is_end() {
                world.ended.insert(key.clone());
            }
        }
        answer
    }
}

impl Node {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            life: 0,
            flights: Vec::new(),
            paused: false,
            absent: false,
            asked_to_stop: false,
            readers: BTreeMap::new(),
        }
    }
}

impl Flight {
    /// Whether it matters when it lands: whatever else is only looked at sooner or later.
    fn matters(&self) -> bool {
        let call = self.call.as_ref().map(|call| &call.0);
        matches!(call, Some(Call::Scan | Call::Read(_) | Call::Write(_)))
    }
}

/// The writes that are still on their way.
fn unlanded(flights: Vec<Flight>) -> impl Iterator<Item = Said<Attempt>> {
    flights.into_iter().filter_map(|flight| match flight.call {
        Some(Said(Call::Write(attempt))) => Some(Said(attempt)),
        _ => None,
    })
}

// === the stream ===

fn number(key: &LeaseKey) -> u64 {
    ShardId::from(key.as_str()).number().unwrap_or(u64::MAX)
}

/// The first shard has two children once it is split.
fn parent_of(key: &LeaseKey) -> Option<LeaseKey> {
    (number(key) >= 2).then(|| LeaseKey::of_shard(&ShardId::numbered(0)))
}

fn listed(is_split: bool) -> Vec<Shard> {
    let shard = |number: u64, hash_range: HashRange| Shard {
        id: ShardId::numbered(number),
        parent: (number >= 2).then(|| ShardId::numbered(0)),
        adjacent_parent: None,
        hash_range,
        first_sequence: 1.into(),
        last_sequence: (number == 0 && is_split).then(|| 9.into()),
    };
    let halves = HashRange::uniform(2);
    let mut shards = vec![shard(0, halves[0]), shard(1, halves[1])];
    let middle = halves[0].start.0 + (halves[0].end.0 - halves[0].start.0) / 2 + 1;
    if is_split && let Some((lower, upper)) = halves[0].split(HashKey(middle)) {
        shards.extend([shard(2, lower), shard(3, upper)]);
    }
    shards
}
