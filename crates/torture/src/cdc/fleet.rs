//! The `tenure cdc run` processes: one leads, the others stand by.
//!
//! Who leads is what Postgres says of the lock, or of the slot; how the leader is, it says itself by its metrics.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tenure_clock::{Clock as _, SystemClock, within};
use tenure_scratch_postgres::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Where everything is.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The program under torture.
    pub(crate) tenure: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) leadership: Leadership,
}

/// How the leader is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Leadership {
    /// By an advisory lock in Postgres.
    Advisory,
    /// By an election on the store.
    Store,
}

impl Leadership {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Advisory => "advisory",
            Self::Store => "store",
        }
    }

    /// Asks who leads, as Postgres sees it: who has the lock, or, where there is none, who reads from the slot.
    pub(crate) const fn holder(self) -> &'static str {
        match self {
            Self::Advisory => {
                "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
                 WHERE locktype = 'advisory' AND granted"
            }
            Self::Store => {
                "SELECT application_name FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid"
            }
        }
    }
}

/// How many lanes: few enough that a truncation stays small.
pub(crate) const LANES: u16 = 64;
/// In seconds. Longer than leadership lasts without a sign of life, which is 5.
const WAL_SENDER_TIMEOUT: u32 = 6;
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// Far beyond what the processes tell.
const SCRAPE_BYTES_MAX: u64 = 4 << 20;

impl Site {
    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.folder.join("tenure.db").display())
    }

    pub(crate) fn stream(&self) -> String {
        format!("sqlite:{}", self.folder.join("sink.db").display())
    }

    /// The same stream, throttling, failing and losing replies.
    fn faulty_stream(&self, seed: u64) -> String {
        format!(
            "faulty+{}?seed={seed}&throttled=0.05&failed=0.02&lost=0.06&late=0.03&duplicated=0.03&latency_ms=30\
             &late_by_ms=400",
            self.stream()
        )
    }

    /// `tenure` with this stream, in the folder of the run.
    pub(crate) fn tenure(&self, stream: &str) -> Command {
        let mut command = Command::new(&self.tenure);
        for (name, _) in std::env::vars_os() {
            // Whoever runs this may have settings of their own.
            if name.to_string_lossy().starts_with("TENURE_") || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.folder).args(["--store", &self.store(), "--stream", stream]);
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command
    }

    /// Runs a command of `tenure` to its end, and gives what it printed.
    pub(crate) async fn call(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.tenure(&self.stream());
        let output = command.args(arguments).output().await.context("run tenure")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tenure {}: {}", arguments.join(" "), errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// What a pipeline's arguments are, but for the database.
pub(crate) const PIPELINE: [&str; 6] = ["--slot", "tenure", "--publication", "tenure", "--source", "torture"];

/// One process.
pub(crate) struct Process {
    /// Its name in `pg_stat_activity`, and that of its log.
    pub(crate) name: String,
    child: Child,
    metrics_port: u16,
    /// As last seen.
    pub(crate) told: Told,
}

/// What a process tells of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) epoch: u64,
    /// Everything that committed below is in the stream.
    pub(crate) published: u64,
    pub(crate) inflight_events: u64,
    pub(crate) spilled_bytes: u64,
    /// Records and calls that were throttled.
    pub(crate) throttles: u64,
    /// Calls whose outcome the sink did not tell.
    pub(crate) lost_replies: u64,
}

impl Told {
    /// Whether something was taken in that is not settled.
    pub(crate) const fn has_work(&self) -> bool {
        self.inflight_events > 0 || self.spilled_bytes > 0
    }

    /// Reads the text form of metrics.
    fn read(text: &str) -> Self {
        let mut told = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let value = value.parse::<f64>().map_or(0, |value| value as u64);
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let is_put = labels.contains("op=\"put\"");
            match name {
                "tenure_cdc_leader_epoch" => told.epoch = value,
                "tenure_cdc_published_lsn" => told.published = value,
                "tenure_cdc_inflight_events" => told.inflight_events = value,
                "tenure_cdc_spilled_bytes" => told.spilled_bytes = value,
                "tenure_stream_records_total" | "tenure_stream_calls_total"
                    if is_put && labels.contains("outcome=\"throttled\"") =>
                {
                    told.throttles += value;
                }
                "tenure_stream_calls_total" if is_put && labels.contains("outcome=\"unknown\"") => {
                    told.lost_replies += value;
                }
                _ => {}
            }
        }
        told
    }
}

