//! A scale-down: cordon, drain, terminate; or give the node back.

use std::collections::{BTreeMap, BTreeSet};

use tenure_planted as planted;

use super::up::pause_after_failure;
use super::{Course, Effect, Manner, is_late};
use crate::change::{Change, Ending};
use crate::observation::{Answer, CordonMark, InstanceState, Matches, Node, Pod};
use crate::policy::{Policy, seconds};
use crate::rules::Rule;
use crate::state::{ActionId, DownNode, InstanceId, NodePhase};

/// Most evictions of one node in one step.
const EVICTIONS_MAX: usize = 50;

pub(super) fn go_on(course: &mut Course<'_>) {
    let Some(action) = course.state.down_action_id.clone() else { return };
    let observation = course.observation;
    let world = Seen { matches: observation.matches(), pods: observation.pods_by_node() };
    let late = is_late(&course.state, course.now);
    let nodes = course.state.down_nodes.clone().unwrap_or_default();
    let mut moves: BTreeMap<NodePhase, BTreeSet<InstanceId>> = BTreeMap::new();
    let mut done = Vec::new();
    for (id, planned) in &nodes {
        let sight = Sight::of(course, id, planned, &world);
        match next(course, &action, id, planned, &sight, late) {
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
        // An old writer that resumed our action marked it before us: only the phase follows.
        let marked = course.state.down_completed.iter().flatten().any(|other| *other == instance)
            && !planted::is("autoscaler_marked_stays_open");
        course.write(if marked { Change::NoteDone { instance } } else { Change::MarkDone { instance } });
    }
    let nodes = course.state.down_nodes.clone().unwrap_or_default();
    for (id, node) in &nodes {
        let sight = Sight::of(course, id, node, &world);
        act(course, &action, id, node, &sight);
    }
    let ended = |node: &DownNode| matches!(node.phase, NodePhase::Done | NodePhase::RolledBack);
    if course.changes.is_empty() && course.calls.is_empty() && nodes.values().all(ended) {
        let ending = ending(course, &nodes);
        course.write(ending);
    }
}

/// What was seen of the cluster.
struct Seen<'a> {
    matches: Matches<'a>,
    pods: BTreeMap<&'a str, Vec<&'a Pod>>,
}

/// What was seen of one target.
struct Sight<'a> {
    /// Its instance is ending or has ended.
    gone: bool,
    /// The cloud does not list it, and no node is its.
    forgotten: bool,
    /// An old writer says that it ended it.
    marked: bool,
    /// Its node, if there is one.
    node: Option<&'a Node>,
    /// Why its node cannot be told for sure. Nothing is ended on doubt.
    doubt: Option<String>,
    /// What a rollback must touch: its nodes, and the one that was planned though nothing says any more
    /// that it is this instance's.
    held: Vec<&'a Node>,
    /// The pods that a drain waits for.
    pods: Vec<&'a Pod>,
}

impl<'a> Sight<'a> {
    fn of(course: &Course<'a>, id: &InstanceId, planned: &DownNode, world: &Seen<'a>) -> Self {
        let own = world.matches.nodes_of(id);
        let is_planned =
            |node: &Node| node.name == planned.node && (planned.uid.is_empty() || node.uid == planned.uid);
        let doubt = doubt(course, planned, world, own);
        let gone = match course.observation.instance(id) {
            Some(instance) => instance.state == InstanceState::Gone,
            None => course.answered(&Answer::NotFound(id.clone())),
        };
        // It was asked for by its id, and is no new one: what the cloud does not list has ended long ago.
        let forgotten = course.observation.instance(id).is_none() && own.is_empty() && doubt.is_none();
        let is_own = |node: &Node| own.iter().any(|other| other.name == node.name);
        let strangers = world.matches.strangers.iter().copied();
        let held = own.iter().copied().chain(strangers.filter(|node| is_planned(node) && !is_own(node)));
        let held =
            held.filter(|_| !own.is_empty() || !planted::is("autoscaler_lost_match_keeps_cordon")).collect();
        let on_it = own.iter().filter_map(|node| world.pods.get(node.name.as_str())).flatten();
        Self {
            gone,
            forgotten,
            marked: course.state.down_completed.iter().flatten().any(|other| other == id)
                && !planted::is("autoscaler_drains_what_is_marked"),
            node: own.first().copied(),
            doubt,
            held,
            pods: on_it.copied().filter(|pod| pod.is_drained()).collect(),
        }
    }

