//! What was seen of the world, as values; no SDK's types.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::placement::{Offer, Placement, Taint};
use crate::state::{ActionId, InstanceId, Place};

/// The tags that an instance of ours carries.
pub mod tags {
    /// The cluster; lists are filtered by it.
    pub const CLUSTER: &str = "tenure/cluster";
    /// The action that launched it.
    pub const ACTION: &str = "tenure/action";
    /// That action's number.
    pub const SEQ: &str = "tenure/seq";
    /// The slot.
    pub const SLOT: &str = "tenure/slot";
    /// The slot's attempt.
    pub const ATTEMPT: &str = "tenure/attempt";
    /// The action that committed it: from then on it is a worker like any other.
    pub const COMMITTED: &str = "tenure/committed";
    /// Since when, in epoch seconds, it looks like an orphan.
    pub const SUSPECT: &str = "tenure/suspect";
}

/// CPU and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Mebibytes.
    pub memory_mib: u64,
}

impl Resources {
    /// Whether `other` fits into this.
    #[must_use]
    pub const fn fits(self, other: Self) -> bool {
        other.cpu_millis <= self.cpu_millis && other.memory_mib <= self.memory_mib
    }

    /// What is left without `other`; nothing is below zero.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
        }
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
        }
    }
}

/// What an instance is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// It is starting.
    Pending,
    /// It runs.
    Running,
    /// It is stopped, or stopping: it may come back.
    Stopped,
    /// It is ending or has ended, and will not come back.
    Gone,
}

/// An instance of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// What it is doing.
    pub state: InstanceState,
    /// Its address inside the network.
    pub private_ip: Option<String>,
    /// When it was launched, in epoch seconds.
    pub launched_epoch: i64,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// Whether it counts as a worker that is there or is coming.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !matches!(self.state, InstanceState::Gone)
    }

    /// A tag.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.tags.get(name).map(String::as_str)
    }

    /// Which launch of ours it is.
    #[must_use]
    pub fn origin(&self) -> Option<Origin<'_>> {
        Some(Origin {
            action: self.tag(tags::ACTION)?,
            seq: self.tag(tags::SEQ)?.parse().ok()?,
            slot: self.tag(tags::SLOT)?.parse().ok()?,
            attempt: self.tag(tags::ATTEMPT)?.parse().ok()?,
        })
    }
}

/// Which launch an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The action.
    pub action: &'a str,
    /// The action's number.
    pub seq: i64,
    /// The slot.
    pub slot: u32,
    /// The slot's attempt.
    pub attempt: u32,
}

/// Who cordoned a node: the annotation `tenure.dev/cordoned-by`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CordonMark {
    /// The action.
    pub action: ActionId,
    /// The action's number.
    pub seq: i64,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its version, which every change of it moves.
    pub version: String,
    /// `aws:///eu-west-1a/i-0abc…`, if the cluster sets it so.
    pub provider_id: Option<String>,
    /// The label `tenure.dev/instance-id`, set by user data where the provider id is another's.
    pub instance_label: Option<InstanceId>,
    /// Its address inside the network.
    pub internal_ip: Option<String>,
    /// When it was created, in epoch seconds.
    pub created_epoch: i64,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Whether it runs the control plane: never taken away.
    pub control_plane: bool,
    /// Whether it still has the start-up taint.
    pub startup_taint: bool,
    /// Who cordoned it, if it was us.
    pub cordoned_by: Option<CordonMark>,
    /// The action that gave it back last: the annotation `tenure.dev/released-by`.
    pub released_by: Option<ActionId>,
    /// What it has to give.
    pub allocatable: Resources,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What keeps pods away, of the start-up taint, its cordon and its condition apart.
    pub taints: Vec<Taint>,
}

impl Node {
    /// What it offers to a pod.
    #[must_use]
    pub fn offer(&self) -> Offer<'_> {
        Offer { name: &self.name, labels: &self.labels, taints: &self.taints }
    }

    /// The instance that it says it is.
    #[must_use]
    pub fn claimed_instance(&self) -> Option<&str> {
        let by_provider = self.provider_id.as_deref().and_then(instance_of_provider_id);
        by_provider.or_else(|| self.instance_label.as_ref().map(InstanceId::as_str))
    }
}

/// Who brings a pod back when it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodOwner {
    /// A controller, elsewhere.
    Controller,
    /// A DaemonSet: it belongs to its node.
    DaemonSet,
    /// The node itself: a mirror pod.
    Mirror,
    /// Nobody.
    Nobody,
}

