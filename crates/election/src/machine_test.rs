//! The rules of `machine.rs`, told as short timelines.
//!
//! ```text
//!   0s     a campaigns      -> elected epoch=1
//!   20.8s                   -> b elected epoch=2, a lost superseded
//! ```
//!
//! A line is a moment, what happens then, and what is told at exactly that moment. Whatever is told at any
//! other moment fails the timeline, so every time in it is exact. Between the lines the machines run by
//! themselves: what is due comes first, then what the line says. A lease lasts 15 s and is renewed every
//! 5 s, clocks are off by 1 % at most, a follower reads every second, and the store answers at once,
//! unless a line says otherwise. Every timeline is held to LD-1 and LD-2 as well.
//!
//! Candidates are called `a`, `b` and `c`. They understand
//!
//! | | |
//! |---|---|
//! | `campaigns`, `tries once`, `watches`, `rests`, `resigns [to b]`, `stops` | the machine's events |
//! | `is leader`, `is no leader` | asked between steps, as `is_leader()` does |
//! | `pauses`, `resumes`, `crashes`, `restarts` | the process; a restarted one has the same owner id |
//! | `calls fail`, `loses replies`, `calls hang`, `replies take 2s`, `calls work` | its link to the store |
//! | `hung calls land` | writes that hung reach the store only now |
//! | `is unhealthy`, `is healthy` | what the health check says |
//! | `clock rate=+1% wall=-3600s`, `owner=x`, `settings lease=30s …` | before it first acts |
//!
//! and the rows understand `row is …`, `row reaped`, `row foreign`, `row mended`, `fence is …`, `fence set 9`,
//! `fence deleted`, `go puts ttl=20`, `go deletes`, `operator asks [b]`. What is told is either news (all of
//! it must be written down) or a call and its answer, as `a reads`, `a claim applied`, `a renewal refused`,
//! `a renewed until=19.7s` (written down where it matters).

#[path = "machine_test/timeline.rs"]
mod timeline;

use self::timeline::check;

// === acquiring ===

#[test]
fn the_first_candidate_leads_at_once() {
    check(
        "
        0s     a campaigns     -> reads, claim applied, elected epoch=1 until=14.7s
        0s     row is a ttl=15 epoch=1 lease=15s
        0s     fence is 1
        1s     b campaigns     -> reads
        9s     b is no leader
        ",
    );
}

#[test]
fn a_renewal_is_sent_every_five_seconds_and_moves_the_deadline() {
    check(
        "
        0s     a campaigns     -> elected epoch=1 until=14.7s
        5s                     -> a renewal applied, a renewed until=19.7s
        5s     row is a ttl=20 epoch=1
        10s                    -> a renewed until=24.7s
        3600s  a is leader
        3600s  row is a ttl=3615 epoch=1
        ",
    );
}

#[test]
fn e1_the_deadline_counts_from_the_send_and_not_from_the_answer() {
    check(
        "
        0s     a replies take 2s
        0s     a campaigns
        2s                     -> a claim applied
        4s                     -> a elected epoch=1 until=16.7s
        7s                     -> a renewal applied
        8s     a calls hang
        9s                     -> a renewed until=21.7s
        12s    a pauses
        21.6s  a is leader
        21.7s  a is no leader
        ",
    );
}

#[test]
fn a_claim_answered_too_late_makes_no_leader() {
    check(
        "
        0s     a replies take 4.9s after reading
        0s     a campaigns     -> claim applied
        4s     a pauses
        5s     a calls work
        20s    a is no leader
        20s    a resumes       -> claim applied, elected epoch=2 until=34.7s
        ",
    );
}

#[test]
fn two_who_see_one_empty_table_cannot_both_win() {
    check(
        "
        0s     a replies take 1s
        0s     b replies take 1s
        0s     a campaigns
        0s     b campaigns
        1s                     -> a claim applied, b claim refused by lock
        2s                     -> a elected epoch=1
        ",
    );
}

// === watching another's row ===

