//! What happened, told to the checkers of the autoscaler's rules at the moment it happened.
//!
//! Writes of the state item come from the tap before DynamoDB, launches and endings from the shim before EC2. What
//! they are judged by is looked up past both, and past the gate before the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value as Json;
use tenure_autoscaler::ec2::Ec2;
use tenure_autoscaler::kubernetes::Kubernetes;
use tenure_autoscaler::observation::{Instance, InstanceState, Node, Observation};
use tenure_autoscaler::ports::{Cloud as _, Cluster as _};
use tenure_autoscaler::rows::decode;
use tenure_autoscaler::state::{Action, NodePhase, State, UpPhase};
use tenure_autoscaler::testing::{Ledger, Moment, Termination};
use tenure_autoscaler::{Policy, table};
use tenure_clock::{Clock, Monotonic, SystemClock};
use tenure_scratch_cluster::{Call, Reader, Watcher, Wrote};
use tenure_store::{Item, Value};
use tokio::sync::watch;

/// How far an action is, as kills are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Idle,
    Launching,
    Verifying,
    Aborting,
    Planned,
    Cordoning,
    Draining,
    Terminating,
    RollingBack,
}

impl Phase {
    /// Of several nodes, the one that is furthest and has not ended.
    pub(super) fn of(state: &State) -> Self {
        match state.action() {
            Some(Action::Up(up)) => match up.phase {
                UpPhase::Launching => Self::Launching,
                UpPhase::Verifying => Self::Verifying,
                UpPhase::Aborting => Self::Aborting,
            },
            Some(Action::Down(down)) => {
                let phases = down.nodes.values().filter_map(|node| match node.phase {
                    NodePhase::Planned => Some(Self::Planned),
                    NodePhase::Cordoning => Some(Self::Cordoning),
                    NodePhase::Draining => Some(Self::Draining),
                    NodePhase::Terminating => Some(Self::Terminating),
                    NodePhase::Rollback => Some(Self::RollingBack),
                    NodePhase::Done | NodePhase::RolledBack => None,
                });
                phases.max().unwrap_or(Self::Terminating)
            }
            Some(Action::Legacy(_)) | None => Self::Idle,
        }
    }
}

pub(super) struct Record {
    policy: Policy,
    /// Straight to moto and to the API server.
    cloud: Ec2,
    cluster: Kubernetes,
    kept: Mutex<Kept>,
    state: watch::Sender<State>,
}

struct Kept {
    item: Item,
    ledger: Ledger,
    /// Writes of the state item, by their title.
    writes: BTreeMap<&'static str, usize>,
    launched: BTreeSet<String>,
    ended: BTreeSet<String>,
    /// What else did not hold.
    broken: Vec<String>,
}

impl Record {
    pub(super) fn new(policy: Policy, cloud: Ec2, cluster: Kubernetes) -> Self {
        let kept = Kept {
            item: Item::new(),
            ledger: Ledger::new(policy.clone()),
            writes: BTreeMap::new(),
            launched: BTreeSet::new(),
            ended: BTreeSet::new(),
            broken: Vec::new(),
        };
        let state = watch::Sender::new(State::default());
        Self { policy, cloud, cluster, kept: Mutex::new(kept), state }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state as it is stored.
    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::of(&self.state.borrow())
    }

    /// How many actions have ended.
    pub(super) fn ended_count(&self) -> u32 {
        self.kept().ledger.ended_count
    }

    pub(super) fn killed_by_others(&self, id: &str) {
        self.kept().ledger.killed_by_others(&id.into());
    }

    pub(super) fn launched_ids(&self) -> BTreeSet<String> {
        self.kept().launched.clone()
    }

    pub(super) fn ended_ids(&self) -> BTreeSet<String> {
        self.kept().ended.clone()
    }

    pub(super) fn writes(&self) -> BTreeMap<&'static str, usize> {
        self.kept().writes.clone()
    }

    /// What did not hold, once everything has healed.
    pub(super) async fn violations_at_the_end(&self) -> Vec<String> {
        let Some((instances, nodes)) = self.machines().await else { return self.violations() };
        let state = self.state();
        let seen: Vec<_> = instances.iter().collect();
        self.kept().ledger.at_the_end(&state, &seen, nodes.iter(), &BTreeSet::new());
        self.violations()
    }

    /// What did not hold so far.
    pub(super) fn violations(&self) -> Vec<String> {
        let kept = self.kept();
        let told = kept.ledger.violations.iter().map(|it| format!("{}: {}", it.checker.name(), it.what));
        told.chain(kept.broken.iter().cloned()).collect()
    }

    fn broken(&self, what: String) {
        self.kept().broken.push(what);
    }

    /// Instances and nodes, as they are now.
    pub(super) async fn machines(&self) -> Option<(Vec<Instance>, Vec<Node>)> {
        let by = soon();
        let found = async { Ok((self.cloud.instances(by, &[]).await?, self.cluster.nodes(by).await?)) };
        match found.await {
            Ok(found) => Some(found),
            Err(error) => {
                let error: tenure_backend::Error = error;
                self.broken(format!("could not look: {}", error.chain()));
                None
            }
        }
    }

    /// Live workers, whoever launched them.
    async fn workers(&self) -> usize {
        let Some((instances, nodes)) = self.machines().await else { return 0 };
        Observation { instances, nodes, ..Observation::default() }.workers().len()
    }

    async fn ends(&self, id: &str) {
        let Some((instances, nodes)) = self.machines().await else { return };
        let pods = match self.cluster.pods(soon()).await {
            Ok(pods) => pods,
            Err(error) => return self.broken(format!("could not look at the pods: {}", error.chain())),
        };
        let Some(instance) = instances.iter().find(|instance| instance.id.as_str() == id) else {
            return self.broken(format!("{id} is ended, and is no instance of the cluster"));
        };
        let node = nodes.iter().find(|node| node.claimed_instance() == Some(id));
        let on_it = |pod: &&_| {
            let pod: &tenure_autoscaler::observation::Pod = pod;
            pod.is_drained() && pod.node.as_deref() == node.map(|node| node.name.as_str()) && node.is_some()
        };
        let pods = pods.iter().filter(on_it).count();
        let state = self.state();
        self.kept().ledger.terminated(&Termination { state: &state, instance, node, pods });
        self.kept().ended.insert(id.to_owned());
        // Before the call: it still lives, unless it was told before.
        let left = self.workers().await - usize::from(instance.is_live());
        if state.down_action_id.is_some() && left < self.policy.workers_min as usize {
            self.broken(format!("AS-3: {left} workers are left, fewer than {}", self.policy.workers_min));
        }
    }
}

