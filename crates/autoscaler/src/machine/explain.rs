//! What the rules say of one node or one pod, for people: the same judgements that a decision is made of.

use super::Now;
use super::decide::{View, blocked, may_take};
use super::down::may_be_evicted;
use crate::observation::{InstanceState, Lag, Node, Observation, Pod, PodOwner, Readings, Resources, tags};
use crate::policy::{Policy, seconds};
use crate::state::{Action, InstanceId, State};

/// One thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// What it is about: `instance`, `load`, `scale-down`.
    pub topic: &'static str,
    /// What is the case, and why.
    pub text: String,
}

fn said(topic: &'static str, text: impl Into<String>) -> Said {
    Said { topic, text: text.into() }
}

/// What is known of a node, by its name or its instance's id; `None` if there is neither.
#[must_use]
pub fn node(
    state: &State,
    observation: &Observation,
    policy: &Policy,
    now: &Now,
    name: &str,
) -> Option<Vec<Said>> {
    let view = View::of(state, observation, policy, now);
    let Some(node) = find_node(observation, name) else {
        let instance = observation.instance(&name.into())?;
        let mut told = vec![said("node", "no node says that it is this instance's")];
        told.push(said("instance", about_instance(observation, &instance.id)));
        told.extend(phase(state, &instance.id));
        return Some(told);
    };
    let mut told = vec![said("node", about_node(node, observation))];
    let instance = observation
        .instances
        .iter()
        .find(|instance| view.matches.nodes_of(&instance.id).iter().any(|other| other.name == node.name));
    match instance {
        Some(instance) => {
            told.push(said("instance", about_instance(observation, &instance.id)));
            told.extend(phase(state, &instance.id));
        }
        // Their instances are not asked for: nothing is done to them.
        None if node.control_plane => {}
        None => told.push(said(
            "instance",
            "it belongs to no instance that the cloud lists: set its label `tenure.dev/instance-id`, or remove it",
        )),
    }
    told.push(said("load", about_load(&view, observation, node, now)));
    let pods: Vec<&Pod> =
        observation.pods.iter().filter(|pod| pod.node.as_deref() == Some(&node.name)).collect();
    let moving: Vec<_> = pods.iter().filter(|pod| pod.is_drained()).collect();
    let sum = pods.iter().fold(Resources::default(), |sum, pod| sum.plus(pod.requests));
    told.push(said(
        "pods",
        format!(
            "{} pods, {} of which a drain would move; they ask for {}",
            pods.len(),
            moving.len(),
            amount(sum)
        ),
    ));
    for pod in moving.iter().filter(|pod| !may_be_evicted(pod, policy)) {
        told.push(said("pods", format!("{} {}", named(pod), eviction(pod, policy))));
    }
    let verdict = match instance {
        _ if node.control_plane => "it stays: it runs the control plane".to_owned(),
        None => "it stays: its instance is not known".to_owned(),
        Some(instance) if view.leaving.contains(&instance.id) => {
            "the cloud will take it away: another worker is added for it".to_owned()
        }
        Some(instance) => removal(&view, &instance.id, node, &pods),
    };
    told.push(said("scale-down", verdict));
    told.extend(view.doubt().map(|doubt| said("doubt", doubt)));
    Some(told)
}

fn removal(view: &View<'_>, id: &InstanceId, node: &Node, pods: &[&Pod]) -> String {
    if view.single_node(id).is_none() {
        return "it stays: several nodes say that they are its instance's".to_owned();
    }
    if let Some(why) = view.unusable(node).or_else(|| view.stays(id, node, pods)) {
        return format!("it stays: {why}");
    }
    let mut reasons = Vec::new();
    let demand = view.demand(&mut reasons);
    if demand.pressing() || demand.urgent > 0 {
        return format!("it idles, and stays while workers are wanted: {}", reasons.join("; "));
    }
    let chosen = view.candidates(&mut reasons);
    if chosen.iter().any(|(other, _)| *other == id) {
        let since = view.state.idle_since_epoch.filter(|since| *since > 0).unwrap_or(view.now.epoch());
        let left = since.saturating_add(seconds(view.policy.idle_window)) - view.now.epoch();
        return match held(view) {
            Some(why) => format!("it idles, and would be taken away; but {why}"),
            None if left > 0 => format!("it idles, and is taken away if that lasts for {left} s more"),
            None => "it is among those that are taken away next".to_owned(),
        };
    }
    let why = reasons.into_iter().filter(|reason| reason.contains(&node.name) || chosen.is_empty());
    let why: Vec<_> = why.collect();
    match why.is_empty() {
        true => "it idles; others are taken away before it, or no worker is to spare".to_owned(),
        false => format!("it idles, and stays: {}", why.join("; ")),
    }
}

