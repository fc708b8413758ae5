//! An old writer that takes the lock once that is past, begins over what is there, and may die anywhere.

use std::collections::BTreeMap;

use tenure_autoscaler::rows::{STATE_TABLE, state_key};
use tenure_store::{Condition, Update, Value, Write};

use super::driver::Sent;
use super::shared::Shared;
use super::world::{Heard, World};

/// How long the old lock lasts.
const LOCK_SECONDS: i64 = 120;
/// What it launches.
const LOOT: &str = "i-old";

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Thief {
    /// There is none, or it has died.
    Nobody,
    Waits,
    Began(i64),
    Launched(i64),
}

/// Its next call, if it can be made now.
pub(super) fn go_on(world: &mut World) {
    let now = world.epoch();
    match world.thief {
        Thief::Nobody => {}
        Thief::Waits => {
            let change = Update::new()
                .set("scalingInProgress", true)
                .set("lockOwner", "old")
                .set("lockUntilEpoch", now + LOCK_SECONDS)
                .set("scaleUpActionId", action(now))
                .set("scaleUpStartedEpoch", now)
                .set("scaleUpRequested", 1)
                .set("scaleUpInstanceIds", Value::L(Vec::new()));
            let free = Condition::absent("scalingInProgress").or(Condition::eq("scalingInProgress", false));
            if let Heard::Applied(_) = update(world, change, free.or(Condition::lt("lockUntilEpoch", now))) {
                world.thief = Thief::Began(now);
            }
        }
        Thief::Began(at) => {
            world.add_instance(LOOT, String::new(), BTreeMap::new());
            world.thief = Thief::Launched(at);
        }
        Thief::Launched(at) => {
            let change = Update::new().set("scaleUpInstanceIds", Value::L(vec![LOOT.into()]));
            update(world, change, Condition::eq("scaleUpActionId", action(at)));
            world.thief = Thief::Nobody;
        }
    }
}

/// Whether the lock can be had, and there is nothing that it would leave alone.
pub(super) fn can_go_on(world: &World) -> bool {
    match world.thief {
        Thief::Nobody => false,
        Thief::Waits => world.state.lock_until_epoch.is_some_and(|until| until < world.epoch()),
        Thief::Began(_) | Thief::Launched(_) => true,
    }
}

fn action(at: i64) -> String {
    format!("{at}-old")
}

fn update(world: &mut World, change: Update, when: Condition) -> Heard {
    let write = Write::Update { table: STATE_TABLE.to_owned(), key: state_key(), change, when };
    let from = Shared::new(format!("{write:?}")).print();
    world.write(&Shared::new(Sent { write, from }), world.epoch(), true, true)
}
