//! The rules of `machine.rs`, told as short timelines.
//!
//! ```text
//!   0s     a starts         -> started, got 0
//!   12s                     -> b got 0
//! ```
//!
//! A line is a moment, what happens then, and what is told at exactly that moment. Whatever is told at any
//! other moment fails the timeline, so every time in it is exact. Between the lines the machines run by
//! themselves. A lease lasts 10 s and is renewed every 3.5 s, leases are read every 2.5 s and the nudge row
//! every 250 ms, clocks are off by 1 % at most, and the store answers at once, unless a line says otherwise.
//! Every timeline is held to LS-1 (one may deliver), LS-2 (checkpoints never go back) and LS-4 (a child after
//! its parents) as well.
//!
//! Workers are called `a`, `b` and `c`. They understand
//!
//! | | |
//! |---|---|
//! | `starts [cap=2]`, `stops`, `cap 3`, `plans`, `plans not` | the machine's events |
//! | `checkpoints 0 at 17 \| end`, `gives 0`, `stuck on 0`, `gets on with 0` | what the consumer does |
//! | `drains by hand` | the consumer is slow: it gives only when a line says so |
//! | `may deliver 0`, `may not deliver 0` | asked between steps |
//! | `pauses`, `resumes`, `crashes`, `restarts` | the process; a restarted one has the same name |
//! | `calls fail`, `loses replies`, `calls hang`, `calls work`, `hung calls land` | its link to the store |
//! | `clock rate=+1%`, `wrote 12 times` | |
//!
//! and the table understands `shards 0! 1<0`, `rows 0 1`, `row 0 is owner=a giver=b counter=3 at=th`,
//! `row 0 deleted`, `row 0 absent`, `java takes 0`, `java renews 0`, `row 0 bad`, `begin 0 a b` (somebody asks
//! `a` to give it to `b`), `presence of a by other`, `presence of a is old cap=1`,
//! `presence of a says cap=9`, `presence of a gone`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use tenure_clock::WallTime;
use tenure_stream::{HashRange, Shard, ShardId};

use super::*;
use crate::settings::Settings;
use crate::testing::LeaseTable;

// === taking and renewing ===

#[test]
fn the_first_worker_takes_everything() {
    check(
        "
        rows 0 1
        0s     a starts        -> started, got 0 until=9.8s at=th, got 1
        0s     row 0 is owner=a counter=1
        3.5s                   -> a renew 0 applied, a extended 0 until=13.3s
        3.5s   row 0 is owner=a counter=2
        60s    a may deliver 0
        ",
    );
}

#[test]
fn a_lease_costs_one_write_per_renewal() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        1s     a wrote 5 times
        3601s  a wrote 1036 times
        ",
    );
}

#[test]
fn a_checkpoint_counts_as_a_renewal() {
    check(
        "
        rows 0
        0s     a starts               -> started, got 0
        2s     a checkpoints 0 at 17  -> done, checkpoint 0 applied, extended 0 until=11.8s
        2s     row 0 is owner=a counter=2 at=17
        3.5s   row 0 is counter=2
        5.5s                          -> a renew 0 applied
        5.5s   a checkpoints 0 at 16  -> behind
        5.5s   row 0 is at=17
        ",
    );
}

#[test]
fn le2_the_deadline_counts_from_the_send() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a replies take 2s
        5.5s                   -> a extended 0 until=13.3s
        6s     a calls hang
        6s     a pauses
        13.2s  a may deliver 0
        13.3s  a may not deliver 0
        ",
    );
}

#[test]
fn le2_a_retry_never_stretches_the_deadline() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a calls hang
        3.5s   a pauses
        7.5s   a hung calls land
        7.5s   a calls work
        7.5s   a resumes       -> extended 0 until=13.3s
        ",
    );
}

#[test]
fn le2_a_renewal_that_is_sent_again_counts_from_its_first_send() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a calls hang
        5s     a calls work
        7s                     -> a reads 0
        7.25s                  -> a renew 0 applied, a extended 0 until=13.3s
        ",
    );
}

#[test]
fn le2_what_is_over_stays_over() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a replies take 7s
        3.5s   a pauses        -> renew 0 applied
        9.8s   a may not deliver 0
        10s    a calls work
        10.6s  a resumes       -> lost 0 expired, got 0
        ",
    );
}

#[test]
fn le2_a_counter_that_a_lost_hold_sent_counts_from_then() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a calls hang
        9.8s                   -> a lost 0 expired
        10s    a hung calls land
        10s    a calls work
        10s    row 0 is owner=a counter=2
        13.3s                  -> a got 0 until=23.1s
        13.3s  row 0 is owner=a counter=3
        ",
    );
}

#[test]
fn le3_a_dead_workers_lease_is_taken_a_lease_after_its_counter_was_seen() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        4s     a crashes
        15.2s  row 0 is owner=a counter=2
        15.25s                 -> b got 0
        15.25s row 0 is owner=b counter=3
        ",
    );
}

#[test]
fn le3_a_slow_read_counts_from_its_receipt() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0.5s   a crashes
        0.5s   b clock rate=0%
        0.5s   b replies take 2s
        1s     b starts
        5s                     -> b started
        12.9s  row 0 is owner=a
        13s                    -> b take 0 applied
        15s                    -> b got 0 until=22.8s
        ",
    );
}

#[test]
fn clocks_at_both_ends_of_the_rate_bound_never_show_two_holders() {
    check(
        "
        rows 0
        0s       a clock rate=-1%
        0s       b clock rate=+1%
        0s       a starts      -> started, got 0
        0s       b starts      -> started
        0.1s     a calls hang
        0.1s     a pauses
        9.89s    a may deliver 0
        9.9s     a may not deliver 0
        9.91s                  -> b got 0 at=9.901s
        ",
    );
}

#[test]
fn two_who_see_one_free_lease_cannot_both_have_it() {
    check(
        "
        0s     a starts        -> started
        0s     b starts        -> started
        1s     rows 0
        2.75s                  -> a got 0
        9s     row 0 is owner=a
        ",
    );
}

#[test]
fn le1_a_holder_that_was_superseded_notices_at_its_next_write() {
    check(
        "
        rows 0
        0s     a starts               -> started, got 0
        1s     java takes 0
        2s     a checkpoints 0 at 17  -> fenced, lost 0 superseded by=java
        2s     row 0 is owner=java at=th
        ",
    );
}

