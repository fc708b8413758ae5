//! `xtask bench`: a benchmark program of one crate, with the services it measures.
//!
//! stdout is the program's alone (JSON lines under `--json`); everything else goes to stderr.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cache::Cache;
use crate::child;
use crate::java_peer::{self, JavaPeer};
use crate::services::{Instances, Kind};
use crate::setup;
use crate::workspace::cargo;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
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
    /// What ticks and decisions of the autoscaler cost, and its Lambda.
    Autoscaler,
}

impl Subject {
    /// What is started for it. The others measure themselves and what they start alone.
    const fn servers(self, embedded: bool) -> &'static [Kind] {
        match self {
            Self::Store | Self::Stream => Kind::wanted(embedded),
            Self::Consumer if !embedded => &[Kind::Dynoxide, Kind::KinesisLocal],
            Self::Consumer | Self::Election | Self::Cdc | Self::Autoscaler => &[],
        }
    }

    /// What reaches those servers.
    const fn features(self) -> &'static [&'static str] {
        match self {
            Self::Store | Self::Stream => &["--all-features"],
            Self::Consumer => &["--features", "tenure-store/dynamodb,tenure-stream/kinesis"],
            Self::Election | Self::Cdc | Self::Autoscaler => &[],
        }
    }

    /// What stands beside ours and is written in Java.
    const fn java_peer(self) -> Option<&'static JavaPeer> {
        match self {
            Self::Cdc => Some(&java_peer::DEBEZIUM),
            Self::Consumer => Some(&java_peer::KCL),
            Self::Store | Self::Stream | Self::Election | Self::Autoscaler => None,
        }
    }
}

pub(crate) struct Selection {
    pub(crate) subject: Subject,
    pub(crate) json: bool,
    pub(crate) embedded: bool,
    pub(crate) extra: Vec<String>,
}

pub(crate) fn run(cache: &Cache, selection: Selection) -> Result<ExitCode> {
    let servers = selection.subject.servers(selection.embedded);
    setup::ensure(cache, setup::needs(selection.embedded || servers.is_empty()))?;
    let built = child::run(program(&selection).arg("--no-run"))?;
    ensure!(built.success(), "the build failed: cargo's messages are above");

    let services = Instances::of(cache).up_for_this_run("bench", servers)?;
    let mut measure = program(&selection);
    services.hand_to(&mut measure);
    if !selection.embedded
        && let Some(peer) = selection.subject.java_peer()
        && let Some(jars) = peer.jars(cache)
    {
        measure.env(peer.variable, jars);
    }
    measure.arg("--").args(selection.json.then_some("--json")).args(&selection.extra);
    let mut measured = child::run(&mut measure)?.success();
    services.down()?;
    if selection.subject == Subject::Autoscaler && !selection.embedded {
        measured &= measure_lambda(&selection)?;
    }
    Ok(if measured { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How large the Lambda is and how quickly it starts: packs it, and measures what was packed.
fn measure_lambda(selection: &Selection) -> Result<bool> {
    let mut pack = cargo(["xtask", "package", "lambda", "--json"]);
    let packed = pack.stderr(Stdio::inherit()).output().context("run cargo xtask package lambda")?;
    ensure!(packed.status.success(), "the Lambda could not be packed: the messages are above");
    let packed: Packed = serde_json::from_slice(&packed.stdout).context("read where the zip is")?;
    let mut measure = cargo(["bench", "--package", "tenure-lambda", "--bench", "lambda"]);
    measure.env("TENURE_LAMBDA_ZIP", &packed.zip);
    Ok(child::run(measure.arg("--").args(selection.json.then_some("--json")))?.success())
}

/// What `xtask package` says of what it made.
#[derive(Deserialize)]
struct Packed {
    zip: PathBuf,
}

fn program(selection: &Selection) -> Command {
    let (package, bench) = match selection.subject {
        Subject::Store => ("tenure-store", "store"),
        Subject::Stream => ("tenure-stream", "stream"),
        Subject::Election => ("tenure-election", "election"),
        Subject::Consumer => ("tenure-consumer", "consumer"),
        Subject::Cdc => ("tenure-cdc", "cdc"),
        Subject::Autoscaler => ("tenure-autoscaler", "autoscaler"),
    };
    let mut command = cargo(["bench", "--package", package, "--bench", bench]);
    if !selection.embedded {
        command.args(selection.subject.features());
    }
    command
}
