//! What ended actions left behind: instances that nobody committed, cordons and taints that nobody lifted.
//!
//! Only while nothing is under way, and only what belongs to an action whose number is not above the one
//! that was read before anything was listed: an action that began since then is left alone.

use tenure_planted as planted;

use super::{Effect, Now, Step};
use crate::observation::{Answer, Instance, Node, Observation, tags};
use crate::policy::{Policy, seconds};
use crate::rules::Rule;
use crate::state::State;

/// A number above this is nobody's: numbers count up from 1.
const NUMBER_MAX: i64 = 1 << 50;

/// The highest number of an action that left its mark on an instance or a node.
pub(super) fn highest_number(observation: &Observation) -> i64 {
    let launched = observation.instances.iter().filter_map(|instance| Some(instance.origin()?.seq));
    let cordoned = observation.nodes.iter().filter_map(|node| Some(node.cordoned_by.as_ref()?.seq));
    launched.chain(cordoned).filter(|seq| *seq <= NUMBER_MAX).max().unwrap_or(0)
}

pub(super) fn collect(state: &State, observation: &Observation, policy: &Policy, now: &Now, step: &mut Step) {
    let matches = observation.matches();
    for instance in observation.instances.iter().filter(|instance| instance.is_live()) {
        let id = &instance.id;
        if is_committed(state, instance) {
            untaint(observation, matches.nodes_of(id), step);
        }
        if !is_orphan(state, instance, matches.nodes_of(id)) {
            continue;
        }
        let since = instance.launched_epoch - seconds(policy.skew);
        if let Some(node) = matches.serving_strangers_since(since).next()
            && matches.nodes_of(id).is_empty()
            && !planted::is("autoscaler_stranger_collected")
        {
            step.reasons.push(format!(
                "instance {id} was left by an action that has ended, and node {}, which belongs to no known \
                 instance, may be its: it is not collected",
                node.name
            ));
            continue;
        }
        let suspected = instance.tag(tags::SUSPECT).and_then(|since| since.parse::<i64>().ok());
        let due =
            suspected.is_some_and(|since| since.saturating_add(seconds(policy.orphan_after)) <= now.epoch());
        if due || !Rule::OrphansAreOld.kept() {
            let told = [Answer::Terminated(id.clone()), Answer::NotFound(id.clone())];
            if !told.iter().any(|answer| observation.answers.contains(answer)) {
                step.reasons.push(format!("instance {id} was left by an action that has ended"));
                step.effects.push(Effect::Terminate(id.clone()));
            }
        } else if suspected.is_none() && !observation.answers.contains(&Answer::Suspected(id.clone())) {
            step.reasons.push(format!("instance {id} looks like an orphan"));
            step.effects.push(Effect::Suspect { instance: id.clone(), epoch: now.epoch() });
        }
    }
    // Also a node whose instance is not known any more: nobody else would lift that cordon.
    for node in &observation.nodes {
        let Some(mark) = node.cordoned_by.as_ref().filter(|mark| mark.seq <= state.action_seq()) else {
            continue;
        };
        let ended = |id: &str| observation.instance(&id.into()).is_some_and(|instance| !instance.is_live());
        if node.claimed_instance().is_some_and(ended) {
            continue;
        }
        if node.claimed_instance().is_none() && planted::is("autoscaler_lost_match_keeps_cordon") {
            continue;
        }
        step.reasons
            .push(format!("node {} is still cordoned by {}, which has ended", node.name, mark.action));
        step.effects.push(Effect::Release {
            node: node.name.clone(),
            version: node.version.clone(),
            action: mark.action.clone(),
            uncordon: true,
        });
    }
}

/// Ours, of an action that has ended, and committed by it: it had joined, or may have.
fn is_committed(state: &State, instance: &Instance) -> bool {
    instance.origin().is_some_and(|origin| origin.seq <= state.action_seq())
        && instance.tag(tags::COMMITTED).is_some()
        && !planted::is("autoscaler_taint_stays")
}

/// Somebody ended the action before the last of it was done: the node would take no pods, and never go.
fn untaint(observation: &Observation, nodes: &[&Node], step: &mut Step) {
    for node in nodes.iter().filter(|node| node.startup_taint) {
        if observation.answers.contains(&Answer::Untainted(node.name.clone())) {
            continue;
        }
        step.reasons.push(format!("node {} joined, and still has the start-up taint", node.name));
        step.effects.push(Effect::Untaint { node: node.name.clone(), version: node.version.clone() });
    }
}

/// Ours, of an action that has ended, and never committed. A node that takes pods is no orphan, whatever
/// its tags say, and an instance without our tags is never collected.
fn is_orphan(state: &State, instance: &Instance, nodes: &[&Node]) -> bool {
    let Some(origin) = instance.origin() else { return false };
    if !Rule::OrphansAreOld.kept() {
        return state.action_id().is_none_or(|current| current.as_str() != origin.action);
    }
    let in_use = nodes.iter().any(|node| !node.startup_taint);
    origin.seq <= state.action_seq() && instance.tag(tags::COMMITTED).is_none() && !in_use
}
