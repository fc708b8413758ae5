//! The simulated cloud, cluster and metrics, and a store that tells the checkers what was written.
//!
//! The world is rich enough for what goes wrong out there: launches with client tokens, instances that are
//! listed late, joins that never come, disruption budgets, nodes that vanish, are renamed or match no instance,
//! workers without our tags, instances that the cloud forgets, subnets without capacity, denied calls, persons
//! who cordon, old writers beside ours. Lost replies and crashes are the [`Gate`]'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Entropy, ManualTime, Monotonic, WallTime};
use tenure_store::{Item, Key, Listing, Memory, Page, Query, Store, TableSpec, Write, Written};

use super::at_once;
use super::checkers::{Ledger, Moment, Termination, Violation};
use super::gate::Gate;
use super::seed_rules::{OldWriter, SeedExecutor};
use crate::executor::{Executor, Ports};
use crate::machine::Manner;
use crate::observation::{
    CordonMark, Instance, InstanceState, LaunchOrder, Load, Node, Pod, PodOwner, Resources, tags,
};
use crate::placement::Placement;
use crate::policy::Policy;
use crate::ports::{Backlog, Cloud, Cluster, Ended, Evicted, Launch, Measures, Metrics, Patched};
use crate::rows::{self, STATE_TABLE, state_key};
use crate::state::{ActionId, InstanceId, State};

/// When every world begins.
const BEGINNING_MS: i64 = 1_730_000_000_000;

/// What the metrics say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Measuring {
    /// What is, measured now.
    #[default]
    Fresh,
    /// What was an hour ago.
    Stale,
    /// Nothing: the call fails.
    Failing,
    /// Nothing: the answer is empty.
    Empty,
}

/// One small world. Clones are the same world.
#[derive(Debug, Clone)]
pub struct World {
    time: ManualTime,
    store: Arc<Memory>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    policy: Policy,
    ledger: Ledger,
    machines: BTreeMap<InstanceId, Machine>,
    tokens: BTreeMap<String, InstanceId>,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Pod>,
    numbers: u64,
    launches: u64,
    executors: u64,
    join_after: i64,
    listed_after: i64,
    never_join: BTreeSet<u64>,
    shortages: BTreeSet<String>,
    refused: Option<(Kind, &'static str)>,
    /// How far the consumers are behind.
    behind: Option<Duration>,
    /// Launches that are not answered, and do not land.
    lost_launches: u32,
    budget_lies: bool,
    ready_after: i64,
    budget_blocks_until: i64,
    changes: u64,
    measuring: Measuring,
    load_percent: u32,
    cordoned_by_person: BTreeSet<String>,
    cordoned_by_old: BTreeSet<String>,
    hidden_loads: BTreeSet<String>,
    denied: BTreeMap<(&'static str, String), i64>,
    purged: BTreeSet<InstanceId>,
    /// Until when pods are still bound to a node that vanished.
    vanished: BTreeMap<String, i64>,
    now: i64,
}

#[derive(Debug, Clone)]
struct Machine {
    instance: Instance,
    listed_from: i64,
    joins_at: Option<i64>,
    ready_at: Option<i64>,
    node: Option<String>,
}

impl World {
    /// An empty world with this policy.
    ///
    /// # Panics
    /// If the memory store does not answer, which it does at once.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let time = ManualTime::starting_at(WallTime::from_millis(BEGINNING_MS));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let store = Arc::new(Memory::new(&env));
        let ledger = Ledger::new(policy.clone());
        let world = Self {
            time,
            store,
            inner: Arc::new(Mutex::new(Inner {
                policy,
                ledger,
                machines: BTreeMap::new(),
                tokens: BTreeMap::new(),
                nodes: BTreeMap::new(),
                pods: BTreeMap::new(),
                numbers: 0,
                launches: 0,
                executors: 0,
                join_after: 40,
                listed_after: 0,
                never_join: BTreeSet::new(),
                shortages: BTreeSet::new(),
                refused: None,
                behind: Some(Duration::ZERO),
                lost_launches: 0,
                budget_lies: false,
                ready_after: 0,
                budget_blocks_until: 0,
                changes: 0,
                measuring: Measuring::Fresh,
                load_percent: 60,
                cordoned_by_person: BTreeSet::new(),
                cordoned_by_old: BTreeSet::new(),
                hidden_loads: BTreeSet::new(),
                denied: BTreeMap::new(),
                purged: BTreeSet::new(),
                vanished: BTreeMap::new(),
                now: BEGINNING_MS / 1000,
            })),
        };
        for spec in [rows::state_table(STATE_TABLE), rows::logs_table(rows::LOGS_TABLE)] {
            at_once(world.store.ensure_table(Monotonic::NEVER, &spec))
                .and_then(Result::ok)
                .expect("the memory store makes a table at once");
        }
        world
    }

    // === what a scenario sets up ===

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        self.time.advance(duration);
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.time.clock().wall().as_seconds()
    }