#[test]
fn e2_a_follower_waits_for_a_lease_and_its_margins_from_receipt() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns     -> reads
        1s     a crashes
        15.7s  row is a ttl=15 epoch=1
        15.8s                  -> b claim applied, b elected epoch=2 until=30.5s
        15.8s  row is b ttl=30 epoch=2
        ",
    );
}

#[test]
fn e2_a_slow_read_counts_from_its_receipt_and_not_from_its_send() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b replies take 2s
        0.5s   b campaigns     -> reads
        1s     a crashes
        2.4s   b replies take 0s
        17.7s
        17.8s                  -> b elected epoch=2
        ",
    );
}

#[test]
fn every_renewal_that_is_seen_starts_the_watch_anew() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        5s                     -> a renewal applied
        6s     a crashes
        20.7s  b is no leader
        20.8s                  -> b elected epoch=2
        ",
    );
}

#[test]
fn a_row_is_judged_by_the_lease_that_it_names() {
    check(
        "
        a settings lease=30s renew=10s
        0s     a campaigns     -> elected epoch=1 until=29.4s
        0.5s   b campaigns
        1s     a crashes
        31s    b is no leader
        31.1s                  -> b elected epoch=2 until=45.8s
        ",
    );
}

#[test]
fn clocks_at_both_ends_of_the_rate_bound_never_show_two_leaders() {
    // By a's slow clock its term lasts 14.7 s: 14.848 s of true time. By b's fast clock a row is stale
    // after 15.3 s: 15.148 s of true time.
    check(
        "
        0s       a clock rate=-1%
        0s       b clock rate=+1%
        0s       b campaigns     -> elected epoch=1
        0.1s     b stops         -> released, lost resigned, stopped
        1s       a campaigns     -> elected epoch=2
        1s       c clock rate=+1%
        1s       c campaigns     -> reads
        1.5s     a calls hang
        1.5s     a pauses
        15.8s    a is leader
        15.9s    a is no leader
        16.1s    c is no leader
        16.2s                    -> c elected epoch=3 at=16.149s
        ",
    );
}

#[test]
fn wall_clocks_an_hour_apart_change_nothing() {
    check(
        "
        0s     a clock wall=-3600s
        0s     b clock wall=+3600s
        0s     a campaigns     -> elected epoch=1
        0s     row is a ttl=-3585
        0.5s   b campaigns
        9.6s   a crashes
        20.7s  b is no leader
        20.8s                  -> b elected epoch=2
        20.8s  row is b ttl=3635
        ",
    );
}

#[test]
fn followers_never_write() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns     -> reads
        1.5s                   -> b reads
        2.5s                   -> b reads
        600s   b wrote nothing
        ",
    );
}

#[test]
fn a_read_that_fails_is_made_again_one_poll_later() {
    check(
        "
        0s     a calls fail
        0s     a campaigns
        7.5s   a calls work
        8s                     -> a reads, a elected epoch=1
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        4s     b calls fail
        6s     a crashes
        9s     b calls work
        9.5s                   -> b reads
        24.7s  b is no leader
        24.8s                  -> b elected epoch=2
        ",
    );
}

#[test]
fn who_watches_reads_but_does_not_stand() {
    check(
        "
        0s     a watches       -> reads
        1s                     -> a reads
        60s    row is absent
        60s    a rests
        61s    a campaigns     -> elected epoch=1
        62s    b watches       -> reads
        62s    b rests
        70s    b read 1 time
        ",
    );
}

// === losing ===

#[test]
fn a_refused_renewal_says_who_has_the_row() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        1s     a calls hang
        1s     a pauses
        15.8s                  -> b elected epoch=2
        16s    a calls work
        16s    a is no leader
        16s    a resumes       -> lost expired, reads
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     row reaped
        2s     go puts ttl=99
        5s                     -> a renewal refused, a lost superseded by=go, a trouble go row
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     row reaped
        5s                     -> a renewal refused, a lost superseded
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     row stolen by x epoch=7
        5s                     -> a lost superseded by=x epoch=7
        ",
    );
}

