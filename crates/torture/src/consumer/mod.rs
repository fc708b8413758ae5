//! `torture consumer`: workers that are killed, paused, added and removed while their stream is written to and
//! resharded.
//!
//! - `worker.rs` is what a worker's process does; `writer.rs` writes to the stream and knows what was accepted.
//! - `plan.rs` says which faults come when, `world.rs` carries them out.
//! - `ledger.rs` compares in the end.
//!
//! What is promised: nothing that the stream accepted is lost, per key the order is that of the stream, a record
//! comes again only after a crash and only beyond the last checkpoint, never after a planned move, and behind
//! transactional marks each has its effect once.

mod ledger;
mod plan;
mod summary;
pub(crate) mod worker;
mod world;
mod writer;

use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tenure_clock::Entropy;

use self::world::World;
use crate::interrupted;

/// 128 + SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many workers are killed.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,

    /// The seed of the faults and of their order [default: a random one]
    ///
    /// Processes run in real time, so the same seed is the same plan, not the same run.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// JSON lines on standard output: one for each fault, the summary last.
    #[arg(long)]
    json: bool,

    /// The store of the leases [default: a SQLite file of the run's own]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// The stream, which is made [default: a SQLite file of the run's own]
    #[arg(long, value_name = "URL")]
    stream: Option<String>,

    /// Keep the folder of the run.
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(args: Args) -> ExitCode {
    // Printed numbers are to be typed again: none of twenty digits.
    let seed = args.seed.unwrap_or_else(|| Entropy::system().below(1_000_000));
    eprintln!("torture consumer: {} kills, seed {seed}", args.kills);
    let ended = tokio::select! {
        ended = Box::pin(carry_out(&args, seed)) => ended,
        interrupted = interrupted() => match interrupted {
            // The folder, Postgres and all processes went with what was carried out.
            Ok(()) => {
                eprintln!("stopped by a signal");
                return ExitCode::from(INTERRUPTED);
            }
            Err(error) => Err(error),
        },
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#} (seed {seed})");
            ExitCode::FAILURE
        }
    }
}

/// Whether what is promised held.
async fn carry_out(args: &Args, seed: u64) -> Result<bool> {
    let folder = tempfile::Builder::new().prefix("tenure-torture-").tempdir().context("make a folder")?;
    // Postgres may run as another user, and has to get to its own folder within.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).context("open the folder")?;
    let mut world =
        World::build(folder.path(), args.store.clone(), args.stream.clone(), seed, args.json).await?;
    let ran = Box::pin(world.run(args.kills as usize)).await;
    // Whatever happened, nothing that we started stays.
    let ended = world.end().await;
    let held = match &ran {
        Ok(summary) => {
            summary.tell(args.json)?;
            summary.ok
        }
        Err(_) => false,
    };
    if !held || args.keep {
        eprintln!("logs, store and stream are kept in {}", folder.keep().display());
    }
    ran?;
    ended?;
    Ok(held)
}
