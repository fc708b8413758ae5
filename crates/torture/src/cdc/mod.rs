//! `torture cdc`: `tenure cdc run` processes between a Postgres that crashes and a stream that misbehaves.
//!
//! - `workload.rs` changes rows and keeps the ledger; `fleet.rs` is the processes.
//! - `plan.rs` says which faults come when, `faults.rs` carries them out.
//! - `reader.rs` reads the whole stream in the end, `ledger.rs` compares.
//!
//! What is promised: nothing committed is lost, nothing that did not commit is published, per key the order is
//! that of the commits, every copy is recognisable by its identity, and after a planned handover there is none.

mod faults;
mod fleet;
mod ledger;
mod plan;
mod reader;
mod summary;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tenure_clock::Entropy;

use self::faults::World;
use self::fleet::{Leadership, Site};
use crate::interrupted;

/// 128 + SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many leaders are killed with records in flight.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,

    /// The seed of the workload, of the faults and of their order [default: a random one]
    ///
    /// Processes run in real time, so the same seed is the same plan, not the same run.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// How processes agree who leads: by a lock in Postgres, or by an election on the store
    ///
    /// With an election, whoever is killed is missed only when its lease of ten seconds is over.
    #[arg(long, value_enum, default_value_t = Leadership::Advisory)]
    leadership: Leadership,

    /// JSON lines on standard output: one for each fault, the summary last.
    #[arg(long)]
    json: bool,

    /// The `tenure` binary.
    #[arg(long, value_name = "FILE", hide = true)]
    tenure: Option<PathBuf>,

    /// Keep the folder of the run.
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(args: Args) -> ExitCode {
    // Printed numbers are to be typed again: none of twenty digits.
    let seed = args.seed.unwrap_or_else(|| Entropy::system().below(1_000_000));
    eprintln!("torture cdc: {} kills, leadership by {}, seed {seed}", args.kills, args.leadership.name());
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
    let tenure = tenure(args)?;
    let folder = tempfile::Builder::new().prefix("tenure-torture-").tempdir().context("make a folder")?;
    let site = Site { tenure, folder: open_to_postgres(&folder)?, leadership: args.leadership };
    let mut world = World::build(site, seed, args.json).await?;
    let ran = Box::pin(world.run(args.kills as usize)).await;
    // Whatever happened, nothing that we started stays.
    let ended = world.end().await;
    let held = match &ran {
        Ok(summary) => {
            summary.tell(args.json)?;
            summary.holds()
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

/// The binary under torture. Built together with ours, it lies beside it.
fn tenure(args: &Args) -> Result<PathBuf> {
    let tenure = match &args.tenure {
        Some(path) => std::path::absolute(path).context("find the binary")?,
        None => std::env::current_exe().context("find our own binary")?.with_file_name("tenure"),
    };
    ensure!(
        tenure.is_file(),
        "{} is not there: build it with `cargo build --package tenure`, or run `cargo xtask torture`",
        tenure.display()
    );
    Ok(tenure)
}

/// Postgres may run as another user, and has to get to its own folder within.
fn open_to_postgres(folder: &TempDir) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
        .context("open the folder")?;
    std::fs::create_dir(folder.path().join("spill")).context("make a folder for large transactions")?;
    Ok(folder.path().to_owned())
}
