//! The process that is measured: the service as `tenure cdc run` has it, until it has published all it was told to.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure_backend::{Env, Result};
use tenure_cdc::framing::Framing;
use tenure_cdc::service::{LeadershipBy, Service};
use tenure_cdc::settings::PipelineSettings;
use tenure_cdc::sink::{NullSink, Sink, StreamSink};
use tenure_cdc::transport::{Endpoint, PublicationName, SlotName};
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_election::AdvisorySettings;
use tenure_stream::identity::Lanes;
use tenure_stream::{Limits, Put, Record, StreamSpec};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::percentile;

const SHARDS: u32 = 4;
const MILLIS_PER_DAY: f64 = 86_400_000.0;

/// What the process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) slot: String,
    pub(crate) publication: String,
    pub(crate) sink: SinkKind,
    /// For what lies in files.
    pub(crate) folder: PathBuf,
    /// It stops once it has published the log up to here,
    pub(crate) until: u64,
    /// and so many events.
    pub(crate) events: u64,
    /// Large transactions come before they commit.
    pub(crate) streaming: bool,
    /// Notes how long after its commit each event was acknowledged.
    pub(crate) latency: bool,
    /// The sink takes nothing for so long after the pipeline is full.
    pub(crate) stall: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SinkKind {
    Null,
    Sqlite,
}

impl SinkKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What it tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// From the start of the stream to the last acknowledgement.
    pub(crate) seconds: f64,
    pub(crate) events: u64,
    pub(crate) records: u64,
    pub(crate) calls: u64,
    /// When the first record was acknowledged, as the calendar has it.
    pub(crate) first_at_millis: i64,
    /// And the last.
    pub(crate) last_at_millis: i64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

/// Printed once the stream is about to start.
pub(crate) const STREAMING: &str = "streaming";

/// Does the job, and prints what it came to as the last line.
pub(crate) async fn run(job: Job) -> anyhow::Result<()> {
    let env = Env::system();
    let inner: Arc<dyn Sink> = match job.sink {
        SinkKind::Null => Arc::new(NullSink::new()),
        SinkKind::Sqlite => {
            let address = format!("sqlite:{}?name=bench", job.folder.join("stream.db").display());
            let stream = tenure_stream::open(&address, &env).await?;
            stream
                .create(SystemClock.deadline(Duration::from_secs(10)), &StreamSpec::with_shards(SHARDS))
                .await?;
            Arc::new(StreamSink::new(stream))
        }
    };
    let sink = Arc::new(Timed {
        inner,
        first: AtomicU64::new(0),
        first_at_millis: AtomicU64::new(0),
        last_at_millis: AtomicU64::new(0),
        last: AtomicU64::new(0),
        records: AtomicU64::new(0),
        calls: AtomicU64::new(0),
        open: Semaphore::new(if job.stall.is_some() { 0 } else { Semaphore::MAX_PERMITS }),
        latencies: job.latency.then(Mutex::default),
    });
    let address = format!("sqlite:{}", job.folder.join("store.db").display());
    let store = tenure_store::open(&address, &env).await?;
    let mut settings = PipelineSettings::new(
        "bench".into(),
        SlotName::new(&*job.slot)?,
        vec![PublicationName::new(&*job.publication)?],
        sink.lanes(),
    );
    settings.publisher.framing = sink.framing();
    settings.streaming = job.streaming;
    let full = settings.publisher.inflight_bytes_max as u64;
    let endpoint = Endpoint::parse(&job.url)?;
    let leadership = LeadershipBy::AdvisoryLock(AdvisorySettings::default());
    let service = Service::new(env, endpoint, settings, sink.clone(), store, leadership)?;
    let stop = CancellationToken::new();
    let (running, asked) = (service.clone(), stop.clone());
    let mut running = tokio::spawn(async move { running.run(asked).await });

    let progress = service.progress();
    while progress.snapshot().started_at == 0 && !running.is_finished() {
        SystemClock.sleep(Duration::from_millis(1)).await;
    }
    let began = SystemClock.monotonic();
    println!("{STREAMING}");
    let is_done = || {
        let now = progress.snapshot();
        now.published >= job.until && now.events >= job.events
    };
    while !is_done() && !running.is_finished() {
        if let Some(stall) = job.stall
            && sink.open.available_permits() == 0
            && progress.snapshot().inflight_bytes >= full
        {
            SystemClock.sleep(stall).await;
            sink.open.add_permits(Semaphore::MAX_PERMITS);
        }
        SystemClock.sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    (&mut running).await.context("the service panicked")??;
    let last = Monotonic::from_nanos(sink.last.load(Ordering::Relaxed));
    let mut latencies = sink
        .latencies
        .as_ref()
        .map(|all| std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner)));
    let mut latency = |share| latencies.as_mut().map(|all| percentile(all, share));
    let told = Told {
        seconds: last.since(began).as_secs_f64(),
        events: progress.snapshot().events,
        records: sink.records.load(Ordering::Relaxed),
        calls: sink.calls.load(Ordering::Relaxed),
        first_at_millis: sink.first_at_millis.load(Ordering::Relaxed) as i64,
        last_at_millis: sink.last_at_millis.load(Ordering::Relaxed) as i64,
        p50_ms: latency(0.5),
        p99_ms: latency(0.99),
    };
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

