//! `tenure demo`: the embedded store and stream at work, with real processes and real faults.
//!
//! The binary runs itself again as racers, writers and readers, all on two SQLite files in a
//! temporary directory:
//!
//! ```text
//!   racers ──conditional put──► one row           one wins, the others are shown the winner's row
//!
//!   writers ──put──► stream: 4 ► 6 ► 4 shards ──read──► readers ──one transaction──► store
//!      ▲ killed         ▲ resharded                        ▲ paused      checkpoint + effect,
//!                                                                        if the shard is still mine
//! ```
//!
//! At the end a ledger compares what the writers were told is stored with what the readers did.
//!
//! - `race.rs`, `writer.rs`, `reader.rs`: what the processes do.
//! - `division.rs`, `ledger.rs`, and the calendar in `faults.rs` are pure: who reads which shard, what
//!   was lost, what goes wrong when.
//! - `crew.rs` starts and ends processes; `workload.rs` conducts; `display.rs` shows; `scratch.rs` is
//!   the temporary directory.

mod crew;
mod display;
mod division;
mod faults;
mod ledger;
mod race;
mod reader;
mod rows;
mod scratch;
mod site;
mod summary;
mod wire;
mod workload;
mod writer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::crew::{Crew, Name, Role};
use self::display::Display;
use self::scratch::Scratch;
use self::site::Site;
use self::summary::Summary;
use self::workload::Workload;

/// From here on every kind of fault happens at least once.
const FULL_SECONDS: u64 = 20;

/// Show store and stream at work: processes race, write, read, are killed and paused, and a ledger
/// is drawn up.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many seconds the writers write. Healing and the ledger come on top, at most 60 s
    #[arg(long, value_name = "N", default_value_t = FULL_SECONDS, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// What a process of the demo is told when it is started.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// What to do
    #[arg(long, value_enum)]
    role: Role,
    /// Which one of that role this is
    #[arg(long)]
    number: u32,
    /// The file that all share
    #[arg(long)]
    file: PathBuf,
    /// The process to die with
    #[arg(long)]
    parent: i32,
    /// The first number to write
    #[arg(long, default_value_t = 1)]
    from: u64,
}

/// Runs the demo. It succeeds exactly if what it shows held.
///
/// Whatever ends it, its processes are gone and its files removed when this returns. If it is killed,
/// its processes are, too, and the next demo removes its files.
pub(crate) async fn run(args: Args, json: bool) -> Result<ExitCode> {
    let mut interrupts = Interrupts::watch().context("watch for signals")?;
    scratch::sweep();
    let scratch = Scratch::create()?;
    let mut crew = Crew::new(scratch.path());
    let told = tokio::select! {
        biased;
        code = interrupts.next() => Told::Interrupted(code),
        held = Box::pin(story(&args, json, &mut crew, scratch.path())) => Told::ToTheEnd(held),
    };
    crew.end_all().await;
    let removed = scratch.close();
    match told {
        Told::Interrupted(code) => {
            eprintln!("interrupted: all processes of the demo are ended and its files removed");
            removed.map(|()| ExitCode::from(code))
        }
        Told::ToTheEnd(held) => {
            let code = if held? { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            removed.map(|()| code)
        }
    }
}

enum Told {
    /// Whether what was shown held.
    ToTheEnd(Result<bool>),
    /// The exit code of the signal.
    Interrupted(u8),
}

async fn story(args: &Args, json: bool, crew: &mut Crew, dir: &Path) -> Result<bool> {
    let workload_time = Duration::from_secs(args.seconds);
    let site = Site::create(&crew::shared_file(dir)).await?;
    let mut display = Display::new(json, site.env.clock.clone());

    display
        .say("One store, one stream: two SQLite files in a temporary directory, shared by real processes.")?;
    let races = race::hold(crew, &site, &mut display).await?;

    let mut workload = Workload::new(crew, &site, &mut display, workload_time);
    let outcome = workload.run().await?;

    let summary = Summary::new(races, outcome, args.seconds >= FULL_SECONDS);
    display.ledger(&summary)?;
    Ok(summary.broken_promises().is_empty())
}

/// Runs one process of the demo, until the parent closes its standard input or dies.
pub(crate) async fn run_worker(args: WorkerArgs) -> Result<ExitCode> {
    crew::die_with(args.parent)?;
    let orders = wire::orders();
    let site = Site::open(&args.file).await?;
    let name = Name { role: args.role, number: args.number };
    match args.role {
        Role::Racer => race::run(&site, name, orders).await?,
        Role::Writer => writer::run(&site, args.number, args.from, orders).await?,
        Role::Reader => Box::pin(reader::run(&site, name, orders)).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The signals that ask for an end.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Completes when one came, with the exit code that shells expect of it.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hang_up.recv() => 129,
        }
    }
}
