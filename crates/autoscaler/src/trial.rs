//! Tries a policy on a trace of demand: the real rules, a cluster that exists on paper only.
//!
//! A [`Demand`] says which pods there are from some second on. Pods are put on the first node that has room,
//! launched workers join after a fixed while, evicted pods wait again. Nothing fails here: what a policy does
//! under faults is the simulation's to show.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_backend::{Error, Result};

use crate::change::Change;
use crate::log::Event;
use crate::machine::{Effect, Manner, Now, step};
use crate::observation::{
    Answer, Instance, InstanceState, Lag, Load, Node, Observation, Pod, PodOwner, Resources, tags,
};
use crate::placement::Placement;
use crate::policy::{Policy, millis, seconds};
use crate::state::{InstanceId, Interrupt, InterruptKind, State};
use crate::table::Name;

/// When every trial begins: what is stored as 0 means never.
const BEGINNING_EPOCH: i64 = 1_000_000_000;
/// Most rounds of one tick, as of an executor.
const ROUNDS_MAX: u32 = 500;
/// Most pods and most ticks: a trial is for a person who waits.
const PODS_MAX: u64 = 20_000;
const WORKERS_MAX: u32 = 10_000;
/// How long after its notice a spot instance is taken away.
const NOTICE_SECONDS: i64 = 120;
const TICKS_MAX: i64 = 200_000;

/// Pods of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// How many.
    pub count: u64,
    /// What each asks for.
    pub requests: Resources,
}

/// What is wanted of the cluster from some second on, until the next one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demand {
    /// Since when, in seconds from the beginning.
    pub at: i64,
    /// The pods that there are to be.
    pub pods: Vec<Group>,
    /// How far the consumers are behind, in seconds; nobody says so if it is not given.
    pub lag_seconds: Option<i64>,
    /// So many workers get a spot interruption in that second.
    pub interrupts: u32,
}

/// The paper cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long after its launch a worker is Ready.
    pub join: Duration,
    /// How often there is a tick.
    pub every: Duration,
    /// Workers at the beginning.
    pub workers: u32,
    /// How long to go on after the last demand.
    pub tail: Duration,
}

