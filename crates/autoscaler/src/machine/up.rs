//! A scale-up: launch, record, verify, commit; or end what did not join.

use std::collections::{BTreeMap, BTreeSet};

use tenure_planted as planted;

use super::{Course, Effect, client_token, is_late, next_launch};
use crate::change::{Change, Ending};
use crate::observation::{Answer, InstanceState, LaunchOrder, Matches, Node, tags};
use crate::policy::{Policy, seconds};
use crate::rules::Rule;
use crate::state::{ActionId, InstanceId, Slot, SlotPhase, State, UpPhase};
use crate::table::LEGACY_OVER_SECONDS;

/// The cloud may not know a new instance for a while: before this, "not found" is not "gone".
const SETTLED_SECONDS: i64 = 300;
/// Most of what the cloud said that `lastFailure` keeps.
const REFUSAL_CHARS_MAX: usize = 300;

pub(super) fn go_on(course: &mut Course<'_>) {
    let Some(action) = course.state.up_action_id.clone() else { return };
    admit_late_records(course);
    take_answers(course);
    if course.state.up_phase == Some(UpPhase::Launching) && !is_late(&course.state, course.now) {
        let slots = course.state.up_slots.clone().unwrap_or_default();
        if let Some((number, slot)) = next_launch(&slots, &course.observation.answers) {
            let order = order(course, &action, number, slot);
            course.call(Effect::Launch(order));
        }
    }
    // While launching, nothing else was looked at.
    if !course.changes.is_empty() || !course.calls.is_empty() {
        return;
    }
    verify(course, &action);
}

/// An old writer records its launches under the action's id alone, also after that was adopted.
fn admit_late_records(course: &mut Course<'_>) {
    let slots = course.state.up_slots.iter().flatten();
    let known: BTreeSet<_> = slots.filter_map(|(_, slot)| slot.instance.as_ref()).collect();
    let recorded = course.state.up_instance_ids.iter().flatten();
    let instances: BTreeSet<_> = recorded.filter(|id| !known.contains(id)).cloned().collect();
    if !instances.is_empty() && !planted::is("autoscaler_late_record_dropped") {
        course.says(format!("an old writer recorded {} instances late", instances.len()));
        course.write(Change::Admit { instances });
    }
}