#[test]
fn a_failed_renewal_ends_the_term_at_once_and_the_own_row_is_taken_again_under_a_new_epoch() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        4s     a calls fail
        5s                     -> a lost store_down
        6s     a calls work
        6s     row is a epoch=1
        7s     a campaigns     -> elected epoch=2 until=21.7s
        ",
    );
}

#[test]
fn a_lost_answer_ends_the_term_no_later_than_its_deadline() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        4s     a loses replies
        5s                     -> a renewal applied
        14.6s  a is leader
        14.6s  a calls work
        14.7s                  -> a lost expired, a reads
        14.7s  row is a ttl=20 epoch=1
        15s    a campaigns     -> claim applied, elected epoch=2
        ",
    );
}

#[test]
fn a_renewal_that_landed_unheard_does_not_lock_its_sender_out() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        4s     a replies take 20s
        5s     a pauses        -> renewal applied
        15s    a calls work
        15s    a resumes       -> lost expired, reads
        15s    row is a ttl=20 epoch=1
        15s    a campaigns     -> claim applied, elected epoch=2
        ",
    );
}

#[test]
fn with_retries_a_leader_rides_out_an_outage_until_its_deadline() {
    check(
        "
        settings retry
        0s     a campaigns     -> elected epoch=1
        4s     a calls fail
        5s     a is leader
        13.5s  a is leader
        13.5s  a calls work
        14s                    -> a renewed until=19.7s, a renewed until=28.7s
        20s    a is leader
        23.5s  a calls fail
        33.6s  a is leader
        33.7s                  -> a lost store_down
        ",
    );
}

#[test]
fn e1_a_retry_never_stretches_the_deadline_beyond_its_first_send() {
    // Sent at 5 s and landed, but not heard: a retry of the same renewal confirms it, as of 5 s.
    check(
        "
        settings retry
        0s     a campaigns     -> elected epoch=1
        4s     a loses replies
        5s                     -> a renewal applied
        7s     a calls work
        8.5s                   -> a renewal applied, a renewed until=19.7s
        8.5s   row is a ttl=23 epoch=1
        ",
    );
}

#[test]
fn e12_a_retry_computes_its_ttl_anew() {
    check(
        "
        settings retry
        0s     a campaigns     -> elected epoch=1
        4s     a calls fail
        10.5s  a calls work
        11s                    -> a renewal applied
        11s    row is a ttl=26 epoch=1
        ",
    );
}

#[test]
fn e10_an_answer_after_the_deadline_revives_nothing() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        4s     a replies take 9s
        5s     a pauses        -> renewal applied
        14.6s  a is leader
        14.7s  a is no leader
        15s    a resumes       -> lost expired
        15s    a is no leader
        19.8s  a is no leader
        ",
    );
}

#[test]
fn a_paused_leader_is_none_at_the_instant_it_resumes() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        1s     a pauses
        15.8s                  -> b elected epoch=2
        99s    a is no leader
        99s    a resumes       -> lost expired
        99s    b is leader
        ",
    );
}

// === outcomes that are not known ===

#[test]
fn e4_a_claim_without_an_answer_is_read_back_and_won_as_of_its_send() {
    check(
        "
        0s     a loses replies after reading
        0s     a campaigns     -> claim applied
        4s     a calls work
        5s                     -> a reads, a elected epoch=1 until=14.7s, a renewed until=19.7s
        ",
    );
}

#[test]
fn e4_a_claim_that_did_not_land_is_made_anew() {
    check(
        "
        0s     a calls hang after reading
        0s     a campaigns
        4s     a calls work
        4s     row is absent
        5s                     -> a reads
        6s                     -> a claim applied, a elected epoch=1 until=20.7s
        7s     a hung calls land -> claim refused by lock
        8s     a is leader
        ",
    );
}

#[test]
fn e4_a_claim_that_lands_after_it_was_given_up_makes_no_leader() {
    check(
        "
        0s     a calls hang after reading
        0s     a campaigns
        4s     a calls fail
        15s    a rests
        16s    a is no leader
        16s    a hung calls land -> claim applied
        16s    row is a ttl=15 epoch=1
        17s    a is no leader
        18s    a calls work
        18s    a campaigns     -> claim refused by lock, claim applied, elected epoch=2
        ",
    );
}