    /// A worker that has been there for long, with its node, not launched by us.
    pub fn add_worker(&self, number: u32) -> InstanceId {
        self.add_machine(&format!("i-worker{number}"), &format!("worker-{number}"), false)
    }

    /// A worker that an old writer launched: it lacks all of our tags.
    pub fn add_untagged_worker(&self, number: u32) -> InstanceId {
        let id = self.add_worker(number);
        if let Some(machine) = self.lock().machines.get_mut(&id) {
            machine.instance.tags.clear();
        }
        id
    }

    /// An instance that an old writer launched and that never joined.
    pub fn add_untagged_instance(&self, id: &str) -> InstanceId {
        let id = self.add_machine(id, id, false);
        let mut inner = self.lock();
        inner.nodes.remove(id.as_str());
        if let Some(machine) = inner.machines.get_mut(&id) {
            machine.instance.tags.clear();
            machine.node = None;
        }
        id
    }

    /// A control-plane node.
    pub fn add_control_plane(&self) -> InstanceId {
        self.add_machine("i-control", "control", true)
    }

    fn add_machine(&self, id: &str, node: &str, control_plane: bool) -> InstanceId {
        let mut inner = self.lock();
        let id = InstanceId::from(id);
        let policy = inner.policy.clone();
        let instance = Instance {
            id: id.clone(),
            state: InstanceState::Running,
            private_ip: None,
            launched_epoch: inner.now - 86_400,
            tags: [(tags::CLUSTER.to_owned(), policy.cluster)].into(),
        };
        let fresh = inner.fresh_node(node, &id, policy.worker, control_plane);
        inner.nodes.insert(node.to_owned(), Node { startup_taint: false, ..fresh });
        let machine =
            Machine { instance, listed_from: 0, joins_at: None, ready_at: None, node: Some(node.to_owned()) };
        inner.machines.insert(id.clone(), machine);
        id
    }

    /// Pods that a controller wants to run, of half a worker's size each; placed where there is room.
    pub fn add_pods(&self, count: u32) {
        let mut inner = self.lock();
        let whole = inner.policy.worker;
        let half = Resources { cpu_millis: whole.cpu_millis / 2, memory_mib: whole.memory_mib / 2 };
        for _ in 0..count {
            inner.add_pod(half, PodOwner::Controller, None);
        }
        inner.settle();
    }

    /// A small pod on a node.
    pub fn add_pod_on(&self, node: &str, owner: PodOwner) {
        let small = Resources { cpu_millis: 50, memory_mib: 64 };
        self.lock().add_pod(small, owner, Some(node.to_owned()));
    }

    /// How long after its launch an instance joins, in seconds.
    pub fn joins_after(&self, seconds: i64) {
        self.lock().join_after = seconds;
    }

    /// How long after its launch an instance is listed, in seconds.
    pub fn listed_after(&self, seconds: i64) {
        self.lock().listed_after = seconds;
    }

    /// The instance of that launch, from 0, never joins.
    pub fn never_joins(&self, launch: u64) {
        self.lock().never_join.insert(launch);
    }

    /// A subnet has no capacity, or has it again.
    pub fn shortage(&self, subnet: &str, short: bool) {
        let mut inner = self.lock();
        if short {
            inner.shortages.insert(subnet.to_owned());
        } else {
            inner.shortages.remove(subnet);
        }
    }

    /// So far the consumers are behind; none says that nobody knows.
    pub fn set_behind(&self, behind: Option<Duration>) {
        self.lock().behind = behind;
    }

    /// What a pod asks of its node.
    pub fn place_pods(&self, is_placed: impl Fn(&Pod) -> bool, placement: &Placement) {
        let mut inner = self.lock();
        for pod in inner.pods.values_mut().filter(|pod| is_placed(pod)) {
            pod.placement = placement.clone();
        }
    }

    /// Gives a node a label.
    pub fn label(&self, node: &str, name: &str, value: &str) {
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.labels.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Somebody removes a node's start-up taint.
    pub fn serve(&self, node: &str) {
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.startup_taint = false;
        }
    }

    /// So many launches are not answered, and have not landed yet.
    pub fn lose_launches(&self, count: u32) {
        self.lock().lost_launches = count;
    }