    /// Pods that are not evicted unless the policy says so.
    fn refused(&self, policy: &Policy) -> Option<&Pod> {
        self.pods.iter().copied().find(|pod| !may_be_evicted(pod, policy))
    }
}

/// Why it cannot be told which node is the target's, or whether there is one at all.
fn doubt(course: &Course<'_>, planned: &DownNode, world: &Seen<'_>, own: &[&Node]) -> Option<String> {
    if let [one, other, ..] = own {
        return Some(format!("nodes {} and {} both say that they are its", one.name, other.name));
    }
    if !own.is_empty() {
        return None;
    }
    if course.observation.nodes.iter().all(|node| node.control_plane) {
        return Some("the cluster lists no worker at all: is this its API server?".to_owned());
    }
    if let Some(stranger) = world.matches.serving_strangers().next() {
        return Some(format!("node {} belongs to no known instance, and may be its", stranger.name));
    }
    let listed: BTreeSet<&str> = course.observation.nodes.iter().map(|node| node.name.as_str()).collect();
    let left = |(name, pods): &(&&str, &Vec<&Pod>)| {
        (**name == planned.node || planned.node.is_empty())
            && !listed.contains(**name)
            && pods.iter().any(|pod| pod.is_drained())
    };
    let (name, _) = world.pods.iter().find(left)?;
    Some(format!("pods are still on node {name}, which is not listed"))
}

pub(crate) fn may_be_evicted(pod: &Pod, policy: &Policy) -> bool {
    use crate::observation::PodOwner;
    (pod.owner != PodOwner::Nobody || policy.evict_unmanaged)
        && (!pod.local_storage || policy.evict_local_storage)
}

/// Counted from when this action began or was adopted: an old writer's drains are no try of ours.
fn is_forced(course: &Course<'_>) -> bool {
    let policy = course.policy;
    let Some((after, deadline)) = policy.force_after.zip(course.state.action_deadline_epoch) else {
        return false;
    };
    course.now.epoch() >= deadline - seconds(policy.drain_timeout) + seconds(after)
}

/// The phase that a node moves to now, if any.
fn next(
    course: &mut Course<'_>,
    action: &ActionId,
    id: &InstanceId,
    planned: &DownNode,
    sight: &Sight<'_>,
    late: bool,
) -> Option<NodePhase> {
    match planned.phase {
        NodePhase::Planned | NodePhase::Cordoning | NodePhase::Draining if sight.gone || sight.forgotten => {
            Some(NodePhase::Terminating)
        }
        NodePhase::Planned | NodePhase::Cordoning | NodePhase::Draining => {
            if sight.node.is_some_and(|node| node.control_plane) {
                course.says(format!("node {} is given back: it runs the control plane", planned.node));
                return Some(NodePhase::Rollback);
            }
            if sight.node.is_none() && planted::is("autoscaler_unseen_is_empty") {
                return Some(NodePhase::Terminating);
            }
            if late {
                return Some(overdue(course, id, planned, sight));
            }
            if sight.marked {
                course.says(format!("instance {id} is marked as done by an old writer, and still there"));
                return None;
            }
            if let Some(why) = &sight.doubt {
                course.says(format!("instance {id} waits: {why}"));
                return None;
            }
            let Some(node) = sight.node else {
                course.says(format!("instance {id} waits: its node {} is not there", planned.node));
                return None;
            };
            match planned.phase {
                NodePhase::Planned => preflight(course, id, planned, sight),
                NodePhase::Cordoning => is_cordoned(node, action, planned).then_some(NodePhase::Draining),
                _ => (node.unschedulable && sight.pods.is_empty() && Rule::IntentBeforeEffect.kept())
                    .then_some(NodePhase::Terminating),
            }
        }
        NodePhase::Terminating => sight.gone.then_some(NodePhase::Done),
        NodePhase::Rollback => {
            sight.held.iter().all(|node| is_released(node, action)).then_some(NodePhase::RolledBack)
        }
        NodePhase::Done | NodePhase::RolledBack => None,
    }
}

/// After the deadline a node is given back. An instance that has none, for sure, serves nobody, and is ended.
fn overdue(course: &mut Course<'_>, id: &InstanceId, planned: &DownNode, sight: &Sight<'_>) -> NodePhase {
    match (&sight.doubt, sight.node) {
        (None, None) if !sight.marked => {
            course.says(format!("instance {id} has no node, and no pod is left on one of its name"));
            NodePhase::Terminating
        }
        (Some(why), _) => {
            course.says(format!("instance {id} is given back: {why}"));
            NodePhase::Rollback
        }
        _ => {
            course.says(format!("node {} is given back: it could not be emptied in time", planned.node));
            NodePhase::Rollback
        }
    }
}