impl Default for Terms {
    /// 60 s, 15 s, the policy's fewest, one hour.
    fn default() -> Self {
        Self {
            join: Duration::from_secs(60),
            every: Duration::from_secs(15),
            workers: 0,
            tail: Duration::from_secs(3600),
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// When, in seconds from the beginning.
    pub at: i64,
    /// The write's name in the transition table.
    pub event: &'static str,
    /// Workers then.
    pub workers: i64,
    /// Pods that waited then.
    pub waiting: i64,
    /// Why.
    pub reasons: Vec<String>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Actions that began and ended, in their order.
    pub happenings: Vec<Happening>,
    /// How long it was, in seconds.
    pub seconds: i64,
    /// Scale-ups and scale-downs that began.
    pub ups: u32,
    /// See `ups`.
    pub downs: u32,
    /// Most workers at a time.
    pub workers_max: i64,
    /// Workers at the end.
    pub workers_end: i64,
    /// Workers, each for as long as it was there, in seconds.
    pub worker_seconds: i64,
    /// Pods, each for as long as it waited, in seconds.
    pub waiting_seconds: i64,
    /// The longest that pods waited without a pause, in seconds.
    pub waiting_longest: i64,
    /// Pods that still wait at the end.
    pub waiting_end: i64,
}

/// Carries a policy through a trace.
///
/// # Errors
/// `Invalid` if the policy cannot be carried out, or the trace is empty, out of order, or too large.
pub fn run(policy: &Policy, trace: &[Demand], terms: &Terms) -> Result<Outcome> {
    policy.validate()?;
    check(policy, trace, terms)?;
    let mut paper = Paper::new(policy, terms);
    let end = trace.last().map_or(0, |last| end_of(last, terms));
    let every = seconds(terms.every).max(1);
    let mut next = 0;
    while paper.at <= end {
        while let Some(demand) = trace.get(next).filter(|demand| demand.at <= paper.at) {
            paper.want(demand);
            next += 1;
        }
        paper.settle(every);
        paper.tick()?;
        paper.at += every;
    }
    paper.outcome.seconds = paper.at;
    paper.outcome.workers_end = paper.workers();
    paper.outcome.waiting_end = paper.waiting();
    Ok(paper.outcome)
}

fn end_of(last: &Demand, terms: &Terms) -> i64 {
    last.at.saturating_add(seconds(terms.tail))
}

fn check(policy: &Policy, trace: &[Demand], terms: &Terms) -> Result<()> {
    let workers = terms.workers.max(policy.workers_min);
    if workers > WORKERS_MAX {
        return Err(Error::invalid(format!("{workers} workers are too many, {WORKERS_MAX} at most")));
    }
    let Some(last) = trace.last() else {
        return Err(Error::invalid("the trace is empty: give at least one line of demand"));
    };
    if let Some(pair) = trace.windows(2).find(|pair| pair[1].at < pair[0].at) {
        return Err(Error::invalid(format!(
            "the trace goes back in time, from {} to {}: put its lines in order",
            pair[0].at, pair[1].at
        )));
    }
    if trace.iter().any(|demand| demand.at < 0) {
        return Err(Error::invalid("the trace begins before 0: count its seconds from its beginning"));
    }
    let ticks = end_of(last, terms) / seconds(terms.every).max(1);
    if ticks > TICKS_MAX {
        return Err(Error::invalid(format!(
            "{ticks} ticks are too many, {TICKS_MAX} at most: tick less often, or shorten the trace"
        )));
    }
    for demand in trace {
        let pods = demand.pods.iter().fold(0_u64, |sum, group| sum.saturating_add(group.count));
        if pods > PODS_MAX {
            return Err(Error::invalid(format!(
                "{pods} pods at {} s are too many, {PODS_MAX} at most: give fewer, larger ones",
                demand.at
            )));
        }
    }
    Ok(())
}

/// The trace that a log tells: what its decisions were made on. Pods of one decision count as alike.
///
/// The first event with numbers is the beginning; none gives an empty trace.
#[must_use]
pub fn trace_of(events: &[Event]) -> Vec<Demand> {
    let mut seen = events.iter().filter_map(|event| Some((event.epoch, event.seen?))).peekable();
    let Some(beginning) = seen.peek().map(|(epoch, _)| *epoch) else { return Vec::new() };
    let mut trace: Vec<Demand> = Vec::new();
    for (epoch, seen) in seen {
        let alike = |sum: crate::log::PodSum| {
            let count = u64::try_from(sum.count).ok().filter(|count| *count > 0)?;
            // Rounded up: less would fit more of them on a node than there were.
            let requests = Resources {
                cpu_millis: sum.requests.cpu_millis.div_ceil(count),
                memory_mib: sum.requests.memory_mib.div_ceil(count),
            };
            Some(Group { count, requests })
        };
        // Clocks of two executors may differ a little.
        let at = epoch.saturating_sub(beginning).max(trace.last().map_or(0, |demand| demand.at));
        trace.push(Demand {
            at,
            pods: [seen.running, seen.waiting].into_iter().filter_map(alike).collect(),
            lag_seconds: seen.lag_seconds,
            interrupts: 0,
        });
    }
    trace
}

struct Worker {
    instance: Instance,
    node: Node,
    ready_at: i64,
}

struct Paper<'a> {
    policy: &'a Policy,
    join: i64,
    at: i64,
    state: State,
    workers: BTreeMap<InstanceId, Worker>,
    pods: BTreeMap<String, Pod>,
    lag: Option<i64>,
    numbers: u64,
    waiting_since: Option<i64>,
    /// Workers that got a notice, and when they go: two minutes later, whatever was done about it.
    struck: BTreeMap<InstanceId, i64>,
    outcome: Outcome,
}

impl<'a> Paper<'a> {
    fn new(policy: &'a Policy, terms: &Terms) -> Self {
        let mut paper = Self {
            policy,
            join: seconds(terms.join),
            at: 0,
            state: State::default(),
            workers: BTreeMap::new(),
            pods: BTreeMap::new(),
            lag: None,
            numbers: 0,
            waiting_since: None,
            struck: BTreeMap::new(),
            outcome: Outcome::default(),
        };
        for _ in 0..terms.workers.max(policy.workers_min) {
            paper.launch(BTreeMap::from([(tags::CLUSTER.to_owned(), policy.cluster.clone())]), false);
        }
        paper
    }

    fn epoch(&self) -> i64 {
        BEGINNING_EPOCH + self.at
    }

