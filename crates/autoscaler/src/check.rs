//! What is wrong with a state item, for a person to read.
//!
//! What [`repair`](crate::repair) mends is found here, too, by the same functions: the two never disagree.

use std::collections::BTreeSet;

use crate::state::{Action, InstanceId, Legacy, SlotPhase, State};
use crate::table::LEGACY_OVER_SECONDS;

/// By how much clocks may differ before an epoch in the future is remarkable.
const CLOCKS_APART_SECONDS: i64 = 300;
/// No action takes so long, and no pause between two.
const LOCK_SECONDS_MAX: i64 = 86_400;
/// Nothing counts so far by ones: such a number was written by hand, and the largest of them holds no more.
const COUNT_MAX: i64 = i64::MAX / 2;
/// One failure may be the cloud's bad hour; so many in a row are not.
pub const FAILURES_ALARM: i64 = 3;
/// DynamoDB keeps items of 400 KB; beyond this one it is time to look.
const ITEM_BYTES_ALARM: usize = 300_000;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether somebody should do something. Otherwise it is good to know.
    pub is_wrong: bool,
    /// What, and what to do.
    pub text: String,
}

/// Everything remarkable about a state, and about an item of so many bytes that holds it.
#[must_use]
pub fn findings(state: &State, item_bytes: usize, now_epoch: i64) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    if !state.is_migrated() {
        found.note("the item has the form of an old writer: the first tick of ours gives it its own, or `state migrate`");
    }
    action(state, now_epoch, &mut found);
    lists(state, &mut found);
    clocks(state, now_epoch, &mut found);
    if state.is_paused() {
        found.note("paused: nothing new begins until `tenure autoscale resume`");
    }
    failures(state, &mut found);
    if item_bytes > ITEM_BYTES_ALARM {
        found.wrong(format!("the item has {item_bytes} bytes, and DynamoDB refuses more than 409,600: remove what is not in the documented attributes"));
    }
    found.0
}

fn action(state: &State, now_epoch: i64, found: &mut Findings) {
    let Some(action) = state.action() else {
        for name in left_of_a_plan(state) {
            found.wrong(format!("`{name}` is there though nothing is under way: what it names may be left behind, the next tick collects it"));
        }
        return;
    };
    if state.scaling_in_progress != Some(true) {
        found.wrong("an action is under way and `scalingInProgress` is not true: an old writer may begin a second one");
    }
    if let (Some(up), Some(down)) = (&state.up_action_id, &state.down_action_id) {
        found.wrong(format!("both {up} and {down} are named: an old writer took the lock while ours was away; the next tick goes on with the later one, and collects what is left of the other if that was ours; look yourself after what an old one cordoned or launched"));
    }
    if let Action::Legacy(legacy) = action {
        old_action(state, legacy, now_epoch, found);
    }
    if let Some(deadline) = state.action_deadline_epoch.filter(|deadline| *deadline < now_epoch) {
        let late = now_epoch.saturating_sub(deadline);
        found.wrong(format!(
            "the action is past its deadline since {late} s: see that an executor runs, and what its log says"
        ));
    } else if let Some(lease) = state
        .lease_until_ms
        .map(|ms| ms.div_euclid(1000))
        .filter(|lease| lease.saturating_add(CLOCKS_APART_SECONDS) < now_epoch)
    {
        let gone = now_epoch.saturating_sub(lease);
        found.wrong(format!("nobody has carried the action on since {gone} s: see that an executor runs"));
    }
}

/// An old writer's action, which an executor goes on with once its time is over.
fn old_action(state: &State, legacy: Legacy<'_>, now_epoch: i64, found: &mut Findings) {
    let (what, done, began) = match legacy {
        Legacy::Up(id) => (format!("{id} is an old writer's"), "adopted", state.up_started_epoch),
        Legacy::Down(id) => (format!("{id} is an old writer's"), "adopted", state.down_started_epoch),
        Legacy::Nameless => (
            "`scalingInProgress` is true and no action is named: an old writer is at work or died".to_owned(),
            "cleared",
            None,
        ),
    };
    let over = began.map(|began| began.saturating_add(LEGACY_OVER_SECONDS));
    // Whichever comes first; where there is neither, nobody can say since when.
    let due = state.old_lock().into_iter().chain(over).min();
    match due.map(|due| now_epoch.saturating_sub(due)).filter(|late| *late > LEGACY_OVER_SECONDS) {
        Some(late) => found.wrong(format!(
            "{what}; that it is {done} is due since {late} s: see that an executor runs, and what its log says"
        )),
        None => found.note(format!(
            "{what}; it is {done} once its lock is past, or {LEGACY_OVER_SECONDS} s after it began"
        )),
    }
}

