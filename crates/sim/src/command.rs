//! The command line: which schedules to run, and how to report them.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use tenure_clock::{Clock, SystemClock};

use crate::autoscaler::Autoscaler;
use crate::cdc::Cdc;
use crate::election::Election;
use crate::fleet::{self, SumsOf};
use crate::leases::{Leases, scale};
use crate::scenario::{Named, OutcomeOf, Plan, Scenario, Tally, Watch};
use crate::shrink::{Shrunk, shrink};

/// Fewer schedules than this are a replay, and need not inject every kind of fault nor come far.
const SCHEDULES_TO_JUDGE: u64 = 100;

/// Runs the pure machines in a simulated world, thousands of schedules a run.
#[derive(Debug, Parser)]
#[command(name = "tenure-sim", version)]
pub struct Arguments {
    #[command(subcommand)]
    scenario: Chosen,
}

#[derive(Debug, Subcommand)]
enum Chosen {
    /// A few executors keep one cluster at its size.
    Autoscaler(Selection),
    /// Three nodes stand for one shard.
    Election(Selection),
    /// A few nodes take turns in publishing a database's changes.
    Cdc(Selection),
    /// A few workers share the shards of a stream.
    Leases {
        #[command(flatten)]
        selection: Selection,
        /// One calm world instead: a large fleet that starts at once.
        #[arg(long)]
        scale: bool,
        /// With --scale: how many shards.
        #[arg(long, default_value_t = 10_000, requires = "scale", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        shards: u32,
        /// With --scale: how many workers.
        #[arg(long, default_value_t = 1000, requires = "scale", value_parser = clap::value_parser!(u16).range(1..=10_000))]
        workers: u16,
    },
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
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    by_symptom: BTreeMap<&'static str, u64>,
    first_seed: Option<u64>,
    faults: BTreeMap<&'static str, u64>,
    progress: u64,
    sim_hours: f64,
    schedules_per_s: f64,
    #[serde(flatten)]
    more: BTreeMap<&'static str, Option<f64>>,
}

/// Runs what was asked for; success exactly if what it promises held.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    match &arguments.scenario {
        Chosen::Autoscaler(selection) => simulate::<Autoscaler>(selection),
        Chosen::Election(selection) => simulate::<Election>(selection),
        Chosen::Cdc(selection) => simulate::<Cdc>(selection),
        Chosen::Leases { selection, scale: true, shards, workers } => {
            at_scale(selection.json, *shards, usize::from(*workers))
        }
        Chosen::Leases { selection, .. } => simulate::<Leases>(selection),
    }
}

fn simulate<S: Scenario>(selection: &Selection) -> ExitCode {
    let rules = match selection.rules {
        RulesName::Tenure => S::OURS,
        RulesName::Seed => S::SEED,
    };
    if selection.trace {
        let outcome = S::run(&S::Plan::draw(selection.seed), rules, Watch { lines: true, until: None });
        print_lines::<S>(&outcome, selection.json, false);
    }
    let threads = selection.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let began = SystemClock.monotonic();
    let progress = |done| eprintln!("{done} of {} schedules", selection.schedules);
    let sums = fleet::run::<S>(rules, selection.seed, selection.schedules, threads, &progress);
    let seconds = SystemClock.monotonic().since(began).as_secs_f64().max(1e-9);
    report::<S>(selection, &sums, seconds);
    for (rule, seed) in &sums.first_seeds {
        tell::<S>(*seed, *rule, rules);
    }
    let problems = problems::<S>(selection, &sums);
    for problem in &problems {
        eprintln!("error: {problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A large fleet, and what it costs.
fn at_scale(json: bool, shards: u32, workers: usize) -> ExitCode {
    let figures = scale::run(shards, workers);
    if json {
        println!("{}", serde_json::to_string(&figures).unwrap_or_default());
    } else {
        println!("{figures:#?}");
    }
    if figures.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report<S: Scenario>(selection: &Selection, sums: &SumsOf<S>, seconds: f64) {
    let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
    let summary = Summary {
        scenario: S::NAME,
        rules: selection.rules,
        seed: selection.seed,
        schedules: sums.schedules,
        violations: sums.violations(),
        by_checker: sums.by_rule.iter().map(|(rule, count)| (rule.name(), *count)).collect(),
        by_symptom: sums.tally.by_symptom(),
        first_seed: sums.first().map(|(seed, _)| seed),
        faults: sums.faults.by_name(),
        progress: sums.tally.progress(),
        sim_hours: rounded(sums.lived_nanos as f64 / 3.6e12, 10.0),
        schedules_per_s: rounded(sums.schedules as f64 / seconds, 10.0),
        more: sums.tally.fields(),
    };
    eprintln!(
        "{}; {:.0} events a schedule; trace {:016x}",
        sums.tally.line(sums.lived_nanos),
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
    println!(
        "{} schedules from seed {}: {} h simulated, {} a second",
        summary.schedules, summary.seed, summary.sim_hours, summary.schedules_per_s
    );
    println!("violations {}: {}", summary.violations, counts(&summary.by_checker));
    if !summary.by_symptom.is_empty() {
        println!("symptoms: {}", counts(&summary.by_symptom));
    }
    println!("injected: {}", counts(&summary.faults));
    for (name, value) in &summary.more {
        println!("{name} {}", value.map_or_else(|| "-".to_owned(), |value| value.to_string()));
    }
}

/// Makes a failing schedule small, and tells what happens in it.
fn tell<S: Scenario>(seed: u64, rule: S::Rule, rules: S::Rules) {
    let plan = S::Plan::draw(seed);
    let Shrunk { plan: small, outcome } = shrink::<S>(&plan, rules, rule);
    eprintln!(
        "\nseed {seed} breaks {}; made smaller, from {} incidents to {}, it goes like this:",
        rule.name(),
        plan.course().incidents.len(),
        small.course().incidents.len()
    );
    print_lines::<S>(&outcome, true, true);
    eprintln!("replay all of it with --seed {seed} --schedules 1 --trace\n");
}

/// Why the run does not count as passed.
fn problems<S: Scenario>(selection: &Selection, sums: &SumsOf<S>) -> Vec<String> {
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
    if let Some(why) = sums.tally.stands_still(sums.lived_nanos) {
        problems.push(format!("hardly any progress: {why}"));
    }
    problems
}

fn print_lines<S: Scenario>(outcome: &OutcomeOf<S>, to_stderr: bool, story_only: bool) {
    for line in outcome.lines.iter().filter(|line| line.telling || !story_only) {
        if to_stderr {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }
}
