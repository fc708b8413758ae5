//! Nothing is lost on its way, the positive control loses it, and a failing schedule is made small.

use tenure_sim::cdc::checkers::Rule;
use tenure_sim::cdc::plan::Plan;
use tenure_sim::cdc::{Cdc, Rules};
use tenure_sim::fleet;
use tenure_sim::scenario::{Named, Plan as _, Scenario, Watch};
use tenure_sim::shrink::shrink;

use super::{THREADS, long, quiet};

#[test]
fn no_schedule_loses_reorders_or_repeats_a_change() {
    let schedules = if long() { 100_000 } else { 2000 };
    let sums = fleet::run::<Cdc>(Rules::Tenure, 1, schedules, THREADS, &quiet);
    assert_eq!(sums.first(), None, "replay with `cargo xtask sim cdc --seed N --schedules 1 --trace`");
    assert_eq!(sums.faults.missing(), [""; 0]);
    // Safety alone is kept by a dead system, and two leaders at once are what this is about.
    let tally = &sums.tally;
    assert!(2 * tally.first > tally.committed, "{tally:?}");
    assert!(tally.pointers > schedules && tally.two_leaders > schedules / 10, "{tally:?}");
    assert!(tally.duplicates > schedules && tally.zombies > 0 && tally.rows_refused > 0, "{tally:?}");
}

#[test]
fn the_seeds_own_rules_are_caught() {
    let sums = fleet::run::<Cdc>(Rules::Seed, 1, 200, THREADS, &quiet);
    for rule in [Rule::Cd1, Rule::Cd2, Rule::Cd3, Rule::Cd5] {
        assert!(sums.by_rule[&rule] > 20, "{} broken {} times", rule.name(), sums.by_rule[&rule]);
    }
}

/// Seeds that broke something while this was built. Each must hold now.
#[test]
fn seeds_that_broke_once_hold() {
    let seeds = [
        // A pointer took later events into its record, was refused with them, and was then parked in the place
        // of the content that it points to.
        (12, "CD-1"),
    ];
    for (seed, broke) in seeds {
        let outcome = Cdc::run(&Plan::draw(seed), Rules::Tenure, Watch::default());
        assert_eq!(outcome.violations, [], "seed {seed}, which once broke {broke}");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let run = |threads| fleet::run::<Cdc>(Rules::Tenure, 500, 60, threads, &quiet);
    assert_eq!(run(1), run(3));
}

#[test]
fn a_failing_schedule_is_made_small() {
    let failing = (1..).map(Plan::draw).find(|plan| {
        plan.course.incidents.len() > 10 && Cdc::run(plan, Rules::Seed, Watch::default()).breaks(Rule::Cd3)
    });
    let plan = failing.expect("the seed's rules break soon");
    let small = shrink::<Cdc>(&plan, Rules::Seed, Rule::Cd3);
    assert!(small.outcome.breaks(Rule::Cd3));
    let left = small.plan.course.incidents.len();
    assert!(left <= 3 && left < plan.course.incidents.len(), "{left} incidents are left");
    // It is a schedule like any other, and replays.
    assert!(Cdc::run(&small.plan, Rules::Seed, Watch::default()).breaks(Rule::Cd3));
}
