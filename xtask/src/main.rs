//! The chores of the workspace, as `cargo xtask <chore>`.
//!
//! A chore installs and starts what it needs by itself, so that a clone and a Rust toolchain are
//! enough. This file only reads arguments; each chore is a module of its name.
#![allow(
    clippy::disallowed_methods,
    reason = "a tool that drives real processes in real time: nothing here is simulated"
)]

mod bench;
mod cache;
mod child;
mod demo;
mod interrupt;
mod java_peer;
mod package;
mod planted;
mod progress;
mod proxy;
mod services;
mod setup;
mod sim;
mod test;
mod torture;
mod verify;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::cache::Cache;
use crate::services::{Instances, Kind};

/// Chores of the Tenure workspace: set-up, local services, tests, checks, benchmarks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what is missing: Debian packages, emulators, cargo-nextest.
    ///
    /// Safe to repeat. Without root it prints the commands to run and fails if something is
    /// missing. Emulators land in $TENURE_CACHE (default ~/.cache/tenure). The API server of
    /// Kubernetes is compiled, which takes ten minutes of one processor, once.
    Setup {
        /// Only what the embedded tests need: Postgres, cargo-nextest, a C compiler.
        #[arg(long)]
        embedded: bool,
        /// Only this.
        #[arg(conflicts_with = "embedded")]
        step: Option<SetupStep>,
    },
    /// Scratch servers on loopback: Postgres, emulators of DynamoDB, Kinesis and EC2, Prometheus, a Kubernetes
    /// API server.
    Services {
        #[command(subcommand)]
        verb: ServicesVerb,
    },
    /// Set up, start services, run all tests and doc tests, stop services.
    Test {
        /// Default features and Postgres only: no Java, no Node, no AWS SDK.
        #[arg(long)]
        embedded: bool,
        /// Sets TENURE_LONG=1: tests raise their iteration counts. Also packages the Lambda.
        #[arg(long)]
        long: bool,
        /// Passed to `cargo nextest run`; doc tests are left out then.
        #[arg(last = true)]
        nextest: Vec<String>,
    },
    /// Format, clippy, docs, each feature alone, purity of the machines; changes nothing.
    Verify {
        /// Also `cargo deny check bans licenses sources`.
        ///
        /// Not part of the plain run because building cargo-deny takes minutes. Advisories are
        /// left out: their database is not in a package registry.
        #[arg(long)]
        deny: bool,
    },
    /// Measure one crate against live services; with --json, stdout is JSON lines only.
    Bench {
        subject: bench::Subject,
        #[arg(long)]
        json: bool,
        /// Default features and Postgres only.
        #[arg(long)]
        embedded: bool,
        /// Passed to the benchmark, from the first word on that is not ours.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        extra: Vec<String>,
    },
    /// Build what is deployed, as small as it gets, and print where it is.
    Package {
        subject: package::Subject,
        /// Where to put it [default: TARGET/lambda/tenure-lambda.zip]
        #[arg(long)]
        out: Option<std::path::PathBuf>,
        #[arg(long)]
        json: bool,
    },
    /// Plant bugs on purpose, one at a time, and see which layer of tests catches each.
    ///
    /// Exits 0 exactly if every bug is caught and nothing fails without one.
    Planted {
        scenario: planted::Scenario,
        #[arg(long)]
        json: bool,
        /// Only this bug.
        #[arg(long)]
        only: Option<String>,
        /// Go on after the first layer that catches a bug, and list all that do.
        #[arg(long)]
        all_layers: bool,
    },
    /// Run the fault proxy by hand.
    #[command(disable_help_flag = true)]
    Proxy {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the machines in a simulated world: `sim election --schedules 2000 --seed 1 --json`.
    #[command(disable_help_flag = true)]
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Break real processes on purpose, heal, and compare with a ledger: `torture cdc --kills 100 --json`.
    ///
    /// Exits 0 exactly if nothing was lost, reordered, or copied beyond recognition.
    #[command(disable_help_flag = true)]
    Torture {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build Tenure and run `tenure demo`.
    #[command(disable_help_flag = true)]
    Demo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// What can be set up by itself, because it takes long.
#[derive(Clone, Copy, clap::ValueEnum)]
enum SetupStep {
    /// The API server of Kubernetes, and etcd.
    Kubernetes,
}

#[derive(Subcommand)]
enum ServicesVerb {
    /// Start what is not running, after installing what is missing.
    Up {
        /// Only Postgres.
        #[arg(long)]
        embedded: bool,
        #[command(flatten)]
        instance: InstanceName,
    },
    /// Stop everything this instance started and remove its files.
    Down {
        #[command(flatten)]
        instance: InstanceName,
    },
    /// Say which services are alive; fails when one is dead or none was started.
    Status {
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        instance: InstanceName,
    },
    /// Print `export` lines for the tests: `eval "$(cargo xtask services env)"`.
    Env {
        #[command(flatten)]
        instance: InstanceName,
    },
    /// Take the instance down when standard input closes.
    #[command(hide = true)]
    Guard {
        #[command(flatten)]
        instance: InstanceName,
    },
}

#[derive(Args)]
struct InstanceName {
    /// Which set of services; several can run side by side.
    #[arg(long, default_value = "default", value_parser = services::parse_name)]
    name: String,
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(code) => code,
        Err(error) if interrupt::requested() => {
            eprintln!("stopped: {error:#}");
            ExitCode::from(interrupt::EXIT_CODE)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> anyhow::Result<ExitCode> {
    let cache = Cache::locate()?;
    interrupt::watch()?;
    match chore {
        Chore::Setup { embedded, step } => {
            let needs = match step {
                Some(SetupStep::Kubernetes) => setup::needs_of_kubernetes(),
                None => setup::needs_of_tests(embedded),
            };
            setup::ensure(&cache, needs)?;
            eprintln!("set-up is complete");
        }
        Chore::Services { verb } => return run_services(&cache, verb),
        Chore::Test { embedded, long, nextest } => {
            return test::run(&cache, test::Selection { embedded, long, nextest });
        }
        Chore::Verify { deny } => return verify::run(&cache, deny),
        Chore::Bench { subject, json, embedded, extra } => {
            return bench::run(&cache, bench::Selection { subject, json, embedded, extra });
        }
        Chore::Package { subject, out, json } => {
            return package::run(&package::Selection { subject, out, json });
        }
        Chore::Planted { scenario, json, only, all_layers } => {
            return planted::run(&cache, &planted::Selection { scenario, json, only, all_layers });
        }
        Chore::Proxy { arguments } => return Err(proxy::exec(&arguments)),
        Chore::Sim { arguments } => return Err(sim::exec(&cache, &arguments)),
        Chore::Torture { arguments } => return Err(torture::exec(&cache, &arguments)),
        Chore::Demo { arguments } => return Err(demo::exec(&cache, &arguments)),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_services(cache: &Cache, verb: ServicesVerb) -> anyhow::Result<ExitCode> {
    let instances = Instances::of(cache);
    match verb {
        ServicesVerb::Up { embedded, instance } => {
            setup::ensure(cache, setup::needs_of_tests(embedded))?;
            instances.up_to_stay(&instance.name, &Kind::of_tests(embedded))?;
        }
        ServicesVerb::Down { instance } => instances.lock()?.down(&instance.name)?,
        ServicesVerb::Status { json, instance } => {
            return services::status(&instances, &instance.name, json);
        }
        ServicesVerb::Env { instance } => services::print_environment(&instances, &instance.name)?,
        ServicesVerb::Guard { instance } => services::guard(&instances, &instance.name)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Chore {
        let words = std::iter::once("xtask").chain(line.split(' '));
        Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).chore
    }

    #[test]
    fn the_demo_gets_its_arguments_untouched() {
        let Chore::Demo { arguments } = parse("demo --seconds 20 --json --help") else { panic!() };
        assert_eq!(arguments, ["--seconds", "20", "--json", "--help"]);
    }

    #[test]
    fn the_torture_gets_its_arguments_untouched() {
        let Chore::Torture { arguments } = parse("torture cdc --kills 100 --seed 4 --json") else { panic!() };
        assert_eq!(arguments, ["cdc", "--kills", "100", "--seed", "4", "--json"]);
    }

    #[test]
    fn a_benchmark_gets_what_is_not_ours() {
        let Chore::Bench { json, embedded, extra, .. } = parse("bench store --json --runs 3") else {
            panic!()
        };
        assert!(json && !embedded);
        assert_eq!(extra, ["--runs", "3"]);
    }

    #[test]
    fn nextest_arguments_follow_two_dashes() {
        let Chore::Test { long, nextest, .. } = parse("test --long -- -E test(race)") else { panic!() };
        assert!(long);
        assert_eq!(nextest, ["-E", "test(race)"]);
    }
}
