//! `xtask bench`: a benchmark program of one crate, with the services it measures.
//!
//! stdout is the program's alone (JSON lines under `--json`); everything else goes to stderr.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use crate::cache::Cache;
use crate::child;
use crate::debezium;
use crate::services::{Instances, Kind};
use crate::setup;
use crate::workspace::cargo;

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Subject {
    /// Conditional writes per second, per backend.
    Store,
    /// Records per second, per backend.
    Stream,
    /// How long a shard is without a leader, and what elections cost.
    Election,
    /// How quickly shards change hands, and what reading a record costs.
    Consumer,
    /// What publishing row changes costs, beside the server's own reader of its log.
    Cdc,
}

impl Subject {
    /// Whether it measures servers that we start for it, and not itself and what it starts alone.
    const fn has_servers(self) -> bool {
        !matches!(self, Self::Election | Self::Consumer | Self::Cdc)
    }
}

pub(crate) struct Selection {
    pub(crate) subject: Subject,
    pub(crate) json: bool,
    pub(crate) embedded: bool,
    pub(crate) extra: Vec<String>,
}

pub(crate) fn run(cache: &Cache, selection: Selection) -> Result<ExitCode> {
    let servers: &[Kind] =
        if selection.subject.has_servers() { Kind::wanted(selection.embedded) } else { &[] };
    setup::ensure(cache, setup::needs(selection.embedded || servers.is_empty()))?;
    let built = child::run(program(&selection).arg("--no-run"))?;
    ensure!(built.success(), "the build failed: cargo's messages are above");

    let services = Instances::of(cache).up_for_this_run("bench", servers)?;
    let mut measure = program(&selection);
    services.hand_to(&mut measure);
    if matches!(selection.subject, Subject::Cdc)
        && !selection.embedded
        && let Some(jars) = debezium::jars(cache)
    {
        measure.env(debezium::JARS, jars);
    }
    measure.arg("--").args(selection.json.then_some("--json")).args(&selection.extra);
    let measured = child::run(&mut measure)?;
    services.down()?;
    Ok(if measured.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn program(selection: &Selection) -> Command {
    let (package, bench) = match selection.subject {
        Subject::Store => ("tenure-store", "store"),
        Subject::Stream => ("tenure-stream", "stream"),
        Subject::Election => ("tenure-election", "election"),
        Subject::Consumer => ("tenure-consumer", "consumer"),
        Subject::Cdc => ("tenure-cdc", "cdc"),
    };
    let mut command = cargo(["bench", "--package", package, "--bench", bench]);
    if !selection.embedded && selection.subject.has_servers() {
        command.arg("--all-features");
    }
    command
}
