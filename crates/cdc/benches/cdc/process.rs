//! Watches a process from outside: how long it worked, what it cost, and how large it became.

use std::fs;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tenure_clock::{Clock as _, Monotonic, SystemClock};

/// In which the kernel tells a process's CPU time, whatever its own tick is.
const TICKS_PER_SECOND: f64 = 100.0;
const POLL: Duration = Duration::from_millis(5);

/// A running process.
pub(crate) struct Watched {
    child: Child,
    name: String,
    output: tempfile::NamedTempFile,
    rss_kib: u64,
}

/// What it came to.
pub(crate) struct Ended {
    /// What it wrote.
    pub(crate) output: String,
    /// When the words that were waited for appeared.
    pub(crate) seen: Option<Monotonic>,
    pub(crate) at: Monotonic,
    /// User and system, of all its threads, from its start to its end.
    pub(crate) cpu: Duration,
    /// The most that was resident.
    pub(crate) rss_mib: f64,
}

impl Watched {
    /// Starts it. What it writes is kept, standard output and error together.
    pub(crate) fn start(mut command: Command, folder: &Path) -> anyhow::Result<Self> {
        let output = tempfile::NamedTempFile::new_in(folder)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let log: File = output.reopen()?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { child, name, output, rss_kib: 0 })
    }

    /// Waits until the words appear in what it writes.
    pub(crate) async fn says(&mut self, words: &str) -> anyhow::Result<Monotonic> {
        loop {
            let over = self.is_over()?;
            let now = SystemClock.monotonic();
            if self.output()?.contains(words) {
                return Ok(now);
            }
            ensure!(!over, "{} ended without `{words}`: {}", self.name, self.output()?);
            SystemClock.sleep(POLL).await;
        }
    }

    /// Waits for its end, and if asked for the moment at which it wrote some words.
    pub(crate) async fn end(mut self, words: Option<&str>) -> anyhow::Result<Ended> {
        let seen = match words {
            Some(words) => Some(self.says(words).await?),
            None => None,
        };
        while !self.is_over()? {
            SystemClock.sleep(POLL).await;
        }
        let at = SystemClock.monotonic();
        // A process that has ended is told of until somebody waits for it.
        let cpu = self.cpu()?;
        let status = self.child.wait()?;
        let output = self.output()?;
        ensure!(status.success(), "{} failed ({status}): {output}", self.name);
        Ok(Ended { output, seen, at, cpu, rss_mib: self.rss_kib as f64 / 1024.0 })
    }

    fn output(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.output.path())?)
    }

    /// Whether it has ended; notes its size while it has not.
    fn is_over(&mut self) -> anyhow::Result<bool> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        if let Some(peak) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
            let kib = peak.trim().trim_end_matches(" kB").parse::<u64>()?;
            self.rss_kib = self.rss_kib.max(kib);
        }
        Ok(self.stat()?.first().is_some_and(|state| state == "Z"))
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.stat()?;
        let ticks = |index: usize| stat.get(index).and_then(|field| field.parse::<f64>().ok());
        let ticks = ticks(11).zip(ticks(12)).context("the kernel does not tell the CPU time")?;
        Ok(Duration::from_secs_f64((ticks.0 + ticks.1) / TICKS_PER_SECOND))
    }

    /// The fields of `/proc/<pid>/stat` from the state on: the name before may contain anything.
    fn stat(&self) -> anyhow::Result<Vec<String>> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("read a process's state")?;
        Ok(fields.split_whitespace().map(str::to_owned).collect())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // No effect on one that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