#[test]
fn e4_a_claim_that_lands_late_and_is_taken_by_another_is_not_won() {
    check(
        "
        0s     a loses replies after reading
        0s     a campaigns     -> claim applied
        0.1s   a pauses
        0.2s   b campaigns     -> reads
        1s     a calls work
        15.5s                  -> b elected epoch=2
        16s    a resumes       -> reads
        17s    a is no leader
        ",
    );
}

#[test]
fn e4_a_renewal_of_unknown_outcome_is_not_taken_for_a_success() {
    check(
        "
        settings retry
        0s     a campaigns     -> elected epoch=1
        4s     a calls hang
        14.6s  a is leader
        14.7s                  -> a lost store_down
        ",
    );
}

// === releasing ===

#[test]
fn e6_a_release_keeps_the_row_with_ttl_0_and_a_fresh_nonce() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     a resigns       -> lost resigned, release applied, released
        2s     row is a released ttl=0 epoch=1
        2.5s   b campaigns     -> elected epoch=2
        ",
    );
}

#[test]
fn a_release_is_noticed_within_one_poll() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        2.6s   a resigns       -> lost resigned, released
        3.5s                   -> b elected epoch=2
        ",
    );
}

#[test]
fn e6_a_renewal_that_lands_after_the_release_cannot_revive_the_row() {
    check(
        "
        settings retry
        0s     a campaigns     -> elected epoch=1
        4s     a calls hang
        5s     a is leader
        7.5s   a calls work
        8s     a resigns       -> lost resigned, release applied, released
        8s     a hung calls land -> renewal refused
        8s     row is released
        ",
    );
}

#[test]
fn e6_a_release_that_lands_after_the_next_claim_is_refused() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        1s     a calls hang
        1s     a resigns       -> lost resigned
        1.1s   a crashes
        15.8s                  -> b elected epoch=2
        16s    a hung calls land -> release refused
        16s    row is b epoch=2
        20.8s  b is leader     -> renewal applied
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a calls hang
        1s     a resigns       -> lost resigned
        15.5s  a calls work
        16s                    -> a could not release
        16s    a campaigns
        19s                    -> a elected epoch=2
        20s    a hung calls land -> release refused
        20s    row is a ttl=34 epoch=2
        ",
    );
}

#[test]
fn a_release_is_tried_again_and_recognised_if_it_had_landed() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a loses replies
        1s     a resigns       -> lost resigned, release applied
        2s     a calls work
        4.5s                   -> a release refused, a released
        4.5s   row is released
        ",
    );
}

#[test]
fn a_release_waits_for_a_renewal_in_flight() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        4s     a replies take 1s
        5s                     -> a renewal applied
        5.5s   a resigns       -> lost resigned
        5.5s   a is no leader
        6s                     -> a release applied
        6s     row is released
        7s                     -> a released
        ",
    );
}

#[test]
fn a_release_covers_a_renewal_whose_outcome_is_unknown() {
    check(
        "
        settings retry
        0s     a campaigns     -> elected epoch=1
        4s     a loses replies
        5s                     -> a renewal applied
        7.5s   a calls work
        8s     a resigns       -> lost resigned, release applied, released
        8s     row is released
        ",
    );
}

#[test]
fn who_resigned_lets_others_go_first() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        2.6s   a resigns       -> lost resigned, released
        2.6s   a campaigns
        3.5s                   -> b elected epoch=2
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     a resigns       -> lost resigned, released
        2s     a campaigns
        5s                     -> a elected epoch=2
        ",
    );
}

#[test]
fn a_leader_hands_over_to_a_named_candidate() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.3s   b campaigns
        0.6s   c campaigns
        2s     a resigns to c  -> lost resigned, released
        2s     row is released reserved=c
        2.1s   a campaigns
        2.3s   b is no leader
        2.6s                   -> c elected epoch=2
        ",
    );
    // Known without reading the row again.
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     a resigns to c  -> lost resigned, released
        2s     a calls fail
        2s     a campaigns
        4.9s   a calls work
        17.2s  a is no leader
        17.3s                  -> a elected epoch=2
        ",
    );
}

