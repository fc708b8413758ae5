//! The store, the cloud and the cluster: what is there, and what a call does to it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use tenure_autoscaler::machine::Manner;
use tenure_autoscaler::observation::{
    Answer, CordonMark, Instance, InstanceState, LaunchOrder, Load, Node, Observation, Pod, PodOwner,
    Resources, tags,
};
use tenure_autoscaler::placement::Placement;
use tenure_autoscaler::rows::{STATE_TABLE, decode, encode, state_table};
use tenure_autoscaler::rules::Rule;
use tenure_autoscaler::state::{InstanceId, State};
use tenure_autoscaler::table::{Name, explain_states};
use tenure_autoscaler::testing::{Ledger, Moment, Termination};
use tenure_autoscaler::{Effect, Needs};
use tenure_store::{Effect as Landed, Write};

use super::driver::{Executor, Flight, Sent};
use super::shared::Shared;
use super::thief::Thief;

/// When every world begins, in epoch seconds.
pub(super) const BEGINNING: i64 = 1_730_000_000;
/// How long one moment lasts: a lease is over by the next.
pub(super) const MOMENT_SECONDS: i64 = 100;
pub(super) const CLUSTER: &str = "demo";

#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct World {
    pub(super) moment: u8,
    pub(super) state: Shared<State>,
    pub(super) machines: Vec<Shared<Machine>>,
    pub(super) executors: Vec<Shared<Executor>>,
    /// Calls that land at any later moment, or never: nobody waits for them any more.
    pub(super) late: Vec<Shared<Flight>>,
    pub(super) thief: Thief,
    pub(super) ledger: Shared<Ledger>,
    pub(super) faults_left: u8,
    pub(super) kills_left: u8,
    /// No pod may be evicted.
    pub(super) blocked: bool,
    /// The metrics do not answer.
    pub(super) blind: bool,
    /// Nobody did anything since time passed: only then does anything happen by itself, or while somebody
    /// stands still.
    pub(super) fresh: bool,
    pub(super) stage: Stage,
}

/// How far a branch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Open,
    /// Everybody has died.
    Closed,
    /// And another had time to bring it to rest.
    Healed,
}

/// An instance, with its node if it has one.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct Machine {
    pub(super) instance: Instance,
    pub(super) token: String,
    pub(super) node: Option<Node>,
    pub(super) pods: Vec<Pod>,
    pub(super) cordoned_by_person: bool,
}

/// The state after a write, unless that is refused, and the row that explains it.
type Outcome = (Option<Shared<State>>, Result<Name, String>);

thread_local! {
    /// What became of writes, by the state and the write.
    static OUTCOMES: RefCell<HashMap<(u64, u64), Outcome>> = RefCell::default();
}

fn outcome(state: &State, write: &Write) -> Outcome {
    let before = encode(state);
    let landed = write.decide(&state_table(STATE_TABLE), Some(&before)).expect("a write that fits");
    let Some(Landed::Store(after)) = landed else { return (None, Err(String::new())) };
    let after = decode(&after).expect("what was written can be read");
    let explained = explain_states(state, &after).map_err(|error| error.chain());
    (Some(Shared::new(after)), explained)
}

/// What became of a call.
pub(super) enum Heard {
    Applied(Shared<State>),
    Refused(Shared<State>),
    Answered(Answer),
    /// It did what it did; that is seen, not told.
    Silence,
}

impl World {
    pub(super) fn epoch(&self) -> i64 {
        BEGINNING + i64::from(self.moment) * MOMENT_SECONDS
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.epoch() * 1000
    }

    /// Changes an instance, if there is one of that id.
    fn change(&mut self, id: &InstanceId, change: impl FnOnce(&mut Machine)) {
        if let Some(machine) = self.machines.iter_mut().find(|machine| machine.instance.id == *id) {
            machine.change(change);
        }
    }

    // === what is there from the beginning ===

    pub(super) fn add_worker(&mut self, pods: &[PodOwner]) {
        let id = InstanceId::from(format!("i-{}", self.machines.len()));
        let node = Node { startup_taint: false, ..self.fresh_node(&id) };
        let pods = pods.iter().map(|owner| pod_on(&node.name, *owner)).collect();
        let instance = Instance {
            id,
            state: InstanceState::Running,
            private_ip: None,
            launched_epoch: BEGINNING - 86_400,
            tags: [(tags::CLUSTER.to_owned(), CLUSTER.to_owned())].into(),
        };
        let machine =
            Machine { instance, token: String::new(), node: Some(node), pods, cordoned_by_person: false };
        self.machines.push(Shared::new(machine));
    }

