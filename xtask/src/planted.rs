//! `xtask planted`: tests of the tests.
//!
//! One build with `--cfg planted`, in a target directory of its own, can break each rule on purpose:
//! `TENURE_PLANTED` names the bug. The layers of tests run from the cheapest to the dearest until one
//! fails, and then the bug is caught. Before that all layers run without a bug, and must pass.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;
use crate::workspace::cargo;

/// A layer that runs longer has caught the bug: it went round and round.
const LAYER_TIMEOUT: Duration = Duration::from_secs(300);
/// What `timeout` says then.
const TIMED_OUT: i32 = 124;

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// The machine, rows and fence of an election.
    Election,
    /// The publisher, its row, and where it may begin.
    Cdc,
    /// The reader of shards: dedup, checkpoints, and what it does with a lease.
    Consumer,
    /// Who reads which shard.
    Leases,
    /// Scaling actions: what is ended, launched, cordoned and waited for.
    Autoscaler,
}

impl Scenario {
    const fn name(self) -> &'static str {
        match self {
            Self::Election => "election",
            Self::Cdc => "cdc",
            Self::Consumer => "consumer",
            Self::Leases => "leases",
            Self::Autoscaler => "autoscaler",
        }
    }

    const fn bugs(self) -> &'static [Bug] {
        match self {
            Self::Election => &ELECTION,
            Self::Cdc => &CDC,
            Self::Consumer => &CONSUMER,
            Self::Leases => &LEASES,
            Self::Autoscaler => &AUTOSCALER,
        }
    }

    /// How many schedules a bug gets in the simulation: some seconds of them.
    const fn sim_schedules(self) -> &'static str {
        match self {
            Self::Election | Self::Cdc => "2000",
            Self::Leases | Self::Consumer | Self::Autoscaler => "600",
        }
    }
}

pub(crate) struct Selection {
    pub(crate) scenario: Scenario,
    pub(crate) json: bool,
    pub(crate) only: Option<String>,
    pub(crate) all_layers: bool,
}

/// A bug to plant, and the rule or the checker that it breaks.
struct Bug {
    name: &'static str,
    breaks: &'static str,
}

/// In the order of the rules in `machine.rs`; `LD-…` are the checkers of the simulation.
const ELECTION: [Bug; 24] = [
    bug("deadline_from_receipt", "E-1, LD-1"),
    bug("retry_stretches_deadline", "E-1, LD-1"),
    bug("no_rate_margin", "E-1, E-2, LD-1"),
    bug("stale_by_own_lease", "E-2, LD-1"),
    bug("stale_from_send", "E-2, LD-1"),
    bug("watch_ignores_version", "E-2, LD-1"),
    bug("bare_wall_clock", "E-3, LD-1"),
    bug("go_row_by_ttl_alone", "E-3"),
    bug("unknown_is_success", "E-4, LD-1"),
    bug("fence_in_ttl_row", "E-5, LD-2"),
    bug("own_claim_keeps_epoch", "E-5, LD-2"),
    bug("release_without_version", "E-6, LD-1"),
    bug("release_keeps_rvn", "E-6"),
    bug("absent_is_free", "E-7, LD-1"),
    bug("own_row_by_owner_id", "E-8, LD-1"),
    bug("stop_does_not_join", "E-9"),
    bug("expired_term_revives", "E-10"),
    bug("unhealthy_renews", "E-11"),
    bug("unhealthy_claims", "E-11"),
    bug("renewal_reuses_ttl", "E-12, LD-1"),
    bug("old_win_counts", "E-13, LD-1"),
    bug("resign_request_repeats", "ResignAsked once"),
    bug("guard_admits_lower", "LD-3"),
    bug("follower_gives_up", "LD-4"),
];