    /// Launches are refused with this kind of error, or not any more.
    pub fn refuse_launches(&self, refused: Option<(Kind, &'static str)>) {
        self.lock().refused = refused;
    }

    /// No pod may be evicted before that epoch second.
    pub fn budget_blocks_until(&self, epoch: i64) {
        self.lock().budget_blocks_until = epoch;
    }

    /// A dry run says that pods may go, and then they may not, ever.
    pub fn budget_lies(&self) {
        self.lock().budget_lies = true;
    }

    /// How long after it registered a node becomes Ready, in seconds.
    pub fn ready_after(&self, seconds: i64) {
        self.lock().ready_after = seconds;
    }

    /// What the metrics say, and how loaded every node is.
    pub fn measure(&self, measuring: Measuring, load_percent: u32) {
        let mut inner = self.lock();
        inner.measuring = measuring;
        inner.load_percent = load_percent;
    }

    /// The metrics know nothing of this node.
    pub fn hide_load_of(&self, node: &str) {
        self.lock().hidden_loads.insert(node.to_owned());
    }

    /// A person cordons a node.
    pub fn cordon_by_hand(&self, node: &str) {
        let mut inner = self.lock();
        let version = inner.next_version();
        if let Some(node) = inner.nodes.get_mut(node) {
            node.unschedulable = true;
            node.version = version;
        }
        inner.cordoned_by_person.insert(node.to_owned());
    }

    /// An old writer cordons a node: as a person does, but it is the scale-down's to undo.
    pub fn cordon_by_old_writer(&self, node: &str) {
        self.cordon_by_hand(node);
        self.lock().cordoned_by_person.remove(node);
    }

    /// Somebody else ends an instance: spot capacity is taken back, a person clicks.
    pub fn kill(&self, id: &InstanceId) {
        let mut inner = self.lock();
        inner.ledger.killed_by_others(id);
        inner.end(id);
    }

    /// Somebody else ends an instance, and the cloud forgets it: it is not listed, and not found.
    pub fn purge(&self, id: &InstanceId) {
        if self.lock().machines.contains_key(id) {
            self.kill(id);
            self.lock().purged.insert(id.clone());
        }
    }

    /// A node object vanishes, its instance does not. Its pods are collected after a minute.
    pub fn vanish(&self, node: &str) {
        let mut inner = self.at_now();
        inner.nodes.remove(node);
        let until = inner.now + 60;
        inner.vanished.insert(node.to_owned(), until);
    }

    /// A machine registers again under another name; its pods go on, and its old node is gone.
    pub fn rename(&self, node: &str, name: &str) {
        let mut inner = self.at_now();
        let number = inner.number();
        let Some(old) = inner.nodes.remove(node) else { return };
        let renamed = Node {
            name: name.to_owned(),
            uid: format!("uid-{number}"),
            version: number.to_string(),
            created_epoch: inner.now,
            unschedulable: false,
            cordoned_by: None,
            released_by: None,
            ..old
        };
        inner.nodes.insert(name.to_owned(), renamed);
        for pod in inner.pods.values_mut().filter(|pod| pod.node.as_deref() == Some(node)) {
            pod.node = Some(name.to_owned());
        }
        for machine in inner.machines.values_mut().filter(|machine| machine.node.as_deref() == Some(node)) {
            machine.node = Some(name.to_owned());
        }
    }

    /// Nothing says any more which instance the node is, as of a stock k3s node.
    pub fn lose_match(&self, node: &str) {
        let mut inner = self.at_now();
        let version = inner.next_version();
        if let Some(node) = inner.nodes.get_mut(node) {
            node.provider_id = Some(format!("k3s://{}", node.name));
            node.version = version;
        }
    }

    /// The node says again which instance it is.
    pub fn restore_match(&self, node: &str) {
        let mut inner = self.at_now();
        let version = inner.next_version();
        let machine = inner.machines.values().find(|machine| machine.node.as_deref() == Some(node));
        let Some(id) = machine.map(|machine| machine.instance.id.clone()) else { return };
        if let Some(node) = inner.nodes.get_mut(node) {
            node.provider_id = Some(format!("aws:///zone/{id}"));
            node.version = version;
        }
    }

    /// A person uncordons a node.
    pub fn uncordon_by_hand(&self, node: &str) {
        let mut inner = self.at_now();
        let version = inner.next_version();
        if let Some(node) = inner.nodes.get_mut(node) {
            node.unschedulable = false;
            node.version = version;
        }
        inner.cordoned_by_person.remove(node);
    }

    /// Every pod that may move goes away: nobody wants them any more.
    pub fn remove_pods(&self) {
        self.at_now().pods.retain(|_, pod| pod.owner != PodOwner::Controller);
    }

    /// A node is Ready, or not; its pods stay.
    pub fn set_ready(&self, node: &str, ready: bool) {
        if let Some(node) = self.at_now().nodes.get_mut(node) {
            node.ready = ready;
        }
    }

    /// Calls of that name (`terminate`, `tag`, `cordon`, `release`, `untaint`, `evict`) on that instance, node
    /// or pod are denied before that epoch second; `end` is what the cloud says when it is asked beforehand.
    pub fn deny(&self, call: &'static str, target: &str, until: i64) {
        self.lock().denied.insert((call, target.to_owned()), until);
    }

    /// An instance is tagged as another cluster's.
    pub fn give_to(&self, cluster: &str, id: &InstanceId) {
        if let Some(machine) = self.lock().machines.get_mut(id) {
            machine.instance.tags.insert(tags::CLUSTER.to_owned(), cluster.to_owned());
        }
    }

    /// Somebody deletes the state item.
    ///
    /// # Panics
    /// If the memory store refuses it, which it does not.
    pub fn lose_item(&self) {
        let when = tenure_store::Condition::Always;
        let write = Write::Delete { table: STATE_TABLE.to_owned(), key: state_key(), when };
        at_once(self.store.write(Monotonic::NEVER, &write))
            .and_then(Result::ok)
            .expect("the memory store writes at once");
    }

    /// The state item becomes this, as an old writer would leave it. No checker is told.
    ///
    /// # Panics
    /// If the memory store refuses it, which it does not.
    pub fn put_item(&self, item: Item) {
        let write = Write::Put { table: STATE_TABLE.to_owned(), item, when: tenure_store::Condition::Always };
        at_once(self.store.write(Monotonic::NEVER, &write))
            .and_then(Result::ok)
            .expect("the memory store writes at once");
    }

    // === what is seen ===

    /// The state item as it is.
    #[must_use]
    pub fn item(&self) -> Item {
        at_once(self.store.get(Monotonic::NEVER, STATE_TABLE, &state_key()))
            .and_then(Result::ok)
            .flatten()
            .unwrap_or_default()
    }

    /// The state as it is; without attributes if it cannot be read.
    #[must_use]
    pub fn state(&self) -> State {
        rows::decode(&self.item()).unwrap_or_default()
    }

    /// The store, without a gate.
    #[must_use]
    pub fn store(&self) -> Arc<Memory> {
        self.store.clone()
    }

    /// Live instances.
    #[must_use]
    pub fn live(&self) -> Vec<InstanceId> {
        let inner = self.lock();
        inner.machines.values().filter(|m| m.instance.is_live()).map(|m| m.instance.id.clone()).collect()
    }

    /// An instance, live or not.
    #[must_use]
    pub fn instance(&self, id: &InstanceId) -> Option<Instance> {
        self.lock().machines.get(id).map(|machine| machine.instance.clone())
    }

    /// How many pods that a drain would move are on a node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> usize {
        self.at_now().pods_to_drain(node)
    }

