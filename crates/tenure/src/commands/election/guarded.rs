//! The command from the side of `tenure elect`: started under a guard, told how long it may run, ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tenure_clock::{Clock, Monotonic, SystemClock};
use tenure_election::Term;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::message::{Order, Report};
use crate::duration;

/// How long the guard may take to carry out an order to kill. One that is stopped never does.
const GUARD_TIMEOUT: Duration = Duration::from_millis(500);
/// What a shell tells of a command that SIGKILL ended.
const KILLED: u8 = 128 + 9;

/// What to run, and how to end it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) command: Vec<OsString>,
    pub(super) environment: BTreeMap<&'static str, String>,
    /// From being asked to being killed.
    pub(super) grace: Duration,
    /// How long before an unrenewed deadline it is asked.
    pub(super) early: Duration,
    /// How often the deadline is looked at.
    pub(super) tick: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its exit status, as a shell would tell it.
    pub(super) status: u8,
    /// The guard ended it, because no renewal came in time.
    pub(super) late: bool,
}

/// How the command is to go on, each beyond the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Run,
    Stop,
    Kill,
    /// The guard does not answer: kill it, too.
    Force,
}

/// A running command. Dropping it kills the command and all that it started.
#[derive(Debug)]
pub(super) struct Guarded {
    wish: watch::Sender<Wish>,
    /// The process group of the command; 0 while nobody knows it, or once it is gone.
    group: Arc<AtomicI32>,
    /// The latest deadline, in nanoseconds.
    until: Arc<AtomicU64>,
    telling: JoinHandle<()>,
    hearing: JoinHandle<Ended>,
}

impl Guarded {
    /// Starts the command; it may run until the deadline of the term.
    pub(super) fn start(plan: &Plan, term: &Term) -> anyhow::Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("make a socket")?;
        ours.set_nonblocking(true).context("make a socket")?;
        let until = Arc::new(AtomicU64::new(term.deadline().as_nanos()));
        // The running binary itself, even if its file was replaced meanwhile.
        let guard = Command::new("/proc/self/exe")
            .arg0("tenure")
            .args(["elect-guard", "--until", &until.load(Ordering::Acquire).to_string()])
            .args(["--early", &duration::shown(plan.early), "--grace", &duration::shown(plan.grace), "--"])
            .args(&plan.command)
            .envs(&plan.environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Ctrl-C is for us, and we end the others in order.
            .process_group(0)
            .spawn()
            .context("start the guard of the command")?;
        let (reports, orders) = tokio::net::UnixStream::from_std(ours).context("make a socket")?.into_split();
        let wish = watch::Sender::new(Wish::Run);
        let group = Arc::new(AtomicI32::new(0));
        Ok(Self {
            telling: tokio::spawn(tell(orders, wish.subscribe(), term.clone(), until.clone(), plan.tick)),
            hearing: tokio::spawn(hear(guard, reports, wish.subscribe(), group.clone()).in_current_span()),
            wish,
            group,
            until,
        })
    }

    /// Waits until the command and all that it started are gone.
    ///
    /// # Cancel safety
    /// Dropping it forgets the wait.
    pub(super) async fn ended(&mut self) -> Ended {
        // A task that panicked says no more than a guard that was killed.
        (&mut self.hearing).await.unwrap_or(Ended { status: KILLED, late: false })
    }

    /// The latest deadline that the term had.
    pub(super) fn until(&self) -> Monotonic {
        Monotonic::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// Asks the command to end; its guard kills it after the grace, or at the deadline.
    pub(super) fn ask(&self) {
        self.wish.send_if_modified(|wish| raise(wish, Wish::Stop));
    }

    /// Kills the command, and waits until all is gone.
    pub(super) async fn kill(&mut self) -> Ended {
        self.wish.send_if_modified(|wish| raise(wish, Wish::Kill));
        // Not by the guard alone: it may be stopped.
        kill_group(&self.group);
        tokio::select! {
            ended = self.ended() => return ended,
            () = SystemClock.sleep(GUARD_TIMEOUT) => {}
        }
        self.wish.send_if_modified(|wish| raise(wish, Wish::Force));
        self.ended().await
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // The socket closes with its last half, and the guard takes that for an order to kill.
        self.telling.abort();
        self.hearing.abort();
    }
}

fn raise(wish: &mut Wish, to: Wish) -> bool {
    let more = *wish < to;
    *wish = to.max(*wish);
    more
}

fn kill_group(group: &AtomicI32) {
    if let Some(group) = Pid::from_raw(group.load(Ordering::Acquire)) {
        // It may have ended in this moment.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Tells the guard each new deadline, and what is wished of the command.
async fn tell(
    mut orders: OwnedWriteHalf,
    mut wish: watch::Receiver<Wish>,
    term: Term,
    until: Arc<AtomicU64>,
    tick: Duration,
) {
    let mut told = Wish::Run;
    loop {
        let deadline = term.deadline();
        let mut lines = String::new();
        // A term that is over has no deadline; the last one stands.
        if until.fetch_max(deadline.as_nanos(), Ordering::AcqRel) < deadline.as_nanos() {
            lines = format!("{}\n", Order::Until(deadline));
        }
        let wished = *wish.borrow_and_update();
        if wished > told {
            told = wished;
            let order = if wished == Wish::Stop { Order::Stop } else { Order::Kill };
            lines.push_str(&format!("{order}\n"));
        }
        if !lines.is_empty() && orders.write_all(lines.as_bytes()).await.is_err() {
            // The guard is gone, as the other task notices.
            return;
        }
        tokio::select! {
            changed = wish.changed() => if changed.is_err() { return },
            () = SystemClock.sleep(tick) => {}
        }
    }
}

/// Hears what the guard reports, until it is gone.
async fn hear(
    mut guard: Child,
    reports: OwnedReadHalf,
    mut wish: watch::Receiver<Wish>,
    group: Arc<AtomicI32>,
) -> Ended {
    let mut lines = BufReader::new(reports).lines();
    let mut ended = Ended { status: KILLED, late: false };
    let mut confirmed = false;
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            _ = wish.wait_for(|wish| *wish == Wish::Force) => break,
        };
        let Ok(Some(line)) = line else { break };
        match line.parse() {
            Ok(Report::Begun(process)) => {
                group.store(process, Ordering::Release);
                tracing::info!(process, "command begun");
            }
            Ok(Report::Late) => {
                ended.late = true;
                tracing::warn!("no renewal came in time: the command is being ended");
            }
            Ok(Report::Ended(status)) => {
                ended.status = status;
                confirmed = true;
                group.store(0, Ordering::Release);
            }
            Err(error) => tracing::warn!(%error, "the guard said something else"),
        }
    }
    if !confirmed {
        // The guard was killed. The kernel has killed the command with it, but not what that started.
        kill_group(&group);
        group.store(0, Ordering::Release);
        let _ = guard.start_kill();
    }
    let _ = guard.wait().await;
    ended
}
