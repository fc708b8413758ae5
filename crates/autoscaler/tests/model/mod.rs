//! The real machine, in every order of events within a bound.
//!
//! Two executors, the state item, a cloud and a cluster, and a clock that counts in moments: a lease is over by the
//! next one, a deadline two moments later. In a moment the executors tick as often as they like, in any order. An
//! executor reads the item, looks and decides, and makes its calls one by one, to the end of its tick unless a fault
//! hinders it: it may stand still anywhere while everything else happens, and then go on with what it had seen and
//! sent. The other faults are in [`Fault`]. Whenever one can strike it does, in one branch. When the time is over,
//! everybody dies, and another executor must bring what they left to rest.
//!
//! Each scenario prints how many states it has. `TENURE_LONG=1` adds a fault where millions of states, and not tens
//! of millions, come of it.

mod driver;
mod shared;
mod thief;
mod world;

use std::sync::Arc;
use std::time::Duration;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model, Property};
use tenure_autoscaler::change::Change;
use tenure_autoscaler::observation::{InstanceState, Node, PodOwner, tags};
use tenure_autoscaler::rules::{Rule, without};
use tenure_autoscaler::state::{Place, State};
use tenure_autoscaler::testing::{Checker, Ledger};
use tenure_autoscaler::{Now, Policy};

use self::Fault::{Blind, Crash, CrashSent, Late, PersonCordons, ReplyLost, Short, Stall, Touch};
use self::driver::{Executor, Fate};
use self::shared::Shared;
use self::thief::Thief;
use self::world::{BEGINNING, CLUSTER, MOMENT_SECONDS, Stage, World};

/// Most moments until another executor has brought everything to rest, and how many without a change say so.
const HEALING_MOMENTS_MAX: u32 = 40;
const RESTS: u32 = 3;

// === scenarios ===

#[test]
fn a_scale_up_through_crashes_and_lost_replies() {
    let kinds = &[ReplyLost, Late, Crash, CrashSent];
    check(&Scenario { faults: 1, kinds, ..Scenario::up("up", 2) });
}

#[test]
fn a_scale_up_whose_instances_are_taken_away() {
    check(&Scenario { kills: 1, faults: 1, ..Scenario::up("spot", 2) });
}

#[test]
fn a_scale_up_without_capacity() {
    check(&Scenario { faults: more(2), kinds: &[Short], ..Scenario::up("capacity", 1) });
}

#[test]
fn a_node_that_registers_before_it_is_ready() {
    let kinds = &[Late, Crash];
    check(&Scenario { slow_ready: true, kills: 1, faults: more(1), kinds, ..Scenario::up("slow", 1) });
}

#[test]
fn two_nodes_are_drained_together() {
    let kinds = &[ReplyLost, Late, Crash, CrashSent];
    check(&Scenario { faults: more(1), kinds, ..Scenario::down("together", 2) });
}

#[test]
fn two_nodes_are_drained_one_after_the_other() {
    let kinds = &[Late, CrashSent];
    check(&Scenario { faults: 1, kinds, actions: 2, horizon: 5, ..Scenario::down("in turn", 1) });
}

#[test]
fn nodes_that_others_change() {
    let kinds = &[Touch, PersonCordons, Blind];
    check(&Scenario { faults: 1, kinds, kills: 1, ..Scenario::down("others", 1) });
}

#[test]
fn an_old_writer_that_steals_after_an_outage() {
    check(&Scenario { thief: true, horizon: 7, faults: more(1), ..Scenario::up("theft", 1) });
}

// === what must be caught ===

#[test]
fn listing_before_reading_is_caught() {
    caught(Rule::ReadThenList, Checker::As3, &Scenario { faults: 1, ..Scenario::up("rule 1", 2) });
}

#[test]
fn orphans_at_sight_are_caught() {
    caught(Rule::OrphansAreOld, Checker::As4, &Scenario::up("rule 2", 2));
}

#[test]
fn an_effect_before_its_intent_is_caught() {
    caught(Rule::IntentBeforeEffect, Checker::As4, &Scenario::down("rule 3", 1));
}

#[test]
fn a_cordon_of_any_version_is_caught() {
    caught(Rule::CordonByVersion, Checker::As9, &Scenario { faults: 1, ..Scenario::down("rule 4", 1) });
}

#[test]
fn lifting_anybodys_cordon_is_caught() {
    let kinds = &[PersonCordons];
    caught(Rule::UncordonOwn, Checker::As9, &Scenario { faults: 1, kinds, ..Scenario::down("rule 5", 1) });
}

