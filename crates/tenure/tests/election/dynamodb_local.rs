//! On Amazon's own emulator; `cargo xtask test` starts it and says where it is.

use tenure_fault_proxy::{FaultProxy, Script};

use super::stories;
use super::world::World;

fn endpoint() -> String {
    std::env::var("TENURE_TEST_DYNAMODB_LOCAL").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_DYNAMODB_LOCAL is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

fn store(endpoint: &str) -> String {
    format!("dynamodb:?region=eu-west-1&endpoint={endpoint}")
}

/// With the table made, and without a time to live: the emulator has threads for a handful of tables that
/// have one, and then does nothing in the background any more, for whichever test.
fn world_at(endpoint: &str) -> World {
    let world = World::new(&store(endpoint));
    world.create_table();
    world
}

fn world() -> World {
    world_at(&endpoint())
}

#[test]
fn a_killed_leader_takes_its_command_along() {
    stories::a_killed_leader_takes_its_command_along(&world());
}

#[test]
fn a_stopped_leader_does_not_act_when_it_goes_on() {
    stories::a_stopped_leader_does_not_act_when_it_goes_on(&world());
}

#[test]
fn what_runs_after_a_pause_of_everything_is_fenced() {
    stories::what_runs_after_a_pause_of_everything_is_fenced(&world(), &store(&endpoint()));
}

#[test]
fn clocks_an_hour_apart_keep_one_leader() {
    stories::clocks_an_hour_apart_keep_one_leader(&world());
}

#[test]
fn a_row_that_is_deleted_makes_no_second_leader() {
    stories::a_row_that_is_deleted_makes_no_second_leader(&world());
}

#[test]
fn a_store_that_goes_and_comes_back() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(&endpoint(), Script::default())).unwrap();
    let world = world_at(&proxy.url());
    let down = || proxy.set_script(Script::parse(1, ["*=reset"]).unwrap());
    stories::a_store_that_goes_and_comes_back(&world, down, || proxy.set_script(Script::default()));
    drop(world);
    runtime.block_on(proxy.stop());
}

#[test]
fn sigterm_hands_over_at_once() {
    stories::sigterm_hands_over_at_once(&world());
}

#[test]
fn resign_hands_over_to_whom_it_says() {
    stories::resign_hands_over_to_whom_it_says(&world());
}

#[test]
fn one_owner_id_is_for_one_process() {
    stories::one_owner_id_is_for_one_process(&world());
}

#[test]
fn leaders_are_listed() {
    stories::leaders_are_listed(&world());
}
