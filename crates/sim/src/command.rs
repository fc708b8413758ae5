//! The command line: which schedules to run, and how to report them.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use tenure_clock::{Clock, SystemClock};

use crate::election::checkers::Rule;
use crate::election::outcome::Outcome;
use crate::election::plan::Plan;
use crate::election::shrink::{Shrunk, shrink};
use crate::election::{self, Rules, Watch};
use crate::fleet::{self, Sums};

/// Fewer schedules than this are a replay, and need not inject every kind of fault nor come far.
const SCHEDULES_TO_JUDGE: u64 = 100;
/// Less time with a leader than this share, and the fleet hardly moved: safety alone is kept by a dead
/// system.
const LED_SHARE_MIN: f64 = 0.5;

/// Runs the pure machines in a simulated world, thousands of schedules a run.
#[derive(Debug, Parser)]
#[command(name = "tenure-sim", version)]
pub struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Three nodes stand for one shard.
    Election(Selection),
}

#[derive(Debug, Args)]
struct Selection {
    /// How many schedules, of the seeds from --seed on.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Whose rules the nodes follow; `seed` is the positive control, which must break.
    #[arg(long, value_enum, default_value_t = RulesName::Tenure)]
    rules: RulesName,
    /// The summary as one line of JSON on stdout.
    #[arg(long)]
    json: bool,
    /// Print every event of the first schedule, to stderr with --json.
    #[arg(long)]
    trace: bool,
    /// How many threads; as many as there are processors unless told.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum RulesName {
    Tenure,
    Seed,
}

/// The summary; scripts rely on these names.
#[derive(Debug, Serialize)]
struct Summary {
    scenario: &'static str,
    rules: RulesName,
    seed: u64,
    schedules: u64,
    violations: u64,
    by_checker: BTreeMap<&'static str, u64>,
    first_seed: Option<u64>,
    faults: BTreeMap<&'static str, u64>,
    /// Guarded writes that were accepted.
    progress: u64,
    sim_hours: f64,
    schedules_per_s: f64,
    failover_p50: Option<f64>,
    failover_p99: Option<f64>,
}

/// Runs what was asked for; success exactly if what it promises held.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let Scenario::Election(selection) = &arguments.scenario;
    let rules = match selection.rules {
        RulesName::Tenure => Rules::Tenure,
        RulesName::Seed => Rules::Seed,
    };
    if selection.trace {
        let outcome = election::run(&Plan::draw(selection.seed), rules, Watch { lines: true, until: None });
        print_lines(&outcome, selection.json, false);
    }
    let threads = selection.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let began = SystemClock.monotonic();
    let progress = |done| eprintln!("{done} of {} schedules", selection.schedules);
    let sums = fleet::run(rules, selection.seed, selection.schedules, threads, &progress);
    let seconds = SystemClock.monotonic().since(began).as_secs_f64().max(1e-9);
    report(selection, &sums, seconds);
    for (rule, seed) in &sums.first_seeds {
        tell(*seed, *rule, rules);
    }
    let problems = problems(selection, &sums);
    for problem in &problems {
        eprintln!("error: {problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(selection: &Selection, sums: &Sums, seconds: f64) {
    let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
    let summary = Summary {
        scenario: "election",
        rules: selection.rules,
        seed: selection.seed,
        schedules: sums.schedules,
        violations: sums.violations(),
        by_checker: sums.by_rule.iter().map(|(rule, count)| (rule.name(), *count)).collect(),
        first_seed: sums.first().map(|(seed, _)| seed),
        faults: sums.faults.by_name(),
        progress: sums.writes_accepted,
        sim_hours: rounded(sums.lived_nanos as f64 / 3.6e12, 10.0),
        schedules_per_s: rounded(sums.schedules as f64 / seconds, 10.0),
        failover_p50: sums.failover(0.5),
        failover_p99: sums.failover(0.99),
    };
    eprintln!(
        "{} terms, a leader {:.1} % of the time; {} writes by leaders, {} claims and no other write by followers; \
         guarded writes {} accepted, {} refused; {} failovers; {:.0} events a schedule; trace {:016x}",
        sums.terms,
        100.0 * sums.led_share(),
        sums.leader_writes,
        sums.claims,
        sums.writes_accepted,
        sums.writes_refused,
        sums.failovers.iter().sum::<u64>(),
        sums.events as f64 / sums.schedules.max(1) as f64,
        sums.hash,
    );
    if selection.json {
        println!("{}", serde_json::to_string(&summary).unwrap_or_default());
    } else {
        print_summary(&summary);
    }
}

fn print_summary(summary: &Summary) {
    let counts = |counts: &BTreeMap<&'static str, u64>| {
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let leases = |leases: Option<f64>| leases.map_or_else(|| "-".to_owned(), |leases| format!("{leases} L"));
    println!(
        "{} schedules from seed {}: {} h simulated, {} a second",
        summary.schedules, summary.seed, summary.sim_hours, summary.schedules_per_s
    );
    println!("violations {}: {}", summary.violations, counts(&summary.by_checker));
    println!("injected: {}", counts(&summary.faults));
    println!("failover: p50 {}, p99 {}", leases(summary.failover_p50), leases(summary.failover_p99));
}

/// Makes a failing schedule small, and tells what happens in it.
fn tell(seed: u64, rule: Rule, rules: Rules) {
    let plan = Plan::draw(seed);
    let Shrunk { plan: small, outcome } = shrink(&plan, rules, rule);
    eprintln!(
        "\nseed {seed} breaks {}; made smaller, from {} incidents to {}, it goes like this:",
        rule.name(),
        plan.incidents.len(),
        small.incidents.len()
    );
    print_lines(&outcome, true, true);
    eprintln!("replay all of it with --seed {seed} --schedules 1 --trace\n");
}

/// Why the run does not count as passed.
fn problems(selection: &Selection, sums: &Sums) -> Vec<String> {
    let mut problems = Vec::new();
    if selection.rules == RulesName::Seed {
        if sums.violations() == 0 {
            problems.push("the seed's rules were not caught breaking: this world catches nothing".to_owned());
        }
        return problems;
    }
    for (rule, seed) in &sums.first_seeds {
        problems.push(format!("{} broken, first by seed {seed}", rule.name()));
    }
    if sums.schedules < SCHEDULES_TO_JUDGE {
        return problems;
    }
    let missing = sums.faults.missing();
    if !missing.is_empty() {
        problems.push(format!("never injected: {}", missing.join(", ")));
    }
    if sums.led_share() < LED_SHARE_MIN || sums.writes_accepted == 0 {
        problems.push(format!(
            "hardly any progress: a leader {:.1} % of the time, {} guarded writes accepted",
            100.0 * sums.led_share(),
            sums.writes_accepted
        ));
    }
    problems
}

fn print_lines(outcome: &Outcome, to_stderr: bool, story_only: bool) {
    for line in outcome.lines.iter().filter(|line| line.telling || !story_only) {
        if to_stderr {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }
}