#[test]
fn le4_an_unknown_renewal_is_read_back() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a loses replies
        3.5s                   -> a renew 0 applied, a reads 0
        3.5s   a calls work
        3.5s   row 0 is owner=a counter=2
        9s     a may deliver 0
        ",
    );
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a calls hang
        9.8s                   -> a lost 0 expired
        9.8s   row 0 is counter=1
        11s    a calls work
        13.55s                 -> a got 0 until=23.35s
        13.55s row 0 is counter=3
        13.6s  a hung calls land
        13.6s  row 0 is counter=3
        ",
    );
}

#[test]
fn a_worker_rides_out_an_outage_shorter_than_its_lease() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a calls fail
        9s     a calls work
        9.6s   a may deliver 0
        13s    a may deliver 0
        ",
    );
}

#[test]
fn after_a_longer_outage_the_same_worker_begins_again() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        3s     a calls fail
        9.8s                   -> a lost 0 expired
        20s    a calls work
        20.265s                -> a got 0
        ",
    );
}

// === handing over ===

#[test]
fn a_join_is_given_its_share() {
    check(
        "
        rows 0 1
        0s     a starts        -> started, got 0, got 1
        0s     a plans
        1s     b starts        -> started
        1.25s                  -> a asked 1 handoff, a gave 1 to=b, b got 1
        1.25s  row 1 is owner=b counter=3 switches=2
        60s    row 0 is owner=a
        ",
    );
}

#[test]
fn le5_a_receiver_waits_until_the_giver_has_drained() {
    check(
        "
        rows 0 1
        0s     a starts        -> started, got 0, got 1
        0s     a plans
        0s     a drains by hand
        1s     b starts        -> started
        1.25s                  -> a asked 1 handoff
        1.25s  row 1 is owner=b giver=a
        9s     a may deliver 1
        9s     a checkpoints 1 at 40  -> done
        9.1s   a gives 1       -> done, gave 1 to=b
        9.25s                  -> b got 1 at=40
        ",
    );
}

#[test]
fn le6_a_giver_that_does_not_drain_lets_its_lease_run_out() {
    check(
        "
        rows 0 1
        0s     a starts        -> started, got 0, got 1
        0s     a plans
        0s     a drains by hand
        1s     b starts        -> started
        1.25s                  -> a asked 1 handoff
        30s    a may deliver 1
        37.8s                  -> a lost 1 slow_handoff
        38.7s  row 1 is owner=b giver=a
        38.75s                 -> b got 1
        ",
    );
}

#[test]
fn le6_checkpoints_do_not_keep_a_lease_that_should_have_been_given() {
    check(
        "
        rows 0 1
        0s     a starts        -> started, got 0, got 1
        0s     a plans
        0s     a drains by hand
        1s     b starts        -> started
        1.25s                  -> a asked 1 handoff
        30s    a checkpoints 1 at 5  -> done
        34s    a checkpoints 1 at 6  -> done
        38s    a checkpoints 1 at 7  -> done
        39.7s  a may deliver 1
        39.8s                  -> a lost 1 slow_handoff
        48.75s                 -> b got 1 at=7
        ",
    );
}

#[test]
fn le4_a_take_that_a_finished_handoff_looks_like_is_not_assumed() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        1s     a drains by hand
        2s     begin 0 a b
        2.75s                  -> a asked 0 handoff
        5.3s   b calls hang
        6s     a gives 0       -> done, gave 0
        6s     row 0 is owner=b counter=3
        6.1s   a crashes
        16s    b calls work
        18.75s                 -> b got 0 until=28.55s
        18.75s row 0 is owner=b counter=4
        ",
    );
}

#[test]
fn a_late_finish_does_not_end_a_later_handoff() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     a drains by hand
        0s     b starts        -> started
        1s     begin 0 a b
        2.75s                  -> a asked 0 handoff
        3s     a calls hang
        3s     a gives 0
        4s     a calls work
        6.75s                  -> a done, a gave 0 to=b, b got 0
        10s    begin 0 b a
        11s                    -> b asked 0 handoff at=10.25s, b gave 0 to=a at=10.25s, a got 0 at=10.5s
        20s    begin 0 a b
        21s                    -> a asked 0 handoff at=20.5s
        23s    a hung calls land
        23s    row 0 is owner=b giver=a
        ",
    );
}

#[test]
fn a_late_eviction_does_not_take_away_what_was_taken_again() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     a calls hang
        4s     a cap 0         -> asked 0 handoff
        5s     a calls work
        7.75s                  -> a gave 0
        8s     a cap 9         -> got 0
        9s     a hung calls land
        9s     row 0 is owner=a
        ",
    );
}

#[test]
fn le13_a_worker_says_that_it_leaves_before_it_gives() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        4s     a replies take 0.5s
        5s     a stops         -> asked 0 stop, presence applied
        5.4s   row 0 is owner=a
        5.5s                   -> a evict 0 applied, b got 0
        6s                     -> a gave 0
        7s                     -> a stopped
        ",
    );
}

#[test]
fn a_planned_stop_hands_over_at_once() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        5s     a drains by hand
        5s     a stops         -> asked 0 stop
        5.5s   a checkpoints 0 at 9  -> done
        5.6s   a gives 0       -> done, gave 0, stopped
        5.75s                  -> b got 0 at=9
        ",
    );
}

#[test]
fn le13_whoever_may_hold_nothing_has_said_so_and_leaves_at_once() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        4s     a drains by hand
        4s     a cap 0         -> asked 0 handoff
        5s     a stops         -> asked 0 stop
        5.6s   a gives 0       -> done, gave 0, stopped
        5.75s                  -> b got 0
        ",
    );
}

#[test]
fn a_stop_that_takes_too_long_ends_anyway() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     a drains by hand
        5s     a stops         -> asked 0 stop
        35s                    -> a lost 0 stopped, a stopped
        ",
    );
}

#[test]
fn le9_what_is_above_the_cap_is_given_back() {
    check(
        "
        rows 0 1 2
        0s     a starts        -> started, got 0, got 1, got 2
        0s     b starts cap=2  -> started
        5s     a cap 1         -> asked 2 handoff, gave 2, asked 1 handoff, gave 1
        5.25s                  -> b got 1, b got 2
        ",
    );
}

#[test]
fn le9_nobody_takes_more_than_its_cap() {
    check(
        "
        rows 0 1 2
        0s     a starts cap=2  -> started, got 0, got 1
        0s     a plans         -> alarm deficit 1 desired=2
        60s    row 2 is owner=none
        60s    b starts        -> started, got 2
        ",
    );
}

// === shards ===

#[test]
fn the_planner_makes_leases_parents_first() {
    check(
        "
        shards 0! 1<0 2<0
        0s     a starts        -> started
        0s     a plans         -> got 0
        0s     row 1 is owner=none at=th
        5s     a checkpoints 0 at end -> done, got 1, got 2
        ",
    );
}

