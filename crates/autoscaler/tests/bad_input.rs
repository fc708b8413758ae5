//! Whatever is wrong, nothing is taken away on doubt, nothing stays cordoned or unrecorded, and the message
//! says what to do.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_autoscaler::change::{Change, Stamp};
use tenure_autoscaler::observation::PodOwner;
use tenure_autoscaler::rows::decode;
use tenure_autoscaler::state::{Interrupt, InterruptKind, State};
use tenure_autoscaler::table::write;
use tenure_autoscaler::testing::{Gate, Measuring, World, at_once};
use tenure_backend::Kind;
use tenure_store::Value;

use crate::seed_items::item;
use crate::stories::{policy, three_idle_workers};

#[test]
fn mistyped_attributes_are_refused_with_their_name() {
    for (json, wanted) in [
        (
            r#"{"lastScaleEpoch":"1730000000"}"#,
            "attribute `lastScaleEpoch` of the state item is S `1730000000` and should be a whole N",
        ),
        (r#"{"scalingInProgress":"true"}"#, "should be a BOOL"),
        (r#"{"scaleUpInstanceIds":"i-aaa"}"#, "should be an L of S"),
        (r#"{"scaleUpInstanceIds":[1]}"#, "should be an L of S"),
        (r#"{"scaleDownPhase":"CORDONING"}"#, "a phase that this version knows"),
        (r#"{"scaleUpSlots":{"0":{"p":"PLANNED"}}}"#, "should be an M"),
        (r#"{"interrupts":{"i-1":7}}"#, "should be an M"),
        (r#"{"lockOwner":7}"#, "`lockOwner` of the state item is N `7` and should be an S"),
    ] {
        let error = decode(&item(json)).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.chain().contains(wanted), "{}", error.chain());
        for command in ["tenure autoscale state repair", "tenure store get", "tenure store put"] {
            assert!(error.chain().contains(command), "{}", error.chain());
        }
    }
    let newer = decode(&item(r#"{"schemaVersion":3}"#)).unwrap_err();
    assert!(newer.chain().contains("use the newer one"), "{}", newer.chain());
}

#[test]
fn a_damaged_item_stops_everything_and_stays_as_it_is() {
    let world = three_idle_workers();
    world.put_item(item(r#"{"pk":"cluster","scalingInProgress":"no"}"#));
    let before = world.item();
    let error = at_once(world.executor("a", &Gate::open()).tick()).unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert_eq!(world.item(), before);
    assert_eq!(world.live().len(), 4);
}

#[test]
fn without_fresh_metrics_nothing_is_taken_away() {
    for measuring in [Measuring::Failing, Measuring::Stale, Measuring::Empty] {
        let world = three_idle_workers();
        world.measure(measuring, 1);
        let mut executor = world.executor("a", &Gate::open());
        for _ in 0..40 {
            at_once(executor.tick()).unwrap().unwrap();
            world.advance(Duration::from_secs(60));
        }
        assert_eq!(world.ended_actions(), 0, "{measuring:?}");
        assert_eq!(world.live().len(), 4, "{measuring:?}");
        assert_eq!(world.final_violations(), []);
    }
}

#[test]
fn pods_that_wait_are_served_without_metrics() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_pods(6);
    world.measure(Measuring::Failing, 1);
    at_once(world.executor("a", &Gate::open()).tick()).unwrap().unwrap();
    assert_eq!(world.live().len(), 3);
}

#[test]
fn an_unknown_load_of_a_single_node_protects_it() {
    let world = three_idle_workers();
    world.hide_load_of("worker-2");
    world.hide_load_of("worker-3");
    let mut executor = world.executor("a", &Gate::open());
    for _ in 0..10 {
        at_once(executor.tick()).unwrap().unwrap();
        world.advance(Duration::from_secs(60));
    }
    let nodes = world.nodes();
    assert!(nodes.contains_key("worker-2") && nodes.contains_key("worker-3"), "{:?}", nodes.keys());
}

#[test]
fn a_pod_that_nobody_brings_back_protects_its_node() {
    let world = three_idle_workers();
    for number in 1..=3 {
        world.add_pod_on(&format!("worker-{number}"), PodOwner::Nobody);
    }
    let mut executor = world.executor("a", &Gate::open());
    for _ in 0..10 {
        at_once(executor.tick()).unwrap().unwrap();
        world.advance(Duration::from_secs(60));
    }
    assert_eq!(world.live().len(), 4);
}

#[test]
fn more_targets_than_fit_the_item_are_refused() {
    let state = State { schema_version: Some(2), rev: Some(1), ..State::default() };
    let stamp = Stamp { owner: "me".into(), now_ms: 0, lease_ms: 45_000, skew_ms: 5000 };
    let place = policy().places[0].clone();
    let begin = |count: usize| Change::BeginUp {
        action: "a".into(),
        places: vec![place.clone(); count],
        deadline: 600,
    };
    write("t", &state, &begin(50), &stamp).unwrap();
    for count in [0, 51] {
        assert!(write("t", &state, &begin(count), &stamp).unwrap_err().chain().contains("1 to 50"));
    }
}

#[test]
fn the_largest_item_stays_far_below_the_limit() {
    let stamp = Stamp { owner: "o".repeat(60), now_ms: 0, lease_ms: 45_000, skew_ms: 5000 };
    let mut state = State { schema_version: Some(2), ..State::default() };
    let long = |number: usize| format!("i-{number:017}");
    for number in 0..300 {
        let interrupt = Interrupt::told(InterruptKind::Rebalance, number);
        let change = Change::Interrupt { instance: long(number as usize).into(), interrupt };
        state = change.apply(&state, &stamp).unwrap();
    }
    assert_eq!(state.interrupts.as_ref().map(BTreeMap::len), Some(100));
    assert!(state.interrupted().all(|(_, interrupt)| interrupt.at >= 200), "the newest are kept");
    let nodes = (0..50).map(|n| (long(n).into(), ("n".repeat(253), "u".repeat(36)))).collect();
    let down = Change::BeginDown { action: "a".repeat(100).into(), nodes, deadline: 900 };
    let item = tenure_autoscaler::rows::encode(&down.apply(&state, &stamp).unwrap());
    assert!(item.size_bytes() < 60_000, "{} bytes", item.size_bytes());
}

#[test]
fn an_item_that_others_filled_up_is_told_of() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_pods(6);
    let huge = Value::S("x".repeat(400 * 1024 - 100));
    world.put_item(item(r#"{"pk":"cluster","scalingInProgress":false}"#).with("notes", huge));
    let error = at_once(world.executor("a", &Gate::open()).tick()).unwrap().unwrap_err();
    assert!(error.chain().contains("at most 409600 fit"), "{}", error.chain());
    assert_eq!(world.live().len(), 1, "nothing is launched that cannot be recorded");
}

#[test]
fn a_clock_that_is_an_hour_ahead_breaks_nothing() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_pods(6);
    let mut first = world.executor("a", &Gate::open());
    at_once(first.tick()).unwrap().unwrap();
    // It believes that every lease and deadline is past, takes over, aborts and reaps.
    let mut ahead = world.skewed_executor("ahead", 3_600_000);
    let _ = at_once(ahead.tick()).unwrap();
    for _ in 0..150 {
        world.advance(Duration::from_secs(60));
        let _ = at_once(first.tick()).unwrap();
    }
    assert_eq!(world.final_violations(), []);
}

#[test]
fn a_clock_that_is_an_hour_behind_begins_nothing_and_says_so() {
    let world = three_idle_workers();
    let mut behind = world.skewed_executor("behind", -3_600_000);
    let tick = at_once(behind.tick()).unwrap().unwrap();
    assert!(tick.state.action().is_none(), "{tick:?}");
    world.add_pods(10);
    let tick = at_once(behind.tick()).unwrap().unwrap();
    let reasons = tick.reasons.join("; ");
    assert!(reasons.contains("this clock is 3600 s behind what others dated"), "{reasons}");
    assert_eq!(world.live().len(), 4);
}

#[test]
fn a_clock_that_is_an_hour_ahead_takes_nothing_away_and_says_so() {
    let world = three_idle_workers();
    let mut ahead = world.skewed_executor("ahead", 3_600_000);
    let tick = at_once(ahead.tick()).unwrap().unwrap();
    let reasons = tick.reasons.join("; ");
    assert!(reasons.contains("the newest load is 3600 s old"), "{reasons}");
    assert!(reasons.contains("this clock is ahead"), "{reasons}");
    assert_eq!((tick.state.action(), world.live().len()), (None, 4));
}

#[test]
fn an_end_of_an_action_that_lies_ahead_is_doubted() {
    let world = three_idle_workers();
    let ahead = world.epoch() + 3600;
    world.put_item(item(r#"{"pk":"cluster","scalingInProgress":false}"#).with("lastScaleEpoch", ahead));
    at_once(world.executor("a", &Gate::open()).tick()).unwrap().unwrap();
    assert_eq!(world.live().len(), 4);
}
