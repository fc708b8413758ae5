//! Old writers beside ours on DynamoDB emulators: they send the expressions of the old documents, by the SDK alone.
//!
//! The state item is in the emulator; the cloud and the cluster are simulated, and time passes where a test says so.

#[path = "dynamodb/peer.rs"]
mod peer;
#[path = "dynamodb/site.rs"]
mod site;

use tenure_autoscaler::observation::PodOwner;
use tenure_autoscaler::rows::{decode, encode};
use tenure_autoscaler::testing::World;

use self::peer::{list, number, text};
use self::site::Site;
use crate::seed_items::{DOWN, IDLE, LOCKED, UP, item};
use crate::stories::{one_worker, three_idle_workers};

/// Amazon's own emulator.
mod dynamodb_local {
    super::beside_old_peers!("TENURE_TEST_DYNAMODB_LOCAL");
}

/// Another's.
mod dynoxide {
    super::beside_old_peers!("TENURE_TEST_DYNOXIDE");
}

macro_rules! beside_old_peers {
    ($variable:literal) => {
        super::beside_old_peers! { @cases $variable:
            neither_begins_while_ours_is_under_way
            neither_begins_while_we_scale_down
            a_scale_up_that_was_left_is_taken_over
            a_scale_down_that_was_left_is_taken_over
            a_lock_that_was_left_is_cleared
            a_theft_after_an_outage_is_repaired
            a_scale_down_that_was_cleared_under_us_leaves_no_cordon
            what_they_complete_cools_down
            every_example_is_read_and_kept
        }
    };
    (@cases $variable:literal: $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                super::$case($variable).await;
            }
        )*
    };
}
use beside_old_peers;

/// Nobody joins, so that the scale-up stays under way.
fn launching() -> World {
    let world = one_worker();
    world.add_pods(6);
    world.never_joins(0);
    world.never_joins(1);
    world
}

async fn neither_begins_while_ours_is_under_way(variable: &str) {
    let site = Site::on(variable, launching()).await;
    let mut ours = site.executor("ours");
    assert_eq!(site.tick_after(0, &mut ours).await.0, "migrate, begin up, record, record");
    let peer = site.peer("req-old");
    for seconds in [0, 60, 300, 599] {
        let now = site.world.epoch() + seconds;
        assert!(!peer.lock(now, now + 120).await, "stolen after {seconds} s");
        assert!(!peer.begin_up("old-up", now, 1).await, "begun after {seconds} s");
        assert!(!peer.begin_down("sd-old", now, &["i-worker1"]).await, "begun after {seconds} s");
        // Nor does what it believes to be its own land on ours.
        assert!(!peer.record("old-up", &["i-zzz"]).await);
        assert!(!peer.complete_up("old-up", now).await);
        assert!(!peer.fail_up("old-up").await);
        assert!(!peer.mark_done("sd-old", "i-worker1").await);
        assert!(!peer.complete_down("sd-old", now).await);
        assert!(!peer.fail_down("sd-old").await);
    }
    // As long as ours ticks, the lock stays ahead, until it gives up: nobody joined.
    let mut state = site.tick_after(100, &mut ours).await.1.state;
    while state.action().is_some() {
        let now = site.world.epoch();
        assert!(state.lock_until_epoch > Some(now), "{state:?}");
        assert!(!peer.lock(now, now + 120).await);
        state = site.tick_after(100, &mut ours).await.1.state;
    }
    assert_eq!(state.last_failure.as_deref(), Some("0 of 2 instances joined"));
    assert_eq!(site.world.live().len(), 2, "the control plane and the worker");
    site.close().await;
}

async fn neither_begins_while_we_scale_down(variable: &str) {
    let world = three_idle_workers();
    world.budget_blocks_until(world.epoch() + 5000);
    let site = Site::on(variable, world).await;
    let mut ours = site.executor("ours");
    assert_eq!(site.tick_after(0, &mut ours).await.0, "migrate, begin down");
    let peer = site.peer("req-old");
    for _ in 0..8 {
        site.tick_after(100, &mut ours).await;
        let now = site.world.epoch();
        assert!(!peer.lock(now, now + 120).await);
        assert!(!peer.begin_up("old-up", now, 1).await);
        assert!(!peer.begin_down("sd-old", now, &["i-worker1"]).await);
    }
    let state = site.tick_after(100, &mut ours).await.1.state;
    assert_eq!(state.last_failure.as_deref(), Some("2 of 2 nodes were given back"));
    assert!(site.world.nodes().values().all(|node| !node.unschedulable));
    site.close().await;
}

