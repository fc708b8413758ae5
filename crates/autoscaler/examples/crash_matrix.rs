//! The crash matrix from the command line: `crash_matrix [--rules seed] [--scenario NAME] [--json]`.
//!
//! Exits 0 exactly if nothing broke; with `--rules seed`, if all four symptoms of the old documents showed.

use std::process::ExitCode;
use std::thread;

use tenure_autoscaler::testing::matrix::{Rules, run};
use tenure_autoscaler::testing::{Scenario, Symptom};
use tenure_clock::{Clock, SystemClock};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut rules, mut json, mut name) = (Rules::Tenure, false, None);
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        match (argument, argument == "--json") {
            (_, true) => json = true,
            ("--rules", _) if rest.next() == Some("seed") => rules = Rules::Seed,
            ("--scenario", _) => name = rest.next(),
            _ => {
                eprintln!("usage: crash_matrix [--rules seed] [--scenario NAME] [--json]");
                return ExitCode::FAILURE;
            }
        }
    }
    let fits = |scenario: &Scenario| {
        name.is_none_or(|name| scenario.name == name) && (rules == Rules::Tenure || scenario.for_seed)
    };
    let scenarios: Vec<Scenario> = Scenario::ALL.into_iter().filter(fits).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let began = SystemClock.monotonic();
    let report = run(&scenarios, rules, threads);
    let seconds = SystemClock.monotonic().since(began).as_secs_f64();
    let symptoms: Vec<_> = Symptom::ALL
        .iter()
        .map(|symptom| (symptom.name(), report.by_symptom.get(symptom).copied().unwrap_or(0)))
        .collect();
    for (point, violation) in report.firsts.values() {
        eprintln!("first: {point:?}: {} {}", violation.checker.name(), violation.what);
    }
    if json {
        let checkers: Vec<_> = report
            .by_checker
            .iter()
            .map(|(checker, count)| format!("\"{}\":{count}", checker.name()))
            .collect();
        let symptoms: Vec<_> = symptoms.iter().map(|(name, count)| format!("\"{name}\":{count}")).collect();
        println!(
            "{{\"rules\":\"{}\",\"scenarios\":{},\"points\":{},\"unreached\":{},\"violations\":{},\
             \"by_checker\":{{{}}},\"by_symptom\":{{{}}},\"seconds\":{seconds:.1}}}",
            if rules == Rules::Seed { "seed" } else { "tenure" },
            scenarios.len(),
            report.points.len(),
            report.unreached,
            report.violations(),
            checkers.join(","),
            symptoms.join(","),
        );
    } else {
        println!(
            "{} distinct points of {} stories ({} were not reached), {} violations, {seconds:.1} s",
            report.points.len(),
            scenarios.len(),
            report.unreached,
            report.violations()
        );
        for (checker, count) in &report.by_checker {
            println!("{} broken at {count} points", checker.name());
        }
        for (name, count) in symptoms.iter().filter(|(_, count)| *count > 0) {
            println!("{name} at {count} points");
        }
    }
    let held = match rules {
        Rules::Tenure => report.violations() == 0,
        Rules::Seed => symptoms.iter().all(|(_, count)| *count > 0),
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
