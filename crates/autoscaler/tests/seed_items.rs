//! The items of the two old documents: read, migrated, taken over, and written as they show them.

use tenure_autoscaler::change::{Change, Stamp};
use tenure_autoscaler::rows::{decode, encode};
use tenure_autoscaler::state::{Action, Legacy, NodePhase, SlotPhase, State};
use tenure_autoscaler::table::{explain, write};
use tenure_autoscaler::testing::{Gate, World, at_once};
use tenure_autoscaler::{Effect, Now, Policy, step};
use tenure_store::{Item, Key, Store, Value, Write, Written};

use crate::stories::policy;

pub(crate) const IDLE: &str = r#"{"pk":"cluster","scalingInProgress":false,"lastScaleEpoch":1730000000,
    "pendingSinceEpoch":0,"idleSinceEpoch":1730000100,"workerCount":2}"#;
pub(crate) const UP: &str = r#"{"pk":"cluster","scalingInProgress":true,"lastScaleEpoch":1730000000,
    "scaleUpActionId":"1730000300-req-xyz","scaleUpStartedEpoch":1730000300,"scaleUpRequested":2,
    "scaleUpInstanceIds":["i-aaa","i-bbb"]}"#;
pub(crate) const DOWN: &str = r#"{"pk":"cluster","scalingInProgress":true,"lastScaleEpoch":1730000000,
    "scaleDownActionId":"sd-1730000900-req","scaleDownStartedEpoch":1730000900,"scaleDownPhase":"DRAINING",
    "scaleDownTargetInstanceIds":["i-aaa","i-bbb"],"scaleDownCompletedInstanceIds":["i-aaa"]}"#;
/// The first document's attributes, all of them, of a lock that was taken before anything was launched.
pub(crate) const LOCKED: &str = r#"{"pk":"cluster","scalingInProgress":true,"lastScaleEpoch":1730000000,
    "lockOwner":"8f0b-request","lockUntilEpoch":1730000420,"scaleUpActionId":"1730000300-8f0b",
    "scaleUpInstanceIds":[],"scaleUpStartedEpoch":1730000300,"workerCount":2}"#;

pub(crate) fn item(json: &str) -> Item {
    fn value(json: &serde_json::Value) -> Value {
        match json {
            serde_json::Value::Bool(flag) => (*flag).into(),
            serde_json::Value::Number(number) => number.as_i64().unwrap().into(),
            serde_json::Value::String(text) => text.as_str().into(),
            serde_json::Value::Array(all) => Value::L(all.iter().map(value).collect()),
            serde_json::Value::Object(all) => {
                Value::M(all.iter().map(|(name, json)| (name.clone(), value(json))).collect())
            }
            serde_json::Value::Null => Value::Null,
        }
    }
    let serde_json::Value::Object(all) = serde_json::from_str(json).unwrap() else { panic!("{json}") };
    all.iter().map(|(name, json)| (name.clone(), value(json))).collect()
}

fn stamp(epoch: i64) -> Stamp {
    Stamp { owner: "me".to_owned(), now_ms: epoch * 1000, lease_ms: 45_000, skew_ms: 5000 }
}

/// Carries a change out on an item, as a store would, and holds it to the table.
fn applied(item: &Item, change: &Change, stamp: &Stamp) -> Option<Item> {
    let Write::Update { change: update, when, .. } =
        write("state", &decode(item).unwrap(), change, stamp).unwrap()
    else {
        panic!("every change is an update");
    };
    when.validate().unwrap();
    update.validate(&Key::new("pk", "cluster")).unwrap();
    if !when.holds(item) {
        return None;
    }
    let mut after = item.clone();
    update.apply(&mut after).unwrap();
    assert_eq!(explain(item, &after).unwrap(), change.name());
    Some(after)
}

fn migrated(json: &str) -> Item {
    applied(&item(json), &Change::Migrate, &stamp(1_730_000_500)).unwrap()
}

#[test]
fn every_example_is_read_and_written_as_it_is() {
    for json in [IDLE, UP, DOWN, LOCKED] {
        let item = item(json);
        assert_eq!(encode(&decode(&item).unwrap()), item);
    }
}

#[test]
fn a_migration_keeps_everything_and_adds_what_is_missing() {
    for json in [IDLE, UP, DOWN, LOCKED, r#"{"pk":"cluster"}"#] {
        let (before, after) = (item(json), migrated(json));
        for (name, value) in &before {
            assert_eq!(after.get(name), Some(value), "{name}");
        }
        let state = decode(&after).unwrap();
        assert_eq!((state.rev, state.fence(), state.action_seq()), (Some(1), 0, 0));
        // Once is enough.
        assert_eq!(applied(&after, &Change::Migrate, &stamp(1_730_000_501)), None);
    }
}