/// In the order of the rules in `crates/cdc`; `CD-…` are the checkers of the simulation.
const CDC: [Bug; 30] = [
    bug("frontier_skips_outstanding", "CP-1, CD-2"),
    bug("idle_inside_transaction", "CP-2, CD-2"),
    bug("acks_inside_the_commit", "CP-2, CD-2"),
    bug("two_outstanding", "CP-3, CD-3"),
    bug("failed_goes_last", "CP-3, CD-3"),
    bug("failed_is_settled", "CP-4, CD-1"),
    bug("resent_with_other_bytes", "CP-4"),
    bug("floor_ahead", "CP-5"),
    bug("pointer_before_content", "CP-6, CD-1"),
    bug("pointer_takes_company", "CP-6, CD-1"),
    bug("refused_is_dropped", "CP-6, CD-1"),
    bug("takes_without_bound", "CP-7"),
    bug("barrier_does_not_drain", "CP-8"),
    bug("barrier_does_not_wait", "CP-8"),
    bug("publish_without_leadership", "CP-9, CD-6"),
    bug("feedback_before_row", "CP-10"),
    bug("checkpoint_without_fence", "CP-11"),
    bug("row_goes_back", "CP-11"),
    bug("era_stays", "CP-11, CD-5"),
    bug("fence_is_the_era", "CD-4"),
    bug("idle_written_often", "CP-12"),
    bug("trusts_the_slot", "CP-13, CD-5"),
    bug("diverged_log_is_read", "CP-13, CD-5"),
    bug("lost_slot_is_read", "CP-13"),
    bug("every_k_is_zero", "CP-14"),
    bug("key_change_is_update", "CP-15"),
    bug("unfit_is_left_out", "CP-16"),
    bug("shard_rate_is_ignored", "CP-17"),
    bug("shapes_are_forgotten", "CP-18"),
    bug("shapes_run_ahead", "CP-18"),
];

/// In the order of the rules in `crates/consumer`.
const CONSUMER: [Bug; 16] = [
    bug("dedup_ignores_floor", "DD-1"),
    bug("gap_not_judged", "DD-2"),
    bug("zombie_is_delivered", "DD-3"),
    bug("child_forgets_parents", "DD-4"),
    bug("marks_of_other_lanes", "DD-4"),
    bug("marks_of_another_checkpoint", "MK-1"),
    bug("watermark_skips", "WM-1"),
    bug("marks_as_read", "PG-1"),
    bug("delivers_after_deadline", "CO-1"),
    bug("checkpoint_as_read", "CO-2"),
    bug("skips_whole_record", "CO-2"),
    bug("gives_before_checkpoint", "CO-3"),
    bug("stopped_is_read_at_once", "CO-4"),
    bug("applies_again", "TM-1"),
    bug("marks_without_fence", "TM-2"),
    bug("child_forgets_rows", "TM-3"),
];

/// In the order of the rules in `crates/leases`; `LS-…` are the checkers of the simulation.
const LEASES: [Bug; 38] = [
    bug("lease_deadline_from_receipt", "LE-2, LS-1"),
    bug("lease_retry_stretches_deadline", "LE-2, LS-1"),
    bug("lease_no_rate_margin", "LE-2, LS-1"),
    bug("expired_hold_revives", "LE-2, LS-1"),
    bug("taken_again_counts_anew", "LE-2, LS-1"),
    bug("take_without_counter", "LE-3, LS-1"),
    bug("expires_early", "LE-3, LS-1"),
    bug("expiry_from_send", "LE-3, LS-1"),
    bug("watch_ignores_counter", "LE-3, LS-1"),
    bug("unknown_is_landed", "LE-4, LS-1"),
    bug("reads_before_given", "LE-5, LS-1"),
    bug("finish_without_counter", "LE-5"),
    bug("handoff_without_end", "LE-6, LS-5"),
    bug("inherited_is_mine", "LE-7, LS-1"),
    bug("takes_above_cap", "LE-9, LS-6"),
    bug("vanished_is_free", "LE-10, LS-1"),
    bug("any_list_will_do", "LE-10, LS-2"),
    bug("stuck_is_renewed", "LE-11, LS-5"),
    bug("moves_beside_foreigners", "LE-12"),
    bug("evict_without_counter", "LE-13"),
    bug("gives_before_saying", "LE-13"),
    bug("delivers_while_giving", "LE-13, LS-1"),
    bug("lease_checkpoint_without_fence", "LE-1, LS-2"),
    bug("checkpoint_goes_back", "LE-14, LS-2"),
    bug("name_taken_twice", "LE-15, LS-1"),
    bug("any_lease_will_do", "LE-16"),
    bug("child_before_parents", "LE-8, LI-1, LS-4"),
    bug("child_after_one_parent", "LE-8, LI-1, LS-4"),
    bug("child_at_initial", "LI-2, LS-3"),
    bug("children_made_first", "LI-3, LS-4"),
    bug("parent_deleted_early", "LI-4"),
    bug("deleted_row_forgets", "LE-10, LS-7"),
    bug("lost_row_loses_its_line", "LI-4, LS-7"),
    bug("lost_parent_stays_lost", "LI-4, LS-7"),
    bug("unlisted_is_gone", "LI-4, LS-7"),
    bug("plan_ignores_cap", "PL-3"),
    bug("moves_twice", "PL-4, LS-6"),
    bug("plan_is_uneven", "PL-1, PL-2, LS-6"),
];