#[test]
fn le8_a_child_waits_for_both_parents() {
    check(
        "
        shards 0! 1! 2<0+1
        0s     a starts        -> started
        0s     a plans         -> got 0, got 1
        5s     a checkpoints 0 at end -> done
        9s     row 2 is owner=none
        9s     a checkpoints 1 at end -> done, got 2
        ",
    );
}

#[test]
fn finished_leases_go_once_their_children_have_begun() {
    check(
        "
        shards 0
        0s     a starts        -> started
        0s     a plans         -> got 0
        5s     shards 0! 1<0
        6s     a checkpoints 0 at end -> done, got 1
        6s     a gives 0       -> done, gave 0
        10s    row 0 is at=end
        10s    a checkpoints 1 at 50  -> done
        49s    row 0 is at=end
        53s    row 0 absent
        ",
    );
}

#[test]
fn without_a_planner_workers_help_themselves() {
    check(
        "
        shards 0
        0s     a starts        -> started
        19s    row 0 absent
        20s                    -> a got 0
        ",
    );
}

#[test]
fn le10_what_vanished_is_made_again_only_by_a_list_that_is_newer() {
    check(
        "
        shards 0
        0s     a starts        -> started
        0s     a plans         -> got 0
        5s     a gives 0       -> done, gave 0
        6s     shards 1
        6s     row 0 deleted
        7.75s                  -> a got 1
        29s    row 0 absent
        ",
    );
}

#[test]
fn le10_a_row_that_vanished_may_have_been_taken_since_it_was_seen() {
    check(
        "
        shards 0 1
        0s     a starts cap=1  -> started
        0s     a plans         -> got 0, alarm deficit 1
        1s     java takes 1
        1s     row 1 deleted
        12.5s  row 1 absent
        12.75s                 -> a alarm deficit 1
        12.75s row 1 is owner=none
        ",
    );
}

#[test]
fn li4_a_lease_that_is_newer_than_the_list_is_not_of_a_shard_that_is_gone() {
    check(
        "
        shards 0
        0s     a starts cap=1  -> started
        0s     a plans         -> got 0
        4s     shards 0 1
        4s     rows 1
        5.25s                  -> a alarm deficit 1
        29s    row 1 is owner=none
        ",
    );
}

#[test]
fn le10_a_deleted_row_is_put_back_by_its_holder() {
    check(
        "
        shards 0
        0s     a starts        -> started
        0s     a plans         -> got 0
        1s     b starts        -> started
        2s     a checkpoints 0 at 30 -> done
        3s     row 0 deleted
        3.75s                  -> a restore 0 applied
        3.75s  row 0 is owner=a at=30 counter=1002
        60s    a may deliver 0
        ",
    );
}

#[test]
fn le10_a_deleted_row_of_a_dead_holder_is_made_again_a_lease_later() {
    check(
        "
        shards 0
        0s     a starts        -> started
        0s     a plans         -> got 0
        1s     b starts        -> started
        2s     a checkpoints 0 at 30 -> done
        5s     a crashes
        5s     b plans
        5s     row 0 deleted
        15.5s  row 0 absent
        16.25s                 -> b got 0 at=30
        ",
    );
}

// === trouble ===

#[test]
fn le11_a_stuck_lease_is_not_renewed_and_goes_to_another() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        4s     a stuck on 0    -> alarm stuck 0
        13.3s                  -> a lost 0 stuck
        15.25s                 -> b got 0
        ",
    );
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     a stuck on 0    -> alarm stuck 0
        9s     a gets on with 0
        60s    a may deliver 0
        ",
    );
}

#[test]
fn le12_beside_java_workers_nothing_is_moved() {
    check(
        "
        rows 0 1 2
        0s     java takes 0
        0s     java takes 1
        0s     a starts        -> started, got 2
        0s     a plans
        3s     java renews 0
        3s     java renews 1
        5.25s                  -> a alarm foreign java
        9s     java renews 0
        9s     java renews 1
        15s    row 0 is owner=java
        20.25s                 -> a got 0, a got 1
        ",
    );
}

#[test]
fn le7_a_restarted_worker_watches_what_it_held_before() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     a crashes
        5s     a restarts
        14.9s  row 0 is owner=a counter=2
        15s                    -> a started, a got 0
        ",
    );
}

#[test]
fn le7_even_if_its_row_is_gone() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     a crashes
        4s     presence of a gone
        5s     a restarts      -> started
        14.9s  row 0 is owner=a counter=2
        15s                    -> a got 0
        ",
    );
}

#[test]
fn le15_two_workers_with_one_name() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     a twin starts
        9s                     -> a twin fatal same_worker, a twin stopped
        60s    a may deliver 0
        ",
    );
}

#[test]
fn le15_a_row_that_another_process_took_over_ends_the_first() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     presence of a by other
        5.25s                  -> a fatal same_worker, a asked 0 stop, a gave 0, a stopped
        ",
    );
}

#[test]
fn an_old_row_of_its_own_is_written_anew() {
    check(
        "
        rows 0
        0s     a starts cap=9  -> started, got 0
        4s     presence of a is old cap=1
        7s     presence of a says cap=9
        ",
    );
}

#[test]
fn le16_a_worker_with_another_lease_does_not_start() {
    check(
        "
        settings 20s
        0s     a starts        -> fatal other_lease 20s, stopped
        ",
    );
}

#[test]
fn a_bad_row_is_left_alone_and_the_others_go_on() {
    check(
        "
        rows 0 1
        row 0 bad
        0s     a starts        -> started, got 1, alarm bad_row 0
        60s    a may deliver 1
        ",
    );
}

#[test]
fn a_lease_given_back_unasked_is_left_to_others_first() {
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        0s     b starts        -> started
        4s     a gives 0       -> done, gave 0
        8s                     -> b got 0 at=7.434s
        ",
    );
}

// === figures ===

/// The workers that may deliver each lease, counted.
fn counts(world: &World, names: &[&str]) -> Vec<usize> {
    let may = |name: &&str| {
        let node = &world.nodes[*name];
        let now = node.monotonic(world.now);
        node.machine.held().filter(|(_, deadline)| now < *deadline).count()
    };
    names.iter().map(may).collect()
}

/// How long it takes until it is so.
fn timed(world: &mut World, until: impl Fn(&World) -> bool) -> Duration {
    let began = world.now;
    while !until(world) {
        assert!(world.now - began < Duration::from_secs(600), "never");
        world.told.clear();
        let next = world.now + Duration::from_millis(50);
        world.run_until(next).unwrap();
    }
    world.now - began
}