/// A pod that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The node it is on, if any.
    pub node: Option<String>,
    /// Whether the scheduler found no node for it.
    pub unschedulable: bool,
    /// What it asks for.
    pub requests: Resources,
    /// Who brings it back.
    pub owner: PodOwner,
    /// Whether it stores something on its node.
    pub local_storage: bool,
    /// Which nodes may take it.
    pub placement: Placement,
}

impl Pod {
    /// Whether a drain waits for it.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        matches!(self.owner, PodOwner::Controller | PodOwner::Nobody)
    }
}

/// How much of a node is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Load {
    /// Of its CPU, in percent.
    pub cpu_percent: u32,
    /// Of its memory, in percent.
    pub memory_percent: u32,
    /// When that was measured, in epoch seconds.
    pub at_epoch: i64,
}

/// An answer of this tick: what a call said that cannot be seen otherwise, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// A launch returned an instance.
    Launched {
        /// The slot.
        slot: u32,
        /// Its attempt.
        attempt: u32,
        /// The instance.
        instance: InstanceId,
    },
    /// A launch was refused for want of capacity: nothing was launched.
    NoCapacity {
        /// The slot.
        slot: u32,
        /// Its attempt.
        attempt: u32,
        /// What the cloud said.
        why: String,
    },
    /// A launch was refused, and would be again.
    LaunchRefused {
        /// The slot.
        slot: u32,
        /// Its attempt.
        attempt: u32,
        /// What the cloud said.
        why: String,
    },
    /// An instance was told to end.
    Terminated(InstanceId),
    /// An instance was told to end and is not known.
    NotFound(InstanceId),
    /// An instance may be ended.
    Endable(InstanceId),
    /// An instance may not be ended.
    Unendable {
        /// Which.
        instance: InstanceId,
        /// What the cloud said.
        why: String,
    },
    /// An instance was tagged as one of the cluster.
    Enlisted(InstanceId),
    /// An instance was tagged as committed.
    Committed(InstanceId),
    /// An instance was tagged as a suspect.
    Suspected(InstanceId),
    /// A node lost its start-up taint.
    Untainted(String),
    /// A pod was evicted, by its uid; it may take a while to go.
    Evicted(String),
    /// A pod may not be evicted now, by its uid.
    Blocked {
        /// The pod's uid.
        uid: String,
        /// What the API server said.
        why: String,
    },
    /// A dry run says that a pod may be evicted, by its uid.
    Evictable(String),
    /// A call failed. It is not made again in this tick; what does not depend on it goes on.
    Failed {
        /// The call, as [`Effect::what`](crate::Effect::what) tells it.
        what: String,
        /// Why.
        why: String,
    },
}

/// What a readiness query of the metrics said.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Readings {
    /// It was not asked: the Node's Ready condition counts.
    #[default]
    NotAsked,
    /// It failed, or knew no node at all. Unknown is not none.
    Unknown,
    /// Whether they are ready, by name. A node that is not among them is unknown.
    Known(BTreeMap<String, bool>),
}

/// How far the consumers of the streams are behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lag {
    /// Nobody asked.
    #[default]
    NotAsked,
    /// It could not be had, or nobody reported lately. Unknown is not none.
    Unknown,
    /// The one that is furthest behind, in seconds.
    Seconds(i64),
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Observation {
    /// The cluster's instances.
    pub instances: Vec<Instance>,
    /// The cluster's nodes.
    pub nodes: Vec<Node>,
    /// The cluster's pods.
    pub pods: Vec<Pod>,
    /// Load by node name; `None` if it could not be had. Unknown is not zero.
    pub loads: Option<BTreeMap<String, Load>>,
    /// The clock of the metrics when they were asked, in epoch seconds.
    pub metrics_epoch: Option<i64>,
    /// How far the consumers are behind.
    pub lag: Lag,
    /// Which nodes are ready, if the metrics are asked for it.
    pub readings: Readings,
    /// What calls of this tick answered.
    pub answers: Vec<Answer>,
}