#[test]
fn what_is_under_way_is_understood() {
    let action = |json: &str| format!("{:?}", decode(&item(json)).unwrap().action());
    assert_eq!(action(IDLE), "None");
    assert_eq!(action(UP), "Some(Legacy(Up(1730000300-req-xyz)))");
    assert_eq!(action(DOWN), "Some(Legacy(Down(sd-1730000900-req)))");
    assert_eq!(action(r#"{"pk":"cluster","scalingInProgress":true}"#), "Some(Legacy(Nameless))");
}

#[test]
fn an_old_scale_up_is_adopted_once_its_time_is_over() {
    let change = Change::AdoptUp { deadline: 1_730_002_000 };
    let young = migrated(UP);
    assert_eq!(applied(&young, &change, &stamp(1_730_000_900)), None, "it may still be at work");
    let state = decode(&applied(&young, &change, &stamp(1_730_001_201)).unwrap()).unwrap();
    let Some(Action::Up(up)) = state.action() else { panic!("{state:?}") };
    let slots: Vec<_> =
        up.slots.values().map(|slot| (slot.phase, slot.instance.as_ref().unwrap().as_str())).collect();
    assert_eq!(slots, [(SlotPhase::Launched, "i-aaa"), (SlotPhase::Launched, "i-bbb")]);
    assert_eq!(state.up_requested, Some(2));
    assert_eq!((state.fence(), state.action_seq()), (1, 1));
}

#[test]
fn a_lock_that_is_past_is_adopted_before_the_threshold() {
    let change = Change::AdoptUp { deadline: 1_730_002_000 };
    let locked = migrated(LOCKED);
    assert_eq!(applied(&locked, &change, &stamp(1_730_000_425)), None, "by the skew");
    let state = decode(&applied(&locked, &change, &stamp(1_730_000_426)).unwrap()).unwrap();
    // It asked for at least one and recorded none: that will be a failure, never a success.
    assert_eq!(state.up_requested, Some(1));
    assert_eq!(state.up_slots.as_ref().map(|slots| slots.len()), Some(0));
    // Not before its writer can be dead: it may still record what it launched.
    let now = |ms| Now { ms, owner: "me".to_owned(), lease_left_ms: 45_000 };
    let early = step(&state, &Default::default(), &policy(), &now(1_730_000_427_000));
    assert_eq!(early.effects, []);
    let step = step(&state, &Default::default(), &policy(), &now(1_730_001_200_000));
    assert!(matches!(&step.effects[..], [Effect::Write(Change::FailUp(_))]), "{step:?}");
}

#[test]
fn an_old_scale_down_is_resumed_after_what_is_completed() {
    let change = Change::AdoptDown {
        nodes: [("i-bbb".into(), "worker-b".to_owned())].into(),
        deadline: 1_730_003_000,
    };
    let state = decode(&applied(&migrated(DOWN), &change, &stamp(1_730_001_801)).unwrap()).unwrap();
    let Some(Action::Down(down)) = state.action() else { panic!("{state:?}") };
    let nodes: Vec<_> =
        down.nodes.iter().map(|(id, node)| (id.as_str(), node.phase, node.node.as_str())).collect();
    assert_eq!(nodes, [("i-aaa", NodePhase::Done, ""), ("i-bbb", NodePhase::Planned, "worker-b")]);
}

#[test]
fn a_flag_without_an_action_is_cleared() {
    let left = r#"{"pk":"cluster","scalingInProgress":true,"lockOwner":"r","lockUntilEpoch":1730000400}"#;
    let item = migrated(left);
    assert_eq!(applied(&item, &Change::Clear, &stamp(1_730_000_400)), None);
    let state = decode(&applied(&item, &Change::Clear, &stamp(1_730_000_406)).unwrap()).unwrap();
    assert_eq!((state.action(), state.scaling_in_progress), (None, Some(false)));
    assert_eq!(state.lock_owner, None);
}

#[test]
fn a_theft_after_an_outage_is_noticed() {
    // Ours was scaling down; an old writer found the lock past and began a scale-up over it.
    let ours = Change::BeginDown {
        action: "sd-ours".into(),
        nodes: [("i-aaa".into(), ("worker-a".to_owned(), "uid-a".to_owned()))].into(),
        deadline: 1_730_001_000,
    };
    let mut stolen = applied(&migrated(IDLE), &ours, &stamp(1_730_000_600)).unwrap();
    assert_eq!(stolen.integer("lockUntilEpoch"), Some(1_730_001_000), "an old writer waits for our deadline");
    stolen.set("lockOwner", "old");
    stolen.set("lockUntilEpoch", 1_730_002_100);
    stolen.set("scaleUpActionId", "1730002000-old");
    stolen.set("scaleUpStartedEpoch", 1_730_002_000);
    stolen.set("scaleUpInstanceIds", Value::L(vec!["i-zzz".into()]));
    let state = decode(&stolen).unwrap();
    assert_eq!(state.action(), Some(Action::Legacy(Legacy::Up(&"1730002000-old".into()))));
    // Adopting it drops what was ours; the cordon is garbage from then on, and is lifted.
    let adopted =
        applied(&stolen, &Change::AdoptUp { deadline: 1_730_004_000 }, &stamp(1_730_002_200)).unwrap();
    let state = decode(&adopted).unwrap();
    assert!(matches!(state.action(), Some(Action::Up(_))), "{state:?}");
    assert_eq!((state.down_action_id, state.down_nodes), (None, None));
    assert_eq!(state.fence, Some(2), "the first executor is fenced");
}

#[test]
fn old_writers_cannot_begin_while_ours_is_under_way() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_pods(6);
    let mut executor = world.executor("a", &Gate::open());
    world.never_joins(0);
    world.never_joins(1);
    at_once(executor.tick()).unwrap().unwrap();
    let item = world.item();
    let now = world.epoch();
    use tenure_store::Condition;
    let old_lock = |now: i64| {
        Condition::absent("scalingInProgress")
            .or(Condition::eq("scalingInProgress", false))
            .or(Condition::lt("lockUntilEpoch", now))
    };
    let old_begin = Condition::absent("scalingInProgress").or(Condition::eq("scalingInProgress", false));
    assert!(!old_begin.holds(&item));
    // As long as the action may take, however many ticks that is.
    for seconds in [0, 60, 300, 599] {
        assert!(!old_lock(now + seconds).holds(&item), "stolen after {seconds} s");
    }
    assert!(old_lock(now + 601).holds(&item));
}

#[test]
fn the_idle_item_looks_like_the_old_one() {
    let world = World::new(policy());
    world.put_item(item(IDLE));
    world.add_worker(1);
    world.add_pods(6);
    let mut executor = world.executor("a", &Gate::open());
    // The old writer's `lastScaleEpoch` is the cooldown's beginning.
    for _ in 0..20 {
        at_once(executor.tick()).unwrap().unwrap();
        world.advance(std::time::Duration::from_secs(30));
    }
    let names: Vec<String> = world.item().iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(
        names,
        [
            "actionSeq",
            "failCount",
            "fence",
            "idleSinceEpoch",
            "interrupts",
            "lastScaleEpoch",
            "nextAllowedEpoch",
            "nodeBackoff",
            "pendingSinceEpoch",
            "pk",
            "rev",
            "scalingInProgress",
            "schemaVersion",
            "workerCount"
        ]
    );
    assert_eq!(world.state().worker_count, Some(3));
}

#[test]
fn attributes_of_others_stay() {
    let world = World::new(policy());
    world.put_item(item(IDLE).with("ownNotes", "kept"));
    let executor = world.executor("a", &Gate::open());
    at_once(executor.book().pause(true)).unwrap().unwrap();
    assert_eq!(world.item().text("ownNotes"), Some("kept"));
    assert!(world.state().is_paused());
}

#[test]
fn a_refused_write_returns_the_row() {
    let world = World::new(policy());
    world.put_item(migrated(UP));
    let change = Change::BeginUp {
        action: "x".into(),
        places: Policy::new("c", 1, 2, policy().places).places,
        deadline: 1,
    };
    let write = write(
        tenure_autoscaler::rows::STATE_TABLE,
        &State { schema_version: Some(2), rev: Some(1), ..State::default() },
        &change,
        &stamp(1_730_000_500),
    )
    .unwrap();
    let written = at_once(world.store().write(tenure_clock::Monotonic::NEVER, &write)).unwrap().unwrap();
    let Written::Refused(refusal) = written else { panic!("{written:?}") };
    assert_eq!(refusal.current.unwrap().text("scaleUpActionId"), Some("1730000300-req-xyz"));
}