#[test]
fn a_join_of_sixty_leases_and_a_crash() {
    let mut world = World::new();
    let rows: Vec<String> = (0..60).map(|number: u32| number.to_string()).collect();
    let play = |world: &mut World, line: &str| world.play_freely(line).unwrap();
    play(&mut world, &format!("rows {}", rows.join(" ")));
    for name in ["a", "b", "c"] {
        play(&mut world, &format!("0s {name} starts"));
        play(&mut world, &format!("0s {name} plans{}", if name == "a" { "" } else { " not" }));
    }
    play(&mut world, "100s");
    assert_eq!(counts(&world, &["a", "b", "c"]), [20, 20, 20]);
    let before = world.table.leases.clone();
    play(&mut world, "100s d starts");
    play(&mut world, "100s d plans not");
    let took = timed(&mut world, |world| counts(world, &["a", "b", "c", "d"]) == [15; 4]);
    assert!(took <= world.timing.lease * 2, "{took:?}");
    let moved = |before: &BTreeMap<LeaseKey, Arc<Lease>>, world: &World| {
        world.table.leases.values().filter(|lease| before[&lease.key].owner != lease.owner).count()
    };
    assert_eq!(moved(&before, &world), 15, "exactly its share");
    let before = world.table.leases.clone();
    play(&mut world, "200s b crashes");
    let took = timed(&mut world, |world| counts(world, &["a", "c", "d"]) == [20; 3]);
    assert!(took <= world.timing.lease * 3 / 2, "{took:?}");
    assert_eq!(moved(&before, &world), 15, "only those of the dead");
}

#[test]
fn a_cold_start_of_a_thousand_shards() {
    let mut world = World::new();
    world.shards = (0..1000).map(|number| shard(&number.to_string())).collect();
    let names: Vec<String> = (0..10).map(|number| format!("w{number}")).collect();
    for name in &names {
        world.play_freely(&format!("0s {name} starts cap=200")).unwrap();
        let plans = if name == "w3" { "plans" } else { "plans not" };
        world.play_freely(&format!("0s {name} {plans}")).unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let took = timed(&mut world, |world| counts(world, &names) == [100; 10]);
    assert!(took <= world.timing.lease * 2, "{took:?}");
}

// === histories ===

/// Random faults, in the words of the timelines; then everything is mended, and every lease that can be read
/// is held, by everybody's fair share.
#[test]
fn random_histories_keep_the_rules_and_heal() {
    let histories = if cfg!(debug_assertions) { 40 } else { 1000 };
    for seed in 0..histories {
        let dice = tenure_clock::Entropy::seeded(seed);
        let mut world = World::new();
        let play = |world: &mut World, line: &str| {
            let _ = writeln!(world.story, "{line}");
            if let Err(problem) = world.play_freely(line) {
                let story: Vec<&str> = world.story.lines().rev().take(250).collect();
                let story: Vec<&str> = story.into_iter().rev().collect();
                panic!("seed {seed}: {line}\n  {problem}\n\nwhat happened:\n{}", story.join("\n"));
            }
        };
        play(&mut world, "shards 0 1 2 3");
        let names = ["a", "b", "c"];
        for name in names {
            let rate = ["-1", "0", "1"][usize::try_from(dice.below(3)).unwrap()];
            play(&mut world, &format!("{name} clock rate={rate}%"));
        }
        // Rates of faults differ by history: what is rare together with what is frequent finds more.
        let weights: Vec<u64> = (0..20).map(|_| dice.below(8)).collect();
        let mut now = 0_u64;
        let mut next_shard = 4;
        for _ in 0..60 {
            now += 1 + dice.below(4000);
            let name = names[usize::try_from(dice.below(3)).unwrap()];
            let id = dice.below(next_shard);
            let running = world.nodes.get(name).is_some_and(|node| node.machine.is_running());
            let exists = world.nodes.get(name).is_some_and(|node| !node.machine.is_stopped() && node.begun);
            let mut pick = dice.below(weights.iter().sum::<u64>().max(1));
            let which = weights.iter().position(|weight| {
                let found = pick < *weight;
                pick = pick.saturating_sub(*weight);
                found
            });
            let line = match which.unwrap_or(0) {
                0 | 1 if !exists => format!("{name} restarts"),
                2 if exists => format!("{name} crashes"),
                3 if exists => format!("{name} pauses"),
                4 | 5 if exists => format!("{name} resumes"),
                6 if exists => format!("{name} calls fail"),
                7 if exists => format!("{name} calls hang"),
                8 if exists => format!("{name} loses replies"),
                9 | 10 if exists => format!("{name} calls work"),
                11 if exists => format!("{name} hung calls land"),
                12 if running => format!("{name} checkpoints {id} at {now}"),
                13 if running => format!("{name} gives {id}"),
                14 if running => format!("{name} stops"),
                15 if exists => {
                    let others: Vec<String> =
                        world.nodes.keys().filter(|other| *other != name).cloned().collect();
                    for other in others {
                        play(&mut world, &format!("{}s {other} plans not", seconds_of(now)));
                    }
                    format!("{name} plans")
                }
                16 if running => format!("{name} cap {}", dice.below(5)),
                17 if running && dice.chance(0.3) => format!("row {id} deleted"),
                18 if running && dice.chance(0.5) => {
                    let open: Vec<usize> =
                        (0..world.shards.len()).filter(|&at| world.shards[at].is_open()).collect();
                    let at = open[usize::try_from(dice.below(open.len() as u64)).unwrap()];
                    world.shards[at].last_sequence = Some(9.into());
                    let parent = world.shards[at].id.number().unwrap();
                    for _ in 0..2 {
                        world.shards.push(shard(&format!("{next_shard}<{parent}")));
                        next_shard += 1;
                    }
                    continue;
                }
                19 if running => {
                    let closed: Vec<u64> = world
                        .shards
                        .iter()
                        .filter(|shard| !shard.is_open())
                        .filter_map(|shard| shard.id.number())
                        .collect();
                    if closed.is_empty() {
                        continue;
                    }
                    let id = closed[usize::try_from(dice.below(closed.len() as u64)).unwrap()];
                    format!("{name} checkpoints {id} at end")
                }
                _ => continue,
            };
            play(&mut world, &format!("{}s {line}", seconds_of(now)));
        }
        // Everything is mended.
        now += 1;
        for name in names {
            let at = seconds_of(now);
            let alive = world.nodes.get(name).is_some_and(|node| !node.machine.is_stopped() && node.begun);
            play(&mut world, &format!("{at}s {name} {}", if alive { "resumes" } else { "restarts" }));
            play(&mut world, &format!("{at}s {name} calls work"));
            play(&mut world, &format!("{at}s {name} resumes"));
            play(&mut world, &format!("{at}s {name} cap 80"));
            play(&mut world, &format!("{at}s {name} plans{}", if name == "a" { "" } else { " not" }));
        }
        // Two processes of one name in a row, slow handoffs and what was shunned take their time.
        now += 150_000;
        play(&mut world, &format!("{}s", seconds_of(now)));
        for name in names {
            // Whoever was on its way out when the faults ended has left.
            if world.nodes[name].machine.is_stopped() {
                play(&mut world, &format!("{}s {name} restarts", seconds_of(now)));
                play(
                    &mut world,
                    &format!("{}s {name} plans{}", seconds_of(now), if name == "a" { "" } else { " not" }),
                );
            }
        }
        now += 150_000;
        play(&mut world, &format!("{}s", seconds_of(now)));
        let mut counts = BTreeMap::new();
        for lease in world.table.leases.values() {
            let ready = is_ready(lease, |key| world.table.leases.get(key).map(|lease| &**lease));
            if lease.checkpoint.is_end() || !ready {
                continue;
            }
            let holder = names.iter().find(|name| {
                let node = &world.nodes[**name];
                node.machine.may_deliver(&lease.key, node.monotonic(world.now))
            });
            let Some(holder) = holder else {
                panic!("seed {seed}: LS-5: nobody holds {}: {lease:?}\n{}", short(&lease.key), world.tail());
            };
            *counts.entry(*holder).or_insert(0_usize) += 1;
        }
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        let (most, least) =
            (names.iter().map(|name| of(name)).max(), names.iter().map(|name| of(name)).min());
        assert!(most.unwrap() - least.unwrap() <= 1, "seed {seed}: LS-6: {counts:?}\n{}", world.tail());
        for shard in world.shards.iter().filter(|shard| shard.is_open()) {
            assert!(
                world.table.leases.contains_key(&LeaseKey::of_shard(&shard.id)),
                "seed {seed}: LS-7: no lease of {}\n{}",
                shard.id,
                world.tail()
            );
        }
    }
}

fn seconds_of(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

// === the door ===

fn check(timeline: &str) {
    let mut world = World::new();
    for line in timeline.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Err(problem) = world.play(line) {
            panic!("{line}\n  {problem}\n\nwhat happened:\n{}", world.story);
        }
    }
}

type Play<T = ()> = Result<T, String>;

/// More events than any timeline has: a machine that wakes for nothing would never end.
const EVENTS_MAX: u32 = 400_000;

struct World {
    timing: Timing,
    now: Duration,
    table: LeaseTable,
    bad: BTreeSet<LeaseKey>,
    shards: Vec<Shard>,
    nodes: BTreeMap<String, Node>,
    incarnations: u32,
    events: u32,
    told: Vec<Told>,
    story: String,
    /// LS-2.
    furthest: BTreeMap<LeaseKey, Checkpoint>,
}

struct Told {
    at: Duration,
    text: String,
    quiet: bool,
}

struct Node {
    machine: Machine,
    rate_ppm: i64,
    origin: Duration,
    link: Link,
    paused: bool,
    /// It was started, and not only described.
    begun: bool,
    by_hand: bool,
    requests: u64,
    writes: u32,
    waiting: Vec<Waiting>,
    hung: Vec<Call>,
}

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Works(Duration),
    Fails,
    LosesReplies,
    Hangs,
}

