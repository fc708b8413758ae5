//! Every shard has one reader, the positive control has not, and a failing schedule is made small.

use tenure_sim::fleet;
use tenure_sim::leases::checkers::Rule;
use tenure_sim::leases::plan::Plan;
use tenure_sim::leases::{Leases, Rules, scale};
use tenure_sim::scenario::{Named, Plan as _, Scenario, Watch};
use tenure_sim::shrink::shrink;

use super::{THREADS, long, quiet};

#[test]
fn no_schedule_gives_a_shard_two_readers_or_none() {
    let schedules = if long() { 100_000 } else { 2000 };
    let sums = fleet::run::<Leases>(Rules::Tenure, 1, schedules, THREADS, &quiet);
    assert_eq!(sums.first(), None, "replay with `cargo xtask sim leases --seed N --schedules 1 --trace`");
    assert_eq!(sums.faults.missing(), [""; 0]);
    // Safety alone is kept by a dead system.
    let tally = &sums.tally;
    assert!(100 * tally.processed > 95 * tally.written && tally.held_share() > 0.8, "{tally:?}");
    assert!(tally.planned > schedules && tally.losses > schedules && tally.moves > schedules, "{tally:?}");
    assert!(tally.restored > 0 && tally.ended > schedules && tally.deficits > 0, "{tally:?}");
    assert!(tally.duplicates > 0, "a crash repeats what was not stored: {tally:?}");
}

#[test]
fn the_seeds_own_rules_are_caught() {
    let sums = fleet::run::<Leases>(Rules::Seed, 1, 200, THREADS, &quiet);
    // Parents that starve, and workers that rob each other.
    for rule in [Rule::Ls5, Rule::Ls6] {
        assert!(sums.by_rule[&rule] > 20, "{} broken {} times", rule.name(), sums.by_rule[&rule]);
    }
}

/// Seeds that broke something while this was built. Each must hold now.
#[test]
fn seeds_that_broke_once_hold() {
    let seeds = [
        // A renewal that was lost with its lease had sent the same counter as the claim that followed, and might
        // have been what landed: the new hold outlasted what others saw.
        (2, "LS-1"),
        // A worker with an old list of shards made a row again that another had cleaned away: the shard was read
        // from its beginning.
        (34, "LS-3"),
        // A row was deleted by hand, and with it all its finished ancestors were made again.
        (50, "LS-7"),
        // A planner with an old list deleted the lease of a shard that was newer than it.
        (106, "LS-7"),
        // The first of two requests to make a row landed when its shard had been read and the row cleaned away.
        (272, "LS-2"),
        // Handoffs to a dead worker counted as its renewals, so that it was handed ever more.
        (966, "LS-5"),
        // A row was deleted that somebody had taken a moment before, and made again at once.
        (6543, "LS-1"),
        // A planner with an old list cleaned away leases whose children it did not know.
        (7176, "LS-2"),
        // The row of a parent was lost for so long that its children were read first.
        (5029, "LS-4"),
        // The end of a shard was stored unheard, and its lease was granted once more.
        (4379, "news_agree"),
        // A worker that had been paused made a row that another held and somebody had deleted.
        (11_837, "LS-1"),
        // A parent's row was lost: one worker knew that it had ended, and handed its child to one who did not.
        (1362, "LS-5"),
        // A cap that could not be said was not said again before the clock had run for twenty minutes.
        (7091, "LS-6"),
        // A row that was put back and vanished again while a worker was paused was made at once.
        (6404, "LS-1"),
        // A take was lost while the handoff that it looked like was finished: the hold counted from the take.
        (12_842, "LS-1"),
        // A worker's row of long ago came late, and said the cap of then.
        (9622, "LS-6"),
    ];
    for (seed, broke) in seeds {
        let outcome = Leases::run(&Plan::draw(seed), Rules::Tenure, Watch::default());
        assert_eq!(outcome.violations, [], "seed {seed}, which once broke {broke}");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let run = |threads| fleet::run::<Leases>(Rules::Tenure, 500, 60, threads, &quiet);
    assert_eq!(run(1), run(3));
}

#[test]
fn a_failing_schedule_is_made_small() {
    let failing = (1..).map(Plan::draw).find(|plan| {
        plan.course.incidents.len() > 20 && Leases::run(plan, Rules::Seed, Watch::default()).breaks(Rule::Ls1)
    });
    let plan = failing.expect("the seed's rules break soon");
    let small = shrink::<Leases>(&plan, Rules::Seed, Rule::Ls1);
    assert!(small.outcome.breaks(Rule::Ls1));
    let left = small.plan.course.incidents.len();
    assert!(left <= 5 && left < plan.course.incidents.len(), "{left} incidents are left");
    // It is a schedule like any other, and replays.
    assert!(Leases::run(&small.plan, Rules::Seed, Watch::default()).breaks(Rule::Ls1));
}

/// A large fleet comes to rest. Minutes of real time: only in long runs.
#[test]
fn a_large_fleet_owns_every_shard_soon() {
    let (shards, workers) = if long() { (10_000, 1000) } else { (400, 40) };
    let figures = scale::run(shards, workers);
    assert!(figures.ok, "{figures:?}");
    assert!(figures.converged_leases.is_some_and(|leases| leases <= 2.0), "{figures:?}");
}
