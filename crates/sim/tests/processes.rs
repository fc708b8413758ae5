//! The program: the same story from every process, and a summary with its fields.

use std::process::{Command, Output};

const SCENARIOS: [&str; 4] = ["election", "cdc", "leases", "autoscaler"];

fn simulator(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-sim"));
    command.args(arguments).output().expect("the simulator runs")
}

#[test]
fn two_processes_tell_the_same_story() {
    for scenario in SCENARIOS {
        tell_twice(scenario);
    }
}

fn tell_twice(scenario: &str) {
    let run = |threads: &str| {
        simulator(&[scenario, "--seed", "42", "--schedules", "60", "--trace", "--json", "--threads", threads])
    };
    let (one, two) = (run("1"), run("2"));
    let text = String::from_utf8_lossy(&one.stderr);
    assert!(one.status.success(), "{text}");
    assert!(text.lines().count() > 1000, "every event of seed 42, and the hash of the others:\n{text}");
    // How far a run is, it tells by the real clock.
    let told = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().filter(|line| !line.ends_with(" of 60 schedules")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(told(&one) == told(&two), "two runs of one seed differ");
}

#[test]
fn the_summary_has_its_fields() {
    fields_of("election", &["failover_p50", "failover_p99"]);
    fields_of("cdc", &[]);
    fields_of("leases", &[]);
    fields_of("autoscaler", &["by_symptom"]);
}

fn fields_of(scenario: &str, more: &[&str]) {
    let output = simulator(&[scenario, "--schedules", "100", "--rules", "seed", "--json"]);
    assert!(output.status.success(), "the positive control succeeds by breaking");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    let names: Vec<_> = summary.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut wanted = vec![
        "scenario",
        "rules",
        "seed",
        "schedules",
        "violations",
        "by_checker",
        "first_seed",
        "faults",
        "progress",
        "sim_hours",
        "schedules_per_s",
    ];
    wanted.extend(more);
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    assert_eq!(summary["scenario"], scenario);
    assert!(summary["violations"].as_u64() > Some(0) && summary["first_seed"].is_u64());
}
