//! The crash matrix: ours holds, the old documents' flow does not.

use std::thread;

use tenure_autoscaler::testing::matrix::{Rules, run};
use tenure_autoscaler::testing::{Scenario, Symptom};

#[test]
fn every_call_every_fault_every_second_executor() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let report = run(&Scenario::ALL, Rules::Tenure, threads);
    assert_eq!(report.violations(), 0, "{:?}: {:?}", report.by_checker, report.firsts);
    // Points that were run twice would have panicked: these are distinct.
    assert!(report.points.len() >= 2000, "only {} points", report.points.len());
    for scenario in Scenario::ALL {
        let points = report.points.iter().filter(|point| point.scenario == scenario.name).count();
        assert!(points >= 50, "only {points} points of `{}`", scenario.name);
    }
}

#[test]
fn the_old_rules_show_every_symptom() {
    let told: Vec<_> = Scenario::ALL.into_iter().filter(|scenario| scenario.for_seed).collect();
    let report = run(&told, Rules::Seed, 1);
    for symptom in Symptom::ALL {
        assert!(report.by_symptom.contains_key(&symptom), "no {} in {report:?}", symptom.name());
    }
}