impl Process {
    /// Starts the `number`th process. Each has faults of its own, by its number and the seed.
    pub(crate) fn start(site: &Site, number: u64, postgres_url: &str, seed: u64) -> Result<Self> {
        let stream = site.faulty_stream(seed.wrapping_mul(1_000_003).wrapping_add(number));
        Self::spawn(site, format!("torture-{number}"), &stream, postgres_url, &[])
    }

    /// Starts one without faults that ends when everything that was committed by now is settled.
    pub(crate) fn start_healing(site: &Site, postgres_url: &str) -> Result<Self> {
        Self::spawn(site, "healer".to_owned(), &site.stream(), postgres_url, &["--until-lsn", "now"])
    }

    fn spawn(site: &Site, name: String, stream: &str, postgres_url: &str, more: &[&str]) -> Result<Self> {
        let metrics_port = free_port()?;
        let log = File::create(site.folder.join(format!("{name}.log"))).context("make a log")?;
        let lines = File::create(site.folder.join(format!("{name}.jsonl"))).context("make a log")?;
        let mut command = site.tenure(stream);
        command.args(["--json", "--log", "info", "--metrics", &format!("127.0.0.1:{metrics_port}")]);
        command.args(["cdc", "run"]).args(PIPELINE).args(["--lanes", &LANES.to_string()]);
        let url = format!("{postgres_url}&wal_sender_timeout={WAL_SENDER_TIMEOUT}");
        command.args(["--leadership", site.leadership.name()]).env("TENURE__ELECTION__PRESET", "fast");
        // So that leaders die with a part of a transaction on their disk, too.
        command.args(["--postgres", &url, "--streaming", "--spill"]).arg(site.folder.join("spill"));
        command.args(more).stdout(lines).stderr(log);
        let child = command.spawn().context("start tenure cdc run")?;
        Ok(Self { name, child, metrics_port, told: Told::default() })
    }

    /// Asks it how it is. A process that is about to start or to end does not answer.
    pub(crate) async fn ask(&mut self) -> Result<Told> {
        let asking = async {
            let mut socket = TcpStream::connect(("127.0.0.1", self.metrics_port)).await?;
            let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            socket.write_all(request).await?;
            let mut text = Vec::new();
            socket.take(SCRAPE_BYTES_MAX).read_to_end(&mut text).await?;
            anyhow::Ok(text)
        };
        let text = within(&SystemClock, SystemClock.deadline(SCRAPE_TIMEOUT), Box::pin(asking))
            .await
            .map_err(|_| anyhow::anyhow!("it does not answer"))??;
        let told = Told::read(&String::from_utf8_lossy(&text));
        // Counts never go back, not even when a term ends.
        self.told = Told {
            throttles: told.throttles.max(self.told.throttles),
            lost_replies: told.lost_replies.max(self.told.lost_replies),
            ..told
        };
        Ok(self.told)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { bail!("{} has ended by itself", self.name) };
        kill_process(pid, signal).with_context(|| format!("signal {}", self.name))
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("look after a process")
    }

    /// Waits for its end; `None` if it takes too long.
    pub(crate) async fn end_within(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        match within(&SystemClock, SystemClock.deadline(patience), Box::pin(self.child.wait())).await {
            Ok(status) => Ok(Some(status.context("wait for a process")?)),
            Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read() {
        let text = "# TYPE tenure_cdc_leader_epoch gauge\n\
                    tenure_cdc_leader_epoch{source=\"torture\"} 7\n\
                    tenure_cdc_published_lsn{source=\"torture\"} 22312144\n\
                    tenure_cdc_inflight_events{source=\"torture\"} 12\n\
                    tenure_cdc_spilled_bytes{source=\"torture\"} 0\n\
                    tenure_stream_calls_total{stream=\"main\",op=\"put\",outcome=\"unknown\"} 3\n\
                    tenure_stream_calls_total{stream=\"main\",op=\"put\",outcome=\"throttled\"} 2\n\
                    tenure_stream_calls_total{stream=\"main\",op=\"limits\",outcome=\"throttled\"} 9\n\
                    tenure_stream_records_total{stream=\"main\",op=\"put\",outcome=\"throttled\"} 40\n";
        let told = Told::read(text);
        let expected = Told {
            epoch: 7,
            published: 22_312_144,
            inflight_events: 12,
            spilled_bytes: 0,
            throttles: 42,
            lost_replies: 3,
        };
        assert_eq!(told, expected);
        assert!(told.has_work());
    }
}
