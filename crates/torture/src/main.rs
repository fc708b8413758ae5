//! `tenure-torture`: real processes, real faults, and a ledger that says whether anything was lost.
//!
//! `cargo xtask torture` builds it together with `tenure` and runs it.

mod cdc;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Breaks a fleet of real processes on purpose, heals it, and compares what arrived with what was committed.
#[derive(Parser)]
#[command(name = "cargo xtask torture", bin_name = "cargo xtask torture")]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// `tenure cdc run` between a Postgres that crashes and a stream that throttles and loses replies.
    Cdc(cdc::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Arguments::parse().scenario {
        Scenario::Cdc(args) => Box::pin(cdc::run(args)).await,
    }
}