/// First the ordering rules of `crates/autoscaler/src/rules.rs`, then one by one what the checkers hold.
const AUTOSCALER: [Bug; 39] = [
    bug("autoscaler_list_before_read", "rule 1, AS-3"),
    bug("autoscaler_orphans_at_sight", "rule 2, AS-4"),
    bug("autoscaler_effect_before_intent", "rule 3, AS-4"),
    bug("autoscaler_cordon_any_version", "rule 4, AS-9"),
    bug("autoscaler_uncordon_any", "rule 5, AS-9"),
    bug("autoscaler_untaint_before_join", "rule 6, AS-4"),
    bug("autoscaler_retarget_any_attempt", "rule 7, AS-1"),
    bug("autoscaler_abort_any_attempt", "rule 8"),
    bug("autoscaler_token_of_executor", "AS-1"),
    bug("autoscaler_completes_uncommitted", "AS-2"),
    bug("autoscaler_number_starts_anew", "AS-2, AS-9"),
    bug("autoscaler_late_record_dropped", "AS-2"),
    bug("autoscaler_untagged_not_counted", "AS-3"),
    bug("autoscaler_strangers_ignored", "AS-3"),
    bug("autoscaler_unseen_is_empty", "AS-4"),
    bug("autoscaler_serving_is_reaped", "AS-4"),
    bug("autoscaler_unknown_is_not_ready", "AS-4"),
    bug("autoscaler_stranger_collected", "AS-4"),
    bug("autoscaler_ends_what_filled_up", "AS-4"),
    bug("autoscaler_refusal_is_believed", "AS-2"),
    bug("autoscaler_forgets_unanswered", "AS-1"),
    bug("autoscaler_drains_what_is_marked", "AS-5"),
    bug("autoscaler_takes_the_lock_back", "AS-6"),
    bug("autoscaler_theft_by_own_start", "AS-6"),
    bug("autoscaler_lock_ends_with_lease", "AS-6"),
    bug("autoscaler_no_pause_after_failure", "AS-7"),
    bug("autoscaler_forgets_old_cooldown", "AS-7"),
    bug("autoscaler_stale_load_counts", "AS-8"),
    bug("autoscaler_any_clock", "AS-8"),
    bug("autoscaler_unknown_lag_is_none", "AS-8"),
    bug("autoscaler_any_node_takes_it", "AS-8"),
    bug("autoscaler_lost_match_keeps_cordon", "AS-9"),
    bug("autoscaler_takes_anothers", "AS-8"),
    bug("autoscaler_taint_stays", "heals"),
    bug("autoscaler_marked_stays_open", "heals"),
    bug("autoscaler_end_unasked", "heals"),
    bug("autoscaler_reaps_for_ever", "heals"),
    bug("autoscaler_flaps", "one action per decision"),
    bug("autoscaler_one_failure_stops_all", "heals"),
];

const fn bug(name: &'static str, breaks: &'static str) -> Bug {
    Bug { name, breaks }
}

/// One kind of test, as a program to run.
struct Layer {
    name: &'static str,
    program: PathBuf,
    /// Where it runs: its package's, as under cargo.
    folder: PathBuf,
    arguments: Vec<OsString>,
}

/// What is known of one bug; printed as it is under `--json`.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    planted: &'static str,
    breaks: &'static str,
    caught: bool,
    layer: Option<&'static str>,
    /// Every layer that catches it, where all were asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<&'static str>>,
    seconds: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Summary {
    scenario: &'static str,
    /// Without a bug, all layers pass.
    control: bool,
    planted: usize,
    caught: usize,
}