    fn workers(&self) -> i64 {
        i64::try_from(self.workers.len()).unwrap_or(i64::MAX)
    }

    fn waiting(&self) -> i64 {
        let count = self.pods.values().filter(|pod| pod.node.is_none()).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    // === what the trace says ===

    fn want(&mut self, demand: &Demand) {
        self.lag = demand.lag_seconds;
        let mut groups: BTreeMap<Resources, u64> = BTreeMap::new();
        for group in &demand.pods {
            *groups.entry(group.requests).or_default() += group.count;
        }
        // Of each size so many stay, the others go: those that wait first.
        let mut kept: BTreeMap<Resources, u64> = BTreeMap::new();
        let mut order: Vec<_> = self.pods.values().map(|pod| (pod.node.is_none(), pod.uid.clone())).collect();
        order.sort();
        for (_, uid) in order {
            let requests = self.pods[&uid].requests;
            let count = kept.entry(requests).or_default();
            if *count < groups.get(&requests).copied().unwrap_or(0) {
                *count += 1;
            } else {
                self.pods.remove(&uid);
            }
        }
        for (requests, count) in &groups {
            for _ in kept.get(requests).copied().unwrap_or(0)..*count {
                self.add_pod(*requests);
            }
        }
        let spared = self.workers.keys().filter(|id| !self.struck.contains_key(*id));
        let struck: Vec<_> = spared.take(demand.interrupts as usize).cloned().collect();
        for instance in struck {
            self.struck.insert(instance.clone(), self.at + NOTICE_SECONDS);
            let seq = self.state.action_seq();
            let interrupt = Interrupt { seq, ..Interrupt::told(InterruptKind::Spot, self.epoch()) };
            self.state.interrupts.get_or_insert_default().insert(instance, interrupt);
        }
    }

    fn add_pod(&mut self, requests: Resources) {
        self.numbers += 1;
        let uid = format!("pod-{:09}", self.numbers);
        let pod = Pod {
            namespace: "trial".to_owned(),
            name: uid.clone(),
            uid: uid.clone(),
            node: None,
            unschedulable: true,
            requests,
            owner: PodOwner::Controller,
            local_storage: false,
            placement: Placement::default(),
        };
        self.pods.insert(uid, pod);
    }

    // === time ===

    /// Workers join, two minutes after their notice interrupted ones go, pods are placed, and it is counted.
    fn settle(&mut self, every: i64) {
        let gone = self.struck.iter().filter(|(_, at)| **at <= self.at).map(|(id, _)| id.clone());
        for id in gone.collect::<Vec<_>>() {
            self.end(&id);
        }
        for worker in self.workers.values_mut() {
            worker.node.ready = worker.ready_at <= self.at;
        }
        self.place();
        let waiting = self.waiting();
        self.outcome.worker_seconds += self.workers() * every;
        self.outcome.waiting_seconds += waiting * every;
        self.outcome.workers_max = self.outcome.workers_max.max(self.workers());
        if waiting == 0 {
            self.waiting_since = None;
        } else {
            let since = *self.waiting_since.get_or_insert(self.at);
            self.outcome.waiting_longest = self.outcome.waiting_longest.max(self.at + every - since);
        }
    }

    fn place(&mut self) {
        let mut used: BTreeMap<String, Resources> = BTreeMap::new();
        for pod in self.pods.values() {
            if let Some(node) = &pod.node {
                let sum = used.entry(node.clone()).or_default();
                *sum = sum.plus(pod.requests);
            }
        }
        let open =
            |worker: &&Worker| worker.node.ready && !worker.node.unschedulable && !worker.node.startup_taint;
        let mut rooms: Vec<(String, Resources)> = self
            .workers
            .values()
            .filter(open)
            .map(|worker| {
                let taken = used.get(&worker.node.name).copied().unwrap_or_default();
                (worker.node.name.clone(), worker.node.allocatable.less(taken))
            })
            .collect();
        for pod in self.pods.values_mut().filter(|pod| pod.node.is_none()) {
            if let Some((node, room)) = rooms.iter_mut().find(|(_, room)| room.fits(pod.requests)) {
                *room = room.less(pod.requests);
                pod.node = Some(node.clone());
            }
        }
    }

    // === one tick ===

    fn tick(&mut self) -> Result<()> {
        let mut answers = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let mut seen = self.observe();
            seen.answers.clone_from(&answers);
            let now = Now {
                ms: self.epoch() * 1000,
                owner: "trial".to_owned(),
                lease_left_ms: millis(self.policy.lease),
            };
            let found = step(&self.state, &seen, self.policy, &now);
            if found.effects.is_empty() {
                return Ok(());
            }
            for effect in found.effects {
                match effect {
                    Effect::Write(change) => {
                        self.state = change.apply(&self.state, &now.stamp(self.policy))?;
                        self.note(&change, &found.reasons);
                    }
                    call => self.carry_out(call, &mut answers),
                }
            }
        }
        Err(Error::invalid(format!("a tick did not come to rest in {ROUNDS_MAX} rounds")))
    }

