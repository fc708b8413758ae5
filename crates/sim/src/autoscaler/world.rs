//! One schedule: demand, incidents and ticks in the order of their moments, then healing.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_autoscaler::observation::{Node as ClusterNode, PodOwner};
use tenure_autoscaler::state::{InstanceId, Interrupt, InterruptKind, Place};
use tenure_autoscaler::testing::{Checker, Gate, Measuring, Mode, OldWriter, SeedExecutor, World, at_once};
use tenure_autoscaler::{Executor, Policy};
use tenure_backend::Kind;

use super::fault::Fault;
use super::plan::{Demand, Plan};
use super::tally::Tally;
use super::{Outcome, Rules};
use crate::calendar::SECOND;
use crate::draws::Draws;
use crate::fault::FaultTally;
use crate::scenario::{Incident, Target, Violation, Watch, name};
use crate::trace::Trace;

/// A fault of a call comes at most so many calls later.
const CALLS_AHEAD_MAX: u64 = 24;
/// Most ticks while the world heals, one a minute; and how many without any change say that it has.
const HEALING_TICKS_MAX: u32 = 120;
const RESTS: u32 = 3;

/// Either executor.
enum Driver {
    Ours(Box<Executor>),
    Seed(Box<SeedExecutor>),
}

impl Driver {
    fn new(world: &World, name: &str, gate: &Gate, rules: Rules) -> Self {
        match rules {
            Rules::Tenure => Self::Ours(Box::new(world.executor(name, gate))),
            Rules::Seed => {
                let (ports, policy) = (world.ports(gate), world.policy());
                Self::Seed(Box::new(SeedExecutor::new(ports, policy, world.env(), OldWriter::Control)))
            }
        }
    }

    /// One tick; whatever it says, the next one goes on. `false` if it died in the middle.
    fn tick(&mut self) -> bool {
        match self {
            Self::Ours(executor) => at_once(executor.tick()).is_some(),
            Self::Seed(executor) => at_once(executor.tick()).is_some(),
        }
    }
}

/// One executor: its process, if it lives, and the gate of its calls.
struct Node {
    driver: Option<Driver>,
    gate: Gate,
    next_tick: u64,
    ticks: u64,
    /// How many of its calls were taken into the record, and which faults are to come.
    told: usize,
    armed: Option<Fault>,
    stalls: bool,
}

/// What ends an incident that lasts.
enum Later {
    Rematch(String),
    Ready(String),
    Uncordon(String),
    Capacity(String),
    Launches,
    Metrics,
    Kill(InstanceId),
}

struct Run<'a> {
    plan: &'a Plan,
    rules: Rules,
    world: World,
    began: i64,
    nodes: Vec<Node>,
    later: BTreeMap<(u64, u64), Later>,
    laters: u64,
    load: u32,
    trace: Trace,
    faults: FaultTally<Fault>,
    tally: Tally,
    events: u64,
}