pub(crate) fn run(cache: &Cache, selection: &Selection) -> Result<ExitCode> {
    let scenario = selection.scenario;
    let bugs = chosen(scenario.bugs(), selection.only.as_deref())?;
    let layers = build(cache, scenario)?;

    let control = control(&layers)?;
    let mut caught = 0;
    for bug in &bugs {
        let row = hunt(bug, &layers, selection.all_layers)?;
        caught += usize::from(row.caught);
        print(&row, selection.json)?;
    }
    let summary = Summary { scenario: scenario.name(), control, planted: bugs.len(), caught };
    if selection.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        println!("{} of {} planted bugs caught", summary.caught, summary.planted);
    }
    Ok(if control && caught == bugs.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen<'a>(bugs: &'a [Bug], only: Option<&str>) -> Result<Vec<&'a Bug>> {
    let chosen = bugs.iter().filter(|bug| only.is_none_or(|only| only == bug.name)).collect::<Vec<_>>();
    if chosen.is_empty() {
        let names = bugs.iter().map(|bug| bug.name).collect::<Vec<_>>();
        bail!("no bug of that name is planted: there are {}", names.join(", "));
    }
    Ok(chosen)
}

/// Without a bug every layer passes; otherwise nothing that follows means anything.
fn control(layers: &[Layer]) -> Result<bool> {
    let mut passed = true;
    for layer in layers {
        if let Some(failure) = fails(layer, None)? {
            passed = false;
            eprintln!("{} fails without any bug:\n{failure}", layer.name);
        }
    }
    Ok(passed)
}

fn hunt(bug: &Bug, layers: &[Layer], all_layers: bool) -> Result<Row> {
    let began = Instant::now();
    let mut catching = Vec::new();
    for layer in layers {
        if fails(layer, Some(bug))?.is_some() {
            catching.push(layer.name);
            if !all_layers {
                break;
            }
        }
    }
    Ok(Row {
        planted: bug.name,
        breaks: bug.breaks,
        caught: !catching.is_empty(),
        layer: catching.first().copied(),
        layers: all_layers.then_some(catching),
        seconds: (began.elapsed().as_secs_f64() * 100.0).round() / 100.0,
    })
}

fn print(row: &Row, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(row)?);
    } else {
        let by = match (&row.layers, row.layer) {
            (_, None) => "NOT CAUGHT".to_owned(),
            (Some(layers), _) => layers.join(", "),
            (None, Some(layer)) => layer.to_owned(),
        };
        println!("{:<26} {:<16} {by} ({:.1} s)", row.planted, row.breaks, row.seconds);
    }
    Ok(())
}

/// Runs a layer; what it said last if it fails.
fn fails(layer: &Layer, bug: Option<&Bug>) -> Result<Option<String>> {
    let name = bug.map_or("nothing planted", |bug| bug.name);
    let step = Step::begin(format!("{name}: {}", layer.name));
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg(LAYER_TIMEOUT.as_secs().to_string());
    command.arg(&layer.program).args(&layer.arguments).env("RUST_BACKTRACE", "0");
    command.current_dir(&layer.folder);
    // What fails on purpose is no regression to be remembered.
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    match bug {
        Some(bug) => command.env("TENURE_PLANTED", bug.name),
        None => command.env_remove("TENURE_PLANTED"),
    };
    let captured = child::run_captured(&mut command, &step)?;
    drop(step);
    Ok(match captured.status.code() {
        Some(0) => None,
        Some(TIMED_OUT) => Some(format!("no end within {LAYER_TIMEOUT:?}")),
        _ => Some(child::tail(&captured.output, 40)),
    })
}

// === building ===

/// The rest is quicker to build as it is.
const OPTIMISED: [&str; 11] = [
    "tenure-autoscaler",
    "tenure-clock",
    "tenure-planted",
    "tenure-election",
    "tenure-store",
    "tenure-stream",
    "tenure-cdc",
    "tenure-leases",
    "tenure-sim",
    "bytes",
    "stateright",
];