    fn note(&mut self, change: &Change, reasons: &[String]) {
        let name = change.name();
        match name {
            Name::BeginUp => self.outcome.ups += 1,
            Name::BeginDown => self.outcome.downs += 1,
            Name::CompleteUp | Name::CompleteDown | Name::FailUp | Name::FailDown => {}
            _ => return,
        }
        self.outcome.happenings.push(Happening {
            at: self.at,
            event: name.row().title,
            workers: self.workers(),
            waiting: self.waiting(),
            reasons: reasons.to_vec(),
        });
    }

    fn observe(&self) -> Observation {
        let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
        for pod in self.pods.values() {
            if let Some(node) = &pod.node {
                let sum = used.entry(node).or_default();
                *sum = sum.plus(pod.requests);
            }
        }
        let load = |worker: &Worker| {
            let (taken, whole) =
                (used.get(worker.node.name.as_str()).copied().unwrap_or_default(), worker.node.allocatable);
            let percent = |part: u64, whole: u64| u32::try_from(part * 100 / whole.max(1)).unwrap_or(100);
            Load {
                cpu_percent: percent(taken.cpu_millis, whole.cpu_millis),
                memory_percent: percent(taken.memory_mib, whole.memory_mib),
                at_epoch: self.epoch(),
            }
        };
        let joined = || self.workers.values().filter(|worker| worker.node.ready);
        Observation {
            instances: self.workers.values().map(|worker| worker.instance.clone()).collect(),
            nodes: joined().map(|worker| worker.node.clone()).collect(),
            pods: self.pods.values().cloned().collect(),
            loads: Some(joined().map(|worker| (worker.node.name.clone(), load(worker))).collect()),
            metrics_epoch: Some(self.epoch()),
            lag: self.lag.map_or(Lag::NotAsked, Lag::Seconds),
            ..Observation::default()
        }
    }

    fn carry_out(&mut self, call: Effect, answers: &mut Vec<Answer>) {
        match call {
            Effect::Write(_) => {}
            Effect::Launch(order) => {
                let instance = self.launch(order.tags, true);
                answers.push(Answer::Launched { slot: order.slot, attempt: order.attempt, instance });
            }
            Effect::AskEnd(id) => answers.push(Answer::Endable(id)),
            Effect::Terminate(id) => {
                self.end(&id);
                answers.push(Answer::NotFound(id));
            }
            Effect::Enlist(id) => {
                self.tag(&id, tags::CLUSTER, self.policy.cluster.clone());
                answers.push(Answer::Enlisted(id));
            }
            Effect::Commit { instance, action } => {
                self.tag(&instance, tags::COMMITTED, action.as_str().to_owned());
                answers.push(Answer::Committed(instance));
            }
            Effect::Suspect { instance, epoch } => {
                self.tag(&instance, tags::SUSPECT, epoch.to_string());
                answers.push(Answer::Suspected(instance));
            }
            Effect::Untaint { node, .. } => {
                self.change_node(&node, |node| node.startup_taint = false);
                answers.push(Answer::Untainted(node));
            }
            Effect::Cordon { node, mark, .. } => self.change_node(&node, |node| {
                node.unschedulable = true;
                node.cordoned_by = Some(mark);
            }),
            Effect::Release { node, action, uncordon, .. } => self.change_node(&node, |node| {
                node.released_by = Some(action);
                if uncordon {
                    node.unschedulable = false;
                    node.cordoned_by = None;
                }
            }),
            Effect::Evict { uid, manner: Manner::DryRun, .. } => answers.push(Answer::Evictable(uid)),
            Effect::Evict { uid, .. } => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.node = None;
                }
                self.place();
                answers.push(Answer::Evicted(uid));
            }
        }
    }

    fn launch(&mut self, tags: BTreeMap<String, String>, is_new: bool) -> InstanceId {
        self.numbers += 1;
        let id = InstanceId::from(format!("i-{:09}", self.numbers));
        let epoch = self.epoch();
        let name = format!("node-{:09}", self.numbers);
        let node = Node {
            uid: format!("uid-{name}"),
            version: "1".to_owned(),
            provider_id: Some(format!("aws:///trial/{id}")),
            instance_label: None,
            internal_ip: None,
            created_epoch: epoch,
            ready: !is_new,
            unschedulable: false,
            control_plane: false,
            startup_taint: is_new,
            cordoned_by: None,
            released_by: None,
            allocatable: self.policy.worker,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            name,
        };
        let instance = Instance {
            id: id.clone(),
            state: InstanceState::Running,
            private_ip: None,
            launched_epoch: epoch,
            tags,
        };
        let ready_at = if is_new { self.at + self.join } else { self.at };
        self.workers.insert(id.clone(), Worker { instance, node, ready_at });
        id
    }

    /// Its pods wait for another place.
    fn end(&mut self, id: &InstanceId) {
        self.struck.remove(id);
        let Some(worker) = self.workers.remove(id) else { return };
        for pod in self.pods.values_mut().filter(|pod| pod.node.as_ref() == Some(&worker.node.name)) {
            pod.node = None;
        }
    }

    fn tag(&mut self, id: &InstanceId, name: &str, value: String) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.instance.tags.insert(name.to_owned(), value);
        }
    }

    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        if let Some(worker) = self.workers.values_mut().find(|worker| worker.node.name == name) {
            change(&mut worker.node);
        }
    }
}

