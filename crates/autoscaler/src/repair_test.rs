use tenure_store::Effect;

use super::*;
use crate::rows::state_table;

const NOW: i64 = 1_730_000_000;

fn idle() -> Item {
    Item::new().with("pk", "cluster").with("scalingInProgress", false).with("lastScaleEpoch", NOW - 9)
}

fn texts(ids: &[&str]) -> Value {
    Value::L(ids.iter().map(|id| Value::from(*id)).collect())
}

/// What is mended and what is left, and the item afterwards.
fn mend(item: &Item) -> (Item, Repair) {
    let repair = repair(item, NOW);
    let after = match repair.write("state", item) {
        None => item.clone(),
        Some(write) => match write.decide(&state_table("state"), Some(item)).unwrap() {
            Some(Effect::Store(after)) => after,
            other => panic!("it is as it was read: {other:?}"),
        },
    };
    let again = super::repair(&after, NOW);
    assert_eq!(again.mended, Vec::<String>::new(), "mended once is mended: {after:?}");
    (after, repair)
}

#[test]
fn an_item_in_order_is_left_alone() {
    let (after, repair) = mend(&idle());
    assert_eq!((after, repair), (idle(), Repair::default()));
}

#[test]
fn a_value_of_another_type_is_taken_for_what_it_says() {
    let item = idle()
        .with("lastScaleEpoch", "1729999000")
        .with("scalingInProgress", "false")
        .with("workerCount", "two")
        .with("failCount", "3")
        .with("paused", 1)
        .with("mine", "stays");
    let (after, repair) = mend(&item);
    assert_eq!((repair.mended.len(), repair.left.len()), (5, 0), "{repair:?}");
    assert_eq!(after.integer("failCount"), Some(3));
    assert_eq!(after.integer("lastScaleEpoch"), Some(1_729_999_000));
    assert_eq!(after.get("scalingInProgress"), Some(&false.into()));
    assert_eq!(after.get("paused"), Some(&true.into()));
    assert_eq!(after.get("workerCount"), None);
    assert_eq!(after.text("mine"), Some("stays"));
    assert_eq!(
        (after.integer("rev"), after.integer("fence")),
        (Some(1), Some(1)),
        "whoever planned is fenced"
    );
}

#[test]
fn what_has_no_plain_meaning_is_told_and_left() {
    let item = idle().with("lastScaleEpoch", "yesterday");
    let (after, repair) = mend(&item);
    assert_eq!(after, item);
    assert!(repair.left[0].contains("lastScaleEpoch"), "{repair:?}");
    assert!(repair.left[0].contains("tenure store put"), "{repair:?}");
    assert!(!repair.left[0].contains("state repair"), "whoever reads this has just done that: {repair:?}");
}

#[test]
fn a_flag_that_an_action_contradicts_is_set() {
    let (after, _) = mend(&idle().with("scaleUpActionId", "up-1").with("scaleUpStartedEpoch", NOW));
    assert_eq!(after.get("scalingInProgress"), Some(&true.into()));
}

#[test]
fn what_is_left_of_a_plan_goes_and_the_rest_stays() {
    let (after, repair) =
        mend(&idle().with("planFor", "up-1").with("lockUntilEpoch", NOW).with("actionSeq", 7));
    assert_eq!((after.get("planFor"), after.get("lockUntilEpoch")), (None, None));
    assert_eq!(after.integer("actionSeq"), Some(7), "numbers of actions never go back");
    assert_eq!(repair.mended.len(), 1);
}

#[test]
fn completed_ids_that_are_no_targets_are_removed() {
    let item = idle()
        .with("scalingInProgress", true)
        .with("scaleDownActionId", "sd-1")
        .with("scaleDownTargetInstanceIds", texts(&["i-a", "i-b"]))
        .with("scaleDownCompletedInstanceIds", texts(&["i-c", "i-a"]));
    let (after, _) = mend(&item);
    assert_eq!(after.get("scaleDownCompletedInstanceIds"), Some(&texts(&["i-a"])));
}

#[test]
fn epochs_ahead_begin_now() {
    let item = idle()
        .with("lastScaleEpoch", NOW + 3600)
        .with("idleSinceEpoch", NOW + 3600)
        .with("nextAllowedEpoch", NOW + 100_000)
        .with("lockUntilEpoch", NOW * 1000);
    let (after, repair) = mend(&item);
    assert_eq!(after.integer("lastScaleEpoch"), Some(NOW));
    assert_eq!(after.integer("idleSinceEpoch"), Some(0));
    assert_eq!(after.integer("nextAllowedEpoch"), Some(NOW));
    assert_eq!(after.integer("lockUntilEpoch"), Some(NOW + 900));
    assert_eq!(repair.mended.len(), 4);
}

#[test]
fn what_changed_meanwhile_refuses_it() {
    let item = idle().with("workerCount", "2");
    let write = repair(&item, NOW).write("state", &item).unwrap();
    let changed = |name: &str, value: Value| item.clone().with(name, value);
    for (name, value) in [("scalingInProgress", true.into()), ("lockOwner", "b".into()), ("rev", 1.into())] {
        assert_eq!(write.decide(&state_table("state"), Some(&changed(name, value))).unwrap(), None, "{name}");
    }
}

#[test]
fn an_item_of_a_newer_version_is_left_alone() {
    for version in [Value::from(3), Value::from("3")] {
        let item = idle().with("schemaVersion", version).with("workerCount", "two");
        let (after, repair) = mend(&item);
        assert_eq!(after, item);
        assert!(repair.left[0].contains("newer"), "{repair:?}");
    }
}

#[test]
fn counters_that_were_texts_go_on_counting() {
    let (after, _) = mend(&idle().with("rev", "7").with("fence", 3));
    assert_eq!((after.integer("rev"), after.integer("fence")), (Some(8), Some(4)));
}

#[test]
fn a_counter_that_holds_no_more_goes_on_from_now() {
    let beyond = Value::N("9223372036854775808".parse().unwrap());
    let item = idle().with("rev", beyond).with("fence", i64::MAX).with("actionSeq", i64::MAX);
    let (after, repair) = mend(&item);
    for counter in COUNTED {
        assert_eq!(after.integer(counter), Some(NOW), "{repair:?}");
    }
    assert_eq!((repair.mended.len(), repair.left.len()), (3, 0), "{repair:?}");
}

/// Whatever is mended was wrong, and is not any more.
#[test]
fn a_check_finds_what_is_mended() {
    let ids = || texts(&["i-c"]);
    for item in [
        idle().with("nextAllowedEpoch", 1_999_999_999_999_i64),
        idle().with("lastScaleEpoch", NOW + 3600),
        idle().with("lockUntilEpoch", NOW * 1000),
        idle().with("planFor", "up-1"),
        idle().with("scaleDownCompletedInstanceIds", ids()),
        idle().with("scaleUpActionId", "up-1"),
        idle().with("rev", i64::MAX),
    ] {
        let wrong = |item: &Item| {
            let found = crate::check::findings(&decode_mended(item).unwrap(), 100, NOW);
            found.into_iter().filter(|finding| finding.is_wrong).collect::<Vec<_>>()
        };
        assert_ne!(wrong(&item), [], "{item:?}");
        let (after, repair) = mend(&item);
        assert_ne!(repair.mended, Vec::<String>::new(), "{item:?}");
        assert_eq!(wrong(&after), [], "{repair:?}");
    }
}
