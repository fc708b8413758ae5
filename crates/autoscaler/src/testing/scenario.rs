//! The stories that the crash matrix tells, each from beginning to end of one action.

use std::time::Duration;

use tenure_backend::Kind;
use tenure_store::{Item, Value};

use super::world::{Measuring, World};
use crate::observation::PodOwner;
use crate::policy::Policy;
use crate::state::{InstanceId, Place};

/// One story.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Seconds between two ticks of the first executor.
    pub every: u64,
    /// Most ticks until its action should have ended.
    pub ticks: u32,
    /// The world at its beginning.
    pub build: fn() -> World,
    /// What happens before a tick, by its number.
    pub before_tick: fn(&World, u32),
    /// What happens while the first executor is stalled, before the second runs.
    pub during_stall: fn(&World),
    /// What happens before the first goes on.
    pub after_stall: fn(&World),
    /// Whether the old documents' flow can tell it: it knows no other subnet and adopts nothing.
    pub for_seed: bool,
    /// A fault and a stall at most this many calls apart are tried together.
    pub near_calls: u32,
}

const fn nothing(_: &World) {}
const fn nothing_at(_: &World, _: u32) {}

const PLAIN: Scenario = Scenario {
    name: "",
    every: 30,
    ticks: 12,
    build: up_two,
    before_tick: nothing_at,
    during_stall: nothing,
    after_stall: nothing,
    for_seed: true,
    near_calls: 3,
};

/// A story that differs from a plain one in a single place.
const BRIEF: Scenario = Scenario { for_seed: false, near_calls: 0, ..PLAIN };

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self { name: "up: two join", build: up_two, ..PLAIN },
        Self { name: "up: one never joins", every: 150, build: up_one_never_joins, ..PLAIN },
        Self { name: "up: no capacity in the first subnet", build: up_retargeted, for_seed: false, ..PLAIN },
        Self { name: "up: no capacity anywhere", build: up_nowhere, for_seed: false, ..PLAIN },
        Self { name: "up: launches denied", build: up_denied, for_seed: false, ..PLAIN },
        Self { name: "up: Ready just after the deadline", every: 99, build: up_ready_late, ..PLAIN },
        Self { name: "up: listed late", build: up_listed_late, ..PLAIN },
        Self {
            name: "up: capacity goes while the second runs",
            build: up_two,
            during_stall: |world| world.shortage("subnet-a", true),
            after_stall: |world| world.shortage("subnet-a", false),
            for_seed: false,
            ..PLAIN
        },
        Self {
            name: "up: spot capacity is taken back",
            build: up_two,
            before_tick: |world, tick| {
                if tick == 1 {
                    world.kill(&"i-new0".into());
                }
            },
            for_seed: false,
            ..PLAIN
        },
        Self { name: "down: two drained", build: down_two, ..PLAIN },
        Self { name: "down: a budget blocks, then yields", every: 60, build: down_budget, ..PLAIN },
        Self { name: "down: a budget never yields", every: 200, build: down_stuck, ..PLAIN },
        Self {
            name: "down: a person cordons, then it is given back",
            every: 200,
            build: down_by_hand,
            before_tick: |world, tick| {
                if tick == 1 {
                    world.cordon_by_hand("worker-2");
                    world.cordon_by_hand("worker-3");
                }
            },
            ..PLAIN
        },
        Self { name: "adopted: a scale-up of an old writer", build: adopt_up, for_seed: false, ..PLAIN },
        Self { name: "adopted: a scale-down of an old writer", build: adopt_down, for_seed: false, ..PLAIN },
        Self { name: "up: workers without our tags", build: up_untagged, ..BRIEF },
        Self { name: "up: tags are denied for a while", build: up_tags_denied, ..BRIEF },
        Self {
            name: "up: joined, then forgotten by the cloud",
            build: up_tags_denied,
            before_tick: |world, tick| {
                if tick == 3 {
                    world.purge(&"i-new0".into());
                }
            },
            ..BRIEF
        },
        Self {
            name: "up: the item is lost while the second runs",
            build: up_two,
            during_stall: World::lose_item,
            ..BRIEF
        },
        Self { name: "down: workers without our tags", build: down_untagged, ..BRIEF },
        Self { name: "down: ending one is denied for a while", every: 60, build: down_denied, ..BRIEF },
        Self {
            name: "down: a node loses its match in mid-drain",
            every: 200,
            build: down_stuck,
            before_tick: |world, tick| {
                if tick == 1 {
                    world.lose_match("worker-2");
                }
            },
            ..BRIEF
        },
        Self {
            name: "down: a node is renamed in mid-drain",
            every: 200,
            build: down_stuck,
            before_tick: |world, tick| {
                if tick == 1 {
                    world.rename("worker-2", "renamed");
                }
                if tick == 2 {
                    world.lose_match("renamed");
                }
            },
            ..BRIEF
        },
        Self {
            name: "down: a node vanishes in mid-drain",
            every: 200,
            build: down_stuck,
            before_tick: |world, tick| {
                if tick == 1 {
                    world.vanish("worker-2");
                }
            },
            ..BRIEF
        },
        Self {
            name: "down: a node vanishes while the second runs",
            build: down_two,
            during_stall: |world| world.vanish("worker-2"),
            ..BRIEF
        },
        Self {
            name: "down: an instance is forgotten by the cloud",
            every: 60,
            build: down_budget,
            before_tick: |world, tick| {
                if tick == 1 {
                    world.purge(&"i-worker2".into());
                }
            },
            ..BRIEF
        },
        Self { name: "adopted: a scale-up that serves", every: 99, build: adopt_up_serving, ..BRIEF },
        Self { name: "adopted: nodes that match nothing", every: 200, build: adopt_unmatched, ..BRIEF },
    ];

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name == name)
    }
}