struct Waiting {
    id: CallId,
    at: Monotonic,
    answer: Answer,
}

impl Node {
    fn new(name: &str, incarnation: u32, cap: usize, timing: Timing, now: Duration) -> Self {
        let me = Me { worker: name.into(), incarnation: format!("{name}{incarnation}").into() };
        Self {
            machine: Machine::new(me, cap, timing),
            rate_ppm: 0,
            origin: now + Duration::from_secs(1000 * u64::from(incarnation)),
            link: Link::Works(Duration::ZERO),
            paused: false,
            begun: false,
            by_hand: false,
            requests: 0,
            writes: 0,
            waiting: Vec::new(),
            hung: Vec::new(),
        }
    }

    fn monotonic(&self, now: Duration) -> Monotonic {
        let nanos = i128::try_from(now.as_nanos()).unwrap();
        let scaled = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        Monotonic::from_nanos(u64::try_from(scaled).unwrap()) + self.origin
    }

    /// The true time of one of its readings.
    fn truly(&self, at: Monotonic) -> Duration {
        let nanos = i128::from(at.as_nanos()) - i128::try_from(self.origin.as_nanos()).unwrap();
        let scaled =
            (nanos * 1_000_000 + i128::from(999_999 + self.rate_ppm)) / i128::from(1_000_000 + self.rate_ppm);
        Duration::from_nanos(u64::try_from(scaled.max(0)).unwrap())
    }

    /// When something happens here next.
    fn next(&self) -> Option<Duration> {
        if self.paused {
            return None;
        }
        let answers = self.waiting.iter().map(|waiting| waiting.at).min();
        let wake = Some(self.machine.wake_at()).filter(|at| *at != Monotonic::NEVER);
        answers.into_iter().chain(wake).min().map(|at| self.truly(at))
    }
}

impl World {
    fn new() -> Self {
        let settings = Settings {
            scan: Some(Duration::from_millis(2500)),
            nudge: Some(Duration::from_millis(250)),
            ..Settings::default()
        };
        Self {
            timing: settings.timing().unwrap(),
            now: Duration::ZERO,
            table: LeaseTable::default(),
            bad: BTreeSet::new(),
            shards: Vec::new(),
            nodes: BTreeMap::new(),
            incarnations: 0,
            events: 0,
            told: Vec::new(),
            story: String::new(),
            furthest: BTreeMap::new(),
        }
    }

    fn play(&mut self, line: &str) -> Play {
        let (left, expected) = line.split_once("->").unwrap_or((line, ""));
        let mut words = left.split_whitespace().peekable();
        let at = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if let Some(at) = at.map(seconds).transpose()? {
            if at < self.now {
                return Err("time goes forward".to_owned());
            }
            self.run_until(at)?;
        }
        let words = words.collect::<Vec<_>>();
        let mut subject = words.first().copied().unwrap_or_default().to_owned();
        if let [first, "twin", rest @ ..] = words.as_slice() {
            subject = format!("{first} twin");
            self.act(&subject, rest)?;
        } else if let Some((first, rest)) = words.split_first() {
            self.act(first, rest)?;
        }
        self.run_until(self.now)?;
        self.compare(&subject, expected)
    }