#[async_trait]
impl Reader for Record {
    async fn wrote(&self, wrote: &Wrote) {
        let after = item(&wrote.after);
        let before = self.kept().item.clone();
        let (Ok(old), Ok(new)) = (decode(&before), decode(&after)) else {
            return self.broken(format!("a write left what cannot be read: {after:?}"));
        };
        let begins = old.action_id().is_none() && new.action_id().is_some();
        let seen = if begins { self.machines().await } else { None };
        let (instances, nodes) = seen.unwrap_or_default();
        let machines: Vec<_> = instances
            .iter()
            .map(|instance| {
                let id = Some(instance.id.as_str());
                (instance, nodes.iter().find(|node| node.claimed_instance() == id))
            })
            .collect();
        let moment = Moment {
            now: SystemClock.wall().as_seconds(),
            sent: decided_epoch(&old, &new, wrote.received_ms),
            measured: true,
            by_old: false,
        };
        let mut kept = self.kept();
        kept.ledger.wrote(&moment, &before, &after, &machines);
        if let Ok(name) = table::explain(&before, &after) {
            *kept.writes.entry(name.row().title).or_default() += 1;
        }
        kept.item = after;
        drop(kept);
        self.state.send_replace(new);
    }
}

/// When the end of an action was decided: the write tells, by the second from which its pause counts.
fn decided_epoch(old: &State, new: &State, received_ms: i64) -> i64 {
    let ends = old.action_id().is_some() && new.action_id().is_none();
    let received = received_ms.div_euclid(1000);
    match (ends, new.fail_count.unwrap_or(0) > old.fail_count.unwrap_or(0)) {
        (true, false) => new.last_scale_epoch.unwrap_or(received),
        (true, true) => {
            let pause = Policy::backoff_seconds(old.fail_count.unwrap_or(0));
            new.next_allowed_epoch.map_or(received, |allowed| allowed - pause)
        }
        (false, _) => received,
    }
}

#[async_trait]
impl Watcher for Record {
    async fn calls(&self, call: &Call) {
        let ends = call.get("Action").is_some_and(|action| action == "TerminateInstances")
            && call.get("DryRun").is_none_or(|dry| dry != "true");
        if ends {
            for (_, id) in call.iter().filter(|(name, _)| name.starts_with("InstanceId.")) {
                self.ends(id).await;
            }
        }
    }

    async fn launched(&self, call: &Call, instance: &str) {
        let tag =
            |number: usize, what: &str| call.get(&format!("TagSpecification.1.Tag.{number}.{what}")).cloned();
        let tags = (1..20).filter_map(|number| Some((tag(number, "Key")?, tag(number, "Value")?))).collect();
        let launched = Instance {
            id: instance.into(),
            state: InstanceState::Pending,
            private_ip: None,
            launched_epoch: SystemClock.wall().as_seconds(),
            tags,
        };
        if launched.origin().is_none() {
            self.broken(format!("AS-1: {instance} was launched without the tags of an action"));
        }
        self.kept().ledger.launched(&launched);
        self.kept().launched.insert(instance.to_owned());
        let workers = self.workers().await;
        if workers > self.policy.workers_max as usize {
            self.broken(format!("AS-3: {workers} workers are more than {}", self.policy.workers_max));
        }
    }
}

fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(60))
}

/// An item as DynamoDB writes it.
fn item(json: &Json) -> Item {
    let mut item = Item::new();
    for (name, typed) in json.as_object().into_iter().flatten() {
        item.set(name.as_str(), value(typed));
    }
    item
}

fn value(typed: &Json) -> Value {
    let (kind, inner) = typed.as_object().and_then(|all| all.iter().next()).expect("a typed value");
    match kind.as_str() {
        "S" => Value::from(inner.as_str().expect("text")),
        "N" => {
            Value::from(inner.as_str().and_then(|number| number.parse::<i64>().ok()).expect("a whole number"))
        }
        "BOOL" => Value::from(inner.as_bool().expect("a flag")),
        "L" => Value::L(inner.as_array().into_iter().flatten().map(value).collect()),
        "M" => Value::M(
            inner.as_object().into_iter().flatten().map(|(name, it)| (name.clone(), value(it))).collect(),
        ),
        other => panic!("the state item has a value of type {other}"),
    }
}