/// One to five workers, two subnets, no windows.
pub(crate) fn policy() -> Policy {
    let place = |subnet: &str| Place {
        subnet: subnet.to_owned(),
        market: "on-demand".to_owned(),
        template: "7".to_owned(),
    };
    let mut policy = Policy::new("demo", 1, 3, vec![place("subnet-a"), place("subnet-b")]);
    policy.pending_window = Duration::ZERO;
    policy.idle_window = Duration::ZERO;
    policy
}

/// One worker, and pods for two more.
fn up_two() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_worker(1);
    world.add_pods(6);
    world
}

fn up_one_never_joins() -> World {
    let world = up_two();
    world.never_joins(1);
    world
}

fn up_retargeted() -> World {
    let world = up_two();
    world.shortage("subnet-a", true);
    world
}

fn up_nowhere() -> World {
    let world = up_retargeted();
    world.shortage("subnet-b", true);
    world
}

fn up_denied() -> World {
    let world = up_two();
    world.refuse_launches(Some((Kind::Denied, "not authorized to perform ec2:RunInstances")));
    world
}

/// Registered before the deadline, Ready after the tick that aborts.
fn up_ready_late() -> World {
    let world = up_two();
    world.joins_after(590);
    world.ready_after(110);
    world
}

fn up_listed_late() -> World {
    let world = up_two();
    world.listed_after(90);
    world
}

/// Three workers that idle, with small pods, of which one must stay.
fn down_two() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    for number in 1..=3 {
        world.add_worker(number);
        world.add_pod_on(&format!("worker-{number}"), PodOwner::DaemonSet);
    }
    world.add_pod_on("worker-1", PodOwner::Nobody);
    world.add_pod_on("worker-2", PodOwner::Controller);
    world.add_pod_on("worker-3", PodOwner::Controller);
    world.measure(Measuring::Fresh, 5);
    world
}

fn down_budget() -> World {
    let world = down_two();
    world.budget_blocks_until(world.epoch() + 150);
    world
}

fn down_stuck() -> World {
    let world = down_two();
    world.budget_lies();
    world
}

/// The budget blocks long enough for a person to cordon the nodes first.
fn down_by_hand() -> World {
    let world = down_stuck();
    world.budget_blocks_until(world.epoch() + 100);
    world
}

/// A worker of an old writer's, and pods for two more.
fn up_untagged() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_untagged_worker(1);
    world.add_pods(6);
    world
}

/// Instances join, and cannot be committed for some minutes.
fn up_tags_denied() -> World {
    let world = up_two();
    for instance in ["i-new0", "i-new1"] {
        world.deny("tag", instance, world.epoch() + 310);
    }
    world
}

fn down_untagged() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    for number in 1..=3 {
        world.add_untagged_worker(number);
        world.add_pod_on(&format!("worker-{number}"), PodOwner::Controller);
    }
    world.measure(Measuring::Fresh, 5);
    world
}

fn down_denied() -> World {
    let world = down_two();
    world.deny("terminate", "i-worker2", world.epoch() + 150);
    world
}

/// An old writer's scale-up: one instance serves though its node is not Ready now, one never joined.
fn adopt_up_serving() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_worker(1);
    world.add_untagged_worker(2);
    world.add_pod_on("worker-2", PodOwner::Controller);
    world.set_ready("worker-2", false);
    world.add_untagged_instance("i-lame");
    put_old_up(&world, &["i-worker2", "i-lame"]);
    world
}

/// The nodes of an old writer's scale-up say nothing of their instances.
fn adopt_unmatched() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_worker(1);
    for number in 2..=3 {
        world.add_untagged_worker(number);
        world.add_pod_on(&format!("worker-{number}"), PodOwner::Controller);
        world.lose_match(&format!("worker-{number}"));
    }
    put_old_up(&world, &["i-worker2", "i-worker3"]);
    world
}

fn ids(ids: &[&str]) -> Value {
    Value::L(ids.iter().map(|id| (*id).into()).collect())
}

/// The item of the old document's example, long after its writer died.
fn adopt_up() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_worker(1);
    world.add_worker(2);
    put_old_up(&world, &["i-worker1", "i-worker2"]);
    world
}

fn put_old_up(world: &World, instances: &[&str]) {
    let began = world.epoch() - 1000;
    world.put_item(
        Item::new()
            .with("pk", "cluster")
            .with("scalingInProgress", true)
            .with("lastScaleEpoch", began - 1000)
            .with("scaleUpActionId", "1730000300-req-xyz")
            .with("scaleUpStartedEpoch", began)
            .with("scaleUpRequested", 2)
            .with("scaleUpInstanceIds", ids(instances)),
    );
}

/// The example that the old document promises: one target is completed, the other is not.
fn adopt_down() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    for number in 1..=3 {
        world.add_worker(number);
        world.add_pod_on(&format!("worker-{number}"), PodOwner::Controller);
    }
    world.kill(&InstanceId::from("i-worker3"));
    let began = world.epoch() - 1000;
    world.put_item(
        Item::new()
            .with("pk", "cluster")
            .with("scalingInProgress", true)
            .with("lastScaleEpoch", began - 1000)
            .with("scaleDownActionId", "sd-1730000900-req")
            .with("scaleDownStartedEpoch", began)
            .with("scaleDownPhase", "DRAINING")
            .with("scaleDownTargetInstanceIds", ids(&["i-worker3", "i-worker2"]))
            .with("scaleDownCompletedInstanceIds", ids(&["i-worker3"])),
    );
    // The old writer cordoned it and died: it has no mark of ours.
    world.cordon_by_old_writer("worker-2");
    world
}
