//! `tenure-torture`: real processes, real faults, and a ledger that says whether anything was lost.
//!
//! `cargo xtask torture` builds it together with `tenure` and runs it.

mod cdc;
mod consumer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

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
    /// Workers that share a stream, killed, paused, added and removed while it is written to and resharded.
    Consumer(consumer::Args),
    /// A worker under torture.
    #[command(hide = true)]
    ConsumerWorker(consumer::worker::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Arguments::parse().scenario {
        Scenario::Cdc(args) => Box::pin(cdc::run(args)).await,
        Scenario::Consumer(args) => Box::pin(consumer::run(args)).await,
        Scenario::ConsumerWorker(args) => match Box::pin(consumer::worker::run(args)).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Completes when somebody asks for an end.
async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// The value below which this share of the values is, by nearest rank; 0 of nothing.
fn percentile(values: &[u64], share: f64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        assert_eq!(percentile(&[], 0.99), 0);
        assert_eq!(percentile(&[7], 0.5), 7);
        let values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (50, 99));
    }
}