fn build(cache: &Cache, scenario: Scenario) -> Result<Vec<Layer>> {
    let target = cache.planted_target();
    let tests = match scenario {
        Scenario::Election => executables(
            &target,
            &["test", "--no-run", "--package", "tenure-election", "--lib", "--test", "main"],
        )?,
        Scenario::Cdc => executables(&target, &["test", "--no-run", "--package", "tenure-cdc", "--lib"])?,
        Scenario::Consumer => executables(
            &target,
            &["test", "--no-run", "--package", "tenure-consumer", "--lib", "--test", "main"],
        )?,
        Scenario::Leases => executables(
            &target,
            &["test", "--no-run", "--package", "tenure-leases", "--lib", "--test", "main"],
        )?,
        Scenario::Autoscaler => executables(
            &target,
            &["test", "--no-run", "--package", "tenure-autoscaler", "--lib", "--test", "main"],
        )?,
    };
    if let Scenario::Autoscaler = scenario {
        // The tests of the rules remove them themselves; only the last looks at a step as it is.
        let stories = ["--quiet", "--skip", "crash_matrix", "--skip", "ordering_rules", "--skip", "model"];
        return Ok(vec![
            layer("machine", &tests, "tenure_autoscaler", &["--quiet"])?,
            layer("stories", &tests, "main", &stories)?,
            layer("rules", &tests, "main", &["--quiet", "ordering_rules::rule_8"])?,
            layer("matrix", &tests, "main", &["--quiet", "crash_matrix::every_call"])?,
            // Its controls remove rules themselves as well.
            layer("model", &tests, "main", &["--quiet", "model::", "--skip", "caught"])?,
        ]);
    }
    if let Scenario::Consumer = scenario {
        return Ok(vec![
            layer("machine", &tests, "tenure_consumer", &["--quiet"])?,
            layer("driver", &tests, "main", &["--quiet"])?,
        ]);
    }
    let sim = executables(&target, &["build", "--package", "tenure-sim", "--bin", "tenure-sim"])?;
    let sim = layer(
        "sim",
        &sim,
        "tenure-sim",
        &[scenario.name(), "--schedules", scenario.sim_schedules(), "--seed", "1", "--json"],
    )?;
    Ok(match scenario {
        Scenario::Election => vec![
            layer("machine", &tests, "tenure_election", &["--quiet"])?,
            layer("model", &tests, "main", &["--quiet", "model::"])?,
            sim,
        ],
        Scenario::Cdc => vec![layer("machine", &tests, "tenure_cdc", &["--quiet"])?, sim],
        // They have returned above.
        Scenario::Consumer | Scenario::Autoscaler => Vec::new(),
        Scenario::Leases => vec![
            layer("machine", &tests, "tenure_leases", &["--quiet"])?,
            layer("model", &tests, "main", &["--quiet", "model::"])?,
            sim,
        ],
    })
}

fn layer(name: &'static str, built: &[Built], program: &str, arguments: &[&str]) -> Result<Layer> {
    let found = built.iter().find(|built| built.target == program);
    let Built { program, folder, .. } = found.with_context(|| format!("cargo built no `{program}`"))?.clone();
    Ok(Layer { name, program, folder, arguments: arguments.iter().map(OsString::from).collect() })
}

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq)]
struct Built {
    target: String,
    program: PathBuf,
    /// Its package's.
    folder: PathBuf,
}

/// Builds, and says where the programs are.
fn executables(target: &Path, arguments: &[&str]) -> Result<Vec<Built>> {
    let command = || {
        let mut command = cargo([]);
        command.args(arguments);
        let flags = env::var("RUSTFLAGS").unwrap_or_default();
        command.env("RUSTFLAGS", format!("{flags} --cfg planted").trim());
        command.env("CARGO_TARGET_DIR", target);
        // What models and simulations run is optimised; debug assertions stay, as planted bugs want them.
        for package in OPTIMISED {
            command.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=3"));
        }
        command
    };
    // First for its messages, then, with nothing left to do, for the list.
    let built = child::run(&mut command())?;
    ensure!(built.success(), "the build failed: cargo's messages are above");
    let output = command().arg("--message-format=json").output().context("run cargo")?;
    ensure!(output.status.success(), "cargo: {}", String::from_utf8_lossy(&output.stderr));
    Ok(artifacts(&String::from_utf8_lossy(&output.stdout)))
}

