//! `xtask sim`: the simulator, built for speed, with its arguments untouched.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};

use crate::cache::Cache;
use crate::child;
use crate::setup::{self, Need};
use crate::workspace::{self, cargo};

/// Becomes `tenure-sim`, so that its stdout and exit status are ours; returns only if that failed.
pub(crate) fn exec(cache: &Cache, arguments: &[String]) -> Error {
    match build_and_exec(cache, arguments) {
        Err(error) => error,
    }
}

fn build_and_exec(cache: &Cache, arguments: &[String]) -> Result<Infallible> {
    setup::ensure(cache, vec![Need::Compiler])?;
    let status = child::run(&mut cargo(["build", "--release", "--package", "tenure-sim"]))?;
    ensure!(status.success(), "cargo could not build tenure-sim: its messages are above");
    let binary = workspace::metadata()?.target_directory.join("release/tenure-sim");
    let error = Command::new(&binary).args(arguments).exec();
    Err(error).with_context(|| format!("run {}", binary.display()))
}