    /// Nodes, by name.
    #[must_use]
    pub fn nodes(&self) -> BTreeMap<String, Node> {
        let mut inner = self.lock();
        inner.now = self.epoch();
        inner.settle();
        inner.nodes.clone()
    }

    /// How many pods wait for a node.
    #[must_use]
    pub fn waiting_pods(&self) -> usize {
        let mut inner = self.lock();
        inner.now = self.epoch();
        inner.settle();
        inner.pods.values().filter(|pod| pod.node.is_none()).count()
    }

    /// How many instances were launched.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.lock().launches
    }

    /// How many actions have ended.
    #[must_use]
    pub fn ended_actions(&self) -> u32 {
        self.lock().ledger.ended_count
    }

    /// How many effects there were: a number that moves whenever anything was changed by a call.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// What was broken so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().ledger.violations.clone()
    }

    /// What was broken in all: once more what must hold after healing.
    #[must_use]
    pub fn final_violations(&self) -> Vec<Violation> {
        let state = self.state();
        let mut inner = self.lock();
        let Inner { ledger, machines, nodes, cordoned_by_person, cordoned_by_old, .. } = &mut *inner;
        let instances: Vec<_> = machines.values().map(|machine| &machine.instance).collect();
        let live_nodes = machines
            .values()
            .filter(|machine| machine.instance.is_live())
            .filter_map(|machine| nodes.get(machine.node.as_ref()?));
        // What an old writer cordons and forgets has no mark: nobody can tell it from a person's.
        let others: BTreeSet<String> = cordoned_by_person.union(cordoned_by_old).cloned().collect();
        ledger.at_the_end(&state, &instances, live_nodes, &others);
        inner.ledger.violations.clone()
    }

    // === executors ===

    /// The edges of an executor, behind its gate.
    #[must_use]
    pub fn ports(&self, gate: &Gate) -> Ports {
        self.edge(gate, false)
    }

    /// The edges of an old writer that is at work beside ours: it knows none of our tags and marks, and the
    /// checkers do not hold it to our rules.
    #[must_use]
    pub fn old_ports(&self, gate: &Gate) -> Ports {
        self.edge(gate, true)
    }

    fn edge(&self, gate: &Gate, is_old: bool) -> Ports {
        let edge = Arc::new(Edge { world: self.clone(), gate: gate.clone(), is_old });
        Ports {
            store: edge.clone(),
            cloud: edge.clone(),
            cluster: edge.clone(),
            metrics: edge.clone(),
            backlog: Some(edge),
        }
    }

    /// Time and randomness of an executor.
    #[must_use]
    pub fn env(&self) -> Env {
        let mut inner = self.lock();
        inner.executors += 1;
        Env { clock: Arc::new(self.time.clock()), entropy: Entropy::seeded(inner.executors) }
    }

    /// An executor of ours.
    ///
    /// # Panics
    /// If the world's policy cannot be carried out.
    #[must_use]
    pub fn executor(&self, name: &str, gate: &Gate) -> Executor {
        let policy = self.lock().policy.clone();
        Executor::builder(self.ports(gate), policy, self.env())
            .name(name)
            .build()
            .expect("a scenario has a policy that can be carried out")
    }

    /// An executor of ours whose wall clock is off by so many milliseconds.
    ///
    /// # Panics
    /// If the world's policy cannot be carried out.
    #[must_use]
    pub fn skewed_executor(&self, name: &str, skew_ms: i64) -> Executor {
        let env = Env { clock: Arc::new(self.time.node(skew_ms, 0)), ..self.env() };
        Executor::builder(self.ports(&Gate::open()), self.policy(), env)
            .name(name)
            .build()
            .expect("a scenario has a policy that can be carried out")
    }

    /// An old writer that is at work beside ours.
    #[must_use]
    pub fn old_writer(&self, writer: OldWriter) -> SeedExecutor {
        SeedExecutor::new(self.old_ports(&Gate::open()), self.policy(), self.env(), writer)
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.lock().policy.clone()
    }

    /// The checkers judge by the old documents' flow: no transition table.
    pub fn without_table(&self) {
        self.lock().ledger.without_table();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The world as it is at this moment.
    fn at_now(&self) -> MutexGuard<'_, Inner> {
        let now = self.epoch();
        let mut inner = self.lock();
        inner.now = now;
        inner.settle();
        inner
    }
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn next_version(&mut self) -> String {
        self.number().to_string()
    }

    fn fresh_node(
        &mut self,
        name: &str,
        id: &InstanceId,
        allocatable: Resources,
        control_plane: bool,
    ) -> Node {
        let number = self.number();
        Node {
            name: name.to_owned(),
            uid: format!("uid-{number}"),
            version: number.to_string(),
            provider_id: Some(format!("aws:///zone/{id}")),
            instance_label: None,
            internal_ip: None,
            created_epoch: self.now,
            ready: true,
            unschedulable: false,
            control_plane,
            startup_taint: true,
            cordoned_by: None,
            released_by: None,
            allocatable,
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }

    fn add_pod(&mut self, requests: Resources, owner: PodOwner, node: Option<String>) {
        let number = self.number();
        let pod = Pod {
            namespace: "default".to_owned(),
            name: format!("pod-{number}"),
            uid: format!("pod-uid-{number}"),
            unschedulable: node.is_none(),
            node,
            requests,
            owner,
            local_storage: false,
            placement: Placement::default(),
        };
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Nodes join whose time has come, and pods are placed where there is room.
    fn settle(&mut self) {
        let due: Vec<InstanceId> = self
            .machines
            .values()
            .filter(|machine| machine.instance.is_live() && machine.joins_at.is_some_and(|at| at <= self.now))
            .map(|machine| machine.instance.id.clone())
            .collect();
        for id in due {
            let name = format!("node-{id}");
            let mut node = self.fresh_node(&name, &id, self.policy.worker, false);
            node.ready = self.ready_after == 0;
            self.nodes.insert(name.clone(), node);
            let ready_after = self.ready_after;
            if let Some(machine) = self.machines.get_mut(&id) {
                machine.ready_at = machine.joins_at.take().map(|at| at + ready_after);
                machine.node = Some(name);
            }
        }
        let collected: Vec<String> = self
            .vanished
            .iter()
            .filter(|(name, until)| **until <= self.now && !self.nodes.contains_key(*name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in collected {
            self.vanished.remove(&name);
            self.displace(|pod| pod.node.as_deref() == Some(&name));
        }
        let ready = |machine: &&Machine| machine.ready_at.is_some_and(|at| at <= self.now);
        let now_ready: Vec<String> =
            self.machines.values().filter(ready).filter_map(|machine| machine.node.clone()).collect();
        for name in now_ready {
            // Once: what happens to it later is the story's.
            for machine in self.machines.values_mut().filter(|machine| machine.node.as_ref() == Some(&name)) {
                machine.ready_at = None;
            }
            if let Some(node) = self.nodes.get_mut(&name).filter(|node| !node.ready) {
                node.ready = true;
            }
        }
        let waiting: Vec<String> =
            self.pods.values().filter(|pod| pod.node.is_none()).map(|pod| pod.uid.clone()).collect();
        for uid in waiting {
            let Some(requests) = self.pods.get(&uid).map(|pod| pod.requests) else { continue };
            let place = self
                .nodes
                .values()
                .filter(|node| {
                    node.ready && !node.unschedulable && !node.startup_taint && !node.control_plane
                })
                .find(|node| self.free(node).fits(requests))
                .map(|node| node.name.clone());
            if let (Some(pod), Some(node)) = (self.pods.get_mut(&uid), place) {
                pod.node = Some(node);
                pod.unschedulable = false;
            }
        }
    }

    fn free(&self, node: &Node) -> Resources {
        self.pods
            .values()
            .filter(|pod| pod.node.as_ref() == Some(&node.name))
            .fold(node.allocatable, |left, pod| left.less(pod.requests))
    }

    /// An old writer that clears a scale-down forgets what it cordoned.
    fn cordons_forgotten(&mut self, before: &Item, after: &Item) {
        if before.get("scaleDownActionId").is_some() && after.get("scaleDownActionId").is_none() {
            let unmarked = |node: &&Node| node.unschedulable && node.cordoned_by.is_none();
            self.cordoned_by_old.extend(self.nodes.values().filter(unmarked).map(|node| node.name.clone()));
        }
    }

    fn permits(&self, call: &'static str, target: &str) -> Result<()> {
        match self.denied.get(&(call, target.to_owned())) {
            Some(until) if self.now < *until => {
                Err(Error::new(Kind::Denied, format!("injected: not authorized to {call} {target}")))
            }
            _ => Ok(()),
        }
    }

    fn budget_blocks(&self, manner: Manner) -> bool {
        match manner {
            Manner::Force => false,
            Manner::DryRun => self.now < self.budget_blocks_until,
            Manner::Evict => self.budget_lies || self.now < self.budget_blocks_until,
        }
    }

    fn pods_to_drain(&self, node: &str) -> usize {
        self.pods.values().filter(|pod| pod.node.as_deref() == Some(node) && pod.is_drained()).count()
    }

    /// An instance ends: its node goes, and its pods wait again.
    fn end(&mut self, id: &InstanceId) {
        let Some(machine) = self.machines.get_mut(id) else { return };
        machine.instance.state = InstanceState::Gone;
        machine.joins_at = None;
        if let Some(name) = machine.node.take() {
            self.nodes.remove(&name);
            self.displace(|pod| pod.node.as_deref() == Some(&name));
        }
    }

    /// These pods leave their nodes; a controller makes new ones, which wait.
    fn displace(&mut self, is_displaced: impl Fn(&Pod) -> bool) {
        let gone: Vec<Pod> = self.pods.values().filter(|pod| is_displaced(pod)).cloned().collect();
        for pod in gone {
            self.pods.remove(&pod.uid);
            if pod.owner == PodOwner::Controller {
                self.add_pod(pod.requests, pod.owner, None);
            }
        }
    }

    fn launch(&mut self, order: &LaunchOrder, by_old: bool) -> Result<Launch> {
        self.changes += 1;
        if self.lost_launches > 0 {
            self.lost_launches -= 1;
            return Err(Error::new(Kind::Unknown, "injected: no answer"));
        }
        // Also of a token that is known: an account's limits and rights are looked at first.
        if let Some((kind, what)) = self.refused {
            return Err(Error::new(kind, what));
        }
        if let Some(id) = self.tokens.get(&order.token) {
            let same = self.machines.get(id).is_some_and(|machine| {
                order.tags.iter().all(|(name, value)| machine.instance.tag(name) == Some(value))
            });
            return if same {
                Ok(Launch::Started(id.clone()))
            } else {
                Err(Error::invalid(
                    "the client token was used with other parameters: look the instance up by tag",
                ))
            };
        }
        if self.shortages.contains(&order.place.subnet) {
            return Ok(Launch::NoCapacity("InsufficientInstanceCapacity".to_owned()));
        }
        let launch = self.launches;
        self.launches += 1;
        let id = InstanceId::from(format!("i-new{launch}"));
        let instance = Instance {
            id: id.clone(),
            state: InstanceState::Running,
            private_ip: None,
            launched_epoch: self.now,
            tags: if by_old { BTreeMap::new() } else { order.tags.clone() },
        };
        let joins_at = (!self.never_join.contains(&launch)).then_some(self.now + self.join_after);
        if !by_old {
            self.ledger.launched(&instance);
        }
        let machine = Machine {
            instance,
            listed_from: self.now + self.listed_after,
            joins_at,
            ready_at: None,
            node: None,
        };
        self.machines.insert(id.clone(), machine);
        if !order.token.is_empty() {
            self.tokens.insert(order.token.clone(), id.clone());
        }
        Ok(Launch::Started(id))
    }

    fn patch(&mut self, name: &str, version: &str, change: impl FnOnce(&mut Node)) -> Patched {
        self.changes += 1;
        let next = self.next_version();
        match self.nodes.get_mut(name) {
            None => Patched::Gone,
            Some(node) if node.version != version && !version.is_empty() => Patched::Conflict,
            Some(node) => {
                change(node);
                node.version = next;
                Patched::Done
            }
        }
    }
}

/// All edges of one executor.
#[derive(Debug)]
struct Edge {
    world: World,
    gate: Gate,
    is_old: bool,
}

#[async_trait]
impl Cloud for Edge {
    async fn instances(&self, _by: Monotonic, also: &[InstanceId]) -> Result<Vec<Instance>> {
        let call = async {
            let inner = self.world.at_now();
            let listed = |machine: &&Machine| {
                machine.listed_from <= inner.now && !inner.purged.contains(&machine.instance.id)
            };
            let ours = |machine: &&Machine| {
                machine.instance.tag(tags::CLUSTER) == Some(&inner.policy.cluster)
                    || also.contains(&machine.instance.id)
            };
            Ok(inner
                .machines
                .values()
                .filter(listed)
                .filter(ours)
                .map(|machine| machine.instance.clone())
                .collect())
        };
        self.gate.pass("instances", false, call).await
    }

    async fn launch(&self, _by: Monotonic, order: &LaunchOrder) -> Result<Launch> {
        let call = async { self.world.at_now().launch(order, self.is_old) };
        self.gate.pass("launch", true, call).await
    }

    async fn why_not_end(&self, _by: Monotonic, id: &InstanceId) -> Result<Option<String>> {
        let call = async {
            let inner = self.world.at_now();
            inner.permits("ask", id.as_str())?;
            Ok(inner.permits("end", id.as_str()).err().map(|error| error.chain()))
        };
        self.gate.pass("why not end", false, call).await
    }

    async fn terminate(&self, _by: Monotonic, id: &InstanceId) -> Result<Ended> {
        let call = async {
            let state = self.world.state();
            let mut inner = self.world.at_now();
            inner.changes += 1;
            inner.permits("terminate", id.as_str())?;
            let Some(machine) = inner.machines.get(id).filter(|_| !inner.purged.contains(id)).cloned() else {
                return Ok(Ended::NotFound);
            };
            if !machine.instance.is_live() {
                return Ok(Ended::Accepted);
            }
            let node = machine.node.as_ref().and_then(|name| inner.nodes.get(name)).cloned();
            // Also of a node object that vanished: its pods run until they are collected.
            let pods = machine.node.as_ref().map_or(0, |name| inner.pods_to_drain(name));
            if self.is_old {
                inner.ledger.killed_by_others(id);
            } else {
                inner.ledger.terminated(&Termination {
                    state: &state,
                    instance: &machine.instance,
                    node: node.as_ref(),
                    pods,
                });
            }
            inner.end(id);
            Ok(Ended::Accepted)
        };
        self.gate.pass("terminate", true, call).await
    }

    async fn tag(&self, _by: Monotonic, id: &InstanceId, name: &str, value: &str) -> Result<()> {
        let call = async {
            let mut inner = self.world.at_now();
            inner.changes += 1;
            inner.permits("tag", id.as_str())?;
            if inner.purged.contains(id) {
                return Err(Error::invalid(format!("InvalidInstanceID.NotFound: {id}")));
            }
            if let Some(machine) = inner.machines.get_mut(id).filter(|_| !self.is_old) {
                machine.instance.tags.insert(name.to_owned(), value.to_owned());
            }
            Ok(())
        };
        self.gate.pass("tag", true, call).await
    }
}

#[async_trait]
impl Cluster for Edge {
    async fn nodes(&self, _by: Monotonic) -> Result<Vec<Node>> {
        let call = async { Ok(self.world.at_now().nodes.values().cloned().collect()) };
        self.gate.pass("nodes", false, call).await
    }

    async fn pods(&self, _by: Monotonic) -> Result<Vec<Pod>> {
        let call = async { Ok(self.world.at_now().pods.values().cloned().collect()) };
        self.gate.pass("pods", false, call).await
    }

    async fn cordon(&self, _by: Monotonic, node: &str, version: &str, mark: &CordonMark) -> Result<Patched> {
        let call = async {
            let state = self.world.state();
            let mut inner = self.world.at_now();
            inner.permits("cordon", node)?;
            let patched = inner.patch(node, version, |node| {
                node.unschedulable = true;
                if !self.is_old {
                    node.cordoned_by = Some(mark.clone());
                }
            });
            if self.is_old {
                inner.cordoned_by_old.insert(node.to_owned());
            } else if patched == Patched::Done {
                inner.ledger.cordoned(&state, node, &mark.action);
            }
            Ok(patched)
        };
        self.gate.pass("cordon", true, call).await
    }

    async fn release(
        &self,
        _by: Monotonic,
        node: &str,
        version: &str,
        action: &ActionId,
        uncordon: bool,
    ) -> Result<Patched> {
        let call = async {
            let mut inner = self.world.at_now();
            inner.permits("release", node)?;
            let before = inner.nodes.get(node).cloned();
            let patched = inner.patch(node, version, |node| {
                node.released_by = Some(action.clone());
                if uncordon {
                    node.unschedulable = false;
                    node.cordoned_by = None;
                }
            });
            if let (Patched::Done, Some(before), true) = (patched, before, uncordon) {
                let by_person = inner.cordoned_by_person.contains(node);
                inner.ledger.uncordoned(&before, by_person);
            }
            Ok(patched)
        };
        self.gate.pass("release", true, call).await
    }

    async fn untaint(&self, _by: Monotonic, node: &str, version: &str) -> Result<Patched> {
        let call = async {
            let mut inner = self.world.at_now();
            inner.permits("untaint", node)?;
            // An old writer knows no such taint.
            Ok(inner.patch(node, version, |node| node.startup_taint = node.startup_taint && self.is_old))
        };
        self.gate.pass("untaint", true, call).await
    }

    async fn evict(
        &self,
        _by: Monotonic,
        _namespace: &str,
        _name: &str,
        uid: &str,
        manner: Manner,
    ) -> Result<Evicted> {
        let call = async {
            let mut inner = self.world.at_now();
            let Some(pod) = inner.pods.get(uid).cloned() else { return Ok(Evicted::Gone) };
            if inner.budget_blocks(manner) {
                return Ok(Evicted::Blocked("its disruption budget allows none now".to_owned()));
            }
            inner.permits("evict", &pod.name)?;
            if manner != Manner::DryRun {
                inner.changes += 1;
                let instance = inner
                    .machines
                    .values()
                    .find(|machine| machine.node.is_some() && machine.node == pod.node)
                    .map(|machine| machine.instance.id.clone());
                if !self.is_old {
                    inner.ledger.evicted(&pod, instance.as_ref(), manner == Manner::Force);
                }
                inner.displace(|other| other.uid == pod.uid);
            }
            Ok(Evicted::Accepted)
        };
        self.gate.pass(if manner == Manner::DryRun { "dry run" } else { "evict" }, true, call).await
    }
}

#[async_trait]
impl Metrics for Edge {
    async fn measures(&self, _by: Monotonic) -> Result<Measures> {
        let call = async {
            let inner = self.world.at_now();
            let age = if inner.measuring == Measuring::Stale { 3600 } else { 0 };
            let load = Load {
                cpu_percent: inner.load_percent,
                memory_percent: inner.load_percent,
                at_epoch: inner.now - age,
            };
            match inner.measuring {
                Measuring::Failing => Err(Error::unavailable("injected: no metrics")),
                Measuring::Empty => Ok(Measures::default()),
                Measuring::Fresh | Measuring::Stale => Ok(Measures {
                    loads: inner
                        .nodes
                        .keys()
                        .filter(|name| !inner.hidden_loads.contains(*name))
                        .map(|name| (name.clone(), load))
                        .collect(),
                    asked_epoch: Some(inner.now),
                }),
            }
        };
        self.gate.pass("measures", false, call).await
    }

    async fn readiness(&self, _by: Monotonic) -> Result<BTreeMap<String, bool>> {
        let call = async {
            let inner = self.world.at_now();
            match inner.measuring {
                Measuring::Failing => return Err(Error::unavailable("injected: no metrics")),
                Measuring::Empty => return Ok(BTreeMap::new()),
                Measuring::Fresh | Measuring::Stale => {}
            }
            let known = inner.nodes.values().filter(|node| !inner.hidden_loads.contains(&node.name));
            Ok(known.map(|node| (node.name.clone(), node.ready)).collect())
        };
        self.gate.pass("readiness", false, call).await
    }
}

#[async_trait]
impl Backlog for Edge {
    async fn behind(&self, _by: Monotonic) -> Result<Option<Duration>> {
        Ok(self.world.at_now().behind)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Edge {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.world.store.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.world.store.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.gate.pass("get", false, self.world.store.get(by, table, key)).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        if write.table() != STATE_TABLE {
            return self.gate.pass("log", true, self.world.store.write(by, write)).await;
        }
        let sent = self.world.epoch();
        let call = async {
            let before = self.world.item();
            let written = self.world.store.write(by, write).await?;
            if let Written::Applied(after) = &written {
                let mut inner = self.world.at_now();
                inner.changes += 1;
                if self.is_old {
                    inner.cordons_forgotten(&before, after);
                }
                let Inner { ledger, machines, nodes, now, measuring, .. } = &mut *inner;
                let workers: Vec<(&Instance, Option<&Node>)> = machines
                    .values()
                    .map(|machine| {
                        (&machine.instance, machine.node.as_ref().and_then(|name| nodes.get(name)))
                    })
                    .collect();
                let measured = *measuring == Measuring::Fresh;
                let moment = Moment { now: *now, sent, measured, by_old: self.is_old };
                ledger.wrote(&moment, &before, after, &workers);
            }
            Ok(written)
        };
        self.gate.pass("write", true, call).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.gate.pass("transact", true, self.world.store.transact(by, writes, nonce)).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.gate.pass("query", false, self.world.store.query(by, table, query)).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.gate.pass("scan", false, self.world.store.scan(by, table, page)).await
    }

    fn is_local(&self) -> bool {
        true
    }
}
