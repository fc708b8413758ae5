//! Mends a state item that no executor can go on with: what somebody edited, or wrote with another type.
//!
//! Only what has one meaning is mended: a number that was stored as text, a flag that an action contradicts, an
//! epoch that lies ahead, a counter that nobody counted so far. Everything else is told, with what to do, and left as it is.

use std::collections::{BTreeMap, BTreeSet};

use tenure_store::{Condition, Item, Number, Update, Value, Write};

use crate::check::{completed_strangers, counted_too_far, left_of_a_plan, too_far_ahead, unrecorded};
use crate::rows::{decode_mended, state_key};
use crate::state::{Action, InstanceId, SCHEMA_VERSION, State};
use crate::table::LEGACY_OVER_SECONDS;

/// What is mended, and what is not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Repair {
    /// What is done, each in a sentence.
    pub mended: Vec<String>,
    /// What a person has to do.
    pub left: Vec<String>,
    /// Attributes that change, `None` if they go away.
    changes: BTreeMap<&'static str, Option<Value>>,
}

const NUMBERS: [&str; 16] = [
    "schemaVersion",
    "rev",
    "fence",
    "actionSeq",
    "lastScaleEpoch",
    "pendingSinceEpoch",
    "idleSinceEpoch",
    "workerCount",
    "lockUntilEpoch",
    "leaseUntilMs",
    "actionDeadlineEpoch",
    "scaleUpStartedEpoch",
    "scaleUpRequested",
    "scaleDownStartedEpoch",
    "failCount",
    "nextAllowedEpoch",
];
const FLAGS: [&str; 2] = ["scalingInProgress", "paused"];
const LISTS: [&str; 3] =
    ["scaleUpInstanceIds", "scaleDownTargetInstanceIds", "scaleDownCompletedInstanceIds"];
/// Every write of this kind adds one to them.
const COUNTERS: [&str; 2] = ["rev", "fence"];
/// These only ever grow, by ones.
const COUNTED: [&str; 3] = ["rev", "fence", "actionSeq"];
const IDS: [&str; 2] = ["scaleUpActionId", "scaleDownActionId"];
/// The next tick measures these anew.
const MEASURED: [&str; 3] = ["pendingSinceEpoch", "idleSinceEpoch", "workerCount"];
/// What belongs to an action of ours, and means nothing without one.
const PLAN: [&str; 8] = [
    "planFor",
    "scaleUpPhase",
    "scaleUpSlots",
    "scaleDownNodes",
    "lockOwner",
    "lockUntilEpoch",
    "leaseUntilMs",
    "actionDeadlineEpoch",
];

/// What can be mended of an item.
#[must_use]
pub fn repair(item: &Item, now_epoch: i64) -> Repair {
    let mut repair = Repair::default();
    let version = item.get("schemaVersion").and_then(whole_number);
    if let Some(version) = version.filter(|version| *version > SCHEMA_VERSION) {
        let text = format!(
            "the item has schemaVersion {version}, a newer one than this program knows: use the newer program"
        );
        repair.left.push(text);
        return repair;
    }
    types(item, now_epoch, &mut repair);
    let typed = repair.applied_to(item);
    match decode_mended(&typed) {
        Ok(state) => meanings(&state, now_epoch, &mut repair),
        Err(error) => repair.left.push(error.chain()),
    }
    repair
}

impl Repair {
    /// The write that mends it: only if the item is what was read, in every attribute. `None` if there is
    /// nothing to mend. An executor that planned on what was there before is fenced.
    #[must_use]
    pub fn write(&self, table: &str, item: &Item) -> Option<Write> {
        if self.changes.is_empty() {
            return None;
        }
        let as_read = item
            .iter()
            .filter(|(name, _)| name.as_str() != "pk")
            .map(|(name, value)| Condition::eq(name.as_str(), value.clone()));
        // What is not there must not have come: an old writer's action adds attributes, and no `rev`.
        let known: BTreeSet<_> =
            NUMBERS.iter().chain(&FLAGS).chain(&LISTS).chain(&PLAN).chain(&IDS).collect();
        let absent =
            known.into_iter().filter(|name| item.get(name).is_none()).map(|name| Condition::absent(*name));
        let mut change = Update::new();
        for (name, value) in &self.changes {
            change = match value {
                Some(value) => change.set(*name, value.clone()),
                None => change.remove(*name),
            };
        }
        for counter in COUNTERS {
            let is_number = item.get(counter).is_none_or(|value| value.as_i64().is_some());
            if is_number && !self.changes.contains_key(counter) {
                change = change.add(counter, 1);
            }
        }
        let when = Condition::All(as_read.chain(absent).collect());
        Some(Write::Update { table: table.to_owned(), key: state_key(), change, when })
    }

    fn applied_to(&self, item: &Item) -> Item {
        let kept = item.iter().filter(|(name, _)| !self.changes.contains_key(name.as_str()));
        let set = self.changes.iter().filter_map(|(name, value)| Some((*name, value.clone()?)));
        kept.map(|(name, value)| (name.as_str(), value.clone()))
            .chain(set)
            .fold(Item::new(), |item, (name, value)| item.with(name, value))
    }

    fn set(&mut self, name: &'static str, value: impl Into<Value>, why: String) {
        self.changes.insert(name, Some(value.into()));
        self.mended.push(why);
    }

    fn remove(&mut self, name: &'static str, why: String) {
        self.changes.insert(name, None);
        self.mended.push(why);
    }

