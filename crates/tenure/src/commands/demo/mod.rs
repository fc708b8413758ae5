//! `tenure demo`: the whole pipeline at work, with real processes and real faults.
//!
//! A Postgres server and two SQLite files live in a temporary directory, and the binary runs itself again:
//!
//! ```text
//!   writers ──commit──► Postgres ──► publisher (leads) ──► stream: 4 ► 6 ► 4 shards ──► workers ──► Postgres
//!                          │            ▲ killed             ▲ resharded                 ▲ paused     effects and
//!                          └──────► publisher (stands by)                                ▲ one joins  marks in one
//!                                                                                                     transaction
//! ```
//!
//! At the end a ledger compares what was committed with what the workers did.
//!
//! - `workload.rs` writes rows and knows what was committed; `worker.rs` is what a worker's process does.
//! - `ledger.rs` and the calendar in `faults.rs` are pure: what was lost, what goes wrong when.
//! - `site.rs` is the place, `crew.rs` starts and ends processes, `conductor.rs` conducts, `display.rs` shows,
//!   `scratch.rs` is the temporary directory.

mod conductor;
mod crew;
mod display;
mod faults;
mod ledger;
mod scratch;
mod site;
mod summary;
mod wire;
mod worker;
mod workload;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::conductor::Conductor;
use self::crew::Crew;
use self::display::Display;
use self::scratch::Scratch;
use self::site::Site;
pub(crate) use self::worker::Args as WorkerArgs;

/// From here on every kind of fault happens at least once.
const FULL_SECONDS: u64 = 20;

/// Show the pipeline at work: rows change in Postgres, a leader publishes them, workers carry them out;
/// processes are killed, paused and added, shards split and merge, and a ledger is drawn up.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many seconds rows are written. Healing and the ledger come on top, at most 60 s
    #[arg(long, value_name = "N", default_value_t = FULL_SECONDS, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// What a process of the demo is told when it is started.
#[derive(Debug, clap::Args)]
pub(crate) struct MemberArgs {
    /// The process to die with
    #[arg(long)]
    parent: i32,
    /// What to become
    #[arg(last = true, required = true)]
    command: Vec<std::ffi::OsString>,
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
    let mut display = Display::new(json);
    display.say("A Postgres server, a store and a stream are made in a temporary directory.")?;
    let mut site = Site::create(dir).await?;
    let length = Duration::from_secs(args.seconds);
    let told = Box::pin(Conductor::new(crew, &site, &mut display, length).run()).await;
    // Its workers lean on the server: they go first.
    crew.end_all().await;
    site.end().await?;
    let summary = told?.judged(args.seconds >= FULL_SECONDS);
    display.ledger(&summary)?;
    Ok(summary.broken_promises().is_empty())
}

/// Becomes a process of the demo that ends with the one that started it.
pub(crate) fn run_member(args: &MemberArgs) -> Result<ExitCode> {
    crew::die_with(args.parent)?;
    let error = std::process::Command::new("/proc/self/exe").arg0("tenure").args(&args.command).exec();
    Err(error).context("run tenure again")
}

/// Runs one worker of the demo, until it is asked to end.
pub(crate) async fn run_worker(args: WorkerArgs, context: &crate::context::Context) -> Result<ExitCode> {
    Box::pin(worker::run(args, context)).await
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