/// What is known of a pod, by `namespace/name` or, if there is one of that name alone, by its name.
#[must_use]
pub fn pod(
    state: &State,
    observation: &Observation,
    policy: &Policy,
    now: &Now,
    name: &str,
) -> Option<Vec<Said>> {
    let pod = find_pod(observation, name)?;
    let view = View::of(state, observation, policy, now);
    let owner = match pod.owner {
        PodOwner::Controller => "a controller brings it back elsewhere",
        PodOwner::DaemonSet => "it is a DaemonSet's, and belongs to its node",
        PodOwner::Mirror => "it is its node's own, a mirror pod",
        PodOwner::Nobody => "nobody brings it back",
    };
    let mut told = vec![said("pod", format!("{}; {owner}", named(pod)))];
    told.push(said("requests", amount(pod.requests)));
    match &pod.node {
        Some(node) => {
            told.push(said("node", format!("it is on {node}")));
            told.push(said("eviction", eviction(pod, policy)));
        }
        None if !pod.unschedulable => {
            told.push(said(
                "scale-up",
                "the scheduler has not said that it fits nowhere: no worker is added for it",
            ));
        }
        None => told.push(said("scale-up", demanded(&view, policy, pod))),
    }
    if let Some(unclear) = &pod.placement.unclear {
        told.push(said(
            "placement",
            format!("which nodes may take it cannot be judged by one node alone: {unclear}"),
        ));
    }
    Some(told)
}

fn demanded(view: &View<'_>, policy: &Policy, pod: &Pod) -> String {
    if !policy.worker.fits(pod.requests) {
        return format!(
            "it waits, and fits no worker, however many: one has {}; give it less, or give larger workers",
            amount(policy.worker)
        );
    }
    let workers = view.worker_nodes();
    if !workers.is_empty() && !may_take(&workers, pod) {
        return "it waits, and asks for a node unlike every worker, by its selector, affinity or tolerations: none is added for it".to_owned();
    }
    let mut reasons = Vec::new();
    view.demand(&mut reasons);
    if view.count() >= i64::from(policy.workers_max) {
        reasons.push(format!("but {} workers are the most allowed", policy.workers_max));
    }
    reasons.extend(held(view).map(|why| format!("but {why}")));
    format!("it waits, and counts: {}", reasons.join("; "))
}

/// Why nothing begins now, whatever is wanted.
fn held(view: &View<'_>) -> Option<String> {
    let under_way = view.state.action().map(|_| match view.state.action_id() {
        Some(id) => format!("{id} is under way"),
        None => "an old writer's action is under way".to_owned(),
    });
    under_way.or_else(|| blocked(view.state, view.policy, view.now)).or_else(|| view.doubt())
}

/// The node of that name, or of the instance of that id.
#[must_use]
pub fn find_node<'a>(observation: &'a Observation, name: &str) -> Option<&'a Node> {
    let by_name = observation.nodes.iter().find(|node| node.name == name);
    by_name.or_else(|| observation.matches().node_of(&name.into()))
}