    fn fresh_node(&self, id: &InstanceId) -> Node {
        Node {
            name: id.as_str().replace("i-", "node-"),
            uid: format!("uid-of-{id}"),
            version: "0".to_owned(),
            provider_id: Some(format!("aws:///zone/{id}")),
            instance_label: None,
            internal_ip: None,
            created_epoch: self.epoch(),
            ready: true,
            unschedulable: false,
            control_plane: false,
            startup_taint: true,
            cordoned_by: None,
            released_by: None,
            allocatable: Resources { cpu_millis: 2000, memory_mib: 4096 },
            labels: Default::default(),
            taints: Vec::new(),
        }
    }

    // === what happens by itself ===

    /// The instance's node registers; Ready, or not yet.
    pub(super) fn register(&mut self, index: usize, ready: bool) {
        let id = self.machines[index].instance.id.clone();
        let node = Node { ready, ..self.fresh_node(&id) };
        self.machines[index].change(|machine| machine.node = Some(node));
        self.settle(index);
    }

    pub(super) fn make_ready(&mut self, index: usize) {
        self.machines[index].change(|machine| machine.node.iter_mut().for_each(|node| node.ready = true));
        self.settle(index);
    }

    /// A node that takes pods gets one.
    fn settle(&mut self, index: usize) {
        let machine = &self.machines[index];
        let Some(node) = &machine.node else { return };
        let launched = machine.instance.tag(tags::ACTION).is_some();
        if launched && node.ready && !node.startup_taint && machine.pods.is_empty() {
            let pod = pod_on(&node.name, PodOwner::Controller);
            self.machines[index].change(|machine| machine.pods.push(pod));
        }
    }

    /// Somebody else ends an instance.
    pub(super) fn kill(&mut self, index: usize) {
        let id = self.machines[index].instance.id.clone();
        self.ledger.change(|ledger| ledger.killed_by_others(&id));
        self.end(&id);
    }

    fn end(&mut self, id: &InstanceId) {
        self.change(id, |machine| {
            machine.instance.state = InstanceState::Gone;
            machine.node = None;
            machine.pods.clear();
        });
    }

    /// Somebody else changes a node: its version moves.
    pub(super) fn touch(&mut self, index: usize, change: impl FnOnce(&mut Node)) {
        self.machines[index].change(|machine| {
            if let Some(node) = &mut machine.node {
                change(node);
                node.version = (node.version.parse::<u32>().unwrap_or(0) + 1).to_string();
            }
        });
    }

    // === what is seen ===

    pub(super) fn observe(&self, needs: Needs, state: &State) -> Observation {
        let mut seen = Observation::default();
        let nodes = || self.machines.iter().filter_map(|machine| machine.node.as_ref());
        if needs.machines {
            let named = |id: &InstanceId| {
                let listed = state.up_instance_ids.iter().chain(&state.down_targets).flatten();
                let slots = state.up_slots.iter().flatten().filter_map(|(_, slot)| slot.instance.as_ref());
                listed.chain(slots).any(|other| other == id)
            };
            let found = |machine: &&Shared<Machine>| {
                machine.instance.tag(tags::CLUSTER).is_some()
                    || machine.node.is_some()
                    || named(&machine.instance.id)
            };
            seen.instances =
                self.machines.iter().filter(found).map(|machine| machine.instance.clone()).collect();
            seen.nodes = nodes().cloned().collect();
        }
        if needs.pods {
            seen.pods = self.machines.iter().flat_map(|machine| machine.pods.clone()).collect();
        }
        if needs.metrics && !self.blind {
            let load = Load { cpu_percent: 5, memory_percent: 5, at_epoch: self.epoch() };
            seen.loads = Some(nodes().map(|node| (node.name.clone(), load)).collect());
            seen.metrics_epoch = Some(self.epoch());
        }
        seen
    }

    // === what calls do ===

