//! `xtask proxy`: the fault proxy by hand, between an SDK and an emulator.

use std::os::unix::process::CommandExt;

use anyhow::Error;

use crate::workspace::cargo;

/// Becomes the proxy, so that signals reach it; returns only if that failed.
pub(crate) fn exec(arguments: &[String]) -> Error {
    let mut command =
        cargo(["run", "--quiet", "--package", "tenure-fault-proxy", "--bin", "fault-proxy", "--"]);
    Error::new(command.args(arguments).exec()).context("run the fault proxy")
}