impl Observation {
    /// Which node belongs to which instance: by provider id, else by label, else by address of a node that
    /// is not older than the instance.
    #[must_use]
    pub fn matches(&self) -> Matches<'_> {
        let known: BTreeSet<&str> = self.instances.iter().map(|instance| instance.id.as_str()).collect();
        let by_ip: BTreeMap<&str, &Instance> = self
            .instances
            .iter()
            .filter(|instance| instance.is_live())
            .filter_map(|instance| Some((instance.private_ip.as_deref()?, instance)))
            .collect();
        let mut found = Matches { by_instance: BTreeMap::new(), strangers: Vec::new() };
        for node in &self.nodes {
            let by_address = || {
                let instance = by_ip.get(node.internal_ip.as_deref()?).copied()?;
                (node.created_epoch >= instance.launched_epoch).then_some(instance.id.as_str())
            };
            let id = node.claimed_instance().or_else(by_address);
            if let Some(id) = id {
                found.by_instance.entry(id).or_default().push(node);
            }
            if id.is_none_or(|id| !known.contains(id)) && !node.control_plane {
                found.strangers.push(node);
            }
        }
        // A machine that registered again under another name may have left its old node behind.
        for nodes in found.by_instance.values_mut() {
            nodes.sort_by_key(|node| Reverse((node.ready, node.created_epoch)));
        }
        found
    }

    /// Whether that call failed in this tick.
    #[must_use]
    pub fn failed(&self, call: &str) -> bool {
        self.answers.iter().any(|answer| matches!(answer, Answer::Failed { what, .. } if what == call))
    }

    /// Whether a node is ready, by what the policy asks; `None` if nobody knows.
    #[must_use]
    pub fn is_ready(&self, node: &Node) -> Option<bool> {
        match &self.readings {
            Readings::NotAsked => Some(node.ready),
            Readings::Unknown => None,
            Readings::Known(ready) => ready.get(&node.name).copied(),
        }
    }

    /// Instances that nodes name and that were not listed: an old writer's workers lack the cluster's tag.
    #[must_use]
    pub fn unlisted(&self) -> Vec<InstanceId> {
        let known: BTreeSet<&str> = self.instances.iter().map(|instance| instance.id.as_str()).collect();
        let claimed = self.nodes.iter().filter(|node| !node.control_plane).filter_map(Node::claimed_instance);
        let ids: BTreeSet<&str> = claimed.filter(|id| !known.contains(id)).collect();
        ids.into_iter().map(InstanceId::from).collect()
    }

    /// The instance of that id.
    #[must_use]
    pub fn instance(&self, id: &InstanceId) -> Option<&Instance> {
        self.instances.iter().find(|instance| instance.id == *id)
    }

    /// Pods by the node they are on.
    #[must_use]
    pub fn pods_by_node(&self) -> BTreeMap<&str, Vec<&Pod>> {
        let mut found: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
        for pod in &self.pods {
            if let Some(node) = &pod.node {
                found.entry(node).or_default().push(pod);
            }
        }
        found
    }

    /// Workers that are there or are coming: live instances that are no control plane.
    #[must_use]
    pub fn workers(&self) -> BTreeSet<&InstanceId> {
        self.workers_by(&self.matches())
    }

    /// As [`Observation::workers`], where it is known which node belongs to which instance.
    pub(crate) fn workers_by(&self, matches: &Matches<'_>) -> BTreeSet<&InstanceId> {
        let is_worker =
            |instance: &&Instance| !matches.node_of(&instance.id).is_some_and(|node| node.control_plane);
        self.instances
            .iter()
            .filter(|instance| instance.is_live())
            .filter(is_worker)
            .map(|instance| &instance.id)
            .collect()
    }
}

/// Which node belongs to which instance, as far as can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matches<'a> {
    by_instance: BTreeMap<&'a str, Vec<&'a Node>>,
    /// Nodes, of the control plane apart, that belong to no instance that was listed.
    pub strangers: Vec<&'a Node>,
}

impl<'a> Matches<'a> {
    /// The instance's node; of several, the one that is Ready, then the newest.
    #[must_use]
    pub fn node_of(&self, id: &InstanceId) -> Option<&'a Node> {
        self.nodes_of(id).first().copied()
    }

    /// All nodes that say that they are the instance's.
    #[must_use]
    pub fn nodes_of(&self, id: &InstanceId) -> &[&'a Node] {
        self.by_instance.get(id.as_str()).map_or(&[], Vec::as_slice)
    }

    /// Strangers that take pods: any of them may be the node of an instance that seems to have none.
    pub fn serving_strangers(&self) -> impl Iterator<Item = &'a Node> {
        self.serving_strangers_since(i64::MIN)
    }

    /// Those of them that registered at that epoch second or later: a node is not older than its instance.
    pub fn serving_strangers_since(&self, epoch: i64) -> impl Iterator<Item = &'a Node> {
        let serves = move |node: &&Node| !node.startup_taint && node.created_epoch >= epoch;
        self.strangers.iter().copied().filter(serves)
    }
}

/// `aws:///eu-west-1a/i-0abc` is instance `i-0abc`; k3s's own `k3s://name` is none.
fn instance_of_provider_id(provider_id: &str) -> Option<&str> {
    provider_id.strip_prefix("aws://")?.rsplit('/').next().filter(|id| id.starts_with("i-"))
}