fn find_pod<'a>(observation: &'a Observation, name: &str) -> Option<&'a Pod> {
    let mut found = observation.pods.iter().filter(|pod| match name.split_once('/') {
        Some((namespace, name)) => pod.namespace == namespace && pod.name == name,
        None => pod.name == name,
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn named(pod: &Pod) -> String {
    format!("pod {}/{}", pod.namespace, pod.name)
}

fn amount(resources: Resources) -> String {
    format!("{} thousandths of a core and {} MiB", resources.cpu_millis, resources.memory_mib)
}

/// Whether a pod may be evicted, and why not.
pub(crate) fn eviction(pod: &Pod, policy: &Policy) -> String {
    match pod.owner {
        PodOwner::DaemonSet | PodOwner::Mirror => "it goes with its node".to_owned(),
        PodOwner::Nobody if !policy.evict_unmanaged => {
            "may not be evicted: nobody brings it back (`evict_unmanaged` allows it)".to_owned()
        }
        _ if pod.local_storage && !policy.evict_local_storage => {
            "may not be evicted: what it stored on its node would be lost (`evict_local_storage` allows it)"
                .to_owned()
        }
        _ => "may be evicted, as its disruption budget allows".to_owned(),
    }
}

fn about_node(node: &Node, observation: &Observation) -> String {
    let ready = match observation.is_ready(node) {
        Some(true) => "ready",
        Some(false) => "not ready",
        None => "ready or not, nobody knows",
    };
    let by = if observation.readings == Readings::NotAsked { "its condition" } else { "Prometheus" };
    let mut text = format!("{} is {ready} by {by}", node.name);
    if node.control_plane {
        text.push_str("; it runs the control plane");
    }
    if node.startup_taint {
        text.push_str("; it has the start-up taint");
    }
    match (&node.cordoned_by, node.unschedulable) {
        (Some(mark), _) => text.push_str(&format!("; cordoned by {}", mark.action)),
        (None, true) => text.push_str("; cordoned, and not by us"),
        (None, false) => {}
    }
    text
}

fn about_instance(observation: &Observation, id: &InstanceId) -> String {
    let Some(instance) = observation.instance(id) else { return format!("{id} is not listed by the cloud") };
    let state = match instance.state {
        InstanceState::Pending => "is starting",
        InstanceState::Running => "runs",
        InstanceState::Stopped => "is stopped, and may come back",
        InstanceState::Gone => "is ending or has ended",
    };
    let origin = match (instance.origin(), instance.tag(tags::CLUSTER)) {
        (Some(origin), _) => {
            let committed = match instance.tag(tags::COMMITTED) {
                Some(_) => "and completed",
                None => "and not completed",
            };
            format!("launched by action {}, slot {}, {committed}", origin.action, origin.slot)
        }
        (None, Some(cluster)) => {
            format!("one of the cluster {cluster} by its tag, and not launched by Tenure")
        }
        (None, None) => {
            "without the cluster's tag: `tenure autoscale adopt` gives it one, and it is counted all the same"
                .to_owned()
        }
    };
    let suspect = match instance.tag(tags::SUSPECT) {
        Some(since) => format!("; it looks like an orphan since {since}"),
        None => String::new(),
    };
    format!("{id} {state}; {origin}{suspect}")
}

fn about_load(view: &View<'_>, observation: &Observation, node: &Node, now: &Now) -> String {
    let lag = match observation.lag {
        Lag::NotAsked => String::new(),
        Lag::Unknown => "; how far the consumers are behind is unknown".to_owned(),
        Lag::Seconds(behind) => format!("; the consumers are {behind} s behind"),
    };
    let known = observation.loads.as_ref().and_then(|loads| loads.get(&node.name));
    let text = match known {
        None => "unknown".to_owned(),
        Some(load) => {
            let age = now.epoch() - load.at_epoch;
            let old = if view.fresh_load(node).is_none() { ", which is too old to count" } else { "" };
            format!(
                "{} % of its CPU, {} % of its memory, {age} s ago{old}",
                load.cpu_percent, load.memory_percent
            )
        }
    };
    text + &lag
}

/// What the action under way does with an instance.
fn phase(state: &State, id: &InstanceId) -> Option<Said> {
    let text = match state.action()? {
        Action::Up(up) => {
            let (number, slot) = up.slots.iter().find(|(_, slot)| slot.instance.as_ref() == Some(id))?;
            format!("slot {number} of scale-up {} is {}", up.id, slot.phase.name())
        }
        Action::Down(down) => {
            format!("scale-down {} is {} with it", down.id, down.nodes.get(id)?.phase.name())
        }
        Action::Legacy(_) => return None,
    };
    Some(said("action", text))
}