fn artifacts(messages: &str) -> Vec<Built> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let artifact = |message: Value| {
        Some(Built {
            target: message["target"]["name"].as_str()?.to_owned(),
            program: message["executable"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    messages.filter_map(artifact).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::workspace;

    /// The names in `planted::is("…")` of every source file under the folder.
    fn asked_for(folder: &Path) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                names.extend(asked_for(&entry));
                continue;
            }
            let text = fs::read_to_string(entry).unwrap();
            let calls = text.split("planted::is(\"").skip(1);
            names.extend(calls.filter_map(|call| call.split_once('"').map(|(name, _)| name.to_owned())));
        }
        names
    }

    #[test]
    fn every_bug_in_the_code_is_listed_and_every_listed_one_is_there() {
        for scenario in [Scenario::Election, Scenario::Cdc, Scenario::Consumer, Scenario::Leases] {
            let listed = scenario.bugs().iter().map(|bug| bug.name.to_owned()).collect::<BTreeSet<_>>();
            let folder = workspace::root().join("crates").join(scenario.name()).join("src");
            assert_eq!(listed, asked_for(&folder));
        }
    }

    /// The ordering rules ask by their own names, so every such text counts.
    #[test]
    fn every_bug_of_the_autoscaler_is_listed_and_every_listed_one_is_there() {
        fn named(folder: &Path) -> BTreeSet<String> {
            let mut names = BTreeSet::new();
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    names.extend(named(&entry));
                    continue;
                }
                let text = fs::read_to_string(entry).unwrap();
                let texts = text.split("\"autoscaler_").skip(1).filter_map(|rest| rest.split_once('"'));
                names.extend(texts.map(|(name, _)| format!("autoscaler_{name}")));
            }
            names
        }
        let listed = AUTOSCALER.iter().map(|bug| bug.name.to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(listed, named(&workspace::root().join("crates/autoscaler/src")));
        let broken = AUTOSCALER.iter().flat_map(|bug| bug.breaks.split(", ")).collect::<BTreeSet<_>>();
        for number in 1..=9 {
            assert!(broken.contains(format!("AS-{number}").as_str()), "AS-{number}");
            assert!(number > 8 || broken.contains(format!("rule {number}").as_str()), "rule {number}");
        }
    }

    #[test]
    fn every_rule_and_checker_has_a_bug() {
        for (scenario, rule, rules, checker, checkers) in [
            (Scenario::Election, "E", 13, "LD", 4),
            (Scenario::Cdc, "CP", 18, "CD", 6),
            (Scenario::Leases, "LE", 16, "LS", 7),
            (Scenario::Leases, "LI", 4, "PL", 4),
        ] {
            let broken =
                scenario.bugs().iter().flat_map(|bug| bug.breaks.split(", ")).collect::<BTreeSet<_>>();
            let rules = (1..=rules).map(|n| format!("{rule}-{n}"));
            for rule in rules.chain((1..=checkers).map(|n| format!("{checker}-{n}"))) {
                assert!(broken.contains(rule.as_str()), "{rule}");
            }
        }
    }

    #[test]
    fn every_rule_of_the_consumer_has_a_bug() {
        let broken = CONSUMER.iter().flat_map(|bug| bug.breaks.split(", ")).collect::<BTreeSet<_>>();
        for (rule, count) in [("DD", 4), ("MK", 1), ("WM", 1), ("PG", 1), ("CO", 4), ("TM", 3)] {
            assert!((1..=count).all(|number| broken.contains(format!("{rule}-{number}").as_str())), "{rule}");
        }
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        assert_eq!(chosen(&ELECTION, Some("absent_is_free")).unwrap().len(), 1);
        assert_eq!(chosen(&ELECTION, None).unwrap().len(), ELECTION.len());
        let error = chosen(&ELECTION, Some("typo")).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("absent_is_free"), "{error}");
    }

    #[test]
    fn layers_run_until_one_fails() {
        let layer = |name, script: &str| Layer {
            name,
            program: "sh".into(),
            folder: "/".into(),
            arguments: vec!["-c".into(), script.into()],
        };
        let layers = [
            layer("first", "true"),
            layer("second", "test \"$TENURE_PLANTED\" != a"),
            layer("third", "test -z \"$TENURE_PLANTED\""),
        ];
        assert!(control(&layers).unwrap());
        let row = |name, all| hunt(&bug(name, "E-1"), &layers, all).unwrap();
        assert_eq!(row("a", false).layer, Some("second"));
        assert_eq!(row("a", true).layers, Some(vec!["second", "third"]));
        assert_eq!(row("b", false).layer, Some("third"));
        assert!(!hunt(&bug("a", "E-1"), &layers[..1], false).unwrap().caught);
    }

    #[test]
    fn a_row_has_the_documented_fields() {
        let row =
            Row { planted: "x", breaks: "E-1", caught: true, layer: Some("sim"), layers: None, seconds: 1.5 };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"planted":"x","breaks":"E-1","caught":true,"layer":"sim","seconds":1.5}"#
        );
        let summary = Summary { scenario: "election", control: true, planted: 2, caught: 1 };
        assert_eq!(
            serde_json::to_string(&summary).unwrap(),
            r#"{"scenario":"election","control":true,"planted":2,"caught":1}"#
        );
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"dep"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"main"},"executable":"/t/main-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let main = Built { target: "main".to_owned(), program: "/t/main-1".into(), folder: "/w/a".into() };
        assert_eq!(artifacts(messages), [main]);
    }
}
