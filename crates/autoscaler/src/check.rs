//! What is wrong with a state item, for a person to read.

use std::collections::BTreeSet;

use crate::state::{Action, InstanceId, Legacy, SlotPhase, State};

/// By how much clocks may differ before an epoch in the future is remarkable.
pub(crate) const CLOCKS_APART_SECONDS: i64 = 300;
/// No action takes so long.
pub(crate) const LOCK_SECONDS_MAX: i64 = 86_400;
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
    if let (Some(failures @ 1..), Some(why)) = (state.fail_count, &state.last_failure) {
        found.note(format!("the last {failures} actions failed, most recently: {why}"));
    }
    if item_bytes > ITEM_BYTES_ALARM {
        found.wrong(format!("the item has {item_bytes} bytes, and DynamoDB refuses more than 409,600: remove what is not in the documented attributes"));
    }
    found.0
}

fn action(state: &State, now_epoch: i64, found: &mut Findings) {
    let Some(action) = state.action() else {
        let left = [
            ("scaleUpSlots", state.up_slots.is_some()),
            ("scaleDownNodes", state.down_nodes.is_some()),
            ("planFor", state.plan_for.is_some()),
        ];
        for (name, _) in left.iter().filter(|(_, is_there)| *is_there) {
            found.wrong(format!("`{name}` is there though nothing is under way: what it names may be left behind, the next tick collects it"));
        }
        return;
    };
    if state.scaling_in_progress != Some(true) {
        found.wrong("an action is under way and `scalingInProgress` is not true: an old writer may begin a second one");
    }
    if let (Some(up), Some(down)) = (&state.up_action_id, &state.down_action_id) {
        found.wrong(format!("both {up} and {down} are named: an old writer took the lock while ours was away; the next tick goes on with the later one and collects what is left of the other"));
    }
    match action {
        Action::Legacy(Legacy::Nameless) => {
            found.note("`scalingInProgress` is true and no action is named: an old writer is at work or died; it is cleared once the lock is past");
        }
        Action::Legacy(Legacy::Up(id) | Legacy::Down(id)) => {
            found.note(format!("{id} is an old writer's: it is adopted once its lock is past"));
        }
        Action::Up(_) | Action::Down(_) => {}
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

fn lists(state: &State, found: &mut Findings) {
    let targets = set(state.down_targets.as_ref());
    let completed = set(state.down_completed.as_ref());
    for id in completed.difference(&targets) {
        found.wrong(format!("{id} is completed and no target of the scale-down: somebody edited the lists"));
    }
    if let Some(ids) = state.down_completed.as_ref().filter(|ids| ids.len() > completed.len()) {
        found.note(format!(
            "{} ids are completed twice: an old writer and ours both marked them, which does no harm",
            ids.len() - completed.len()
        ));
    }
    let recorded = set(state.up_instance_ids.as_ref());
    // What is being ended was found by its tag, and is not recorded any more.
    let is_kept = |phase| matches!(phase, SlotPhase::Launched | SlotPhase::Joined);
    let kept = state.up_slots.iter().flatten().filter(|(_, slot)| is_kept(slot.phase));
    let launched = kept.filter_map(|(_, slot)| slot.instance.as_ref());
    for id in launched.filter(|id| !recorded.contains(id)) {
        found.wrong(format!(
            "{id} was launched and is not in `scaleUpInstanceIds`: an old writer would not find it"
        ));
    }
}

fn clocks(state: &State, now_epoch: i64, found: &mut Findings) {
    let epochs = [
        ("lastScaleEpoch", state.last_scale_epoch),
        ("pendingSinceEpoch", state.pending_since_epoch),
        ("idleSinceEpoch", state.idle_since_epoch),
        ("scaleUpStartedEpoch", state.up_started_epoch),
        ("scaleDownStartedEpoch", state.down_started_epoch),
    ];
    for (name, epoch) in epochs {
        if let Some(ahead) =
            epoch.map(|epoch| epoch.saturating_sub(now_epoch)).filter(|ahead| *ahead > CLOCKS_APART_SECONDS)
        {
            found.wrong(format!(
                "`{name}` is {ahead} s in the future: a clock is wrong, here or where it was written"
            ));
        }
    }
    if let Some(ahead) = state
        .lock_until_epoch
        .map(|until| until.saturating_sub(now_epoch))
        .filter(|ahead| *ahead > LOCK_SECONDS_MAX)
    {
        found.wrong(format!("the lock lasts for another {ahead} s: no action takes a day; a clock was wrong, or milliseconds were written for seconds"));
    }
}

fn set(ids: Option<&Vec<InstanceId>>) -> BTreeSet<&InstanceId> {
    ids.into_iter().flatten().collect()
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
        let hidden = State { scaling_in_progress: Some(false), ..up };
        finds(&hidden, &[(true, "`scalingInProgress` is not true"), (false, "old writer's")]);
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