    /// A write reaches the store. What becomes of the same write of the same state is worked out once.
    pub(super) fn write(&mut self, write: &Shared<Sent>, sent: i64, measured: bool, by_old: bool) -> Heard {
        let pair = (self.state.print(), write.print());
        let known = OUTCOMES.with_borrow(|outcomes| outcomes.get(&pair).cloned());
        let (state, explained) = known.unwrap_or_else(|| {
            let outcome = outcome(&self.state, &write.write);
            OUTCOMES.with_borrow_mut(|outcomes| outcomes.insert(pair, outcome.clone()));
            outcome
        });
        let Some(state) = state else { return Heard::Refused(self.state.clone()) };
        let machines: Vec<_> =
            self.machines.iter().map(|machine| (&machine.instance, machine.node.as_ref())).collect();
        let moment = Moment { now: self.epoch(), sent, measured, by_old };
        let moved = (&*self.state, &*state);
        self.ledger.change(|ledger| ledger.moved(&moment, moved, &explained, &machines));
        self.state = state.clone();
        Heard::Applied(state)
    }

    /// Nobody waits for it any more: of a call that is no write, only what it asks for matters.
    pub(super) fn leave_on_its_way(&mut self, flight: &Flight) {
        let mut flight = flight.clone();
        if !matches!(flight.effect, Effect::Write(_)) {
            (flight.planned, flight.sent, flight.measured) = (Shared::new(State::default()), 0, true);
        }
        self.late.push(Shared::new(flight));
    }

    /// A call of ours reaches whom it is for.
    pub(super) fn carry_out(&mut self, flight: &Flight) -> Heard {
        match &flight.effect {
            Effect::Write(_) => match &flight.write {
                Some(write) => self.write(write, flight.sent, flight.measured, false),
                None => Heard::Silence,
            },
            Effect::Launch(order) => self.launch(order),
            Effect::Terminate(id) => self.terminate(id),
            Effect::Enlist(id) => {
                self.tag(id, tags::CLUSTER, CLUSTER);
                Heard::Answered(Answer::Enlisted(id.clone()))
            }
            Effect::Commit { instance, action } => {
                self.tag(instance, tags::COMMITTED, action.as_str());
                Heard::Answered(Answer::Committed(instance.clone()))
            }
            Effect::Suspect { instance, epoch } => {
                self.tag(instance, tags::SUSPECT, &epoch.to_string());
                Heard::Answered(Answer::Suspected(instance.clone()))
            }
            Effect::Untaint { node, version } => {
                if !self.patch(node, version, |node| node.startup_taint = false) {
                    return Heard::Silence;
                }
                (0..self.machines.len()).for_each(|index| self.settle(index));
                Heard::Answered(Answer::Untainted(node.clone()))
            }
            Effect::Cordon { node, version, mark } => self.cordon(node, version, mark),
            Effect::Release { node, version, action, uncordon } => {
                let found = self.machines.iter().find(|machine| has_node(machine, node));
                let before =
                    found.and_then(|machine| Some((machine.node.clone()?, machine.cordoned_by_person)));
                let released = self.patch(node, version, |node| {
                    node.released_by = Some(action.clone());
                    if *uncordon {
                        node.unschedulable = false;
                        node.cordoned_by = None;
                    }
                });
                if let (true, true, Some((before, by_person))) = (released, *uncordon, before) {
                    self.ledger.change(|ledger| ledger.uncordoned(&before, by_person));
                }
                Heard::Silence
            }
            Effect::Evict { uid, manner, .. } => self.evict(uid, *manner),
            Effect::AskEnd(id) => Heard::Answered(Answer::Endable(id.clone())),
        }
    }

    fn launch(&mut self, order: &LaunchOrder) -> Heard {
        let started = |instance: InstanceId| {
            Heard::Answered(Answer::Launched { slot: order.slot, attempt: order.attempt, instance })
        };
        if let Some(known) = self.machines.iter().find(|machine| machine.token == order.token) {
            return started(known.instance.id.clone());
        }
        let tag = |name: &str| order.tags.get(name).map_or("", String::as_str);
        let id = format!("i-{}-{}-{}", tag(tags::SEQ), order.slot, order.attempt);
        let instance = self.add_instance(&id, order.token.clone(), order.tags.clone());
        self.ledger.change(|ledger| ledger.launched(&instance));
        started(instance.id)
    }

    /// An instance without a node, launched now.
    pub(super) fn add_instance(
        &mut self,
        id: &str,
        token: String,
        tags: BTreeMap<String, String>,
    ) -> Instance {
        let instance = Instance {
            id: id.into(),
            state: InstanceState::Running,
            private_ip: None,
            launched_epoch: self.epoch(),
            tags,
        };
        let launched = instance.clone();
        let machine = Machine { instance, token, node: None, pods: Vec::new(), cordoned_by_person: false };
        self.machines.push(Shared::new(machine));
        // In whatever order they came.
        self.machines.sort_by(|one, other| one.instance.id.cmp(&other.instance.id));
        launched
    }