#[test]
fn a_handover_to_somebody_who_is_gone_holds_the_others_back_for_one_lease() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   b campaigns
        2s     a resigns to c  -> lost resigned, released
        17.7s  b is no leader
        17.8s                  -> b elected epoch=2
        ",
    );
}

#[test]
fn an_operator_asks_once() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     operator asks b
        5s                     -> a asked to resign to=b
        30s    a is leader
        31s    a resigns to b  -> lost resigned, released
        31s    row is released reserved=b
        ",
    );
}

// === stopping ===

#[test]
fn stop_ends_a_candidate_that_waits() {
    check(
        "
        0s     a stops         -> stopped
        1s     a campaigns
        2s     row is absent
        3s     b campaigns     -> elected epoch=1
        4s     c campaigns     -> reads
        5.5s   c stops         -> stopped
        60s    c read 2 times
        ",
    );
}

#[test]
fn stop_releases_what_is_held() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        2s     a stops         -> lost resigned, release applied, released, stopped
        2s     row is released
        9s     a is no leader
        ",
    );
}

#[test]
fn e9_a_stop_waits_for_a_claim_in_flight_and_releases_what_it_won() {
    check(
        "
        0s     a replies take 2s
        0s     a campaigns
        2s                     -> a claim applied
        3s     a stops
        3s     a replies take 0s
        4s                     -> a release applied, a released, a stopped
        4s     row is released
        ",
    );
    check(
        "
        0s     a loses replies after reading
        0s     a campaigns     -> claim applied
        3s     a calls work
        3s     a stops
        5s                     -> a reads, a release applied, a released, a stopped
        5s     row is released
        ",
    );
}

#[test]
fn a_stop_with_a_claim_that_failed_or_was_refused_ends_at_once() {
    check(
        "
        0s     a replies take 2s
        0s     b replies take 2s
        0s     a campaigns
        0s     b campaigns
        3s     b stops
        4s                     -> a elected epoch=1, b stopped
        ",
    );
}

#[test]
fn a_stop_while_a_renewal_or_a_release_is_in_flight_ends_with_it() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        4s     a replies take 1s
        5s                     -> a renewal applied
        5.5s   a stops         -> lost resigned
        6s                     -> a release applied
        7s                     -> a released, a stopped
        ",
    );
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a replies take 1s
        1s     a resigns       -> lost resigned, release applied
        1.5s   a stops
        2s                     -> a released, a stopped
        ",
    );
}

#[test]
fn a_stop_ends_within_one_lease_although_the_store_is_down() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a calls hang
        2s     a stops         -> lost resigned
        16.9s
        17s                    -> a could not release, a stopped
        ",
    );
    check(
        "
        0s     a calls hang after reading
        0s     a campaigns
        1s     a stops
        15.9s
        16s                    -> a stopped
        ",
    );
    // What was given up before the stop does not make it longer.
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a calls hang
        1s     a resigns       -> lost resigned
        9s     a stops
        16s                    -> a could not release, a stopped
        ",
    );
}

// === rows that vanish ===

#[test]
fn e7_an_absence_that_hid_a_term_is_watched_from_its_discovery() {
    // b saw no row, and then nothing for a while. When it looks again, there is no row either, but
    // somebody was elected in between and leads.
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a crashes
        1s     row reaped
        1s     b watches       -> reads
        1.5s   b rests
        2s     c campaigns     -> reads
        18.3s                  -> c elected epoch=2
        19s    c calls hang
        19s    row reaped
        20s    b campaigns     -> reads
        32.9s  b is no leader
        32.9s  c is leader
        33s                    -> c lost expired
        36.3s                  -> b elected epoch=3
        ",
    );
}

#[test]
fn e7_an_absent_row_under_a_known_epoch_is_watched_like_a_stale_one() {
    // The sweep trusted a wrong clock: a leads on until its deadline. b counts from its second look.
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.4s   a calls hang
        0.5s   row reaped
        0.5s   b campaigns     -> reads
        14.6s  a is leader
        14.7s                  -> a lost expired
        16.7s  row is absent
        16.8s                  -> b elected epoch=2
        ",
    );
}