    /// As [`World::play`], whatever is told.
    fn play_freely(&mut self, line: &str) -> Play {
        let played = self.play(line);
        match played {
            Err(problem) if problem.starts_with("told besides") && !problem.contains("broken") => Ok(()),
            Err(problem) if problem == "there is no row" => Ok(()),
            played => played,
        }
    }

    /// The end of the story.
    fn tail(&self) -> String {
        let lines: Vec<&str> = self.story.lines().rev().take(250).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn compare(&mut self, subject: &str, expected: &str) -> Play {
        let mut told = std::mem::take(&mut self.told);
        for fact in expected.split(',').map(str::trim).filter(|fact| !fact.is_empty()) {
            let named = fact.split_whitespace().next().is_some_and(|word| self.nodes.contains_key(word));
            let fact = if named { fact.to_owned() } else { format!("{subject} {fact}") };
            let found = told
                .iter()
                .position(|told| (told.at == self.now || fact.contains(" at=")) && says(&told.text, &fact));
            let Some(found) = found else { return Err(format!("not told: {fact}")) };
            told.remove(found);
        }
        let worst = told.iter().position(|told| told.text.contains("broken"));
        let besides = worst.or_else(|| told.iter().position(|told| !told.quiet));
        match besides.map(|at| &told[at]) {
            Some(told) => Err(format!("told besides: {} {}", show(told.at), told.text)),
            None => Ok(()),
        }
    }

    fn tell(&mut self, name: &str, text: &str, quiet: bool) {
        let text = format!("{name} {text} when={}", show(self.now));
        let _ = writeln!(self.story, "  {}", &text);
        self.told.push(Told { at: self.now, text, quiet });
    }

    fn presence(&mut self, worker: &str) -> Play<&mut Presence> {
        Ok(self.table.workers.get_mut(&WorkerId::from(worker)).ok_or("there is no row")?)
    }

    // === what a line can do ===

    fn act(&mut self, subject: &str, words: &[&str]) -> Play {
        match (subject, words) {
            ("shards", words) => self.shards = words.iter().map(|word| shard(word)).collect(),
            ("rows", words) => {
                for word in words {
                    let lease = row(&ShardId::numbered(number(word)?));
                    self.table.leases.insert(lease.key.clone(), Arc::new(lease));
                }
            }
            ("settings", [lease]) => self.table.settings = Some(seconds(lease)?),
            ("presence", ["of", worker, "by", other]) => self.presence(worker)?.incarnation = (*other).into(),
            // As if a write of long ago came only now.
            ("presence", ["of", worker, "is", "old", cap]) => {
                let row = self.presence(worker)?;
                (row.counter, row.cap) = (0, cap_of(cap)?);
            }
            ("presence", ["of", worker, "says", cap]) => {
                let (is, wanted) = (self.presence(worker)?.cap, cap_of(cap)?);
                if is != wanted {
                    return Err(format!("it says {is}, not {wanted}"));
                }
            }
            ("presence", ["of", worker, "gone"]) => drop(self.table.workers.remove(&WorkerId::from(*worker))),
            ("begin", [id, from, to]) => {
                let attempt = Attempt::BeginHandoff { key: key(id)?, from: (*from).into(), to: (*to).into() };
                if !matches!(self.table.write(&attempt), Answer::Applied(_)) {
                    return Err("it was refused".to_owned());
                }
            }
            ("row", [id, "is", facts @ ..]) => self.row_is(id, &facts.join(" "))?,
            ("row", [id, "absent"]) => {
                if self.table.leases.contains_key(&key(id)?) {
                    return Err("it is there".to_owned());
                }
            }
            ("row", [id, "deleted"]) => drop(self.table.leases.remove(&key(id)?)),
            ("row", [id, "bad"]) => drop(self.bad.insert(key(id)?)),
            ("java", ["takes", id]) => {
                let lease = Arc::make_mut(self.table.leases.get_mut(&key(id)?).ok_or("there is no row")?);
                (lease.owner, lease.giver, lease.counter) = (Some("java".into()), None, lease.counter + 1);
            }
            ("java", ["renews", id]) => {
                Arc::make_mut(self.table.leases.get_mut(&key(id)?).ok_or("there is no row")?).counter += 1;
            }
            (name, words) => self.act_as(name, words)?,
        }
        Ok(())
    }

    fn act_as(&mut self, name: &str, words: &[&str]) -> Play {
        let now = self.now;
        if let ["starts" | "restarts", rest @ ..] = words {
            self.incarnations += 1;
            let cap = rest.first().and_then(|word| word.strip_prefix("cap=")).map_or(Ok(80), number)?;
            let worker = name.split_whitespace().next().unwrap_or(name);
            let mut node = Node::new(
                worker,
                self.incarnations,
                usize::try_from(cap).unwrap(),
                self.timing,
                Duration::ZERO,
            );
            if let Some(before) = self.nodes.get(name) {
                node.rate_ppm = before.rate_ppm;
                if !before.begun {
                    node.link = before.link;
                }
            }
            node.begun = true;
            self.nodes.insert(name.to_owned(), node);
            self.step(name, Event::Wake);
            return Ok(());
        }
        if let ["clock", rate] = words {
            let percent =
                rate.strip_prefix("rate=").and_then(|rate| rate.strip_suffix('%')).ok_or("rate=+1%")?;
            let percent: i64 = percent.parse().map_err(|_| "no number")?;
            self.incarnations += 1;
            let mut node = Node::new(name, self.incarnations, 80, self.timing, Duration::ZERO);
            node.rate_ppm = percent * 10_000;
            node.paused = true;
            self.nodes.insert(name.to_owned(), node);
            return Ok(());
        }
        let node =
            self.nodes.get_mut(name).ok_or_else(|| format!("not understood: {name} {}", words.join(" ")))?;
        node.requests += 1;
        let request = RequestId(node.requests);
        let event = match words {
            ["stops"] => Event::Stop,
            ["cap", cap] => Event::Cap(usize::try_from(number(cap)?).unwrap()),
            ["plans"] => Event::Planner(Planning::Me),
            ["plans", "not"] => Event::Planner(Planning::Other),
            ["checkpoints", id, "at", at] => {
                Event::Checkpoint { key: key(id)?, request, at: checkpoint(at)?, marks: None }
            }
            ["gives", id] => Event::Give { key: key(id)?, request: Some(request) },
            ["stuck", "on", id] => Event::Stuck { key: key(id)?, stuck: true },
            ["gets", "on", "with", id] => Event::Stuck { key: key(id)?, stuck: false },
            _ => {
                match words {
                    ["drains", "by", "hand"] => node.by_hand = true,
                    ["pauses"] => node.paused = true,
                    ["resumes"] => node.paused = false,
                    ["crashes"] => {
                        // What it sent may still land.
                        (node.paused, node.begun) = (true, false);
                        node.machine = Machine::new(node.machine.me().clone(), 0, self.timing);
                        node.waiting.clear();
                    }
                    ["calls", "fail"] => node.link = Link::Fails,
                    ["calls", "hang"] => node.link = Link::Hangs,
                    ["calls", "work"] => node.link = Link::Works(Duration::ZERO),
                    ["replies", "take", time] => node.link = Link::Works(seconds(time)?),
                    ["loses", "replies"] => node.link = Link::LosesReplies,
                    ["hung", "calls", "land"] => {
                        for call in std::mem::take(&mut node.hung) {
                            self.serve(&call);
                        }
                    }
                    ["may", "deliver", id] => {
                        if !node.machine.may_deliver(&key(id)?, node.monotonic(now)) {
                            return Err("it may not".to_owned());
                        }
                    }
                    ["may", "not", "deliver", id] => {
                        if node.machine.may_deliver(&key(id)?, node.monotonic(now)) {
                            return Err("it may".to_owned());
                        }
                    }
                    ["wrote", times, "times"] => {
                        let wrote = u64::from(node.writes);
                        if wrote != number(times)? {
                            return Err(format!("it wrote {wrote} times"));
                        }
                    }
                    _ => return Err(format!("not understood: {name} {}", words.join(" "))),
                }
                return self.check_invariants();
            }
        };
        self.step(name, event);
        self.check_invariants()
    }

    fn row_is(&self, id: &str, facts: &str) -> Play {
        let lease = self.table.leases.get(&key(id)?).ok_or("there is no row")?;
        let who = |worker: &Option<WorkerId>| worker.as_ref().map_or("none", WorkerId::as_str).to_owned();
        let text = format!(
            "owner={} giver={} counter={} at={} switches={}",
            who(&lease.owner),
            who(&lease.giver),
            lease.counter,
            place(&lease.checkpoint),
            lease.owner_switches
        );
        if says(&text, facts) { Ok(()) } else { Err(format!("it is {text}")) }
    }

    // === time ===

    fn run_until(&mut self, until: Duration) -> Play {
        loop {
            let next = self.nodes.iter().filter_map(|(name, node)| Some((node.next()?, name.clone()))).min();
            match next {
                Some((at, name)) if at <= until => {
                    self.events += 1;
                    if self.events > EVENTS_MAX {
                        return Err(format!("{name} wakes for nothing"));
                    }
                    self.now = self.now.max(at);
                    self.wake(&name);
                    self.check_invariants()?;
                }
                _ => {
                    self.now = self.now.max(until);
                    return Ok(());
                }
            }
        }
    }

    fn wake(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let now = node.monotonic(self.now);
        let due = node.waiting.iter().position(|waiting| waiting.at <= now);
        let event = match due {
            Some(at) => {
                let waiting = node.waiting.remove(at);
                Event::Answered(waiting.id, waiting.answer)
            }
            None => Event::Wake,
        };
        self.step(name, event);
    }

    fn step(&mut self, name: &str, event: Event) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let monotonic = node.monotonic(self.now);
        let wall = WallTime::from_millis(1_763_553_900_000) + self.now;
        let effects = node.machine.step(Now { monotonic, wall }, event);
        for effect in effects {
            match effect {
                Effect::Call { id, by, call } => self.make(name, id, by, &call),
                Effect::Tell(news) => self.news(name, news),
            }
        }
    }