#[test]
fn a_taint_that_goes_early_is_caught() {
    let slow = Scenario { faults: 1, slow_ready: true, ..Scenario::up("rule 6", 1) };
    caught(Rule::TaintUntilJoined, Checker::As4, &slow);
}

#[test]
fn retargeting_anybodys_attempt_is_caught() {
    let kinds = &[Short];
    caught(Rule::RetargetOwn, Checker::As1, &Scenario { faults: 2, kinds, ..Scenario::up("rule 7", 1) });
}

fn long() -> bool {
    std::env::var_os("TENURE_LONG").is_some()
}

/// One more, where there is time.
fn more(count: u8) -> u8 {
    count + u8::from(long())
}

/// Explores every state, and fails with the shortest way to one that breaks a rule.
fn check(scenario: &Scenario) {
    let (found, missing) = explore(scenario);
    assert_eq!(found, None, "{} is broken", scenario.name);
    assert_eq!(missing, [""; 0], "{} never comes to this", scenario.name);
}

/// The positive control: as if the rule had never been written.
#[track_caller]
fn caught(rule: Rule, checker: Checker, scenario: &Scenario) {
    let flawed = Scenario { without: Some(rule), only: Some(checker), ..scenario.clone() };
    let (broken, actions) = explore(&flawed).0.unwrap_or_else(|| panic!("nothing shows without {rule:?}"));
    println!("without {rule:?}: {broken} by {actions}");
}