fn failures(state: &State, found: &mut Findings) {
    let Some(failures @ 1..) = state.fail_count else { return };
    let why = state.last_failure.as_deref().unwrap_or("nothing says why");
    if failures >= FAILURES_ALARM {
        found.wrong(format!(
            "the last {failures} actions failed, each with a longer pause after it: put right what the last one says: {why}"
        ));
    } else {
        found.note(format!(
            "actions that failed since one last succeeded: {failures}; the last one says: {why}"
        ));
    }
}

fn lists(state: &State, found: &mut Findings) {
    for id in completed_strangers(state) {
        found.wrong(format!("{id} is completed and no target of the scale-down: somebody edited the lists"));
    }
    let completed = state.down_completed.iter().flatten();
    let twice = completed.clone().count() - completed.collect::<BTreeSet<_>>().len();
    if twice > 0 {
        found.note(format!(
            "{twice} ids are completed twice: an old writer and ours both marked them, which does no harm"
        ));
    }
    for id in unrecorded(state) {
        found.wrong(format!(
            "{id} was launched and is not in `scaleUpInstanceIds`: an old writer would not find it"
        ));
    }
}

fn clocks(state: &State, now_epoch: i64, found: &mut Findings) {
    for (name, ahead) in too_far_ahead(state, now_epoch) {
        found.wrong(match name {
            "lockUntilEpoch" => format!("the lock lasts for another {ahead} s: no action takes a day; a clock was wrong, or milliseconds were written for seconds"),
            "nextAllowedEpoch" => format!("`nextAllowedEpoch` lets nothing begin for another {ahead} s: no pause is a day long; a clock was wrong, or milliseconds were written for seconds"),
            _ => format!("`{name}` is {ahead} s in the future: a clock is wrong, here or where it was written"),
        });
    }
    for name in counted_too_far(state) {
        found.wrong(format!(
            "`{name}` is larger than anything counts to: somebody wrote it, and the item cannot be read any more once \
             it has passed the largest number; `tenure autoscale state repair` mends it"
        ));
    }
}

// === what is mended, too ===

/// Attributes of a plan, though nothing is under way.
pub(crate) fn left_of_a_plan(state: &State) -> Vec<&'static str> {
    if state.action().is_some() {
        return Vec::new();
    }
    let plan = [
        ("scaleUpSlots", state.up_slots.is_some()),
        ("scaleDownNodes", state.down_nodes.is_some()),
        ("planFor", state.plan_for.is_some()),
    ];
    plan.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

/// What is completed and was no target.
pub(crate) fn completed_strangers(state: &State) -> BTreeSet<&InstanceId> {
    let targets: BTreeSet<_> = state.down_targets.iter().flatten().collect();
    state.down_completed.iter().flatten().filter(|id| !targets.contains(id)).collect()
}

/// What the scale-up launched and old writers would not find. What is being ended was found by its tag, and is not
/// recorded any more.
pub(crate) fn unrecorded(state: &State) -> Vec<&InstanceId> {
    let Some(Action::Up(up)) = state.action() else { return Vec::new() };
    let recorded: BTreeSet<_> = state.up_instance_ids.iter().flatten().collect();
    let kept = up.slots.values().filter(|slot| matches!(slot.phase, SlotPhase::Launched | SlotPhase::Joined));
    kept.filter_map(|slot| slot.instance.as_ref()).filter(|id| !recorded.contains(id)).collect()
}

/// Epochs that cannot be, and by how many seconds they lie ahead.
pub(crate) fn too_far_ahead(state: &State, now_epoch: i64) -> Vec<(&'static str, i64)> {
    let epochs = [
        ("lastScaleEpoch", state.last_scale_epoch, CLOCKS_APART_SECONDS),
        ("pendingSinceEpoch", state.pending_since_epoch, CLOCKS_APART_SECONDS),
        ("idleSinceEpoch", state.idle_since_epoch, CLOCKS_APART_SECONDS),
        ("scaleUpStartedEpoch", state.up_started_epoch, CLOCKS_APART_SECONDS),
        ("scaleDownStartedEpoch", state.down_started_epoch, CLOCKS_APART_SECONDS),
        ("nextAllowedEpoch", state.next_allowed_epoch, LOCK_SECONDS_MAX),
        ("lockUntilEpoch", state.lock_until_epoch, LOCK_SECONDS_MAX),
    ];
    let ahead = |(name, epoch, most): (_, Option<i64>, _)| {
        let ahead = epoch?.saturating_sub(now_epoch);
        (ahead > most).then_some((name, ahead))
    };
    epochs.into_iter().filter_map(ahead).collect()
}

/// Counters that nobody counted so far.
pub(crate) fn counted_too_far(state: &State) -> Vec<&'static str> {
    let counters = [("rev", state.rev), ("fence", state.fence), ("actionSeq", state.action_seq)];
    counters.into_iter().filter(|(_, count)| *count > Some(COUNT_MAX)).map(|(name, _)| name).collect()
}

struct Findings(Vec<Finding>);

