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

#[path = "machine_test/histories.rs"]
mod histories;
#[path = "machine_test/scans.rs"]
mod scans;
#[path = "machine_test/timeline.rs"]
mod timeline;

use self::timeline::check;

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
    // A checkpoint that lands meanwhile lengthens nothing, and does not put off the renewal that does.
    check(
        "
        rows 0
        0s     a starts        -> started, got 0
        4s     a stuck on 0    -> alarm stuck 0
        12s    a checkpoints 0 at 7   -> done
        12.5s  a gets on with 0
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
