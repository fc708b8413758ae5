//! A scale-down: cordon, drain, terminate; or give the node back.

use std::collections::{BTreeMap, BTreeSet};

use super::up::pause_after_failure;
use super::{Course, Effect, Manner, is_late};
use crate::change::{Change, Ending};
use crate::observation::{Answer, CordonMark, InstanceState, Node, Pod};
use crate::policy::{Policy, seconds};
use crate::rules::Rule;
use crate::state::{ActionId, DownNode, InstanceId, NodePhase};

/// Most evictions of one node in one step.
const EVICTIONS_MAX: usize = 50;

pub(super) fn go_on(course: &mut Course<'_>) {
    let Some(action) = course.state.down_action_id.clone() else { return };
    let observation = course.observation;
    let (by_instance, pods) = (observation.nodes_by_instance(), observation.pods_by_node());
    let late = is_late(&course.state, course.now);
    let nodes = course.state.down_nodes.clone().unwrap_or_default();
    let mut moves: BTreeMap<NodePhase, BTreeSet<InstanceId>> = BTreeMap::new();
    let mut done = Vec::new();
    for (id, planned) in &nodes {
        let sight = Sight::of(course, id, planned, by_instance.get(id).copied(), &pods);
        match next(course, &action, planned, &sight, late) {
            Some(NodePhase::Done) => done.push(id.clone()),
            Some(phase) => {
                moves.entry(phase).or_default().insert(id.clone());
            }
            None => {}
        }
    }
    for (phase, nodes) in moves {
        match phase {
            NodePhase::Cordoning => course.write(Change::Cordon { nodes }),
            NodePhase::Draining => course.write(Change::Drain { nodes }),
            NodePhase::Terminating => course.write(Change::Terminate { nodes }),
            NodePhase::Rollback => course.write(Change::Rollback { nodes }),
            NodePhase::RolledBack => course.write(Change::RolledBack { nodes }),
            NodePhase::Planned | NodePhase::Done => {}
        }
    }
    for instance in done {
        course.write(Change::MarkDone { instance });
    }
    let nodes = course.state.down_nodes.clone().unwrap_or_default();
    for (id, node) in &nodes {
        let sight = Sight::of(course, id, node, by_instance.get(id).copied(), &pods);
        act(course, &action, id, node, &sight);
    }
    let ended = |node: &DownNode| matches!(node.phase, NodePhase::Done | NodePhase::RolledBack);
    if course.changes.is_empty() && course.calls.is_empty() && nodes.values().all(ended) {
        let ending = ending(course, &nodes);
        course.write(ending);
    }
}

/// What was seen of one target.
struct Sight<'a> {
    /// Its instance is ending or has ended.
    gone: bool,
    /// Its node, if there is one.
    node: Option<&'a Node>,
    /// A node of the planned name is there, but nothing says that it is this instance's.
    doubtful: bool,
    /// The pods that a drain waits for.
    pods: Vec<&'a Pod>,
}

impl<'a> Sight<'a> {
    fn of(
        course: &Course<'a>,
        id: &InstanceId,
        planned: &DownNode,
        node: Option<&'a Node>,
        pods: &BTreeMap<&str, Vec<&'a Pod>>,
    ) -> Self {
        let instance = course.observation.instance(id);
        let gone = match instance {
            Some(instance) => instance.state == InstanceState::Gone,
            None => course.answered(&Answer::NotFound(id.clone())),
        };
        let doubtful =
            node.is_none() && course.observation.nodes.iter().any(|other| other.name == planned.node);
        let on_it = node.and_then(|node| pods.get(node.name.as_str()));
        let pods = on_it.into_iter().flatten().copied().filter(|pod| pod.is_drained()).collect();
        Self { gone, node, doubtful, pods }
    }

    /// Pods that are not evicted unless the policy says so.
    fn refused(&self, policy: &Policy) -> Option<&Pod> {
        self.pods.iter().copied().find(|pod| !may_be_evicted(pod, policy))
    }
}

pub(super) fn may_be_evicted(pod: &Pod, policy: &Policy) -> bool {
    use crate::observation::PodOwner;
    (pod.owner != PodOwner::Nobody || policy.evict_unmanaged)
        && (!pod.local_storage || policy.evict_local_storage)
}

fn is_forced(course: &Course<'_>) -> bool {
    let began = course.state.down_started_epoch.unwrap_or(i64::MAX / 2);
    course.policy.force_after.is_some_and(|after| course.now.epoch() >= began + seconds(after))
}

/// The phase that a node moves to now, if any.
fn next(
    course: &mut Course<'_>,
    action: &ActionId,
    planned: &DownNode,
    sight: &Sight<'_>,
    late: bool,
) -> Option<NodePhase> {
    let rolls_back = |node: &Node| node.control_plane;
    match planned.phase {
        NodePhase::Planned | NodePhase::Cordoning | NodePhase::Draining if sight.gone => {
            Some(NodePhase::Terminating)
        }
        NodePhase::Planned | NodePhase::Cordoning | NodePhase::Draining
            if late || sight.node.is_some_and(rolls_back) =>
        {
            course.says(format!("node {} is given back: it could not be emptied in time", planned.node));
            Some(NodePhase::Rollback)
        }
        NodePhase::Planned => preflight(course, planned, sight),
        NodePhase::Cordoning => match sight.node {
            Some(node) if is_cordoned(node, action, planned) => Some(NodePhase::Draining),
            None if !sight.doubtful => Some(NodePhase::Terminating),
            _ => None,
        },
        NodePhase::Draining => match sight.node {
            _ if !Rule::IntentBeforeEffect.kept() => None,
            Some(node) => (node.unschedulable && sight.pods.is_empty()).then_some(NodePhase::Terminating),
            None => (!sight.doubtful).then_some(NodePhase::Terminating),
        },
        NodePhase::Terminating => sight.gone.then_some(NodePhase::Done),
        NodePhase::Rollback => match sight.node {
            None => Some(NodePhase::RolledBack),
            Some(node) => is_released(node, action).then_some(NodePhase::RolledBack),
        },
        NodePhase::Done | NodePhase::RolledBack => None,
    }
}