    fn make(&mut self, name: &str, id: CallId, by: Monotonic, call: &Call) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let now = node.monotonic(self.now);
        let is_write = matches!(call, Call::Write(_) | Call::Note(_));
        let link = node.link;
        node.writes += u32::from(is_write);
        let unanswered = if is_write { Answer::Unknown } else { Answer::Failed };
        let (at, answer) = match link {
            Link::Works(delay) => {
                let answer = self.serve(call);
                self.tell_call(name, call, &answer);
                let at = now + delay;
                if at > by { (by, unanswered) } else { (at, answer) }
            }
            Link::LosesReplies => {
                let answer = self.serve(call);
                self.tell_call(name, call, &answer);
                if is_write { (now, Answer::Unknown) } else { (now, answer) }
            }
            // A failure takes a moment.
            Link::Fails => ((now + Duration::from_millis(1)).min(by.max(now)), Answer::Failed),
            Link::Hangs => {
                if let Some(node) = self.nodes.get_mut(name)
                    && is_write
                {
                    node.hung.push(call.clone());
                }
                (by, unanswered)
            }
        };
        if let Some(node) = self.nodes.get_mut(name) {
            node.waiting.push(Waiting { id, at, answer });
        }
    }

    fn serve(&mut self, call: &Call) -> Answer {
        match call {
            Call::Scan => {
                let mut scan = self.table.scan();
                scan.leases.retain(|lease| !self.bad.contains(&lease.key));
                scan.bad = self.bad.iter().map(|key| (key.clone(), "is bad".into())).collect();
                Answer::Scanned(scan)
            }
            Call::Nudge => Answer::Nudge(self.table.nudge),
            Call::Read(key) => Answer::Row(self.table.leases.get(key).cloned()),
            Call::Write(attempt) => self.table.write(attempt),
            Call::Note(note) => self.table.note(note),
            Call::List => Answer::Shards(vec![StreamShards { stream: None, shards: self.shards.clone() }]),
        }
    }

    fn tell_call(&mut self, name: &str, call: &Call, answer: &Answer) {
        let outcome = match answer {
            Answer::Applied(_) => "applied",
            Answer::Refused(_) => "refused",
            _ => "answered",
        };
        let text = match call {
            Call::Write(Attempt::Create(lease)) if lease.owner.is_some() => {
                format!("restore {} {outcome}", short(&lease.key))
            }
            Call::Write(attempt) => format!("{} {} {outcome}", attempt.name(), short(attempt.key())),
            Call::Note(note) => format!("{} {outcome}", note.name()),
            Call::Read(key) => format!("reads {}", short(key)),
            Call::Scan => "scans".to_owned(),
            Call::Nudge => return,
            Call::List => "lists".to_owned(),
        };
        self.tell(name, &text, true);
    }

    fn news(&mut self, name: &str, news: News) {
        let node_now =
            |world: &Self, at: Monotonic| world.nodes.get(name).map_or(Duration::ZERO, |node| node.truly(at));
        let text = match news {
            News::Started => "started".to_owned(),
            News::Granted { lease, parents, deadline } => {
                // LS-4, by what the table says.
                for parent in parents_of(&lease) {
                    let unfinished = |row: &Arc<Lease>| !row.checkpoint.is_end();
                    if self.table.leases.get(&parent).is_some_and(unfinished) {
                        self.tell(name, "LS-4 is broken", false);
                    }
                }
                assert_eq!(
                    parents.len(),
                    parents_of(&lease).filter(|key| self.table.leases.contains_key(key)).count()
                );
                let until = show(node_now(self, deadline));
                format!("got {} until={until} at={}", short(&lease.key), place(&lease.checkpoint))
            }
            News::Extended { key, deadline } => {
                let until = show(node_now(self, deadline));
                return self.tell(name, &format!("extended {} until={until}", short(&key)), true);
            }
            News::GiveAsked { key, how } => {
                let how_text = match how {
                    Ending::Handoff => "handoff",
                    Ending::Stop => "stop",
                    Ending::Lost => "lost",
                };
                self.tell(name, &format!("asked {} {how_text}", short(&key)), false);
                if let Some(node) = self.nodes.get(name)
                    && !node.by_hand
                {
                    self.step(name, Event::Give { key, request: None });
                }
                return;
            }
            News::Lost { key, why: Loss::Superseded { by } } => {
                format!(
                    "lost {} superseded by={}",
                    short(&key),
                    by.map_or("none".to_owned(), |by| by.to_string())
                )
            }
            News::Lost { key, why } => format!("lost {} {}", short(&key), why.name()),
            News::Given { key, to } => {
                format!("gave {} to={}", short(&key), to.map_or("none".to_owned(), |to| to.to_string()))
            }
            News::Done { outcome, .. } => format!("{outcome:?}").to_lowercase(),
            News::Alarm(Alarm::Deficit { leases, desired_workers }) => {
                format!("alarm deficit {leases} desired={desired_workers}")
            }
            News::Alarm(Alarm::Stuck(key)) => format!("alarm stuck {}", short(&key)),
            News::Alarm(Alarm::BadRow(key, _)) => format!("alarm bad_row {}", short(&key)),
            News::Alarm(Alarm::Foreign(worker)) => format!("alarm foreign {worker}"),
            News::Fatal(Fatal::SameWorker) => "fatal same_worker".to_owned(),
            News::Fatal(Fatal::OtherLease { stored }) => format!("fatal other_lease {}", show(stored)),
            News::Stopped => "stopped".to_owned(),
        };
        self.tell(name, &text, false);
    }

    fn check_invariants(&mut self) -> Play {
        let mut holders: BTreeMap<LeaseKey, Vec<&str>> = BTreeMap::new();
        for (name, node) in &self.nodes {
            let now = node.monotonic(self.now);
            for (lease, deadline) in node.machine.held() {
                if now < deadline {
                    holders.entry(lease.key.clone()).or_default().push(name);
                }
            }
        }
        for (key, names) in holders {
            if names.len() > 1 {
                return Err(format!("LS-1 is broken: {} of {}", names.join(" and "), short(&key)));
            }
        }
        for (key, lease) in &self.table.leases {
            let furthest = self.furthest.entry(key.clone()).or_insert_with(|| lease.checkpoint.clone());
            if lease.checkpoint < *furthest {
                return Err(format!(
                    "LS-2 is broken: {} went back to {}",
                    short(key),
                    place(&lease.checkpoint)
                ));
            }
            *furthest = lease.checkpoint.clone();
        }
        Ok(())
    }
}

