//! `xtask torture`: real processes under faults, with the arguments untouched.
//!
//! The dev profile and the default features, as the demo: whoever has run one need not wait for the other. Only
//! who names DynamoDB or Kinesis waits for the SDK.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};

use crate::cache::Cache;
use crate::child;
use crate::setup::{self, Need};
use crate::workspace::{self, cargo};

/// How many leaders, and how many workers, `cargo xtask test` kills, and how many with `--long`.
const KILLS: u32 = 10;
const KILLS_LONG: u32 = 100;

/// Becomes `tenure-torture`, so that signals, stdout and exit status are its own; returns only if that failed.
pub(crate) fn exec(cache: &Cache, arguments: &[String]) -> Error {
    match build_and_exec(cache, arguments) {
        Err(error) => error,
    }
}

fn build_and_exec(cache: &Cache, arguments: &[String]) -> Result<Infallible> {
    setup::ensure(cache, vec![Need::Compiler, Need::Postgres])?;
    let mut build = cargo(["build", "--package", "tenure", "--package", "tenure-torture", "--bins"]);
    let needs_sdk = |argument: &String| argument.contains("dynamodb:") || argument.contains("kinesis:");
    if arguments.iter().any(needs_sdk) {
        build.args(["--features", "tenure-torture/aws"]);
    }
    let status = child::run(&mut build)?;
    ensure!(status.success(), "cargo could not build tenure: its messages are above");
    let binary = workspace::metadata()?.target_directory.join("debug/tenure-torture");
    let error = Command::new(&binary).args(arguments).exec();
    Err(error).with_context(|| format!("run {}", binary.display()))
}

/// Both tortures as tests, with the binaries that the tests' build has made.
pub(crate) fn as_tests(long: bool) -> Result<[Command; 2]> {
    let binary = workspace::metadata()?.target_directory.join("debug/tenure-torture");
    ensure!(binary.is_file(), "{} was not built with the tests", binary.display());
    let kills = if long { KILLS_LONG } else { KILLS }.to_string();
    Ok(["cdc", "consumer"].map(|scenario| {
        let mut command = Command::new(&binary);
        command.args([scenario, "--kills", &kills]);
        command
    }))
}