/// What a log tells of the actions in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The action's id.
    pub action: String,
    /// When it began, in epoch seconds, if the log has that.
    pub began: Option<i64>,
    /// When it ended, if it did.
    pub ended: Option<i64>,
    /// The write that ended it: `complete up`, `fail down`, `clear`.
    pub how: Option<String>,
    /// Who wrote for it.
    pub owners: BTreeSet<String>,
    /// Its writes.
    pub writes: u32,
}

/// The actions that a log tells of, in the order of their first event, and what in it is against the rules.
#[must_use]
pub fn audit(events: &[Event]) -> (Vec<Recorded>, Vec<String>) {
    let mut actions: Vec<Recorded> = Vec::new();
    let mut wrong = Vec::new();
    let (mut open, mut fence, mut last): (Option<String>, i64, Option<&Event>) = (None, 0, None);
    for event in events {
        // The item was lost: numbers and fences begin again.
        if event.event == "migrate" {
            (open, fence, last) = (None, 0, None);
        }
        if last.is_some_and(|last| last.rev >= event.rev) {
            wrong.push(format!("revision {} stands twice", event.rev));
        }
        // Whoever died between a write and its event left a gap, and in it an action may have ended.
        if last.is_some_and(|last| event.rev > last.rev.saturating_add(1)) {
            open = None;
        }
        if event.fence < fence {
            wrong.push(format!("at revision {} the fence fell from {fence} to {}", event.rev, event.fence));
        }
        (fence, last) = (fence.max(event.fence), Some(event));
        let Some(action) = event.action.as_ref().map(ToString::to_string) else { continue };
        let begins = event.event.starts_with("begin") || event.event.starts_with("adopt");
        let ends = ["complete", "fail", "clear"].iter().any(|end| event.event.starts_with(end));
        if let Some(other) = open.as_ref().filter(|other| begins && **other != action) {
            wrong.push(format!("{action} began at revision {} while {other} was under way", event.rev));
        }
        let index = actions.iter().position(|known| known.action == action).unwrap_or_else(|| {
            actions.push(Recorded {
                action: action.clone(),
                began: None,
                ended: None,
                how: None,
                owners: BTreeSet::new(),
                writes: 0,
            });
            actions.len() - 1
        });
        let known = &mut actions[index];
        known.writes += 1;
        known.owners.insert(event.owner.clone());
        if begins {
            known.began.get_or_insert(event.epoch);
            open = Some(action.clone());
        }
        if ends {
            known.ended = Some(event.epoch);
            known.how = Some(event.event.clone());
            open = None;
        }
    }
    (actions, wrong)
}

#[cfg(test)]
#[path = "trial_test.rs"]
mod tests;