pub(super) fn run(plan: &Plan, rules: Rules, watch: Watch<Checker>) -> Outcome {
    let mut run = Run::new(plan, rules, watch.lines);
    let broken = |run: &Run<'_>| {
        watch.until.is_some_and(|rule| run.world.violations().iter().any(|found| found.checker == rule))
    };
    let (mut incidents, mut demands) = (plan.course.incidents.iter(), plan.demands.iter());
    let (mut incident, mut demand) = (incidents.next(), demands.next());
    while !broken(&run) {
        let tick = run.nodes.iter().enumerate().min_by_key(|(_, node)| node.next_tick);
        let Some((node, tick)) = tick.map(|(index, node)| (index, node.next_tick)) else { break };
        let ends = run.later.keys().next().map(|(at, _)| *at);
        let moments = [Some(tick), ends, incident.map(|next| next.at), demand.map(|(at, _)| *at)];
        let at = moments.into_iter().flatten().min().unwrap_or(tick);
        if at >= plan.course.heal_at {
            break;
        }
        run.advance_to(at);
        if let Some((_, wanted)) = demand.filter(|(due, _)| *due == at) {
            run.want(*wanted);
            demand = demands.next();
        } else if let Some(next) = incident.filter(|next| next.at == at) {
            run.happen(next);
            incident = incidents.next();
        } else if ends == Some(at) {
            run.end_one(at);
        } else {
            run.tick(node);
        }
    }
    if !broken(&run) {
        run.heal();
    }
    run.finish()
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, rules: Rules, with_lines: bool) -> Self {
        let world = World::new(policy());
        if rules == Rules::Seed {
            world.without_table();
        }
        world.add_control_plane();
        for number in 1..=plan.workers {
            if plan.untagged && rules == Rules::Tenure {
                world.add_untagged_worker(number);
            } else {
                world.add_worker(number);
            }
        }
        world.joins_after(plan.join_after);
        world.ready_after(plan.ready_after);
        world.listed_after(plan.listed_after);
        let began = world.epoch();
        let nodes = (0..plan.executors)
            .map(|_| Node {
                driver: None,
                gate: Gate::open(),
                next_tick: 0,
                ticks: 0,
                told: 0,
                armed: None,
                stalls: false,
            })
            .collect();
        Self {
            plan,
            rules,
            world,
            began,
            nodes,
            later: BTreeMap::new(),
            laters: 0,
            load: 60,
            trace: Trace::new(with_lines),
            faults: FaultTally::default(),
            tally: Tally { schedules: 1, ..Tally::default() },
            events: 0,
        }
    }

    /// Where the world is; a stall may have carried it past the next moment.
    fn now(&self) -> u64 {
        u64::try_from(self.world.epoch() - self.began).unwrap_or(0) * SECOND
    }

    fn advance_to(&self, at: u64) {
        self.world.advance(Duration::from_secs(at.saturating_sub(self.now()) / SECOND));
    }

    fn epoch_of(&self, at: u64) -> i64 {
        self.began + i64::try_from(at / SECOND).unwrap_or(0)
    }

    fn want(&mut self, demand: Demand) {
        self.trace.tell(self.now(), format_args!("wanted: {demand:?}"));
        match demand {
            Demand::Pods(count) => {
                self.load = 60;
                self.world.add_pods(count);
            }
            Demand::Little => {
                self.load = 5;
                self.world.remove_pods();
                // A small one stays on each, so that there is something to evict.
                let takes_pods = |node: &&ClusterNode| {
                    node.ready && !node.unschedulable && !node.control_plane && !node.startup_taint
                };
                for node in self.world.nodes().values().filter(takes_pods) {
                    self.world.add_pod_on(&node.name, PodOwner::Controller);
                }
            }
        }
        self.world.measure(Measuring::Fresh, self.load);
    }

    fn tick(&mut self, index: usize) {
        let (now, world, rules) = (self.now(), self.world.clone(), self.rules);
        let every = Draws::new(self.plan.course.key, index as u64)
            .at(self.nodes[index].ticks)
            .below(self.plan.tick_every_max);
        let node = &mut self.nodes[index];
        node.next_tick = now + SECOND + every / SECOND * SECOND;
        node.ticks += 1;
        let gate = node.gate.clone();
        let driver =
            node.driver.get_or_insert_with(|| Driver::new(&world, &name(index).to_string(), &gate, rules));
        let lives = driver.tick();
        if !lives {
            node.driver = None;
        }
        if let Some(fault) = node.armed.filter(|_| gate.met_fault()) {
            self.faults.count(fault);
            node.armed = None;
        }
        if node.stalls && gate.met_stall() {
            self.faults.count(Fault::Stalled);
            node.stalls = false;
        }
        let calls = gate.calls();
        let told = std::mem::replace(&mut node.told, calls.len());
        self.tally.ticks += 1;
        self.events += (calls.len() - told) as u64;
        let changes = self.world.changes();
        self.trace.mix(changes);
        self.trace.mix((calls.len() as u64) << 8 | index as u64);
        for call in &calls[told..] {
            self.trace.note(now, format_args!("{} calls {call}", name(index)));
        }
        let state = self.world.state();
        let died = if lives { "" } else { " and dies" };
        let (rev, live) = (state.rev.unwrap_or(0), self.world.live().len());
        self.trace.note(now, format_args!("{} leaves the item at rev {rev}, {live} instances", name(index)));
        let waiting = self.world.waiting_pods();
        self.trace.note(now, format_args!("{waiting} pods wait, {} effects so far", changes));
        // The story is told by what is under way.
        match state.action() {
            None if lives => self.trace.note(now, format_args!("{} ticks: nothing", name(index))),
            action => self.trace.tell(now, format_args!("{} ticks{died}: {action:?}", name(index))),
        }
    }

    // === incidents ===

    fn happen(&mut self, incident: &Incident<Fault>) {
        let Incident { fault, detail, until, target, .. } = *incident;
        let Target::Node(index) = target else { return };
        let index = index.min(self.nodes.len() - 1);
        let told = match fault {
            Fault::CrashBefore | Fault::CrashAfter | Fault::ReplyLost => {
                self.arm(index, fault, detail);
                return;
            }
            Fault::Stalled => {
                self.stall(index, until.saturating_sub(incident.at) / SECOND, detail);
                return;
            }
            // The control is alone: who else would be at work beside the old flow?
            Fault::OldResumes | Fault::OldSteals | Fault::OldLocks => self.old_writer(fault),
            Fault::Killed | Fault::Purged | Fault::Interrupted => self.lose_instance(fault, detail, until),
            Fault::Vanished | Fault::Renamed | Fault::Unmatched | Fault::NotReady | Fault::PersonCordons => {
                self.trouble_node(fault, detail, until)
            }
            Fault::Denied => self.deny(detail, until),
            Fault::LaunchesDenied => {
                let why = "injected: not authorized to perform ec2:RunInstances";
                self.world.refuse_launches(Some((Kind::Denied, why)));
                self.then(until, Later::Launches);
                Some(String::new())
            }
            Fault::Shortage => {
                let subnet = if detail % 2 == 0 { "subnet-a" } else { "subnet-b" };
                self.world.shortage(subnet, true);
                self.then(until, Later::Capacity(subnet.to_owned()));
                Some(subnet.to_owned())
            }
            Fault::NeverJoins => {
                self.world.never_joins(self.world.launches());
                Some(String::new())
            }
            Fault::BudgetBlocks => {
                self.world.budget_blocks_until(self.epoch_of(until));
                Some(String::new())
            }
            Fault::MetricsFail => {
                let how = [Measuring::Failing, Measuring::Stale, Measuring::Empty][(detail % 3) as usize];
                self.world.measure(how, self.load);
                self.then(until, Later::Metrics);
                Some(format!("{how:?}"))
            }
        };
        if let Some(what) = told {
            self.faults.count(fault);
            self.trace.tell(self.now(), format_args!("{fault:?} {what}"));
        }
    }

    fn then(&mut self, until: u64, later: Later) {
        self.laters += 1;
        self.later.insert((until, self.laters), later);
    }

    fn end_one(&mut self, at: u64) {
        let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= at) else { return };
        match entry.remove() {
            Later::Rematch(node) => self.world.restore_match(&node),
            Later::Ready(node) => self.world.set_ready(&node, true),
            Later::Uncordon(node) => self.world.uncordon_by_hand(&node),
            Later::Capacity(subnet) => self.world.shortage(&subnet, false),
            Later::Launches => self.world.refuse_launches(None),
            Later::Metrics => self.world.measure(Measuring::Fresh, self.load),
            Later::Kill(id) => self.world.kill(&id),
        }
    }

    fn arm(&mut self, index: usize, fault: Fault, detail: u64) {
        let mode = match fault {
            Fault::CrashBefore => Mode::CrashBefore,
            Fault::CrashAfter => Mode::CrashAfter,
            _ => Mode::ReplyLost,
        };
        let node = &mut self.nodes[index];
        node.gate.arm(u32::try_from(detail % CALLS_AHEAD_MAX).unwrap_or(0), mode);
        node.armed = Some(fault);
        self.trace.tell(self.now(), format_args!("{fault:?} is to come"));
    }

    fn stall(&mut self, index: usize, seconds: u64, detail: u64) {
        let node = &mut self.nodes[index];
        let call =
            u32::try_from(node.gate.calls().len() as u64 + detail % CALLS_AHEAD_MAX).unwrap_or(u32::MAX);
        let (world, rules, ticks) = (self.world.clone(), self.rules, 1 + detail / 100 % 3);
        node.gate.stall(call, move || {
            world.advance(Duration::from_secs(seconds));
            let mut second = Driver::new(&world, "other", &Gate::open(), rules);
            for _ in 0..ticks {
                second.tick();
                world.advance(Duration::from_secs(20));
            }
            Box::pin(std::future::ready(()))
        });
        node.stalls = true;
    }

    fn old_writer(&self, fault: Fault) -> Option<String> {
        let writer = match fault {
            _ if self.rules == Rules::Seed => return None,
            Fault::OldResumes => OldWriter::Resumes,
            Fault::OldSteals => OldWriter::Steals,
            _ => OldWriter::Locks,
        };
        let _ = at_once(self.world.old_writer(writer).tick());
        Some(String::new())
    }

    fn lose_instance(&mut self, fault: Fault, detail: u64, until: u64) -> Option<String> {
        let live: Vec<InstanceId> =
            self.world.live().into_iter().filter(|id| id.as_str() != "i-control").collect();
        let id = live.get(usize::try_from(detail % live.len().max(1) as u64).unwrap_or(0))?.clone();
        match fault {
            Fault::Killed => self.world.kill(&id),
            Fault::Purged => self.world.purge(&id),
            _ => {
                let interrupt = Interrupt::told(InterruptKind::Spot, self.world.epoch());
                let executor = self.world.executor("inbox", &Gate::open());
                if self.rules == Rules::Tenure {
                    let _ = at_once(executor.book().interrupt(&id, interrupt));
                }
                self.then(until, Later::Kill(id.clone()));
            }
        }
        Some(id.to_string())
    }

    fn trouble_node(&mut self, fault: Fault, detail: u64, until: u64) -> Option<String> {
        let names: Vec<String> = self.world.nodes().into_keys().filter(|name| name != "control").collect();
        let name = names.get(usize::try_from(detail % names.len().max(1) as u64).unwrap_or(0))?.clone();
        match fault {
            Fault::Vanished => self.world.vanish(&name),
            Fault::Renamed => self.world.rename(&name, &format!("renamed-{detail:x}")),
            Fault::Unmatched => {
                self.world.lose_match(&name);
                self.then(until, Later::Rematch(name.clone()));
            }
            Fault::NotReady => {
                self.world.set_ready(&name, false);
                self.then(until, Later::Ready(name.clone()));
            }
            _ => {
                self.world.cordon_by_hand(&name);
                self.then(until, Later::Uncordon(name.clone()));
            }
        }
        Some(name)
    }

    fn deny(&mut self, detail: u64, until: u64) -> Option<String> {
        let call = ["terminate", "tag", "cordon", "release", "untaint"][(detail % 5) as usize];
        let targets: Vec<String> = match call {
            "terminate" | "tag" => self.world.live().iter().map(ToString::to_string).collect(),
            _ => self.world.nodes().into_keys().collect(),
        };
        let target = targets.get(usize::try_from(detail / 5 % targets.len().max(1) as u64).unwrap_or(0))?;
        self.world.deny(call, target, self.epoch_of(until));
        Some(format!("to {call} {target}"))
    }

    // === the end ===

    /// The faults stop, what they changed is set right, and the world must come to rest.
    fn heal(&mut self) {
        self.advance_to(self.plan.course.heal_at);
        while !self.later.is_empty() {
            self.end_one(u64::MAX);
        }
        self.world.measure(Measuring::Fresh, 60);
        self.world.budget_blocks_until(0);
        self.trace.tell(self.now(), format_args!("the faults stop"));
        let mut last = Driver::new(&self.world, "z", &Gate::open(), self.rules);
        let mut rests = 0;
        for _ in 0..HEALING_TICKS_MAX {
            self.world.advance(Duration::from_secs(60));
            let before = self.world.changes();
            last.tick();
            let quiet = self.world.changes() == before && self.world.state().action().is_none();
            rests = if quiet { rests + 1 } else { 0 };
            self.trace.tell(self.now(), format_args!("z ticks: {:?}", self.world.state().action()));
            if rests >= RESTS {
                break;
            }
        }
        let _ = self.world.final_violations();
    }

    fn finish(mut self) -> Outcome {
        let now = self.now();
        let mut violations: Vec<Violation<Checker>> = Vec::new();
        for found in self.world.violations() {
            if let Some(symptom) = found.symptom {
                self.tally.symptoms.insert(symptom, 1);
            }
            if violations.iter().all(|earlier| earlier.rule != found.checker) {
                self.trace.tell(now, format_args!("{}: {}", found.checker.name(), found.what));
                violations.push(Violation { rule: found.checker, at: now, what: found.what });
            }
        }
        self.tally.ended = u64::from(self.world.ended_actions());
        self.tally.launched = self.world.launches();
        self.tally.waiting = self.world.waiting_pods() as u64;
        self.trace.mix(self.tally.ended << 32 | self.tally.launched);
        let (hash, lines) = self.trace.finish();
        Outcome {
            violations,
            faults: self.faults,
            tally: self.tally,
            lived_nanos: now,
            hash,
            lines,
            events: self.events,
            ..Outcome::default()
        }
    }
}

/// One to five workers, two subnets, short windows.
fn policy() -> Policy {
    let place = |subnet: &str| Place {
        subnet: subnet.to_owned(),
        market: "on-demand".to_owned(),
        template: "7".to_owned(),
    };
    let mut policy = Policy::new("demo", 1, 5, vec![place("subnet-a"), place("subnet-b")]);
    policy.pending_window = Duration::from_secs(30);
    policy.idle_window = Duration::from_secs(60);
    policy
}