/// A node is cordoned only if its pods may go: asked beforehand.
fn preflight(course: &mut Course<'_>, planned: &DownNode, sight: &Sight<'_>) -> Option<NodePhase> {
    if sight.node.is_none() {
        return (!sight.doubtful).then_some(NodePhase::Terminating);
    }
    if is_forced(course) {
        return Some(NodePhase::Cordoning);
    }
    if let Some(pod) = sight.refused(course.policy) {
        course.says(format!(
            "node {} is given back: nobody brings pod {}/{} or its data back",
            planned.node, pod.namespace, pod.name
        ));
        return Some(NodePhase::Rollback);
    }
    let may_go = |pod: &&Pod| course.answered(&Answer::Evictable(pod.uid.clone()));
    sight.pods.iter().all(may_go).then_some(NodePhase::Cordoning)
}

/// By us; or by a person, whose cordon stays. An old writer's cordon has no owner either, and becomes ours.
fn is_cordoned(node: &Node, action: &ActionId, planned: &DownNode) -> bool {
    let ours = node.cordoned_by.as_ref().is_some_and(|mark| mark.action == *action);
    node.unschedulable && (ours || (node.cordoned_by.is_none() && !planned.uid.is_empty()))
}

fn is_released(node: &Node, action: &ActionId) -> bool {
    let ours = node.cordoned_by.as_ref().is_some_and(|mark| mark.action == *action);
    let touched = node.released_by.as_ref() == Some(action) || !Rule::CordonByVersion.kept();
    !ours && touched
}

/// The calls that a phase asks for.
fn act(course: &mut Course<'_>, action: &ActionId, id: &InstanceId, planned: &DownNode, sight: &Sight<'_>) {
    match (planned.phase, sight.node) {
        (NodePhase::Planned, Some(_)) => ask(course, sight, Manner::DryRun),
        (NodePhase::Cordoning, Some(node)) if !is_cordoned(node, action, planned) => {
            cordon(course, action, node);
        }
        (NodePhase::Draining, Some(node)) if !node.unschedulable => cordon(course, action, node),
        (NodePhase::Draining, Some(_)) if !sight.pods.is_empty() => {
            let manner = if is_forced(course) { Manner::Force } else { Manner::Evict };
            ask(course, sight, manner);
        }
        (NodePhase::Draining, Some(_)) if !Rule::IntentBeforeEffect.kept() => course.terminate(id),
        (NodePhase::Terminating, _) if !sight.gone => course.terminate(id),
        (NodePhase::Rollback, Some(node)) if !is_released(node, action) => {
            // The cordon of an old writer whose action was adopted has no mark, and is this action's too.
            let ours = match &node.cordoned_by {
                Some(mark) => mark.action == *action,
                None => planned.uid.is_empty(),
            };
            course.call(Effect::Release {
                node: node.name.clone(),
                version: node.version.clone(),
                action: action.clone(),
                uncordon: ours || !Rule::UncordonOwn.kept(),
            });
        }
        _ => {}
    }
}

fn cordon(course: &mut Course<'_>, action: &ActionId, node: &Node) {
    let mark = CordonMark { action: action.clone(), seq: course.state.action_seq() };
    course.call(Effect::Cordon { node: node.name.clone(), version: node.version.clone(), mark });
}

fn ask(course: &mut Course<'_>, sight: &Sight<'_>, manner: Manner) {
    let mut asked = 0;
    for pod in &sight.pods {
        let blocked = course.observation.answers.iter().find_map(|answer| match answer {
            Answer::Blocked { uid, why } if *uid == pod.uid => Some(why.clone()),
            _ => None,
        });
        let answered = match manner {
            Manner::DryRun => course.answered(&Answer::Evictable(pod.uid.clone())),
            Manner::Evict | Manner::Force => course.answered(&Answer::Evicted(pod.uid.clone())),
        };
        if let Some(why) = blocked {
            course.says(format!("pod {}/{} stays: {why}", pod.namespace, pod.name));
        } else if manner != Manner::Force && !may_be_evicted(pod, course.policy) {
            course.says(format!("pod {}/{} stays: nobody brings it back", pod.namespace, pod.name));
        } else if !answered && asked < EVICTIONS_MAX {
            asked += 1;
            course.call(Effect::Evict {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                manner,
            });
        }
    }
}

fn ending(course: &mut Course<'_>, nodes: &BTreeMap<InstanceId, DownNode>) -> Change {
    let now = course.now.epoch();
    let given_back: BTreeMap<_, _> = nodes
        .iter()
        .filter(|(_, node)| node.phase == NodePhase::RolledBack)
        .map(|(id, _)| (id.clone(), now + seconds(course.policy.node_backoff)))
        .collect();
    let workers = i64::try_from(course.observation.workers().len()).unwrap_or(i64::MAX);
    if given_back.is_empty() {
        course.says(format!("{} nodes are gone", nodes.len()));
        return Change::CompleteDown(Ending {
            workers,
            next_allowed: now + seconds(course.policy.cooldown),
            failure: None,
            backoff: given_back,
        });
    }
    let failure = format!("{} of {} nodes were given back", given_back.len(), nodes.len());
    course.says(failure.clone());
    Change::FailDown(Ending {
        workers,
        next_allowed: now + pause_after_failure(&course.state),
        failure: Some(failure),
        backoff: given_back,
    })
}