#[test]
fn e13_a_leader_whose_row_was_swept_away_leads_again_at_once() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        0.5s   row reaped
        0.5s   b campaigns     -> reads
        5s                     -> a renewal refused, a lost superseded, a reads
        5s     a campaigns     -> claim applied, elected epoch=2
        6s     a crashes
        6s     row reaped
        22.8s                  -> b elected epoch=3
        ",
    );
}

#[test]
fn e13_an_older_win_says_nothing_about_a_newer_absence() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a resigns       -> lost resigned, released
        2s     b campaigns     -> elected epoch=2 until=16.7s
        3s     b calls hang
        3s     row reaped
        3s     a campaigns
        16.6s  b is leader
        16.6s  a is no leader
        16.7s                  -> b lost expired
        20.3s                  -> a elected epoch=3
        ",
    );
}

#[test]
fn e5_the_epoch_outlives_the_row() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a stops         -> lost resigned, released, stopped
        2s     row reaped
        2s     fence is 1
        3s     b campaigns     -> reads
        19.3s                  -> b elected epoch=2
        ",
    );
}

#[test]
fn e5_a_lost_fence_row_is_made_anew_above_every_epoch_that_was_seen() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a stops         -> lost resigned, released, stopped
        1s     fence deleted
        2s     b campaigns     -> claim refused by fence, claim applied, elected epoch=2
        2s     fence is 2
        ",
    );
}

#[test]
fn e5_a_refusal_by_the_fence_row_teaches_its_epoch() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a stops         -> lost resigned, released, stopped
        1s     fence set 8
        2s     b campaigns     -> claim refused by fence, claim applied, elected epoch=9
        ",
    );
}

// === wall clocks with a bound ===

#[test]
fn e3_with_a_skew_bound_an_expired_row_is_taken_without_watching_it() {
    // The second that ttl=15 names is over at 16 s, and by every clock within the bound at 18 s.
    check(
        "
        settings skew=2s
        0s     a campaigns     -> elected epoch=1
        1s     a crashes
        17.9s  b tries once    -> declined
        18s    b tries once    -> elected epoch=2
        ",
    );
}

#[test]
fn e3_clocks_at_both_ends_of_the_skew_bound_never_show_two_leaders() {
    check(
        "
        settings skew=2s
        0s     a clock wall=-1s
        0s     b clock wall=+1s
        0s     a campaigns     -> elected epoch=1
        0s     row is a ttl=14
        1s     a pauses
        12.6s  a is leader
        12.7s  a is no leader
        14.8s  b campaigns     -> reads
        15.9s  b is no leader
        16s                    -> b elected epoch=2
        ",
    );
}

#[test]
fn e7_with_a_skew_bound_a_row_that_was_swept_away_is_free() {
    // The sweep goes by a clock that is a second ahead of a's, and a knows that it may.
    check(
        "
        settings skew=2s
        0s     a clock wall=-1s
        0s     a campaigns     -> elected epoch=1
        0s     row is a ttl=14
        1s     a pauses
        14s    row reaped
        14s    a is no leader
        14s    b tries once    -> elected epoch=2
        ",
    );
}

#[test]
fn e7_a_sweep_is_not_believed_of_a_leader_without_the_bound() {
    // a took nothing off its own time, so b may not go by the sweep, although every clock is within 2 s.
    check(
        "
        0s     a clock wall=-1s
        0s     b clock wall=+1s
        0s     b settings skew=2s
        0.9s   a campaigns     -> elected epoch=1 until=15.6s
        1s     b campaigns     -> reads
        1s     row is a ttl=14 epoch=1
        2s     a calls hang
        14.1s  row reaped
        15.5s  a is leader
        15.5s  b is no leader
        ",
    );
}

#[test]
fn e3_without_a_bound_an_expired_ttl_says_nothing() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a crashes
        3600s  b campaigns     -> reads
        3615s  b is no leader
        3615.3s                -> b elected epoch=2
        ",
    );
}

// === Go processes ===