/// Notes when a sink has acknowledged.
#[derive(Debug)]
struct Timed {
    inner: Arc<dyn Sink>,
    first: AtomicU64,
    first_at_millis: AtomicU64,
    last_at_millis: AtomicU64,
    last: AtomicU64,
    records: AtomicU64,
    calls: AtomicU64,
    /// Without permits, nothing is taken.
    open: Semaphore,
    latencies: Option<Mutex<Vec<f64>>>,
}

#[async_trait]
impl Sink for Timed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.inner.limits(by).await
    }

    fn framing(&self) -> Framing {
        self.inner.framing()
    }

    fn lanes(&self) -> Lanes {
        self.inner.lanes()
    }

    async fn put(&self, by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        drop(self.open.acquire().await);
        let commits: Vec<f64> = match self.latencies {
            Some(_) => records.iter().flat_map(|record| commit_times(&record.data)).collect(),
            None => Vec::new(),
        };
        self.records.fetch_add(records.len() as u64, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let put = self.inner.put(by, records).await;
        let now = SystemClock.monotonic().as_nanos();
        let wall = SystemClock.wall().as_millis() as u64;
        if self.first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.first_at_millis.store(wall, Ordering::Relaxed);
        }
        self.last_at_millis.fetch_max(wall, Ordering::Relaxed);
        self.last.fetch_max(now, Ordering::Relaxed);
        if let Some(all) = &self.latencies {
            let now = SystemClock.wall().as_millis() as f64 % MILLIS_PER_DAY;
            let late = commits.into_iter().map(|at| late_by(now, at));
            all.lock().unwrap_or_else(PoisonError::into_inner).extend(late);
        }
        put
    }
}

/// From one time of day to another, over midnight if need be. Our clock tells whole milliseconds, so it may
/// seem to be before.
fn late_by(now: f64, at: f64) -> f64 {
    let late = now - at;
    if late < -MILLIS_PER_DAY / 2.0 { late + MILLIS_PER_DAY } else { late.max(0.0) }
}

/// The time of day, in milliseconds, at which each event of a record had committed.
fn commit_times(data: &[u8]) -> Vec<f64> {
    const BEFORE: &[u8] = b"\"committed\":\"";
    const DATE: usize = "2026-11-16T".len();
    let mut times = Vec::new();
    let mut at = 0;
    while let Some(found) = data[at..].windows(BEFORE.len()).position(|window| window == BEFORE) {
        at += found + BEFORE.len();
        let time = data.get(at + DATE..at + DATE + "05:00:00.123456".len());
        times.extend(time.and_then(|time| std::str::from_utf8(time).ok()).and_then(millis_of_day));
    }
    times
}

fn millis_of_day(time: &str) -> Option<f64> {
    let mut parts = time.splitn(3, ':');
    let (hours, minutes) = (parts.next()?.parse::<f64>().ok()?, parts.next()?.parse::<f64>().ok()?);
    let seconds = parts.next()?.trim_end_matches(['Z', '"', ',', '}']).parse::<f64>().ok()?;
    Some((hours * 3600.0 + minutes * 60.0 + seconds) * 1000.0)
}