    fn terminate(&mut self, id: &InstanceId) -> Heard {
        let Some(machine) = self.machines.iter().find(|machine| machine.instance.id == *id) else {
            return Heard::Answered(Answer::NotFound(id.clone()));
        };
        if machine.instance.is_live() {
            let pods = machine.pods.iter().filter(|pod| pod.is_drained()).count();
            let termination = Termination {
                state: &self.state,
                instance: &machine.instance,
                node: machine.node.as_ref(),
                pods,
            };
            self.ledger.change(|ledger| ledger.terminated(&termination));
            self.end(id);
        }
        Heard::Answered(Answer::Terminated(id.clone()))
    }

    fn tag(&mut self, id: &InstanceId, name: &str, value: &str) {
        self.change(id, |machine| drop(machine.instance.tags.insert(name.to_owned(), value.to_owned())));
    }

    fn cordon(&mut self, node: &str, version: &str, mark: &CordonMark) -> Heard {
        let current = self.machines.iter().filter_map(|machine| machine.node.as_ref());
        let current = current.into_iter().find(|other| other.name == *node).map(|node| node.version.clone());
        // Without the rule the version is read when the call is made.
        let version = if Rule::CordonByVersion.kept() { Some(version.to_owned()) } else { current };
        let cordoned = self.patch(node, &version.unwrap_or_default(), |node| {
            node.unschedulable = true;
            node.cordoned_by = Some(mark.clone());
        });
        if cordoned {
            self.ledger.change(|ledger| ledger.cordoned(&self.state, node, &mark.action));
        }
        Heard::Silence
    }

    fn patch(&mut self, name: &str, version: &str, change: impl FnOnce(&mut Node)) -> bool {
        let Some(index) = self.machines.iter().position(|machine| has_node(machine, name)) else {
            return false;
        };
        let current = self.machines[index].node.as_ref().is_some_and(|node| node.version == version);
        if current {
            self.touch(index, change);
        }
        current
    }

    fn evict(&mut self, uid: &str, manner: Manner) -> Heard {
        let holds = |machine: &&Shared<Machine>| machine.pods.iter().any(|pod| pod.uid == uid);
        let Some(machine) = self.machines.iter().find(holds) else {
            return Heard::Answered(Answer::Evicted(uid.to_owned()));
        };
        if self.blocked && manner != Manner::Force {
            let why = "its disruption budget allows none now".to_owned();
            return Heard::Answered(Answer::Blocked { uid: uid.to_owned(), why });
        }
        if manner == Manner::DryRun {
            return Heard::Answered(Answer::Evictable(uid.to_owned()));
        }
        let id = machine.instance.id.clone();
        for pod in machine.pods.iter().filter(|pod| pod.uid == uid) {
            self.ledger.change(|ledger| ledger.evicted(pod, Some(&id), manner == Manner::Force));
        }
        // Its controller makes another, elsewhere: that does not matter here.
        self.change(&id, |machine| machine.pods.retain(|pod| pod.uid != uid));
        Heard::Answered(Answer::Evicted(uid.to_owned()))
    }

    /// What must hold once it has come to rest.
    pub(super) fn check_the_end(&mut self) {
        let instances: Vec<&Instance> = self.machines.iter().map(|machine| &machine.instance).collect();
        let live_nodes = self.machines.iter().filter_map(|machine| machine.node.as_ref());
        let by_person = self.machines.iter().filter(|machine| machine.cordoned_by_person);
        let by_person = by_person.filter_map(|machine| Some(machine.node.as_ref()?.name.clone())).collect();
        self.ledger.change(|ledger| ledger.at_the_end(&self.state, &instances, live_nodes, &by_person));
    }
}

fn has_node(machine: &Machine, name: &str) -> bool {
    machine.node.as_ref().is_some_and(|node| node.name == name)
}

fn pod_on(node: &str, owner: PodOwner) -> Pod {
    Pod {
        namespace: "default".to_owned(),
        name: format!("pod-on-{node}"),
        uid: format!("uid-of-pod-on-{node}"),
        node: Some(node.to_owned()),
        unschedulable: false,
        requests: Resources { cpu_millis: 50, memory_mib: 64 },
        owner,
        local_storage: false,
        placement: Placement::default(),
    }
}
