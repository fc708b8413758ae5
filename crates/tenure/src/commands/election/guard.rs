//! The process between `tenure elect` and the command: it ends the command at the deadline of the term.
//!
//! `tenure elect` may be stopped, swapped out or killed at any moment, and the command would work on under
//! a lease that nobody renews. So the deadline stands with another process, which does nothing else:
//!
//! - it is told each new deadline, and ends the command when one passes;
//! - it ends the command at once when the socket to `tenure elect` closes;
//! - the command is killed by the kernel if the guard itself is killed.
//!
//! What remains: if command and guard are stopped together (a machine that is suspended, a stopped
//! container), the command may run for the moment between waking and being killed. What it writes then
//! carries an old epoch; that is what fences are for.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process_group, set_child_subreaper, set_parent_process_death_signal,
};
use tenure_clock::{Clock, Monotonic, SystemClock};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};

use super::descendants;
use super::message::{Order, Report};
use crate::failure;

/// The longest sleep: a timer stands still while the machine is suspended, and after it the deadline must
/// be noticed soon.
const TICK: Duration = Duration::from_millis(100);
/// What a shell tells of a command that SIGKILL ended.
const KILLED: u8 = 128 + 9;
/// What a shell tells of a command that is not there, and of one that cannot be run.
pub(super) const NOT_FOUND: u8 = 127;
pub(super) const NOT_EXECUTABLE: u8 = 126;

/// The guard's own command line, written by `guarded.rs`.
#[derive(clap::Args)]
pub(crate) struct GuardArgs {
    /// The first deadline, in nanoseconds of CLOCK_BOOTTIME
    #[arg(long)]
    until: u64,
    /// How long before the deadline the command is asked to end
    #[arg(long, value_parser = crate::duration::parse)]
    early: Duration,
    /// How long it may take to end
    #[arg(long, value_parser = crate::duration::parse)]
    grace: Duration,
    /// The command
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Guards one run of a command.
pub(crate) fn run(args: GuardArgs) -> ExitCode {
    // One thread: the kernel takes the end of the thread that started a process for the death of its parent.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.context("start the runtime").and_then(|runtime| runtime.block_on(guard(args)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

async fn guard(args: GuardArgs) -> anyhow::Result<()> {
    let GuardArgs { until, early, grace, command } = args;
    // Whoever loses its parent among what the command starts becomes our child.
    set_child_subreaper(Some(getpid())).context("become the parent of orphans")?;
    // These end `tenure elect`, which tells us then; from others they mean nothing. A listener that is
    // dropped leaves its handler in place, and a handler does not pass to the command, as ignoring would.
    for ignored in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        drop(signal(ignored).context("listen for signals")?);
    }
    let mut child_ended = signal(SignalKind::child()).context("listen for SIGCHLD")?;
    let socket = io::stdin().as_fd().try_clone_to_owned().context("open the socket")?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(true).context("open the socket")?;
    let (orders, reports) = tokio::net::UnixStream::from_std(socket).context("open the socket")?.into_split();
    let mut reports = Reports(reports);
    let mut orders = BufReader::new(orders).lines();

    let mut watch = Watch { until: Monotonic::from_nanos(until), early, grace, asked: None };
    if watch.due(SystemClock.monotonic()) == Due::Kill {
        // Too late before it began.
        reports.tell(Report::Late).await;
        reports.tell(Report::Ended(KILLED)).await;
        return Ok(());
    }
    let group = begin(&command)?;
    reports.tell(Report::Begun(group.as_raw_nonzero().get())).await;

    let mut status = None;
    loop {
        let now = SystemClock.monotonic();
        match watch.due(now) {
            Due::Nothing => {}
            Due::Ask => {
                watch.asked = Some(now);
                reports.tell(Report::Late).await;
                ask(group);
            }
            Due::Kill => break,
        }
        tokio::select! {
            biased;
            order = next(&mut orders) => match order {
                Some(Order::Until(deadline)) => watch.until = watch.until.max(deadline),
                Some(Order::Stop) if watch.asked.is_none() => {
                    watch.asked = Some(SystemClock.monotonic());
                    ask(group);
                }
                Some(Order::Stop) => {}
                Some(Order::Kill) | None => break,
            },
            _ = child_ended.recv() => {
                descendants::reap(|process, code| status = (process == group).then_some(code).or(status));
                if status.is_some() {
                    break;
                }
            }
            () = SystemClock.sleep_until(watch.next(now).min(now + TICK)) => {}
        }
    }
    descendants::end_all(group, |process, code| status = (process == group).then_some(code).or(status)).await;
    reports.tell(Report::Ended(status.unwrap_or(KILLED))).await;
    Ok(())
}

/// What a line asks for; none once there will be no more, or nothing that makes sense.
async fn next(orders: &mut Lines<BufReader<OwnedReadHalf>>) -> Option<Order> {
    orders.next_line().await.ok().flatten()?.parse().ok()
}

struct Reports(OwnedWriteHalf);

impl Reports {
    /// Whoever does not listen any more has closed the socket, which the reading side notices.
    async fn tell(&mut self, report: Report) {
        let _ = self.0.write_all(format!("{report}\n").as_bytes()).await;
    }
}

fn ask(group: Pid) {
    // It may have ended in this moment.
    let _ = kill_process_group(group, Signal::TERM);
}

/// Starts the command by way of [`exec`], in a group of its own.
fn begin(command: &[OsString]) -> anyhow::Result<Pid> {
    let child = Command::new("/proc/self/exe")
        .arg0("tenure")
        .args(["elect-exec", "--parent", &std::process::id().to_string(), "--"])
        .args(command)
        // The socket is ours, and a command that runs once per term cannot share what is typed.
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("start the command")?;
    Ok(Pid::from_child(&child))
}

// === deciding ===

/// When the command is to be asked, and when it is to be killed.
#[derive(Debug, Clone, Copy)]
struct Watch {
    until: Monotonic,
    early: Duration,
    grace: Duration,
    asked: Option<Monotonic>,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Ask,
    Kill,
}

impl Watch {
    fn ask_at(&self) -> Monotonic {
        let early = u64::try_from(self.early.as_nanos()).unwrap_or(u64::MAX);
        Monotonic::from_nanos(self.until.as_nanos().saturating_sub(early))
    }

