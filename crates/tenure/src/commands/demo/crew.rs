//! The processes of the demo: started from this very binary, heard by a pipe, ended for certain.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tenure_clock::{Clock, Monotonic, SystemClock, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::wire::Report;

/// Reports that may wait to be read; then the pipes fill, and then the workers wait.
const REPORTS_MAX: usize = 1024;

/// How long a worker may take to open the files, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of a worker's log that are shown when it failed.
const LOG_BYTES_MAX: usize = 2000;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Role {
    Racer,
    Writer,
    Reader,
}

/// Which process: `reader-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub role: Role,
    pub number: u32,
}

impl Name {
    pub(super) const fn racer(number: u32) -> Self {
        Self { role: Role::Racer, number }
    }

    pub(super) const fn writer(number: u32) -> Self {
        Self { role: Role::Writer, number }
    }

    pub(super) const fn reader(number: u32) -> Self {
        Self { role: Role::Reader, number }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Racer => "racer",
            Self::Writer => "writer",
            Self::Reader => "reader",
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.number)
    }
}

/// The file that all processes share.
pub(super) fn shared_file(dir: &Path) -> PathBuf {
    dir.join("demo.db")
}

/// Ties this process to the life of the one that started it, however that ends.
pub(super) fn die_with(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent process")?;
    // It may have died before the line above.
    ensure!(Pid::as_raw(getppid()) == parent, "the demo that started this process has gone");
    Ok(())
}

/// What came from a worker, and when.
pub(super) struct Heard {
    pub who: Name,
    pub at: Monotonic,
    pub what: What,
}

pub(super) enum What {
    Said(Report),
    /// Its standard output ended: it has ended, or will at once.
    Closed,
}

/// All processes that run. Dropping it kills them; [`Crew::end_all`] also waits until they are gone.
pub(super) struct Crew {
    dir: PathBuf,
    members: BTreeMap<Name, Member>,
    reports: mpsc::Receiver<Heard>,
    reporting: mpsc::Sender<Heard>,
}

struct Member {
    child: Child,
    pid: Pid,
    /// Closing it asks the process to end.
    orders: Option<ChildStdin>,
}

impl Crew {
    /// Nobody yet; everybody will work in `dir`.
    pub(super) fn new(dir: &Path) -> Self {
        let (reporting, reports) = mpsc::channel(REPORTS_MAX);
        Self { dir: dir.to_owned(), members: BTreeMap::new(), reports, reporting }
    }

    /// Starts a process. `from` is the first number of a writer.
    pub(super) fn start(&mut self, who: Name, from: u64) -> Result<()> {
        let log = File::create(self.log_of(who)).context("make a log file")?;
        // The running binary itself, even if its file was replaced meanwhile by a new build.
        let mut child = Command::new("/proc/self/exe")
            .arg0("tenure")
            .arg("demo-worker")
            .args(["--role", &who.role.to_string()])
            .args(["--number", &who.number.to_string()])
            .args(["--parent", &std::process::id().to_string()])
            .args(["--from", &from.to_string()])
            .arg("--file")
            .arg(shared_file(&self.dir))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for the parent, which then ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {who}"))?;
        let pid =
            child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("a process without an id")?;
        let output = child.stdout.take().context("a process without standard output")?;
        tokio::spawn(listen(who, output, self.reporting.clone()));
        let orders = child.stdin.take();
        self.members.insert(who, Member { child, pid, orders });
        Ok(())
    }

    /// Starts processes and waits until each has opened the files.
    pub(super) async fn start_all(&mut self, names: &[Name]) -> Result<()> {
        for who in names {
            self.start(*who, 1)?;
        }
        let by = SystemClock.deadline(START_TIMEOUT);
        for _ in names {
            let heard = self.next_by(by).await.context("wait for processes to open the files")?;
            match heard.what {
                What::Said(Report::Ready) => {}
                What::Said(other) => bail!("{} began with {other:?}", heard.who),
                What::Closed => return Err(self.failure_of(heard.who).await),
            }
        }
        Ok(())
    }

    /// The next thing a worker says.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            // The crew holds a sender, so the channel stays open.
            if let Some(heard) = self.reports.recv().await {
                return heard;
            }
        }
    }

    /// As [`Crew::next`], but not for ever.
    pub(super) async fn next_by(&mut self, by: Monotonic) -> Result<Heard> {
        within(&SystemClock, by, self.next()).await.map_err(|_| {
            anyhow::anyhow!("no process answered in time: the machine or its disk is overloaded")
        })
    }

    /// Gives a worker an order.
    pub(super) async fn order(&mut self, who: Name, order: &str) -> Result<()> {
        let orders = self.members.get_mut(&who).and_then(|member| member.orders.as_mut());
        let orders = orders.with_context(|| format!("{who} takes no orders"))?;
        orders.write_all(format!("{order}\n").as_bytes()).await.with_context(|| format!("order {who}"))
    }

    /// Asks a worker to end in its own time.
    pub(super) fn ask_to_end(&mut self, who: Name) {
        if let Some(member) = self.members.get_mut(&who) {
            member.orders = None;
        }
    }

    /// Sends a signal.
    pub(super) fn signal(&self, who: Name, signal: Signal) -> Result<()> {
        let member = self.members.get(&who).with_context(|| format!("{who} does not run"))?;
        kill_process(member.pid, signal).with_context(|| format!("signal {who}"))
    }

    /// Waits for a worker whose output has closed, and forgets it.
    pub(super) async fn bury(&mut self, who: Name) -> Result<ExitStatus> {
        let mut member = self.members.remove(&who).with_context(|| format!("{who} does not run"))?;
        member.child.wait().await.with_context(|| format!("wait for {who}"))
    }

    /// Why a worker ended that should not have.
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

/// Passes on what a worker says until its output closes. A torn last line is what a killed one leaves.
async fn listen(who: Name, output: ChildStdout, reporting: mpsc::Sender<Heard>) {
    let mut lines = BufReader::new(output).lines();
    loop {
        let what = match lines.next_line().await {
            Ok(Some(line)) => match serde_json::from_str(&line) {
                Ok(report) => What::Said(report),
                Err(error) => {
                    tracing::debug!(%error, worker = %who, "a line that is no report was left out");
                    continue;
                }
            },
            Ok(None) | Err(_) => What::Closed,
        };
        let closed = matches!(what, What::Closed);
        // If nobody listens, the demo is ending.
        if reporting.send(Heard { who, at: SystemClock.monotonic(), what }).await.is_err() || closed {
            return;
        }
    }
}