#[test]
fn a_go_row_is_taken_only_after_both_its_ttl_and_a_lease_of_watching() {
    check(
        "
        settings go_peers skew=2s
        0s     go puts ttl=5
        1s     a campaigns     -> reads
        16.2s  a is no leader
        16.3s                  -> a elected epoch=1 until=29s
        ",
    );
    check(
        "
        settings go_peers skew=2s
        0s     go puts ttl=40
        1s     a campaigns     -> reads
        42.9s  a is no leader
        43s                    -> a elected epoch=1
        ",
    );
}

#[test]
fn a_go_process_that_renews_is_left_in_office() {
    check(
        "
        settings go_peers skew=2s
        0s     go puts ttl=5
        1s     a campaigns     -> reads
        10s    go puts ttl=15
        20s    go puts ttl=25
        30s    go puts ttl=35
        45.2s  a is no leader
        46.3s                  -> a elected epoch=1
        ",
    );
}

#[test]
fn beside_go_peers_an_absent_row_was_released() {
    check(
        "
        settings go_peers skew=2s
        0s     a campaigns     -> elected epoch=1
        1s     a stops         -> lost resigned, released, stopped
        2s     go puts ttl=17
        3s     go deletes
        4s     b campaigns     -> elected epoch=2
        ",
    );
}

#[test]
fn an_unannounced_go_row_is_reported_and_never_taken() {
    check(
        "
        0s     go puts ttl=5
        1s     a watches       -> trouble go row
        2s     a tries once    -> trouble go row, declined
        3s     a tries once    -> trouble go row, declined
        999s   row is go
        ",
    );
    check(
        "
        settings skew=2s
        0s     go puts ttl=5
        1s     a tries once    -> trouble go row, declined
        999s   row is go
        ",
    );
}

// === rows and ids that are not ours ===

#[test]
fn a_foreign_row_is_reported_and_left_alone() {
    check(
        "
        0s     row foreign
        0.5s   a tries once    -> trouble foreign row, declined
        1s     row mended
        1s     b campaigns     -> elected epoch=1
        2s     row foreign
        2.5s                   -> a trouble foreign row
        3s     a rests
        6s                     -> b trouble foreign row, b lost superseded
        6.5s   row mended
        7s     b is no leader
        ",
    );
}

#[test]
fn e8_a_row_with_my_owner_id_is_not_mine() {
    check(
        "
        c owner=a
        0s     a campaigns     -> elected epoch=1
        1.5s   c campaigns     -> reads
        4.9s   c is no leader
        5.5s                   -> c trouble same owner
        6.6s   c rests
        16s    a is leader
        ",
    );
}

#[test]
fn e8_a_restarted_process_with_a_fixed_id_waits_like_everybody_else() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a crashes
        2s     a restarts
        2s     a campaigns     -> reads
        17.2s  a is no leader
        17.3s                  -> a elected epoch=2
        ",
    );
}

// === standing once ===

#[test]
fn one_attempt_is_answered_either_way() {
    check(
        "
        0s     a tries once    -> elected epoch=1
        1s     b tries once    -> declined
        2s     a resigns       -> lost resigned, released
        2.5s   b is no leader
        3s     b tries once    -> elected epoch=2
        4s     c calls fail
        4s     c tries once    -> declined
        5s     a tries once    -> declined
        ",
    );
}

#[test]
fn one_attempt_that_loses_the_race_is_declined() {
    check(
        "
        0s     a replies take 1s
        0s     b replies take 1s
        0s     a tries once
        0s     b tries once
        2s                     -> a elected epoch=1, b declined
        ",
    );
}

// === health ===

#[test]
fn e11_without_health_there_is_no_renewal() {
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a is unhealthy
        14.6s  a is leader
        14.6s  row is a ttl=15
        14.7s                  -> a lost unhealthy
        ",
    );
}

#[test]
fn health_that_returns_in_time_saves_the_term() {
    // Asked again every eighth of the renew period.
    check(
        "
        0s     a campaigns     -> elected epoch=1
        1s     a is unhealthy
        8s     a is healthy
        8.125s                 -> a renewed until=22.825s
        20s    a is leader
        ",
    );
}