fn explore(scenario: &Scenario) -> (Option<(&'static str, String)>, Vec<&'static str>) {
    let model = scenario.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = model.spawn_bfs().join();
    println!(
        "{}: {} states, {} steps deep, {} faults, {} moments",
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
    policy: Arc<Policy>,
    /// Nodes idle; otherwise instances are missing.
    idles: bool,
    /// A node registers before it is Ready.
    slow_ready: bool,
    /// How often somebody else ends an instance.
    kills: u8,
    faults: u8,
    kinds: &'static [Fault],
    thief: bool,
    /// After so many actions nobody begins anything more.
    actions: u32,
    horizon: u8,
    without: Option<Rule>,
    /// Nothing else is looked at.
    only: Option<Checker>,
}

impl Scenario {
    /// So many instances are missing.
    fn up(name: &'static str, launches: u32) -> Self {
        Self {
            name,
            policy: Arc::new(policy(launches, 1)),
            idles: false,
            slow_ready: false,
            kills: 0,
            faults: 0,
            kinds: &[],
            thief: false,
            actions: 1,
            horizon: 4,
            without: None,
            only: None,
        }
    }

    /// Three nodes idle, of which one cannot be taken, and so many are taken at once.
    fn down(name: &'static str, together: u32) -> Self {
        Self { policy: Arc::new(policy(1, together)), idles: true, ..Self::up(name, 0) }
    }
}

/// What goes wrong, or is done by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// An executor stands still, anywhere in a tick, and goes on at any later moment.
    Stall,
    /// A call has its effect, and its reply is lost.
    ReplyLost,
    /// A call is given up, and lands at any later moment, or never.
    Late,
    /// An executor dies; what it had sent never lands.
    Crash,
    /// An executor dies; what it had sent lands at any later moment, or never.
    CrashSent,
    /// There is no capacity for a launch.
    Short,
    /// Somebody else changes a node.
    Touch,
    /// A person cordons a node.
    PersonCordons,
    /// The metrics do not answer any more.
    Blind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Pass,
    /// An executor begins a tick, reads, or looks and decides.
    GoOn(usize),
    /// The call of an executor lands, and is answered.
    Land(usize),
    LandLate(usize),
    Strike(Fault, usize),
    Register(usize),
    Ready(usize),
    Kill(usize),
    /// Pods may be evicted from now on.
    Yield,
    Steal,
    ThiefDies,
    Close,
    Heal,
}

fn policy(workers_min: u32, down_max: u32) -> Policy {
    let place = |subnet: &str| Place {
        subnet: subnet.to_owned(),
        market: "spot".to_owned(),
        template: "1".to_owned(),
    };
    let moments = |count: u64| Duration::from_secs(count * MOMENT_SECONDS.unsigned_abs());
    let mut policy = Policy::new(CLUSTER, workers_min, 3, vec![place("a"), place("b")]);
    policy.down_max = down_max;
    (policy.pending_window, policy.idle_window) = (Duration::ZERO, Duration::ZERO);
    (policy.lease, policy.skew) = (moments(1) - Duration::from_secs(10), Duration::from_secs(5));
    (policy.join_timeout, policy.drain_timeout) = (moments(2), moments(2));
    (policy.cooldown, policy.orphan_after) = (moments(1), moments(1));
    policy
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let policy = &self.policy;
        policy.validate().expect("a policy that can be carried out");
        let stamp =
            Now { ms: BEGINNING * 1000, owner: "beginning".to_owned(), lease_left_ms: 0 }.stamp(policy);
        let state = Change::Migrate.apply(&State::default(), &stamp).expect("it fits");
        let mut world = World {
            moment: 0,
            state: Shared::new(State { rev: Some(1), ..state }),
            machines: Vec::new(),
            executors: ['a', 'b'].map(|name| Shared::new(Executor::new(name))).into(),
            late: Vec::new(),
            thief: if self.thief { Thief::Waits } else { Thief::Nobody },
            ledger: Shared::new(Ledger::new(Policy::clone(policy))),
            faults_left: self.faults,
            kills_left: self.kills,
            blocked: self.idles,
            // Their clock would tell that what was seen is old.
            blind: !self.idles,
            fresh: true,
            stage: Stage::Open,
        };
        if self.idles {
            world.add_worker(&[PodOwner::Controller]);
            world.add_worker(&[PodOwner::Controller]);
            world.add_worker(&[PodOwner::Nobody]);
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        match world.stage {
            Stage::Open => {}
            Stage::Closed => return actions.push(Action::Heal),
            Stage::Healed => return,
        }
        let goes_on = |index: usize| match &world.executors[index].tick {
            Some(tick) if tick.flight.is_some() => Action::Land(index),
            _ => Action::GoOn(index),
        };
        // Whoever is at work goes on until it is done, unless a fault hinders it.
        if let Some(index) = world.executors.iter().position(|own| own.tick.is_some() && !own.stalled) {
            actions.push(goes_on(index));
            if world.faults_left > 0 {
                actions.push(Action::Strike(Stall, index));
                let hinders = |fault: &&Fault| world.executors[index].is_hindered_by(**fault);
                actions.extend(self.kinds.iter().filter(hinders).map(|fault| Action::Strike(*fault, index)));
            }
            return;
        }
        for (index, executor) in world.executors.iter().enumerate() {
            let over = world.ledger.ended_count >= self.actions;
            // Whoever comes first is called the first.
            let early = index > 0 && !world.executors[0].woke;
            if executor.stalled || !(over || early) {
                actions.push(goes_on(index));
            }
        }
        actions.extend((0..world.late.len()).map(Action::LandLate));
        if world.fresh || world.executors.iter().any(|executor| executor.stalled) {
            self.events(world, actions);
        }
        actions.push(if world.moment < self.horizon { Action::Pass } else { Action::Close });
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match self.without {
            None => self.act(&mut world, action),
            Some(rule) => without(rule, || self.act(&mut world, action)),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        /// One for each, since a property has no room for which.
        macro_rules! holds {
            ($($checker:ident),*) => {
                vec![$(Property::<Self>::always(Checker::$checker.name(), |_, world| {
                    !world.ledger.violations.iter().any(|found| found.checker == Checker::$checker)
                })),*]
            };
        }
        let mut properties = holds!(As1, As2, As3, As4, As5, As6, As7, As8, As9, Table, Heals);
        if let Some(only) = self.only {
            properties.retain(|property| property.name == only.name());
            return properties;
        }
        properties.extend([
            Property::<Self>::sometimes("an action completes", |_, world| {
                world.state.last_scale_epoch > Some(0)
            }),
            Property::<Self>::sometimes("an action fails", |_, world| world.state.fail_count > Some(0)),
            Property::<Self>::sometimes("another goes on", |_, world| {
                world.state.fence() > world.state.action_seq()
            }),
            Property::<Self>::sometimes("it comes to rest", |_, world| world.stage == Stage::Healed),
        ]);
        if self.thief {
            properties
                .push(Property::<Self>::sometimes("it is stolen", |_, world| world.thief != Thief::Waits));
        }
        properties
    }
}

impl Scenario {
    /// What happens by itself, or is done by others.
    fn events(&self, world: &World, actions: &mut Vec<Action>) {
        for (index, machine) in world.machines.iter().enumerate() {
            let launched = machine.instance.tag(tags::ACTION).is_some();
            match &machine.node {
                _ if machine.instance.state == InstanceState::Gone => continue,
                None if launched => actions.push(Action::Register(index)),
                Some(node) if !node.ready => actions.push(Action::Ready(index)),
                _ => {}
            }
            if world.kills_left > 0 {
                actions.push(Action::Kill(index));
            }
            for &fault in self.kinds.iter().filter(|_| world.faults_left > 0) {
                let cordons = |node: &Node| fault == PersonCordons && !node.unschedulable;
                if machine.node.as_ref().is_some_and(|node| fault == Touch || cordons(node)) {
                    actions.push(Action::Strike(fault, index));
                }
            }
        }
        if world.faults_left > 0 && self.kinds.contains(&Blind) && !world.blind {
            actions.push(Action::Strike(Blind, 0));
        }
        if world.blocked {
            actions.push(Action::Yield);
        }
        if thief::can_go_on(world) {
            actions.push(Action::Steal);
            if world.thief != Thief::Waits {
                actions.push(Action::ThiefDies);
            }
        }
    }

    fn act(&self, world: &mut World, action: Action) {
        let policy = &self.policy;
        match action {
            Action::Pass => {
                world.moment += 1;
                world.fresh = true;
            }
            Action::GoOn(index) => driver::go_on(world, index, policy),
            Action::Land(index) => driver::land(world, index, Fate::Answered, policy),
            Action::LandLate(index) => {
                let flight = world.late.remove(index);
                world.carry_out(&flight);
            }
            Action::Strike(fault, index) => {
                world.faults_left -= 1;
                self.strike(world, fault, index);
            }
            Action::Register(index) => world.register(index, !self.slow_ready),
            Action::Ready(index) => world.make_ready(index),
            Action::Kill(index) => {
                world.kills_left -= 1;
                world.kill(index);
            }
            Action::Yield => world.blocked = false,
            Action::Steal => thief::go_on(world),
            Action::ThiefDies => world.thief = Thief::Nobody,
            Action::Close => close(world),
            Action::Heal => self.heal(world),
        }
    }

    fn strike(&self, world: &mut World, fault: Fault, index: usize) {
        let fate = match fault {
            ReplyLost => Fate::ReplyLost,
            Late => Fate::Late,
            Short => Fate::Short,
            Stall => {
                world.executors[index].change(|own| own.stalled = true);
                return;
            }
            Crash | CrashSent => {
                let flight = world.executors[index].change(Executor::crash);
                if let Some(flight) = flight.filter(|_| fault == CrashSent) {
                    world.leave_on_its_way(&flight);
                }
                return;
            }
            Touch => return world.touch(index, |_| {}),
            PersonCordons => {
                world.machines[index].change(|machine| machine.cordoned_by_person = true);
                return world.touch(index, |node| node.unschedulable = true);
            }
            Blind => {
                world.blind = true;
                return;
            }
        };
        driver::land(world, index, fate, &self.policy);
    }

    /// Another executor has time; what was launched joins, and nothing goes wrong.
    fn heal(&self, world: &mut World) {
        world.executors.push(Shared::new(Executor::new('z')));
        let index = world.executors.len() - 1;
        let mut rests = 0;
        for _ in 0..HEALING_MOMENTS_MAX {
            world.moment += 1;
            for machine in 0..world.machines.len() {
                match &world.machines[machine].node {
                    _ if !world.machines[machine].instance.is_live() => {}
                    None if world.machines[machine].instance.tag(tags::ACTION).is_some() => {
                        world.register(machine, true);
                    }
                    Some(node) if !node.ready => world.make_ready(machine),
                    _ => {}
                }
            }
            let (state, machines) = (world.state.clone(), world.machines.clone());
            driver::go_on(world, index, &self.policy);
            while let Some(tick) = &world.executors[index].tick {
                if tick.flight.is_some() {
                    driver::land(world, index, Fate::Answered, &self.policy);
                } else {
                    driver::go_on(world, index, &self.policy);
                }
            }
            let quiet = state == world.state
                && machines.iter().zip(&world.machines).all(|(one, other)| one.is(other))
                && world.state.action().is_none();
            rests = if quiet { rests + 1 } else { 0 };
            if rests >= RESTS {
                break;
            }
        }
        world.check_the_end();
        world.stage = Stage::Healed;
    }
}

/// Everybody dies, and nothing that was sent lands any more.
fn close(world: &mut World) {
    world.executors.clear();
    world.late.clear();
    world.thief = Thief::Nobody;
    (world.faults_left, world.kills_left) = (0, 0);
    (world.blocked, world.blind, world.fresh) = (false, false, false);
    world.stage = Stage::Closed;
}
