//! `xtask test`: what CI runs, against services of its own that end with it.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use crate::cache::Cache;
use crate::child;
use crate::package;
use crate::services::{Instances, Kind};
use crate::setup;
use crate::torture;
use crate::workspace::{self, cargo};

/// Those with tests under `cfg(not(feature = …))`.
const OPENING_CRATES: [&str; 2] = ["tenure-store", "tenure-stream"];

/// The module of tests that need all servers that may be missing.
const NEEDS_ALL: &str = "live_cluster";
const TEMPLATE: &str = "packaging/lambda/template.yaml";
const LAMBDA: package::Selection =
    package::Selection { subject: package::Subject::Lambda, out: None, json: false };

pub(crate) struct Selection {
    pub(crate) embedded: bool,
    pub(crate) long: bool,
    pub(crate) nextest: Vec<String>,
}

/// Runs everything even after a failure, so that one run tells all that is wrong.
pub(crate) fn run(cache: &Cache, selection: Selection) -> Result<ExitCode> {
    setup::ensure(cache, setup::needs(selection.embedded))?;
    let missing = if selection.embedded { Vec::new() } else { missing(cache) };
    build(&selection)?;
    let instances = Instances::of(cache);
    let mut kinds = Kind::of_tests(selection.embedded);
    kinds.retain(|kind| !missing.iter().any(|(left_out, _)| left_out.contains(kind)));
    let services = instances.up_for_this_run("test", &kinds)?;
    let run = |command: &mut Command| {
        services.hand_to(command);
        if selection.long {
            command.env("TENURE_LONG", "1");
        }
        eprintln!("running: {}", child::describe(command));
        child::run(command)
    };

    let mut tests = nextest(&selection);
    if !missing.is_empty() {
        let modules: Vec<_> = missing.iter().map(|(_, module)| *module).chain([NEEDS_ALL]).collect();
        let filter = format!("not (kind(test) & test(/(^|::)({})::/))", modules.join("|"));
        tests.args(["--filterset", &filter]);
    }
    let mut runs = vec![("tests", run(tests.args(&selection.nextest))?)];
    // Whoever names tests means those.
    if selection.nextest.is_empty() {
        runs.push(("tests without features", run(&mut without_features())?));
        let mut doc_tests = with_features(cargo(["test", "--workspace", "--doc"]), &selection);
        runs.push(("doc tests", run(&mut doc_tests)?));
        if !selection.embedded
            && let Some(mut lint) = lint_of_template(cache)
        {
            runs.push(("the template of the Lambda", run(&mut lint)?));
        }
        // After the tests, not beside them: both are sensitive to a machine that is busy.
        if !selection.embedded {
            for mut torture in torture::as_tests(selection.long)? {
                runs.push(("torture", run(&mut torture)?));
            }
        }
    }
    services.down()?;

    let mut failed =
        runs.iter().filter(|(_, status)| !status.success()).map(|(name, _)| *name).collect::<Vec<_>>();
    // Needs no service, and the SDK, which an embedded run does without.
    if selection.long
        && !selection.embedded
        && selection.nextest.is_empty()
        && let Err(error) = package::run(&LAMBDA)
    {
        eprintln!("{error:#}");
        failed.push("the package of the Lambda");
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Sets up the servers that not every mirror has what it takes for; all other tests run without them. Answers those
/// that cannot be had, each with the module of its tests.
fn missing(cache: &Cache) -> Vec<(&'static [Kind], &'static str)> {
    let wanted: [(&[Kind], _, _); 3] = [
        (&[Kind::Kubernetes, Kind::Cluster], "kubernetes", setup::needs_of_kubernetes()),
        (&[Kind::Prometheus], "prometheus", setup::NEEDS_OF_PROMETHEUS.to_vec()),
        (&[Kind::Moto], "ec2", setup::NEEDS_OF_MOTO.to_vec()),
    ];
    let mut missing = Vec::new();
    for (kinds, module, needs) in wanted {
        if let Err(error) = setup::ensure(cache, needs) {
            eprintln!(
                "warning: the tests `{module}` and `{NEEDS_ALL}` are LEFT OUT, because their server cannot be set up: \
                 {error:#}"
            );
            missing.push((kinds, module));
        }
    }
    missing
}

/// Checks the template that the Lambda is deployed by.
fn lint_of_template(cache: &Cache) -> Option<Command> {
    if let Err(error) = setup::ensure(cache, setup::NEEDS_OF_CFN_LINT.to_vec()) {
        eprintln!(
            "warning: the template of the Lambda is NOT CHECKED, because cfn-lint cannot be set up: {error:#}"
        );
    }
    let mut lint = Command::new(setup::cfn_lint_python(cache)?);
    lint.args(["-c", "from cfnlint.runner import main; main()", "--non-zero-exit-code", "warning", TEMPLATE]);
    lint.current_dir(workspace::root());
    Some(lint)
}

/// Compiles before any service starts: a typing error should not cost a Java start.
///
/// The binaries that tests start come with it, built with the tests' features; a `cargo build` of
/// their own would compile the SDK a second time.
fn build(selection: &Selection) -> Result<()> {
    let mut command = nextest(selection);
    command.arg("--no-run");
    eprintln!("building: {}", child::describe(&command));
    let status = child::run(&mut command)?;
    ensure!(status.success(), "the build failed: cargo's messages are above");
    Ok(())
}

fn nextest(selection: &Selection) -> Command {
    with_features(cargo(["nextest", "run", "--workspace"]), selection)
}

/// What a build says of a backend that it leaves out is compiled only where that is so. Unit tests
/// of the crates that open addresses see it, and without backends they are quick to build.
fn without_features() -> Command {
    let mut command = cargo(["nextest", "run", "--lib", "--no-default-features"]);
    command.args(OPENING_CRATES.iter().flat_map(|name| ["--package", name]));
    command
}

fn with_features(mut command: Command, selection: &Selection) -> Command {
    if !selection.embedded {
        command.arg("--all-features");
    }
    command
}
