//! The processes of the demo: started from this very binary, heard by a pipe, ended for certain.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tenure_clock::{Clock, Monotonic, SystemClock, within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;

use super::wire::Line;

/// Lines that may wait to be read; then the pipes fill, and then the processes wait.
const LINES_MAX: usize = 1024;

/// Bytes of a process's log that are shown when it failed.
const LOG_BYTES_MAX: usize = 2000;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Publisher,
    Worker,
}

/// Which process: `worker-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub role: Role,
    pub number: u32,
}

impl Name {
    pub(super) const fn publisher(number: u32) -> Self {
        Self { role: Role::Publisher, number }
    }

    pub(super) const fn worker(number: u32) -> Self {
        Self { role: Role::Worker, number }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Publisher => "publisher",
            Role::Worker => "worker",
        };
        write!(f, "{role}-{}", self.number)
    }
}

/// Ties this process to the life of the one that started it, however that ends.
pub(super) fn die_with(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent process")?;
    // It may have died before the line above.
    ensure!(Pid::as_raw(getppid()) == parent, "the demo that started this process has gone");
    Ok(())
}

/// What came from a process, and when.
pub(super) struct Heard {
    pub who: Name,
    pub at: Monotonic,
    pub what: What,
}

pub(super) enum What {
    Said(Line),
    /// Its standard output ended: it has ended, or will at once.
    Closed,
}

/// All processes that run. Dropping it kills them; [`Crew::end_all`] also waits until they are gone.
pub(super) struct Crew {
    dir: PathBuf,
    members: BTreeMap<Name, Member>,
    lines: mpsc::Receiver<Heard>,
    hearing: mpsc::Sender<Heard>,
}

struct Member {
    child: Child,
    pid: Pid,
}

impl Crew {
    /// Nobody yet; everybody will work in `dir`.
    pub(super) fn new(dir: &Path) -> Self {
        let (hearing, lines) = mpsc::channel(LINES_MAX);
        Self { dir: dir.to_owned(), members: BTreeMap::new(), lines, hearing }
    }

    /// Starts `tenure` with these arguments.
    pub(super) fn start(&mut self, who: Name, arguments: &[OsString]) -> Result<()> {
        let log = File::create(self.log_of(who)).context("make a log file")?;
        let mut child = self
            .tenure(arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {who}"))?;
        let pid =
            child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("a process without an id")?;
        let output = child.stdout.take().context("a process without standard output")?;
        tokio::spawn(listen(who, output, self.hearing.clone()));
        self.members.insert(who, Member { child, pid });
        Ok(())
    }

    /// Runs `tenure` with these arguments to its end.
    pub(super) async fn call(&self, arguments: &[OsString]) -> Result<()> {
        let output = self.tenure(arguments).output().await.context("run tenure")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    fn tenure(&self, arguments: &[OsString]) -> Command {
        // The running binary itself, even if its file was replaced meanwhile by a new build.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tenure").arg("demo-member").args(["--parent", &std::process::id().to_string()]);
        command.arg("--").args(arguments);
        for (name, _) in std::env::vars_os() {
            // Settings of the user's own are not for the demo.
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        // Ctrl-C is for the parent, which then ends the others in order.
        command.current_dir(&self.dir).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command
    }

    /// The next thing that one says.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            // The crew holds a sender, so the channel stays open.
            if let Some(heard) = self.lines.recv().await {
                return heard;
            }
        }
    }

    /// As [`Crew::next`], but not for ever.
    pub(super) async fn next_by(&mut self, by: Monotonic) -> Option<Heard> {
        within(&SystemClock, by, self.next()).await.ok()
    }

    /// Sends a signal.
    pub(super) fn signal(&self, who: Name, signal: Signal) -> Result<()> {
        let member = self.members.get(&who).with_context(|| format!("{who} does not run"))?;
        kill_process(member.pid, signal).with_context(|| format!("signal {who}"))
    }

    /// Waits for one whose output has closed, and forgets it.
    pub(super) async fn bury(&mut self, who: Name) -> Result<ExitStatus> {
        let mut member = self.members.remove(&who).with_context(|| format!("{who} does not run"))?;
        member.child.wait().await.with_context(|| format!("wait for {who}"))
    }

    /// Why one ended that should not have.
    pub(super) async fn failure_of(&mut self, who: Name) -> anyhow::Error {
        let status = match self.bury(who).await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let log = std::fs::read_to_string(self.log_of(who)).unwrap_or_default();
        let begin = log.len().saturating_sub(LOG_BYTES_MAX);
        let tail = log.get(begin..).unwrap_or(&log).trim().to_owned();
        anyhow::anyhow!("{who} ended by itself ({status}): {tail}")
    }

    /// Kills everybody and waits until they are gone. A stopped process can be killed, too.
    pub(super) async fn end_all(&mut self) {
        for member in self.members.values_mut() {
            // One that has ended already is what we want.
            let _ = member.child.start_kill();
        }
        for member in self.members.values_mut() {
            let _ = member.child.wait().await;
        }
        self.members.clear();
    }

    fn log_of(&self, who: Name) -> PathBuf {
        self.dir.join(format!("{who}.log"))
    }
}

/// Passes on what one says until its output closes. A torn last line is what a killed one leaves.
async fn listen(who: Name, output: ChildStdout, hearing: mpsc::Sender<Heard>) {
    let mut lines = BufReader::new(output).lines();
    loop {
        let what = match lines.next_line().await {
            Ok(Some(line)) => match serde_json::from_str(&line) {
                Ok(line) => What::Said(line),
                Err(error) => {
                    tracing::debug!(%error, process = %who, "a line that says nothing to us was left out");
                    continue;
                }
            },
            Ok(None) | Err(_) => What::Closed,
        };
        let closed = matches!(what, What::Closed);
        // If nobody listens, the demo is ending.
        if hearing.send(Heard { who, at: SystemClock.monotonic(), what }).await.is_err() || closed {
            return;
        }
    }
}
