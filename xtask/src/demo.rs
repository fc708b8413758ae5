//! `cargo demo`: from a fresh clone to a running `tenure demo`.
//!
//! The dev profile and the default features: of what was tried, the quickest to build from nothing.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};

use crate::cache::Cache;
use crate::child;
use crate::setup::{self, Need};
use crate::workspace::{self, cargo};

/// Becomes `tenure demo`, so that signals reach it; returns only if that failed.
pub(crate) fn exec(cache: &Cache, arguments: &[String]) -> Error {
    match build_and_exec(cache, arguments) {
        Err(error) => error,
    }
}

fn build_and_exec(cache: &Cache, arguments: &[String]) -> Result<Infallible> {
    setup::ensure(cache, vec![Need::Compiler, Need::Postgres])?;
    // Not quiet: cargo's own progress line is the best one for a build.
    let status = child::run(&mut cargo(["build", "--package", "tenure", "--bin", "tenure"]))?;
    ensure!(status.success(), "cargo could not build tenure: its messages are above");
    let binary = workspace::metadata()?.target_directory.join("debug/tenure");
    let error = Command::new(&binary).arg("demo").args(arguments).exec();
    Err(error).with_context(|| format!("run {}", binary.display()))
}