async fn a_scale_up_that_was_left_is_taken_over(variable: &str) {
    let world = one_worker();
    let site = Site::on(variable, world).await;
    let began = site.world.epoch();
    let peer = site.peer("req-old");
    assert!(peer.begin_up("1730000000-req-old", began, 2).await);
    site.world.add_untagged_worker(2);
    site.world.add_untagged_instance("i-lame");
    assert!(peer.record("1730000000-req-old", &["i-worker2", "i-lame"]).await);
    // It dies. As long as it may live, nothing of it is touched.
    let mut ours = site.executor("ours");
    assert_eq!(site.tick_after(0, &mut ours).await.0, "migrate");
    let (writes, tick) = site.tick_after(900, &mut ours).await;
    assert_eq!(
        (writes.as_str(), tick.reasons.as_slice()),
        ("", &["an old writer's action is under way".into()][..])
    );
    assert_eq!(site.tick_after(1, &mut ours).await.0, "adopt up, join");
    // What it still writes under its id is refused no more than before, and does no harm.
    assert!(!peer.begin_up("another", site.world.epoch(), 1).await);
    let state = site.until_idle().await;
    assert_eq!(state.last_failure.as_deref(), Some("1 of 2 instances joined"));
    let live: Vec<_> = site.world.live().iter().map(ToString::to_string).collect();
    assert_eq!(live, ["i-control", "i-worker1", "i-worker2"]);
    site.close().await;
}

async fn a_scale_down_that_was_left_is_taken_over(variable: &str) {
    let site = Site::on(variable, three_idle_workers()).await;
    let began = site.world.epoch();
    let peer = site.peer("req-old");
    assert!(peer.begin_down("sd-1730000000-req", began, &["i-worker3", "i-worker2"]).await);
    site.world.kill(&"i-worker3".into());
    assert!(peer.mark_done("sd-1730000000-req", "i-worker3").await);
    assert!(!peer.mark_done("sd-1730000000-req", "i-worker3").await, "once");
    site.world.cordon_by_old_writer("worker-2");
    let mut ours = site.executor("ours");
    assert_eq!(site.tick_after(0, &mut ours).await.0, "migrate");
    let (writes, _) = site.tick_after(901, &mut ours).await;
    assert_eq!(writes, "adopt down, cordon, drain, terminate, mark done, complete down");
    let live: Vec<_> = site.world.live().iter().map(ToString::to_string).collect();
    assert_eq!(live, ["i-control", "i-worker1"]);
    let item = site.item().await;
    assert_eq!(item["scalingInProgress"].as_bool(), Ok(&false));
    assert!(!item.keys().any(|name| name.starts_with("scaleDown") || name.starts_with("lock")), "{item:?}");
    site.close().await;
}

async fn a_lock_that_was_left_is_cleared(variable: &str) {
    let site = Site::on(variable, one_worker()).await;
    let began = site.world.epoch();
    assert!(site.peer("req-dead").lock(began, began + 120).await);
    let other = site.peer("req-other");
    assert!(!other.lock(began + 120, began + 240).await, "it is ahead");
    let mut ours = site.executor("ours");
    assert_eq!(site.tick_after(0, &mut ours).await.0, "migrate");
    assert_eq!(site.tick_after(125, &mut ours).await.0, "", "by the skew");
    assert_eq!(site.tick_after(1, &mut ours).await.0, "clear, windows");
    assert!(!site.item().await.contains_key("lockOwner"));
    // And is there for whoever comes.
    let now = site.world.epoch();
    assert!(other.lock(now, now + 120).await);
    site.close().await;
}