impl Findings {
    fn wrong(&mut self, text: impl Into<String>) {
        self.0.push(Finding { is_wrong: true, text: text.into() });
    }

    fn note(&mut self, text: impl Into<String>) {
        self.0.push(Finding { is_wrong: false, text: text.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ActionId;

    const NOW: i64 = 1_800_000_000;

    fn idle() -> State {
        State {
            schema_version: Some(2),
            scaling_in_progress: Some(false),
            last_scale_epoch: Some(NOW - 60),
            ..State::default()
        }
    }

    /// What is found has these words, and nothing else is found.
    #[track_caller]
    fn finds(state: &State, wanted: &[(bool, &str)]) {
        let found = findings(state, 500, NOW);
        assert_eq!(found.len(), wanted.len(), "{found:#?}");
        for (finding, (is_wrong, words)) in found.iter().zip(wanted) {
            assert!(finding.is_wrong == *is_wrong && finding.text.contains(words), "`{words}`: {finding:?}");
        }
    }

    #[test]
    fn an_idle_item_is_in_order() {
        finds(&idle(), &[]);
        finds(&State { schema_version: None, ..idle() }, &[(false, "old writer")]);
        finds(&State { paused: Some(true), ..idle() }, &[(false, "resume")]);
    }

    #[test]
    fn what_old_writers_leave_is_told() {
        let begun = State { scaling_in_progress: Some(true), ..idle() };
        finds(&begun, &[(false, "no action is named")]);
        let up = State { up_action_id: Some(ActionId::from("up-1")), ..begun.clone() };
        finds(&up, &[(false, "up-1 is an old writer's")]);
        let both = State { down_action_id: Some(ActionId::from("down-2")), ..up.clone() };
        finds(&both, &[(true, "both up-1 and down-2"), (false, "old writer's")]);
        let hidden = State { scaling_in_progress: Some(false), ..up.clone() };
        finds(&hidden, &[(true, "`scalingInProgress` is not true"), (false, "old writer's")]);
        let begun_at = |epoch| State { up_started_epoch: Some(epoch), ..up.clone() };
        finds(&begun_at(NOW - 1800), &[(false, "up-1 is an old writer's")]);
        finds(&begun_at(NOW - 1807), &[(true, "due since 907 s: see that an executor runs")]);
        let locked = State { lock_until_epoch: Some(NOW - 901), ..begun };
        finds(&locked, &[(true, "that it is cleared is due since 901 s")]);
    }

    #[test]
    fn failures_in_a_row_are_wrong() {
        let failed = |count| State {
            fail_count: Some(count),
            last_failure: Some("no capacity anywhere".to_owned()),
            ..idle()
        };
        finds(&failed(0), &[]);
        finds(&failed(2), &[(false, "no capacity anywhere")]);
        finds(&failed(3), &[(true, "the last 3 actions failed")]);
        finds(&State { last_failure: None, ..failed(7) }, &[(true, "nothing says why")]);
    }

    #[test]
    fn lists_that_contradict_each_other_are_told() {
        let ids = |ids: &[&str]| Some(ids.iter().map(|id| InstanceId::from(*id)).collect());
        let targets = State { down_targets: ids(&["i-1"]), ..idle() };
        finds(
            &State { down_completed: ids(&["i-2"]), ..targets.clone() },
            &[(true, "i-2 is completed and no target")],
        );
        finds(&State { down_completed: ids(&["i-1", "i-1"]), ..targets }, &[(false, "completed twice")]);
    }

    #[test]
    fn clocks_and_deadlines_are_judged() {
        finds(
            &State { last_scale_epoch: Some(NOW + 3600), ..idle() },
            &[(true, "`lastScaleEpoch` is 3600 s in the future")],
        );
        finds(&State { lock_until_epoch: Some(NOW * 1000), ..idle() }, &[(true, "milliseconds")]);
        let ms = State { next_allowed_epoch: Some(1_999_999_999_999), ..idle() };
        finds(&ms, &[(true, "`nextAllowedEpoch` lets nothing begin")]);
        let most = State { rev: Some(i64::MAX), fence: Some(7), action_seq: Some(i64::MAX), ..idle() };
        finds(&most, &[(true, "`rev` is larger"), (true, "`actionSeq` is larger")]);
        let id = ActionId::from("up-1");
        let late = State {
            scaling_in_progress: Some(true),
            up_action_id: Some(id.clone()),
            plan_for: Some(id),
            up_slots: Some([].into()),
            up_requested: Some(0),
            action_deadline_epoch: Some(NOW - 7),
            ..idle()
        };
        finds(&late, &[(true, "past its deadline since 7 s")]);
        let lonely =
            State { action_deadline_epoch: Some(NOW + 60), lease_until_ms: Some((NOW - 400) * 1000), ..late };
        finds(&lonely, &[(true, "nobody has carried the action on since 400 s")]);
        assert!(findings(&idle(), 390_000, NOW)[0].text.contains("409,600"));
    }
}