    /// Nobody counted further than there were seconds, so whatever was counted before lies below.
    fn recount(&mut self, name: &'static str, now_epoch: i64) {
        let why = format!(
            "`{name}` was nothing that counts, or larger than anything counts to: it goes on from {now_epoch}"
        );
        self.set(name, now_epoch, why);
    }
}

fn whole_number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_text()?.trim().parse().ok())
}

/// Values of another type whose meaning is plain.
fn types(item: &Item, now_epoch: i64, repair: &mut Repair) {
    for name in NUMBERS {
        let Some(value) = item.get(name).filter(|value| value.as_i64().is_none()) else { continue };
        match whole_number(value) {
            // These count writes, and this is one.
            Some(number) if COUNTERS.contains(&name) => {
                let why = format!("`{name}` was the text {number}: it is a number now, and one more");
                repair.set(name, number.saturating_add(1), why);
            }
            Some(number) => {
                repair.set(name, number, format!("`{name}` was the text {number}: it is a number now"))
            }
            None if MEASURED.contains(&name) => {
                repair
                    .remove(name, format!("`{name}` was no whole number: it is removed, and measured anew"));
            }
            None if COUNTED.contains(&name) && matches!(value, Value::N(_)) => {
                repair.recount(name, now_epoch)
            }
            // Told by what reads it.
            None => {}
        }
    }
    for name in FLAGS {
        let flag = match item.get(name) {
            Some(Value::S(text)) => text.trim().parse::<bool>().ok(),
            Some(Value::N(number)) if *number == Number::from(0) => Some(false),
            Some(Value::N(number)) if *number == Number::from(1) => Some(true),
            _ => None,
        };
        if let Some(flag) = flag {
            repair.set(name, flag, format!("`{name}` was no flag: it is {flag} now"));
        }
    }
    for name in LISTS {
        if let Some(Value::Ss(ids)) = item.get(name) {
            let list = Value::L(ids.iter().map(|id| Value::from(id.as_str())).collect());
            repair.set(name, list, format!("`{name}` was a set: it is a list now"));
        }
    }
}

/// Values of the right type that contradict each other, or the clock.
fn meanings(state: &State, now_epoch: i64, repair: &mut Repair) {
    if !left_of_a_plan(state).is_empty() {
        for name in PLAN {
            repair.changes.insert(name, None);
        }
        repair.mended.push(
            "nothing is under way: what was left of a plan is removed, and the next tick collects what it names"
                .to_owned(),
        );
    }
    if state.action().is_some() && state.scaling_in_progress != Some(true) {
        let why =
            "an action is under way: `scalingInProgress` says so now, and no old writer begins a second one";
        repair.set("scalingInProgress", true, why.to_owned());
    }
    lists(state, repair);
    epochs(state, now_epoch, repair);
    for name in counted_too_far(state) {
        repair.recount(name, now_epoch);
    }
}

fn lists(state: &State, repair: &mut Repair) {
    let list = |ids: &[&InstanceId]| Value::L(ids.iter().map(|id| Value::from(id.as_str())).collect());
    let named = |ids: Vec<&InstanceId>| ids.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ");
    let strange = completed_strangers(state);
    if !strange.is_empty() {
        let kept: Vec<_> = state.down_completed.iter().flatten().filter(|id| !strange.contains(id)).collect();
        let why = format!(
            "{} completed and no target: removed from `scaleDownCompletedInstanceIds`",
            named(strange.into_iter().collect())
        );
        repair.set("scaleDownCompletedInstanceIds", list(&kept), why);
    }
    let missing = unrecorded(state);
    if !missing.is_empty() {
        let all: Vec<_> = state.up_instance_ids.iter().flatten().chain(missing.iter().copied()).collect();
        let why = format!("{} launched: recorded in `scaleUpInstanceIds` again", named(missing));
        repair.set("scaleUpInstanceIds", list(&all), why);
    }
}

fn epochs(state: &State, now_epoch: i64, repair: &mut Repair) {
    for (name, ahead) in too_far_ahead(state, now_epoch) {
        match name {
            "lockUntilEpoch" => lock(state, ahead, now_epoch, repair),
            "nextAllowedEpoch" => {
                let why = format!("`{name}` was {ahead} s ahead, and no pause is a day long: it is now");
                repair.set(name, now_epoch, why);
            }
            // A cooldown, and an old writer's time, are counted from now; windows begin anew.
            _ => {
                let is_window = matches!(name, "pendingSinceEpoch" | "idleSinceEpoch");
                let instead = if is_window { 0 } else { now_epoch };
                let why = format!("`{name}` was {ahead} s in the future: it is {instead} now");
                repair.set(name, instead, why);
            }
        }
    }
}

fn lock(state: &State, ahead: i64, now_epoch: i64, repair: &mut Repair) {
    // What was left of a plan goes, and the lock with it.
    if repair.changes.get("lockUntilEpoch") == Some(&None) {
        return;
    }
    // Ours is written from other attributes, and by what those say an old writer's is told from it.
    if matches!(state.action(), Some(Action::Up(_) | Action::Down(_))) && state.old_lock().is_none() {
        repair.left.push(format!(
            "the lock lasts for another {ahead} s by `actionDeadlineEpoch` or `leaseUntilMs`: a clock was wrong \
             where the action began; set it right there, or end the action by hand"
        ));
        return;
    }
    let until = now_epoch + LEGACY_OVER_SECONDS;
    let why = format!("the lock lasted for another {ahead} s: it ends in {LEGACY_OVER_SECONDS} s now");
    repair.set("lockUntilEpoch", until, why);
}

#[cfg(test)]
#[path = "repair_test.rs"]
mod tests;