/// Ours cordoned a node and was cut off. An old writer found the lock past, began a scale-up over it, launched
/// one instance, and died.
async fn a_theft_after_an_outage_is_repaired(variable: &str) {
    let world = three_idle_workers();
    world.budget_lies();
    let site = Site::on(variable, world).await;
    let mut ours = site.executor("ours");
    assert_eq!(site.tick_after(0, &mut ours).await.0, "migrate, begin down, cordon, drain");
    let cordoned = || site.world.nodes().values().filter(|node| node.unschedulable).count();
    assert_eq!(cordoned(), 2);

    let thief = site.peer("req-thief");
    site.world.advance(std::time::Duration::from_secs(899));
    let now = site.world.epoch();
    assert!(!thief.lock(now, now + 120).await, "our deadline is ahead");
    site.world.advance(std::time::Duration::from_secs(2));
    let now = site.world.epoch();
    assert!(thief.lock(now, now + 120).await);
    assert!(thief.plan_up("1730000901-req-thief", now).await);
    site.world.add_untagged_worker(4);
    site.world.add_pod_on("worker-4", PodOwner::Controller);

    // Ours comes back while the thief may be at work: it waits, and its own writes are refused.
    let (writes, tick) = site.tick_after(10, &mut ours).await;
    assert_eq!(
        (writes.as_str(), tick.reasons.as_slice()),
        ("", &["an old writer's action is under way".into()][..])
    );
    assert!(thief.record("1730000901-req-thief", &["i-worker4"]).await);

    // The thief died. What it launched is kept, and what ours had cordoned is given back.
    let (writes, _) = site.tick_after(120, &mut ours).await;
    assert!(writes.starts_with("adopt up, join, complete up"), "{writes}");
    site.until_idle().await;
    assert_eq!(cordoned(), 0);
    assert!(site.world.live().contains(&"i-worker4".into()));
    let item = site.item().await;
    assert!(!item.keys().any(|name| name.starts_with("scale") && name != "scalingInProgress"), "{item:?}");
    site.close().await;
}

/// An old writer takes our scale-down for stuck, as its document says, and clears it.
async fn a_scale_down_that_was_cleared_under_us_leaves_no_cordon(variable: &str) {
    let world = three_idle_workers();
    world.budget_lies();
    let site = Site::on(variable, world).await;
    let mut ours = site.executor("ours");
    let (_, tick) = site.tick_after(0, &mut ours).await;
    let action = tick.state.action_id().unwrap().to_string();
    assert!(site.peer("req-old").fail_down(&action).await, "its document checks no more than the id");
    site.world.measure(tenure_autoscaler::testing::Measuring::Fresh, 60);
    site.tick_after(60, &mut ours).await;
    site.until_idle().await;
    assert!(site.world.nodes().values().all(|node| !node.unschedulable));
    assert_eq!(site.world.live().len(), 4);
    site.close().await;
}

async fn what_they_complete_cools_down(variable: &str) {
    let site = Site::on(variable, one_worker()).await;
    let peer = site.peer("req-old");
    let mut ours = site.executor("ours");
    let began = site.world.epoch();
    assert!(peer.begin_up("old-up", began, 1).await);
    site.world.add_untagged_worker(2);
    assert!(peer.record("old-up", &["i-worker2"]).await);
    assert!(peer.complete_up("old-up", began + 60).await);
    site.world.add_pods(5);
    let (writes, tick) = site.tick_after(60, &mut ours).await;
    assert_eq!(writes, "migrate, windows");
    assert!(tick.reasons.iter().any(|reason| reason == "cooling down for 300 s more"), "{:?}", tick.reasons);
    assert_eq!(site.tick_after(299, &mut ours).await.0, "");
    assert_eq!(site.tick_after(1, &mut ours).await.0, "begin up, record");
    site.close().await;
}

/// Read as they are, migrated without a loss, and of the types that the documents give them.
async fn every_example_is_read_and_kept(variable: &str) {
    let site = Site::on(variable, one_worker()).await;
    for json in [IDLE, UP, DOWN, LOCKED] {
        let put = site.put(json).await;
        assert_eq!(encode(&decode(&item(json)).unwrap()), item(json));
        let ours = site.executor("ours");
        assert_eq!(ours.book().item().await.unwrap(), Some(item(json)), "as it was put");
        ours.book().migrate().await.unwrap();
        let kept = site.item().await;
        for (name, value) in &put {
            assert_eq!(kept.get(name), Some(value), "{name} of {json}");
        }
        assert_eq!(kept["schemaVersion"], number(2));
        assert_eq!(
            decode(&ours.book().item().await.unwrap().unwrap()).unwrap(),
            ours.book().state().await.unwrap()
        );
    }
    // What ours writes has the documents' types as well.
    site.put(IDLE).await;
    site.world.add_pods(6);
    site.tick_after(300, &mut site.executor("ours")).await;
    let item = site.item().await;
    assert_eq!(item["scalingInProgress"].as_bool(), Ok(&true));
    assert_eq!(item["scaleUpRequested"], number(2));
    assert_eq!(item["scaleUpInstanceIds"], list(&["i-new0", "i-new1"]));
    assert_eq!(item["pk"], text("cluster"));
    for name in ["lastScaleEpoch", "scaleUpStartedEpoch", "lockUntilEpoch", "idleSinceEpoch"] {
        assert!(item[name].is_n(), "{name}: {:?}", item[name]);
    }
    site.close().await;
}