fn order(course: &Course<'_>, action: &ActionId, number: u32, slot: &Slot) -> LaunchOrder {
    let tags = [
        (tags::CLUSTER, course.policy.cluster.clone()),
        (tags::ACTION, action.to_string()),
        (tags::SEQ, course.state.action_seq().to_string()),
        (tags::SLOT, number.to_string()),
        (tags::ATTEMPT, slot.attempt.to_string()),
    ];
    LaunchOrder {
        slot: number,
        attempt: slot.attempt,
        place: slot.place.clone(),
        token: token(course, action, number, slot.attempt),
        tags: tags.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

fn token(course: &Course<'_>, action: &ActionId, number: u32, attempt: u32) -> String {
    let token = client_token(&course.policy.cluster, action, number, attempt);
    if planted::is("autoscaler_token_of_executor") { token + &course.now.owner } else { token }
}

/// Launches that were answered in this tick.
fn take_answers(course: &mut Course<'_>) {
    for answer in &course.observation.answers {
        let slots = course.state.up_slots.clone().unwrap_or_default();
        let current = |slot: &u32, attempt: &u32| {
            slots.get(slot).filter(|slot| slot.phase == SlotPhase::Planned && slot.attempt == *attempt)
        };
        match answer {
            Answer::Launched { slot, attempt, instance } if current(slot, attempt).is_some() => {
                if course.state.up_phase == Some(UpPhase::Aborting) {
                    course.write(Change::Reap { slots: [(*slot, Some(instance.clone()))].into() });
                } else {
                    course.write(Change::Record { slot: *slot, instance: instance.clone() });
                }
            }
            Answer::NoCapacity { slot, attempt, why } => {
                let Some(tried) = current(slot, attempt) else { continue };
                course.says(format!("no capacity in {}: {why}", tried.place.subnet));
                // Another fence's call may still be under way, and succeed: then there would be two.
                if Rule::RetargetOwn.kept() && tried.authorised != course.state.fence() {
                    continue;
                }
                match course.policy.places.get(*attempt as usize + 1) {
                    Some(place) => course.write(Change::Retarget { slot: *slot, place: place.clone() }),
                    None => course.write(Change::Reap { slots: [(*slot, None)].into() }),
                }
            }
            Answer::LaunchRefused { slot, attempt, why } if current(slot, attempt).is_some() => {
                course.says(format!("the launch of slot {slot} was refused: {why}"));
                // Once all are asked for, it is looked up: an earlier call may have launched it.
                if planted::is("autoscaler_refusal_is_believed") {
                    course.write(Change::Reap { slots: [(*slot, None)].into() });
                }
            }
            _ => {}
        }
    }
}

fn verify(course: &mut Course<'_>, action: &ActionId) {
    let observation = course.observation;
    let matches = observation.matches();
    let late = is_late(&course.state, course.now);
    let aborting = course.state.up_phase == Some(UpPhase::Aborting);
    let (mut joins, mut keeps, mut reaps) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let slots = course.state.up_slots.clone().unwrap_or_default();
    for (number, slot) in &slots {
        match (slot.phase, &slot.instance) {
            (SlotPhase::Launched, Some(id)) if is_gone(course, id) => {
                course.says(format!("instance {id} is gone before it joined"));
                reaps.insert(*number, None);
            }
            (SlotPhase::Launched, Some(id)) if has_joined(course, matches.node_of(id), late) => {
                joins.insert(*number);
            }
            (SlotPhase::Launched, Some(id)) if aborting => match may_serve(course, &matches, id, slot) {
                Some(why) => {
                    course.says(format!("instance {id} is left alone: {why}"));
                    keeps.insert(*number);
                }
                None => {
                    reaps.insert(*number, None);
                }
            },
            (SlotPhase::Planned, _) if aborting || was_refused(course, *number, slot.attempt) => {
                match launched_by(course, action, *number, slot.attempt) {
                    // Recorded, it is kept like any other.
                    Some(id) if !aborting || may_serve(course, &matches, &id, slot).is_some() => {
                        course.write(Change::Record { slot: *number, instance: id });
                    }
                    found => {
                        reaps.insert(*number, found);
                    }
                }
            }
            _ => {}
        }
    }
    if !Rule::TaintUntilJoined.kept() {
        untaint_early(course, &slots, &matches);
    }
    if !joins.is_empty() {
        course.write(Change::Join { slots: joins });
    }
    if !keeps.is_empty() {
        course.write(Change::Keep { slots: keeps });
    }
    if !reaps.is_empty() && Rule::IntentBeforeEffect.kept() {
        course.write(Change::Reap { slots: reaps });
    } else if !reaps.is_empty() {
        reap_without_intent(course, &slots, reaps);
    }
    let unsettled = |(_, slot): (&u32, &Slot)| matches!(slot.phase, SlotPhase::Planned | SlotPhase::Launched);
    if late && !aborting && course.state.up_slots.iter().flatten().any(unsettled) {
        course.says("the deadline passed: what did not join is ended");
        course.write(Change::Abort);
    }
    settle(course, action, &matches);
}

/// By what the policy asks. If the metrics do not know, the Node's own condition decides, but only once the
/// deadline has passed: unknown is neither ready nor not.
fn has_joined(course: &mut Course<'_>, node: Option<&Node>, late: bool) -> bool {
    let Some(node) = node else { return false };
    course.observation.is_ready(node).unwrap_or_else(|| {
        course.says("the metrics do not know which nodes are ready");
        late && node.ready
    })
}

/// Why the instance may be serving, though it was not seen to join. What we launched has the start-up taint
/// until JOINED is durable; what an old writer launched never had one.
fn may_serve(course: &Course<'_>, matches: &Matches<'_>, id: &InstanceId, slot: &Slot) -> Option<String> {
    if planted::is("autoscaler_serving_is_reaped") {
        return None;
    }
    let adopted = slot.place.subnet.is_empty();
    let tells = adopted || Rule::TaintUntilJoined.kept();
    let nodes = matches.nodes_of(id);
    if let Some(node) = nodes.iter().find(|node| !node.startup_taint).filter(|_| tells) {
        return Some(format!("node {} takes pods; drain it by hand if it should go", node.name));
    }
    if !nodes.is_empty() {
        return None;
    }
    let launched = course.observation.instance(id).map_or(0, |instance| instance.launched_epoch);
    let stranger = matches.serving_strangers_since(launched - seconds(course.policy.skew)).next()?;
    Some(format!("node {} belongs to no known instance, and may be its", stranger.name))
}

/// Whether the launch of that attempt was refused in this tick.
fn was_refused(course: &Course<'_>, number: u32, tried: u32) -> bool {
    course.observation.answers.iter().any(|answer| {
        matches!(answer, Answer::LaunchRefused { slot, attempt, .. } if *slot == number && *attempt == tried)
    })
}

fn is_gone(course: &Course<'_>, id: &InstanceId) -> bool {
    match course.observation.instance(id) {
        Some(instance) => instance.state == InstanceState::Gone,
        None => course.answered(&Answer::NotFound(id.clone())) && is_settled(course),
    }
}

/// Whether nothing is left to do for one that joined: it is gone, or the cloud has forgotten it.
fn is_past(course: &Course<'_>, id: &InstanceId) -> bool {
    is_gone(course, id) || (course.observation.instance(id).is_none() && is_settled(course))
}

fn is_settled(course: &Course<'_>) -> bool {
    course.now.epoch() >= course.state.up_started_epoch.unwrap_or(0) + SETTLED_SECONDS
}

/// The instance of a launch whose answer nobody recorded.
fn launched_by(course: &Course<'_>, action: &ActionId, number: u32, attempt: u32) -> Option<InstanceId> {
    course
        .observation
        .instances
        .iter()
        .filter(|instance| instance.is_live())
        .find(|instance| {
            instance.origin().is_some_and(|origin| {
                origin.action == action.as_str()
                    && origin.slot == number
                    && (origin.attempt == attempt || !Rule::AbortCurrentAttempt.kept())
            })
        })
        .map(|instance| instance.id.clone())
}

/// Ends what is being reaped, commits what joined, and finishes when nothing is left to do.
fn settle(course: &mut Course<'_>, action: &ActionId, matches: &Matches<'_>) {
    let slots = course.state.up_slots.clone().unwrap_or_default();
    let mut reaped = BTreeSet::new();
    let mut settled = true;
    for (number, slot) in &slots {
        match (slot.phase, &slot.instance) {
            (SlotPhase::Reaping, Some(id)) if !is_gone(course, id) => {
                match course.unendable(id).filter(|_| !planted::is("autoscaler_reaps_for_ever")) {
                    // It takes no pods. If its tags say what it is, it is collected once that is allowed; else a
                    // person has to, and the failure names it.
                    Some(why) => {
                        course.says(format!("instance {id} may not be ended, and is left: {why}"));
                        reaped.insert(*number);
                    }
                    None => course.terminate(id),
                }
            }
            (SlotPhase::Reaping, _) => {
                reaped.insert(*number);
            }
            (SlotPhase::Joined | SlotPhase::Kept, Some(id))
                if !is_past(course, id) && !planted::is("autoscaler_completes_uncommitted") =>
            {
                settled &= commit(course, action, id, matches.node_of(id));
            }
            _ => {}
        }
    }
    if !reaped.is_empty() {
        course.write(Change::Reaped { slots: reaped });
    }
    if awaits_records(course, slots.len()) {
        course.says("an old writer may still record what it launched");
        return;
    }
    let ended = |slot: &Slot| slot.phase.is_end();
    if course.changes.is_empty() && course.calls.is_empty() && settled && slots.values().all(ended) {
        let ending = ending(course, &slots);
        course.write(ending);
    }
}

/// Fewer slots than were asked for are an old writer's. As long as it may live, it may record more.
fn awaits_records(course: &Course<'_>, slots: usize) -> bool {
    let requested = usize::try_from(course.state.up_requested.unwrap_or(0)).unwrap_or(0);
    let began = course.state.up_started_epoch.unwrap_or(0);
    slots < requested && course.now.epoch() < began + LEGACY_OVER_SECONDS
}

/// Whether the instance is committed and its node free of the taint, as seen; else what is missing is done.
fn commit(course: &mut Course<'_>, action: &ActionId, id: &InstanceId, node: Option<&Node>) -> bool {
    let instance = course.observation.instance(id);
    let enlists = Effect::Enlist(id.clone());
    let commits = Effect::Commit { instance: id.clone(), action: action.clone() };
    let enlisted =
        instance.is_some_and(|instance| instance.tag(tags::CLUSTER) == Some(&course.policy.cluster));
    let committed = instance.is_some_and(|instance| instance.tag(tags::COMMITTED) == Some(action.as_str()));
    // Without our tags of the launch nobody takes it for an orphan: then it does not matter if it may not
    // be tagged.
    let optional = instance.is_some_and(|instance| instance.origin().is_none())
        && (course.failed(&enlists) || course.failed(&commits));
    if !enlisted && !course.answered(&Answer::Enlisted(id.clone())) {
        course.call(enlists);
    }
    let tagged = course.answered(&Answer::Committed(id.clone()));
    if !committed && !tagged {
        course.call(commits);
    }
    let tainted = node.filter(|node| node.startup_taint);
    // First the tag, then the taint: what takes pods must not look like an orphan.
    if let Some(node) = tainted
        && (committed || tagged)
        && !course.answered(&Answer::Untainted(node.name.clone()))
    {
        course.call(Effect::Untaint { node: node.name.clone(), version: node.version.clone() });
    }
    (committed && enlisted || optional) && tainted.is_none()
}

fn ending(course: &mut Course<'_>, slots: &BTreeMap<u32, Slot>) -> Change {
    let joined = slots.values().filter(|slot| slot.phase == SlotPhase::Joined).count();
    let joined = i64::try_from(joined).unwrap_or(i64::MAX);
    let kept = slots.values().filter(|slot| slot.phase == SlotPhase::Kept).count();
    let requested = course.state.up_requested.unwrap_or(0);
    let workers = i64::try_from(course.observation.workers().len()).unwrap_or(i64::MAX);
    let answered = course.answered_interrupts(launched_and_joined(slots));
    let mut ending = Ending { workers, next_allowed: 0, failure: None, backoff: BTreeMap::new(), answered };
    if joined >= requested {
        ending.next_allowed = course.now.epoch() + seconds(course.policy.cooldown);
        course.says(format!("{joined} of {requested} joined"));
        return Change::CompleteUp(ending);
    }
    ending.next_allowed = course.now.epoch() + pause_after_failure(&course.state);
    let mut failure = format!("{joined} of {requested} instances joined");
    if kept > 0 {
        failure.push_str(&format!(", {kept} may be serving and were left alone"));
    }
    let left = slots.values().filter(|slot| slot.phase == SlotPhase::Reaped);
    let left = left.filter_map(|slot| course.observation.instance(slot.instance.as_ref()?));
    // What has our tags is collected once that is allowed.
    let left = left.filter(|instance| instance.is_live() && instance.origin().is_none());
    let left: Vec<_> = left.map(|instance| instance.id.to_string()).collect();
    if !left.is_empty() {
        failure.push_str(&format!(", {} may not be ended: end it by hand", left.join(", ")));
    }
    // Whoever reads `lastFailure` wants to know what to do; the cloud said so in this tick, or an earlier one did.
    let refusal = course.observation.answers.iter().rev().find_map(|answer| match answer {
        Answer::LaunchRefused { why, .. } | Answer::NoCapacity { why, .. } => Some(why),
        _ => None,
    });
    if let Some(why) = refusal {
        failure.push_str(": ");
        failure.extend(why.chars().take(REFUSAL_CHARS_MAX));
    }
    course.says(failure.clone());
    ending.failure = Some(failure);
    Change::FailUp(ending)
}

/// What an old writer launched was not launched for what was told to us.
fn launched_and_joined(slots: &BTreeMap<u32, Slot>) -> usize {
    let joined = slots.values().filter(|slot| slot.phase == SlotPhase::Joined);
    joined.filter(|slot| !slot.place.subnet.is_empty()).count()
}

pub(super) fn pause_after_failure(state: &State) -> i64 {
    if planted::is("autoscaler_no_pause_after_failure") {
        return 0;
    }
    Policy::backoff_seconds(state.fail_count.unwrap_or(0))
}

/// What rule 6 keeps from happening.
fn untaint_early(course: &mut Course<'_>, slots: &BTreeMap<u32, Slot>, matches: &Matches<'_>) {
    for slot in slots.values().filter(|slot| slot.phase == SlotPhase::Launched) {
        let node = slot.instance.as_ref().and_then(|id| matches.node_of(id));
        if let Some(node) = node.filter(|node| node.startup_taint) {
            course.call(Effect::Untaint { node: node.name.clone(), version: node.version.clone() });
        }
    }
}

/// What rule 3 keeps from happening.
fn reap_without_intent(
    course: &mut Course<'_>,
    slots: &BTreeMap<u32, Slot>,
    reaps: BTreeMap<u32, Option<InstanceId>>,
) {
    let (mut without, mut gone) = (Vec::new(), BTreeMap::new());
    for (number, found) in reaps {
        let id = slots.get(&number).and_then(|slot| slot.instance.clone()).or_else(|| found.clone());
        match id {
            Some(id) if !is_gone(course, &id) => without.push(id),
            _ => {
                gone.insert(number, found);
            }
        }
    }
    for id in without {
        course.terminate(&id);
    }
    if !gone.is_empty() {
        course.write(Change::Reap { slots: gone });
    }
}