/// Whether every word of `fact` is in `text`, the first ones at its beginning.
fn says(text: &str, fact: &str) -> bool {
    let words: BTreeSet<&str> = text.split_whitespace().collect();
    let named =
        |fact: &str| fact.split_whitespace().all(|word| words.contains(word) || is_when(word, &words));
    named(fact)
}

/// `at=9.9s` is a moment, `at=40` a checkpoint.
fn is_when(word: &str, words: &BTreeSet<&str>) -> bool {
    word.strip_prefix("at=").is_some_and(|at| words.contains(format!("when={at}").as_str()))
}

fn shard(text: &str) -> Shard {
    let (text, closed) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let (id, parents) = text.split_once('<').unwrap_or((text, ""));
    let numbered = |text: &str| ShardId::numbered(text.parse().unwrap());
    let mut parents = parents.split('+').filter(|text| !text.is_empty()).map(numbered);
    Shard {
        id: numbered(id),
        parent: parents.next(),
        adjacent_parent: parents.next(),
        hash_range: HashRange::ALL,
        first_sequence: 1.into(),
        last_sequence: closed.then(|| 9.into()),
    }
}

fn row(shard: &ShardId) -> Lease {
    Lease {
        key: LeaseKey::of_shard(shard),
        stream: None,
        shard: shard.clone(),
        owner: None,
        giver: None,
        counter: 0,
        owner_switches: 0,
        checkpoint: Checkpoint::TrimHorizon,
        parents: BTreeSet::new(),
        children: BTreeSet::new(),
        range: None,
        throughput_kbps: None,
        marks: None,
    }
}

fn key(id: &str) -> Play<LeaseKey> {
    Ok(LeaseKey::of_shard(&ShardId::numbered(number(id)?)))
}

fn short(key: &LeaseKey) -> String {
    ShardId::from(key.as_str()).number().map_or_else(|| key.to_string(), |number| number.to_string())
}

fn checkpoint(text: &str) -> Play<Checkpoint> {
    Ok(match text {
        "end" => Checkpoint::ShardEnd,
        text => Checkpoint::At { sequence: number(text)?.into(), sub: 0 },
    })
}

fn place(checkpoint: &Checkpoint) -> String {
    match checkpoint {
        Checkpoint::TrimHorizon => "th".to_owned(),
        Checkpoint::Latest => "latest".to_owned(),
        Checkpoint::AtTimestamp => "time".to_owned(),
        Checkpoint::At { sequence, .. } => sequence.to_string(),
        Checkpoint::ShardEnd => "end".to_owned(),
    }
}

fn cap_of(word: &str) -> Play<u64> {
    number(word.strip_prefix("cap=").ok_or_else(|| format!("wanted cap=…, not {word}"))?)
}

fn number(text: &str) -> Play<u64> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn seconds(text: &str) -> Play<Duration> {
    let number = text.strip_suffix('s').ok_or_else(|| format!("`{text}` is no time"))?;
    number.parse().map(Duration::from_secs_f64).map_err(|_| format!("`{text}` is no time"))
}

/// Milliseconds, rounded up.
fn show(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    format!("{}s", millis as f64 / 1000.0)
}
