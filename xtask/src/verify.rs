//! `xtask verify`: what is true of the code at rest. Changes nothing.
//!
//! Every step runs even after one failed, so that one run tells all that is wrong. Cargo gets
//! `--locked`: an outdated lock file is a finding, not something to mend on the way.

mod hosts;
mod purity;
mod source;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::child;
use crate::interrupt;
use crate::progress::Step;
use crate::setup::{self, Need};
use crate::workspace::{self, cargo};

/// Enough for clippy's usual harvest, little enough to scroll.
const REPORT_LINES_MAX: usize = 200;

/// What one step found wrong, in the words of the tool that found it.
struct Failure {
    step: String,
    report: String,
}

pub(crate) fn run(cache: &Cache, deny: bool) -> Result<ExitCode> {
    let mut failures = Vec::new();
    let files = tracked_files()?;
    let mut look = |step: &str, findings: Vec<String>| {
        failures.extend(judge_findings(step, &findings));
    };
    look("machine purity", purity::machines(&files));
    look("SDK types stay behind their file", purity::sdk_types(&files));
    look("no registry host is named", hosts::named(&files));

    for (step, mut command) in whole_workspace() {
        failures.extend(judge_command(step, &mut command)?);
    }
    match workspace::metadata() {
        Ok(metadata) => {
            for (step, mut command) in metadata.packages.iter().flat_map(each_feature_alone) {
                failures.extend(judge_command(step, &mut command)?);
            }
        }
        Err(error) => {
            failures.push(Failure { step: "each feature alone".to_owned(), report: format!("{error:#}") })
        }
    }
    if deny {
        setup::ensure(cache, vec![Need::Deny])?;
        let mut command = cargo(["deny", "--locked", "check", "bans", "licenses", "sources"]);
        failures.extend(judge_command("cargo deny".to_owned(), &mut command)?);
    }
    Ok(report(&failures))
}

/// What cargo checks of everything at once, quickest first.
fn whole_workspace() -> [(String, Command); 3] {
    let mut clippy = cargo(["clippy", "--locked", "--workspace", "--all-targets", "--all-features"]);
    clippy.args(["--", "-D", "warnings"]);
    let mut docs = cargo(["doc", "--locked", "--workspace", "--no-deps", "--all-features"]);
    docs.env("RUSTDOCFLAGS", "-Dwarnings");
    [
        ("format".to_owned(), cargo(["fmt", "--all", "--check"])),
        ("clippy".to_owned(), clippy),
        ("docs".to_owned(), docs),
    ]
}

/// A feature that only builds beside another one is not a feature.
fn each_feature_alone(package: &workspace::Package) -> Vec<(String, Command)> {
    let alone = |feature: Option<&String>| {
        let mut check = cargo(["check", "--locked", "--no-default-features", "--package"]);
        check.arg(&package.name);
        if let Some(feature) = feature {
            check.args(["--features", feature]);
        }
        let named = feature.map_or("no feature", String::as_str);
        (format!("{} with {named}", package.name), check)
    };
    let features = package.features.keys().filter(|name| *name != "default");
    std::iter::once(alone(None)).chain(features.map(|name| alone(Some(name)))).collect()
}

fn judge_command(step: String, command: &mut Command) -> Result<Option<Failure>> {
    interrupt::check()?;
    let line = Step::begin(step.as_str());
    let captured = child::run_captured(command, &line)?;
    if captured.status.success() {
        line.done("ok");
        return Ok(None);
    }
    line.done("FAILED");
    let output = child::tail(&captured.output, REPORT_LINES_MAX);
    Ok(Some(Failure { step, report: format!("$ {}\n{output}", child::describe(command)) }))
}

fn judge_findings(step: &str, findings: &[String]) -> Option<Failure> {
    let line = Step::begin(step);
    line.done(if findings.is_empty() { "ok" } else { "FAILED" });
    (!findings.is_empty()).then(|| Failure { step: step.to_owned(), report: findings.join("\n") })
}

fn report(failures: &[Failure]) -> ExitCode {
    for failure in failures {
        eprintln!("\n=== {}\n{}", failure.step, failure.report);
    }
    if failures.is_empty() {
        eprintln!("verify: all is well");
        return ExitCode::SUCCESS;
    }
    let steps = failures.iter().map(|failure| failure.step.as_str()).collect::<Vec<_>>();
    eprintln!("\nverify failed: {}", steps.join(", "));
    ExitCode::FAILURE
}

/// Every file of the repository, new ones included: path from the root, and text.
///
/// What is not text has nothing to say here.
fn tracked_files() -> Result<Vec<TrackedFile>> {
    let root = workspace::root();
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .context("list the repository's files: is git installed?")?;
    ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr).trim());
    let paths = String::from_utf8_lossy(&listing.stdout).into_owned();
    let files = paths.split_terminator('\0').filter_map(|path| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        Some(TrackedFile { path: path.to_owned(), text })
    });
    Ok(files.collect())
}

struct TrackedFile {
    path: String,
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_feature_is_checked_alone_and_none_too() {
        let features = ["default", "postgres", "sqlite"];
        let features = features.map(|name| (name.to_owned(), Vec::new()));
        let package =
            workspace::Package { name: "tenure-store".to_owned(), features: BTreeMap::from(features) };
        let steps = each_feature_alone(&package).into_iter().map(|(step, _)| step);
        assert_eq!(
            steps.collect::<Vec<_>>(),
            ["tenure-store with no feature", "tenure-store with postgres", "tenure-store with sqlite"]
        );
    }
}
