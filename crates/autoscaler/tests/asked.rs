//! What people ask of an executor: plans, explanations, drains by hand, leftovers, adoption.

use std::time::Duration;

use tenure_autoscaler::change::Change;
use tenure_autoscaler::machine::explain::Said;
use tenure_autoscaler::observation::{PodOwner, tags};
use tenure_autoscaler::testing::{Gate, World, at_once};
use tenure_autoscaler::trial::audit;
use tenure_autoscaler::{Adopted, Drain, Effect, Executor, Planned};
use tenure_backend::Kind;
use tenure_store::{Condition, Write};

use crate::stories::{one_worker, three_idle_workers};

fn executor(world: &World) -> Executor {
    world.executor("a", &Gate::open())
}

fn now<T>(future: impl Future<Output = T>) -> T {
    at_once(future).expect("nothing waits here")
}

#[test]
fn a_plan_has_the_writes_and_the_first_calls_and_changes_nothing() {
    let world = one_worker();
    world.add_pods(6);
    let plan = now(executor(&world).plan()).unwrap();
    assert_eq!(plan.decision(), "add 2 workers");
    let told: Vec<_> = plan
        .effects
        .iter()
        .map(|effect| match effect {
            Planned::Write(change, _) => change.name().row().title.to_owned(),
            Planned::Call(call) => call.what(),
        })
        .collect();
    assert_eq!(told, ["migrate", "begin up", "launch an instance for slot 0 (attempt 0)"]);
    let Planned::Write(_, begin) = &plan.effects[1] else { panic!("{plan:?}") };
    let Write::Update { when, .. } = begin else { panic!("{begin:?}") };
    let rev = Condition::eq("rev", 1);
    assert!(matches!(when, Condition::All(all) if all.contains(&rev)), "as after the first write: {when:?}");
    assert!(plan.reasons.iter().any(|reason| reason.contains("4 pods wait for 2 workers")), "{plan:?}");
    assert_eq!(plan.blockers, Vec::<String>::new());
    assert_eq!((world.item().len(), world.launches()), (0, 0), "nothing was written or launched");
}

#[test]
fn a_plan_tells_what_is_in_the_way() {
    let world = one_worker();
    now(executor(&world).tick()).unwrap();
    now(executor(&world).book().pause(true)).unwrap();
    world.add_pods(4);
    let plan = now(executor(&world).plan()).unwrap();
    assert_eq!(plan.decision(), "nothing");
    assert!(plan.blockers[0].starts_with("paused"), "{plan:?}");
    let begins = |effect: &Planned| matches!(effect, Planned::Write(Change::BeginUp { .. }, _));
    assert!(!plan.effects.iter().any(begins));
}

#[test]
fn a_plan_of_what_another_carries_on_is_to_wait() {
    let world = one_worker();
    world.add_pods(4);
    now(executor(&world).tick()).unwrap();
    let plan = now(world.executor("b", &Gate::open()).plan()).unwrap();
    assert!(plan.decision().starts_with("wait for "), "{plan:?}");
    assert!(plan.blockers[0].contains("carries the action on"), "{plan:?}");
}