/// A node is cordoned only if its pods may go and its instance may be ended: asked beforehand, since there is no
/// way back from TERMINATING.
fn preflight(
    course: &mut Course<'_>,
    id: &InstanceId,
    planned: &DownNode,
    sight: &Sight<'_>,
) -> Option<NodePhase> {
    if let Some(why) = course.unendable(id) {
        course.says(format!("node {} is given back: instance {id} may not be ended: {why}", planned.node));
        return Some(NodePhase::Rollback);
    }
    // A budget may be forced; what would be lost for good is not.
    if let Some(pod) = sight.refused(course.policy) {
        course.says(format!(
            "node {} is given back: nobody brings pod {}/{} or its data back",
            planned.node, pod.namespace, pod.name
        ));
        return Some(NodePhase::Rollback);
    }
    if !course.answered(&Answer::Endable(id.clone())) && !planted::is("autoscaler_end_unasked") {
        return None;
    }
    if is_forced(course) {
        return Some(NodePhase::Cordoning);
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
    match planned.phase {
        NodePhase::Terminating if !sight.gone => return end(course, action, id, sight),
        NodePhase::Rollback => return release(course, action, planned, sight),
        _ => {}
    }
    // Nothing is done to what cannot be told for sure, or what somebody else has ended.
    let Some(node) = sight.node.filter(|_| sight.doubt.is_none() && !sight.marked && !sight.gone) else {
        return;
    };
    match planned.phase {
        NodePhase::Planned => {
            if !course.answered(&Answer::Endable(id.clone())) {
                course.call(Effect::AskEnd(id.clone()));
            }
            if !is_forced(course) {
                ask(course, sight, Manner::DryRun);
            }
        }
        NodePhase::Cordoning if !is_cordoned(node, action, planned) => cordon(course, action, node),
        NodePhase::Draining if !node.unschedulable => cordon(course, action, node),
        NodePhase::Draining if !sight.pods.is_empty() => evict(course, sight),
        NodePhase::Draining if !Rule::IntentBeforeEffect.kept() => course.terminate(id),
        _ => {}
    }
}

/// There is no way back, but it may take a while until the instance may be ended. By then its machine may have
/// registered again, or somebody may have lifted the cordon: what takes pods is emptied again first.
fn end(course: &mut Course<'_>, action: &ActionId, id: &InstanceId, sight: &Sight<'_>) {
    if planted::is("autoscaler_ends_what_filled_up") {
        return course.terminate(id);
    }
    let open: Vec<_> = sight.held.iter().copied().filter(|node| !node.unschedulable).collect();
    for node in &open {
        cordon(course, action, node);
    }
    if !open.is_empty() {
        course.says(format!("instance {id} takes pods again: it is emptied before it is ended"));
    } else if sight.pods.is_empty() {
        course.terminate(id);
    } else {
        evict(course, sight);
    }
}

fn evict(course: &mut Course<'_>, sight: &Sight<'_>) {
    let manner = if is_forced(course) { Manner::Force } else { Manner::Evict };
    ask(course, sight, manner);
}

fn release(course: &mut Course<'_>, action: &ActionId, planned: &DownNode, sight: &Sight<'_>) {
    for node in sight.held.iter().filter(|node| !is_released(node, action)) {
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
        if let Some(why) = blocked.filter(|_| manner != Manner::Force) {
            course.says(format!("pod {}/{} stays: {why}", pod.namespace, pod.name));
        } else if !may_be_evicted(pod, course.policy) {
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
    let answered = course.answered_interrupts(0);
    // An old writer's may name none at all. That is no success.
    if given_back.is_empty() && !nodes.is_empty() {
        course.says(format!("{} nodes are gone", nodes.len()));
        return Change::CompleteDown(Ending {
            workers,
            next_allowed: now + seconds(course.policy.cooldown),
            failure: None,
            backoff: given_back,
            answered,
        });
    }
    let failure = match nodes.len() {
        0 => "an old writer's scale-down names no instance".to_owned(),
        all => format!("{} of {all} nodes were given back", given_back.len()),
    };
    course.says(failure.clone());
    Change::FailDown(Ending {
        workers,
        next_allowed: now + pause_after_failure(&course.state),
        failure: Some(failure),
        backoff: given_back,
        answered,
    })
}
