//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

#[cfg(feature = "postgres")]
use crate::commands::cdc;
use crate::commands::consumer::{capacity, consume, leases, workers};
#[cfg(all(feature = "sqlite", feature = "postgres"))]
use crate::commands::demo;
use crate::commands::election::{elect, guard, leaders, resign};
use crate::commands::{autoscale, completions, config, dlq, doctor, init, man, store, stream};
use crate::duration;
use crate::settings::{Flag, LogFormat};

/// Keeps sharded streams owned, moving and correctly sized, whatever crashes.
#[derive(Parser)]
#[command(
    name = "tenure",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Settings, the later winning:
  defaults  <  tenure.toml  <  environment (TENURE__STORE__URL sets store.url)  <  flags (--store)
  `tenure config check` shows the merged result and where each value came from.

Exit status:
  0  done                         3  a condition did not hold, or there is no such row
  1  it failed                    4  it may have been carried out: read back before trying again
  2  the command line, the configuration or the input is wrong

Examples:
  tenure init && tenure doctor
  tenure store create-table locks --hash name
  tenure store put locks '{\"name\":\"orders\",\"owner\":\"ann\"}' --if-absent
  tenure elect nightly-report -- ./report.sh
  tenure stream create --shards 4
  tenure stream tail --follow --json
  tenure cdc setup --all-tables && tenure cdc run
  tenure consume --app orders --exec ./apply.py"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes. It may hold a password, so it has no `Debug`.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: sqlite:PATH, memory:, postgres://…, dynamodb:…, or faulty+… [default: sqlite:./tenure.db]
    // Read with the other settings: clap would show what it refuses, and a password in it.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The stream: sqlite:PATH, memory:NAME, kinesis:NAME, or faulty+… [default: sqlite:./tenure.db]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) stream: Option<String>,

    /// The settings' file [default: ./tenure.toml if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print JSON lines, and nothing else, on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// How log lines are written on standard error [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// What is logged: a level, or target=level,… (also by TENURE_LOG or RUST_LOG) [default: warn]
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,

    /// Serve Prometheus metrics at this address while a long-running command runs, e.g. 127.0.0.1:9464
    #[arg(long, global = true, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,

    /// How long one call may take
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_positive)]
    pub(crate) timeout: Duration,
}

impl Global {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let flag = |name, path, value: Option<String>| value.map(|value| Flag { name, path, value });
        [
            flag("--store", "store.url", self.store.clone()),
            flag("--stream", "stream.url", self.stream.clone()),
            flag("--log-format", "log.format", self.log_format.map(|format| format.word().to_owned())),
            flag("--log", "log.filter", self.log.clone()),
            flag("--metrics", "metrics.listen", self.metrics.map(|listen| listen.to_string())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write a commented tenure.toml
    Init(init::Args),
    /// Look at the settings
    Config(config::Args),
    /// Check settings, store, stream, database and machine, and say what to do
    Doctor(doctor::Args),
    /// Read and write rows
    Store(store::Args),
    /// Read, write and reshape the stream
    Stream(stream::Args),
    /// Capture row changes of Postgres
    #[cfg(feature = "postgres")]
    Cdc(cdc::Args),
    /// Look at events that were not published as they were, and records that could not be processed
    Dlq(dlq::Args),
    /// Read the stream as one of several workers, and hand on its records
    Consume(Box<consume::Args>),
    /// Show, move, pause and seek the shards of an application's workers
    Leases(leases::Args),
    /// Show how many leases each worker may hold
    Workers(workers::Args),
    /// Explain how many leases a worker may hold
    Capacity(capacity::Args),
    /// Scale a cluster, and look at how that goes
    Autoscale(autoscale::Args),
    /// Run a command while leading a shard
    Elect(elect::Args),
    /// Show who leads what
    Leaders(leaders::Args),
    /// Ask the leader of a shard to hand over
    Resign(resign::Args),
    /// The process that ends the command of `elect` at its deadline
    #[command(hide = true)]
    ElectGuard(guard::GuardArgs),
    /// The process that becomes the command of `elect`
    #[command(hide = true)]
    ElectExec(guard::ExecArgs),
    /// Show the whole pipeline at work, with real processes and faults
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    #[command(after_help = "\
Examples:
  tenure demo
  tenure demo --seconds 60 --json")]
    Demo(demo::Args),
    /// A process that ends with the demo
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    #[command(hide = true)]
    DemoMember(demo::MemberArgs),
    /// A worker of the demo
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the man page, or write all of them to a directory
    Man(man::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        fn check(command: &clap::Command, path: &str) {
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                let path = format!("{path} {}", inner.get_name());
                let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains(&format!("  {path}")), "`{path} --help` has no example");
                assert!(inner.get_about().is_some(), "`{path}` has no description");
                check(inner, &path);
            }
        }
        check(&Arguments::command(), "tenure");
    }
}