/// What a launch asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaunchOrder {
    /// The slot.
    pub slot: u32,
    /// Its attempt.
    pub attempt: u32,
    /// Where.
    pub place: Place,
    /// Makes the call repeatable: the same token launches once.
    pub token: String,
    /// The instance's tags, from the start.
    pub tags: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids() {
        assert_eq!(instance_of_provider_id("aws:///eu-west-1a/i-0abc"), Some("i-0abc"));
        assert_eq!(instance_of_provider_id("k3s://worker-1"), None);
        assert_eq!(instance_of_provider_id("aws:///eu-west-1a/"), None);
    }

    fn instance(id: &str, ip: &str, launched_epoch: i64, state: InstanceState) -> Instance {
        Instance {
            id: id.into(),
            state,
            private_ip: Some(ip.to_owned()),
            launched_epoch,
            tags: BTreeMap::new(),
        }
    }

    fn node(name: &str, provider_id: Option<&str>, label: Option<&str>, ip: &str) -> Node {
        Node {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            version: "1".to_owned(),
            provider_id: provider_id.map(str::to_owned),
            instance_label: label.map(InstanceId::from),
            internal_ip: Some(ip.to_owned()),
            created_epoch: 100,
            ready: true,
            unschedulable: false,
            control_plane: false,
            startup_taint: false,
            cordoned_by: None,
            released_by: None,
            allocatable: Resources::default(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }

    #[test]
    fn a_node_is_matched_by_provider_id_then_label_then_address() {
        use InstanceState::{Gone, Running};
        let observation = Observation {
            instances: vec![
                instance("i-1", "10.0.0.1", 50, Running),
                instance("i-2", "10.0.0.2", 50, Running),
                instance("i-3", "10.0.0.3", 50, Running),
                // Launched after the node was created: another machine had that address then.
                instance("i-4", "10.0.0.4", 200, Running),
                instance("i-old", "10.0.0.3", 10, Gone),
            ],
            nodes: vec![
                node("one", Some("aws:///z/i-1"), None, "10.9.9.9"),
                node("two", Some("k3s://two"), Some("i-2"), "10.0.0.1"),
                node("three", Some("k3s://three"), None, "10.0.0.3"),
                node("four", None, None, "10.0.0.4"),
            ],
            ..Observation::default()
        };
        let matches = observation.matches();
        let name_of = |id: &str| matches.node_of(&id.into()).map(|node| node.name.as_str());
        assert_eq!(
            ["i-1", "i-2", "i-3", "i-4"].map(name_of),
            [Some("one"), Some("two"), Some("three"), None]
        );
        let strangers: Vec<_> = matches.strangers.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(strangers, ["four"]);
    }

    #[test]
    fn of_two_nodes_of_one_machine_the_ready_one_counts_and_both_are_known() {
        let mut old = node("old", Some("aws:///z/i-1"), None, "10.0.0.1");
        old.ready = false;
        let observation = Observation {
            instances: vec![instance("i-1", "10.0.0.1", 50, InstanceState::Running)],
            nodes: vec![node("new", Some("aws:///z/i-1"), None, "10.0.0.1"), old],
            ..Observation::default()
        };
        let matches = observation.matches();
        assert_eq!(matches.node_of(&"i-1".into()).map(|node| node.name.as_str()), Some("new"));
        assert_eq!(matches.nodes_of(&"i-1".into()).len(), 2);
    }

    #[test]
    fn a_node_whose_instance_is_not_listed_is_a_stranger_and_asked_for() {
        let observation = Observation {
            nodes: vec![node("one", Some("aws:///z/i-1"), None, "10.0.0.1")],
            ..Observation::default()
        };
        assert_eq!(observation.unlisted(), ["i-1".into()]);
        let matches = observation.matches();
        assert_eq!(matches.strangers.len(), 1);
        assert!(matches.node_of(&"i-1".into()).is_some());
    }

    #[test]
    fn unknown_readiness_is_not_none() {
        let one = node("one", None, None, "10.0.0.1");
        let ready = |readings| Observation { readings, ..Observation::default() }.is_ready(&one);
        assert_eq!(ready(Readings::NotAsked), Some(true));
        assert_eq!(ready(Readings::Unknown), None);
        let known = |name: &str| Readings::Known([(name.to_owned(), false)].into());
        assert_eq!(ready(known("one")), Some(false));
        assert_eq!(ready(known("other")), None, "of this one nothing is known");
    }
}