fn text(said: &[Said], topic: &str) -> String {
    let of_it = said.iter().filter(|said| said.topic == topic).map(|said| said.text.as_str());
    of_it.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_node_is_explained() {
    let world = three_idle_workers();
    world.add_pod_on("worker-2", PodOwner::Nobody);
    world.hide_load_of("worker-3");
    let explain = |name: &str| now(executor(&world).explain_node(name)).unwrap();
    let first = explain("worker-1").unwrap();
    assert!(text(&first, "instance").starts_with("i-worker1 runs; one of the cluster"), "{first:?}");
    assert!(text(&first, "load").starts_with("5 % of its CPU"), "{first:?}");
    assert_eq!(text(&first, "scale-down"), "it is among those that are taken away next");
    assert_eq!(explain("i-worker1").unwrap(), first, "by its instance's id, too");
    let kept = explain("worker-2").unwrap();
    assert!(text(&kept, "scale-down").contains("may not be evicted"), "{kept:?}");
    assert!(text(&kept, "pods").contains("`evict_unmanaged` allows it"), "{kept:?}");
    assert!(text(&explain("worker-3").unwrap(), "scale-down").contains("load is unknown"));
    assert_eq!(explain("nobody"), None);
}

#[test]
fn a_pod_is_explained() {
    let world = one_worker();
    world.add_pods(3);
    world.add_pod_on("worker-1", PodOwner::DaemonSet);
    let pods = now(world.ports(&Gate::open()).cluster.pods(tenure_clock::Monotonic::NEVER)).unwrap();
    let explain = |name: &str| now(executor(&world).explain_pod(name)).unwrap();
    assert!(pods.iter().any(|pod| pod.node.is_none()) && pods.iter().any(|pod| pod.node.is_some()));
    for pod in pods {
        let told = explain(&format!("{}/{}", pod.namespace, pod.name)).unwrap();
        match pod.node {
            None => assert!(text(&told, "scale-up").contains("it waits, and counts"), "{told:?}"),
            Some(_) if pod.owner == PodOwner::DaemonSet => {
                assert_eq!(text(&told, "eviction"), "it goes with its node");
            }
            Some(_) => assert!(text(&told, "eviction").starts_with("may be evicted"), "{told:?}"),
        }
    }
    assert_eq!(explain("default/nobody"), None);
}

#[test]
fn a_drain_on_trial_asks_and_changes_nothing() {
    let world = three_idle_workers();
    now(executor(&world).book().migrate()).unwrap();
    let check = now(executor(&world).check_drain("worker-1")).unwrap();
    assert_eq!((check.blockers.len(), check.pods.len()), (0, 1), "{check:?}");
    assert_eq!(check.pods[0].1, "would be evicted");
    world.budget_blocks_until(world.epoch() + 60);
    world.deny("end", "i-worker1", world.epoch() + 60);
    let check = now(executor(&world).check_drain("worker-1")).unwrap();
    let told = check.blockers.join("\n");
    assert!(told.contains("may not be ended") && told.contains("may not be evicted now"), "{told}");
    assert!(world.nodes().values().all(|node| !node.unschedulable));
    assert_eq!(now(executor(&world).check_drain("nobody")).unwrap_err().kind(), Kind::Invalid);
    let control = world.nodes().values().find(|node| node.control_plane).unwrap().name.clone();
    let check = now(executor(&world).check_drain(&control)).unwrap();
    assert!(check.blockers.iter().any(|why| why.contains("control plane")), "{check:?}");
}

#[test]
fn a_node_is_drained_by_hand_and_the_rules_hold() {
    let world = three_idle_workers();
    now(executor(&world).book().migrate()).unwrap();
    let mut one = executor(&world);
    let Drain::Began { action, instance } = now(one.begin_drain("worker-2")).unwrap() else {
        panic!("nothing is in the way");
    };
    assert!(!now(one.is_gone(&instance)).unwrap());
    for _ in 0..10 {
        if now(one.tick()).unwrap().state.action_id() != Some(&action) {
            break;
        }
        world.advance(Duration::from_secs(5));
    }
    assert!(!world.live().contains(&"i-worker2".into()), "{:?}", world.live());
    assert!(now(one.is_gone(&instance)).unwrap());
    assert_eq!(world.state().action_id(), None);
    assert_eq!(world.violations(), []);
    // Within the cooldown, and with as few as there may be, it is refused, and says so.
    let refused = blockers(now(one.begin_drain("worker-1")).unwrap());
    assert!(refused.contains("cooling down"), "{refused}");
    assert!(world.live().contains(&"i-worker1".into()));
}

#[test]
fn as_few_as_there_may_be_stay() {
    let world = one_worker();
    now(executor(&world).book().migrate()).unwrap();
    let refused = blockers(now(executor(&world).begin_drain("worker-1")).unwrap());
    assert!(refused.contains("fewest allowed"), "{refused}");
}

fn blockers(drain: Drain) -> String {
    match drain {
        Drain::Blocked(check) => check.blockers.join("; "),
        Drain::Began { action, .. } => panic!("{action} began"),
    }
}

#[test]
fn whoever_may_not_ask_about_an_end_is_told_before_anything_begins() {
    let world = three_idle_workers();
    world.deny("ask", "i-worker1", world.epoch() + 60);
    let check = now(executor(&world).check_drain("worker-1")).unwrap();
    assert!(check.blockers.iter().any(|why| why.contains("may not be ended")), "{check:?}");
}

#[test]
fn beside_an_old_writer_without_an_action_nothing_is_done_by_hand() {
    let world = three_idle_workers();
    now(executor(&world).book().migrate()).unwrap();
    let lock = world.epoch() + 600;
    world.put_item(
        world.item().with("scalingInProgress", true).with("lockOwner", "req").with("lockUntilEpoch", lock),
    );
    let left = now(executor(&world).collect(false)).unwrap();
    assert!(left.reasons[0].starts_with("an old writer's action is under way"), "{left:?}");
    let refused = blockers(now(executor(&world).begin_drain("worker-1")).unwrap());
    assert!(refused.contains("an old writer's action is under way"), "{refused}");
}

#[test]
fn leftovers_are_collected_in_two_looks_and_not_on_trial() {
    let world = one_worker();
    world.never_joins(0);
    world.add_pods(4);
    now(executor(&world).tick()).unwrap();
    // The item is lost in the middle of a scale-up: what it launched is nobody's.
    world.lose_item();
    world.remove_pods();
    now(executor(&world).book().migrate()).unwrap();
    let orphan = world.live().into_iter().find(|id| id.as_str().starts_with("i-new")).unwrap();
    let left = now(executor(&world).collect(true)).unwrap();
    assert!(
        matches!(&left.effects[..], [Effect::Suspect { instance, .. }] if *instance == orphan),
        "{left:?}"
    );
    assert_eq!(world.instance(&orphan).unwrap().tag(tags::SUSPECT), None, "it was only asked");
    now(executor(&world).collect(false)).unwrap();
    assert!(world.instance(&orphan).unwrap().tag(tags::SUSPECT).is_some());
    world.advance(Duration::from_secs(120));
    let left = now(executor(&world).collect(false)).unwrap();
    assert_eq!(left.effects, [Effect::Terminate(orphan.clone())]);
    assert!(!world.live().contains(&orphan));
    assert_eq!(now(executor(&world).collect(false)).unwrap().effects, []);
}

/// Numbers begin again: the log has both, one after the other, and finds nothing wrong with that.
#[test]
fn a_lost_item_leaves_its_log_and_the_next_goes_on_in_it() {
    let world = one_worker();
    world.add_pods(4);
    for _ in 0..2 {
        now(executor(&world).tick()).unwrap();
        world.advance(Duration::from_secs(60));
        now(executor(&world).tick()).unwrap();
        world.lose_item();
        world.add_pods(4);
        world.advance(Duration::from_secs(600));
    }
    let (events, strange) = now(executor(&world).book().events(i64::MIN, 1000)).unwrap();
    assert_eq!(strange.len(), 0);
    let migrated: Vec<_> = events.iter().filter(|event| event.event == "migrate").collect();
    assert_eq!(migrated.iter().map(|event| event.rev).collect::<Vec<_>>(), [1, 1]);
    assert!(events.is_sorted_by_key(|event| event.epoch));
    let (actions, wrong) = audit(&events);
    assert_eq!((actions.len(), wrong), (2, Vec::new()));
}

#[test]
fn nothing_is_collected_while_an_action_is_under_way() {
    let world = one_worker();
    world.add_pods(4);
    now(executor(&world).tick()).unwrap();
    let left = now(executor(&world).collect(false)).unwrap();
    assert_eq!(left.effects, []);
    assert!(left.reasons[0].contains("is under way"), "{left:?}");
}

#[test]
fn an_instance_is_adopted_by_its_node_alone() {
    let world = one_worker();
    let untagged = world.add_untagged_worker(2);
    let lonely = world.add_untagged_instance("i-lonely");
    let one = executor(&world);
    assert_eq!(now(one.adopt(&untagged)).unwrap(), Adopted::Now);
    assert_eq!(world.instance(&untagged).unwrap().tag(tags::CLUSTER), Some("demo"));
    assert_eq!(now(one.adopt(&untagged)).unwrap(), Adopted::Already);
    let refused = |id: &str| now(one.adopt(&id.into())).unwrap_err().chain();
    assert!(refused(lonely.as_str()).contains("tenure.dev/instance-id"));
    assert!(refused("i-nobody").contains("knows no instance"));
}