    fn due(&self, now: Monotonic) -> Due {
        match self.asked {
            _ if now >= self.until => Due::Kill,
            Some(asked) if now >= asked + self.grace => Due::Kill,
            None if now >= self.ask_at() => Due::Ask,
            _ => Due::Nothing,
        }
    }

    /// When something may be due next.
    fn next(&self, now: Monotonic) -> Monotonic {
        match self.asked {
            Some(asked) => self.until.min(asked + self.grace),
            None => self.ask_at().max(now),
        }
    }
}

// === becoming the command ===

/// The command line of the process that becomes the command.
#[derive(clap::Args)]
pub(crate) struct ExecArgs {
    /// The guard's process id
    #[arg(long)]
    parent: i32,
    /// The command
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Asks the kernel to end this process with the guard, and becomes the command.
pub(crate) fn exec(args: &ExecArgs) -> ExitCode {
    if let Err(error) = die_with(args.parent) {
        return failure::report(&error);
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    failure::report(&anyhow::Error::new(error).context(format!("run {}", args.command[0].display())));
    ExitCode::from(status)
}

fn die_with(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the guard")?;
    // It may have died before the line above.
    ensure!(Pid::as_raw(getppid()) == parent, "the guard of this process has gone");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_asked_before_the_deadline_and_killed_at_it() {
        let at = |ms: u64| Monotonic::from_nanos(ms * 1_000_000);
        let ms = Duration::from_millis;
        let mut watch = Watch { until: at(1000), early: ms(300), grace: ms(200), asked: None };
        assert_eq!(watch.next(at(0)), at(700));
        assert_eq!(
            [699, 700, 999, 1000].map(|now| watch.due(at(now))),
            [Due::Nothing, Due::Ask, Due::Ask, Due::Kill]
        );
        watch.asked = Some(at(700));
        assert_eq!([899, 900].map(|now| watch.due(at(now))), [Due::Nothing, Due::Kill]);
        // A renewal that comes after the question gives no more than the grace.
        watch.until = at(5000);
        assert_eq!((watch.next(at(701)), watch.due(at(900))), (at(900), Due::Kill));
        // And the deadline cuts a long grace short.
        let long = Watch { until: at(1000), early: ms(300), grace: ms(9000), asked: Some(at(100)) };
        assert_eq!((long.next(at(100)), long.due(at(1000))), (at(1000), Due::Kill));
    }
}
