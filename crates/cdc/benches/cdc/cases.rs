//! What is measured.

use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tenure_clock::{Clock as _, SystemClock};
use tenure_stream::identity::Lsn;
use tokio_postgres::Client;

use crate::cluster::{Cluster, PUBLICATION};
use crate::debezium::Debezium;
use crate::process::{Ended, Watched};
use crate::publisher::{Job, STREAMING, SinkKind, Told};
use crate::{PUBLISHER, Plan, percentile, rounded};

/// Aims, see `docs`.
const RATIO_MIN: f64 = 0.95;
const CPU_BEYOND_PEER_MAX_US: f64 = 2.0;
const EMBEDDED_RATIO_MIN: f64 = 0.8;
const RSS_MAX_MIB: f64 = 64.0;
const FIRST_RECORD_MAX_MS: f64 = 1000.0;
const P99_MAX_MS: f64 = 25.0;

/// What takes long is run less often.
const LONG_RUNS_MAX: usize = 3;
/// Events per second, how many of them commit together, and for how long, when latency is measured.
const LATENCY_RATE: u64 = 10_000;
/// The share of it that the writers must reach.
const RATE_REACHED_MIN: f64 = 0.98;
const LATENCY_ROWS: u64 = 10;
const LATENCY_SECONDS: u64 = 10;
/// Sessions that commit: one alone cannot commit that often where a commit waits for the disk.
const LATENCY_SESSIONS: u64 = 4;
/// How often the disk's own time is taken beside it.
const SYNCS: usize = 200;
/// How long a stalled sink takes nothing, and how much waits for it: so many times what may be under way.
const STALL: Duration = Duration::from_secs(3);
const STALL_TIMES: u64 = 20;

/// One run of a reader.
pub(crate) struct Run {
    pub(crate) events_per_s: f64,
    pub(crate) cpu_us: f64,
    pub(crate) rss_mib: f64,
}

/// A stretch of the log that readers read in turn.
struct Stretch {
    /// The slot that stands at its beginning, to be copied.
    slot: String,
    until: Lsn,
    events: u64,
    rows: u64,
    streaming: bool,
}

struct Bench<'a> {
    plan: &'a Plan,
    cluster: &'a Cluster,
    sql: Client,
    /// The plugin's protocol that both speak.
    version: u8,
    runs: std::cell::Cell<u64>,
}

pub(crate) async fn run(plan: &Plan) -> anyhow::Result<()> {
    let cluster = Cluster::start(plan.postgres.as_deref()).await?;
    let sql = cluster.client().await?;
    let server: String = sql.query_one("SHOW server_version", &[]).await?.get(0);
    say_machine(plan, &server);
    let major = server.split(['.', ' ']).next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0);
    let version = if major >= 16 { 4 } else { 3 };
    let bench = Bench { plan, cluster: &cluster, sql, version, runs: std::cell::Cell::new(0) };
    for (rows, case) in [(1, "null_sink_1"), (100, "null_sink_100"), (plan.large, "null_sink_large")] {
        if plan.wants(case) {
            let stretch = bench.fill(rows, plan.events.max(rows), false).await?;
            bench.beside_pg_recvlogical(&stretch, "null_sink", plan.runs).await?;
            bench.forget(&stretch).await?;
        }
    }
    if plan.wants("embedded") {
        let stretch = bench.fill(100, plan.events, false).await?;
        bench.embedded(&stretch).await?;
        bench.forget(&stretch).await?;
    }
    for streaming in [false, true] {
        if plan.wants(large_name(streaming)) {
            bench.large_transaction(streaming).await?;
        }
    }
    if plan.wants("stalled_sink") {
        bench.stalled_sink().await?;
    }
    for sink in [SinkKind::Null, SinkKind::Sqlite] {
        if plan.wants(&format!("latency_{}", sink.name())) {
            bench.latency(sink).await?;
        }
    }
    if plan.wants("debezium") {
        match Debezium::prepare(cluster.folder()) {
            Ok(debezium) => {
                let stretch = bench.fill(100, plan.events, false).await?;
                bench.beside_debezium(&debezium, &stretch).await?;
                bench.forget(&stretch).await?;
            }
            Err(error) => eprintln!("without Debezium: {error:#}"),
        }
    }
    if plan.wants("null_sink_streamed") {
        let stretch = bench.fill(plan.large, plan.large, true).await?;
        bench.beside_pg_recvlogical(&stretch, "null_sink_streamed", LONG_RUNS_MAX).await?;
        bench.forget(&stretch).await?;
    }
    Ok(())
}

/// Where the large transaction waits for its commit: at the server, or streamed to us.
const fn large_name(streaming: bool) -> &'static str {
    if streaming { "large_transaction_streamed" } else { "large_transaction" }
}

impl Bench<'_> {
    // === The log ===

    /// Writes a stretch of the log.
    async fn fill(&self, rows: u64, events: u64, streaming: bool) -> anyhow::Result<Stretch> {
        eprintln!("writing {events} rows in transactions of {rows} …");
        let slot = self.slot_here().await?;
        let fill = format!("SET synchronous_commit = off; CALL fill({}, {rows})", events / rows);
        // One statement each: a procedure that commits does not run among others.
        for statement in fill.split("; ") {
            self.sql.batch_execute(statement).await?;
        }
        let until = self.end_of_log().await?;
        Ok(Stretch { slot, until, events: events / rows * rows, rows, streaming })
    }

    /// A slot that stands here.
    async fn slot_here(&self) -> anyhow::Result<String> {
        let slot = self.name("begin");
        self.sql
            .execute("SELECT pg_create_logical_replication_slot($1::text::name, 'pgoutput')", &[&slot])
            .await?;
        Ok(slot)
    }

    /// Where the log ends now. A little more follows, so that readers pass it, and it is on the disk.
    async fn end_of_log(&self) -> anyhow::Result<Lsn> {
        let end: String = self.sql.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await?.get(0);
        self.sql.batch_execute("SET synchronous_commit = on").await?;
        self.sql.batch_execute("CREATE TABLE IF NOT EXISTS past_the_end (); DROP TABLE past_the_end").await?;
        self.sql.batch_execute("CHECKPOINT").await?;
        end.parse().context("read the end of the log")
    }

    /// A copy of the stretch's slot, for one reader.
    async fn copy(&self, stretch: &Stretch) -> anyhow::Result<String> {
        let slot = self.name("run");
        let copy = "SELECT pg_copy_logical_replication_slot($1::text::name, $2::text::name)";
        self.sql.execute(copy, &[&stretch.slot, &slot]).await?;
        Ok(slot)
    }

    async fn drop_slot(&self, slot: &str) -> anyhow::Result<()> {
        // The server may still be busy with the reader that has left.
        let by = SystemClock.deadline(Duration::from_secs(30));
        loop {
            let dropped = self.sql.execute("SELECT pg_drop_replication_slot($1::text::name)", &[&slot]).await;
            match dropped {
                Ok(_) => return Ok(()),
                Err(error) if SystemClock.monotonic() > by => return Err(error).context("drop a slot"),
                Err(_) => SystemClock.sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn forget(&self, stretch: &Stretch) -> anyhow::Result<()> {
        self.drop_slot(&stretch.slot).await?;
        self.sql.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    fn name(&self, what: &str) -> String {
        self.runs.set(self.runs.get() + 1);
        format!("{what}_{}", self.runs.get())
    }

    // === Readers ===

    fn job(&self, slot: &str, sink: SinkKind, until: Lsn, events: u64) -> anyhow::Result<Job> {
        let folder = self.cluster.folder().join(self.name("publisher"));
        std::fs::create_dir(&folder)?;
        let publication = PUBLICATION.to_owned();
        let (slot, url) = (slot.to_owned(), self.cluster.url());
        let (latency, stall) = (false, None);
        let until = until.0;
        let streaming = false;
        Ok(Job { url, slot, publication, sink, folder, until, events, streaming, latency, stall })
    }

    fn start(&self, job: &Job) -> anyhow::Result<Watched> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(PUBLISHER).arg(serde_json::to_string(job)?);
        Watched::start(command, self.cluster.folder())
    }

    async fn ours(&self, stretch: &Stretch, sink: SinkKind) -> anyhow::Result<Run> {
        let slot = self.copy(stretch).await?;
        let mut job = self.job(&slot, sink, stretch.until, stretch.events)?;
        job.streaming = stretch.streaming;
        let ended = self.start(&job)?.end(Some(STREAMING)).await?;
        let told = told(&ended)?;
        ensure!(told.events >= stretch.events, "published {} of {}", told.events, stretch.events);
        self.drop_slot(&slot).await?;
        std::fs::remove_dir_all(&job.folder)?;
        let Ended { cpu, rss_mib, .. } = ended;
        let events = stretch.events as f64;
        let per_call = told.records as f64 / told.calls.max(1) as f64;
        eprintln!(
            "  ours, {}: {:.0} events/s, {:.2} us CPU, {rss_mib:.0} MiB, {:.1} events per record, {per_call:.0} records per call",
            sink.name(),
            events / told.seconds,
            cpu.as_secs_f64() * 1e6 / events,
            events / told.records as f64,
        );
        Ok(Run { events_per_s: events / told.seconds, cpu_us: cpu.as_secs_f64() * 1e6 / events, rss_mib })
    }

    /// The server's own reader, which throws away what it reads. `/dev/null` is no file to be synced, so it
    /// only reads and writes.
    async fn peer(&self, stretch: &Stretch) -> anyhow::Result<Run> {
        let slot = self.copy(stretch).await?;
        let mut command = Command::new(self.cluster.program("pg_recvlogical"));
        command.args(["--start", "--no-loop", "--verbose", "--file=/dev/null", "--slot", &slot, "--dbname"]);
        command.arg(self.cluster.url()).arg(format!("--endpos={}", stretch.until));
        for (name, value) in self.options(stretch.streaming) {
            command.arg("-o").arg(format!("{name}={value}"));
        }
        let ended = Watched::start(command, self.cluster.folder())?.end(Some("streaming initiated")).await?;
        self.drop_slot(&slot).await?;
        let Ended { cpu, rss_mib, at, seen, .. } = ended;
        let seconds = at.since(seen.context("never began")?).as_secs_f64();
        let (events, cpu) = (stretch.events as f64, cpu.as_secs_f64());
        eprintln!("  pg_recvlogical: {:.0} events/s, {:.2} us CPU", events / seconds, cpu * 1e6 / events);
        Ok(Run { events_per_s: events / seconds, cpu_us: cpu * 1e6 / events, rss_mib })
    }

    /// What the plugin is asked for, as ours asks.
    fn options(&self, streaming: bool) -> Vec<(&'static str, String)> {
        let mut options = vec![
            ("proto_version", self.version.to_string()),
            ("publication_names", format!("\"{PUBLICATION}\"")),
        ];
        if streaming {
            options.push(("streaming", "on".to_owned()));
        }
        options
    }

    // === Cases ===

    async fn beside_pg_recvlogical(&self, stretch: &Stretch, case: &str, most: usize) -> anyhow::Result<()> {
        let (mut ours, mut peer) = (Vec::new(), Vec::new());
        while self.plan.again(peer.len(), most) {
            // Who reads first changes: the second finds the log in memory more often.
            let peer_first = peer.len() % 2 == 0;
            if peer_first {
                peer.push(self.peer(stretch).await?);
            }
            ours.push(self.ours(stretch, SinkKind::Null).await?);
            if !peer_first {
                peer.push(self.peer(stretch).await?);
            }
        }
        let (ratio, cpu) = (Some(RATIO_MIN), Some(CPU_BEYOND_PEER_MAX_US));
        self.print_beside(case, SinkKind::Null, "pg_recvlogical", stretch, &ours, &peer, ratio, cpu);
        Ok(())
    }

    /// Into the embedded stream, each run between two of the null sink: what the machine does beside it changes
    /// from one second to the next.
    async fn embedded(&self, stretch: &Stretch) -> anyhow::Result<()> {
        let (mut sqlite, mut null) = (Vec::new(), Vec::new());
        let mut before = self.ours(stretch, SinkKind::Null).await?;
        while self.plan.again(sqlite.len(), self.plan.runs) {
            sqlite.push(self.ours(stretch, SinkKind::Sqlite).await?);
            let after = self.ours(stretch, SinkKind::Null).await?;
            null.push(Run {
                // As if it had read half of it before and half of it after.
                events_per_s: 2.0 / (1.0 / before.events_per_s + 1.0 / after.events_per_s),
                cpu_us: f64::midpoint(before.cpu_us, after.cpu_us),
                rss_mib: before.rss_mib.max(after.rss_mib),
            });
            before = after;
        }
        let (sink, ratio) = (SinkKind::Sqlite, Some(EMBEDDED_RATIO_MIN));
        self.print_beside("embedded", sink, "null_sink", stretch, &sqlite, &null, ratio, None);
        Ok(())
    }

    async fn beside_debezium(&self, debezium: &Debezium, stretch: &Stretch) -> anyhow::Result<()> {
        let (mut ours, mut peer) = (Vec::new(), Vec::new());
        while self.plan.again(peer.len(), LONG_RUNS_MAX) {
            ours.push(self.ours(stretch, SinkKind::Null).await?);
            let slot = self.copy(stretch).await?;
            peer.push(debezium.run(self.cluster, &slot, stretch.events).await?);
            self.drop_slot(&slot).await?;
        }
        self.print_beside("null_sink", SinkKind::Null, "debezium", stretch, &ours, &peer, None, None);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "a row has that many columns")]
    fn print_beside(
        &self,
        case: &str,
        sink: SinkKind,
        peer_name: &str,
        stretch: &Stretch,
        ours: &[Run],
        peer: &[Run],
        ratio_min: Option<f64>,
        cpu_beyond_max: Option<f64>,
    ) {
        let median = |runs: &[Run], of: fn(&Run) -> f64| median(runs.iter().map(of));
        let beside = |of: fn(&Run, &Run) -> f64| {
            percentile(&mut ours.iter().zip(peer).map(|(ours, peer)| of(ours, peer)).collect::<Vec<_>>(), 0.5)
        };
        let ratio = beside(|ours, peer| ours.events_per_s / peer.events_per_s);
        let beyond = beside(|ours, peer| ours.cpu_us - peer.cpu_us);
        let rss_mib = ours.iter().map(|run| run.rss_mib).fold(0.0, f64::max);
        let met = ratio_min.is_none_or(|min| ratio >= min)
            && cpu_beyond_max.is_none_or(|max| beyond <= max)
            && rss_mib <= RSS_MAX_MIB;
        let target =
            json!({"ratio": ratio_min, "cpu_us_beyond_peer": cpu_beyond_max, "rss_mib": RSS_MAX_MIB});
        self.plan.print(&[
            ("case", case.into()),
            ("sink", sink.name().into()),
            ("peer", peer_name.into()),
            ("tx_rows", stretch.rows.into()),
            ("events_per_s", rounded(median(ours, |run| run.events_per_s))),
            ("peer_events_per_s", rounded(median(peer, |run| run.events_per_s))),
            ("ratio", rounded(ratio)),
            ("cpu_us_per_event", rounded(median(ours, |run| run.cpu_us))),
            ("peer_cpu_us_per_event", rounded(median(peer, |run| run.cpu_us))),
            ("cpu_us_beyond_peer", rounded(beyond)),
            ("cpu_ratio", rounded(beside(|ours, peer| ours.cpu_us / peer.cpu_us))),
            ("rss_mib", rounded(rss_mib)),
            ("peer_rss_mib", rounded(peer.iter().map(|run| run.rss_mib).fold(0.0, f64::max))),
            ("runs", ours.len().into()),
            ("target", target),
            ("ok", met.into()),
        ]);
    }

    /// A large transaction while we read: it waits for its commit at the server, or on our disk.
    async fn large_transaction(&self, streaming: bool) -> anyhow::Result<()> {
        let rows = self.plan.large;
        let (mut first, mut last, mut cpu, mut rss) = (Vec::new(), Vec::new(), Vec::new(), 0.0f64);
        while self.plan.again(first.len(), LONG_RUNS_MAX) {
            eprintln!("a transaction of {rows} rows while we read, streaming {streaming} …");
            let slot = self.slot_here().await?;
            let writer = self.cluster.client().await?;
            writer.batch_execute("BEGIN").await?;
            let job = Job { streaming, ..self.job(&slot, SinkKind::Null, Lsn(0), rows)? };
            let mut publisher = self.start(&job)?;
            publisher.says(STREAMING).await?;
            writer.batch_execute(&format!("CALL place({rows})")).await?;
            let committed_at = SystemClock.wall().as_millis();
            writer.batch_execute("COMMIT").await?;
            self.end_of_log().await?;
            let ended = publisher.end(None).await?;
            let told = told(&ended)?;
            ensure!(told.events >= rows, "published {} of {rows}", told.events);
            self.drop_slot(&slot).await?;
            std::fs::remove_dir_all(&job.folder)?;
            first.push((told.first_at_millis - committed_at) as f64);
            last.push((told.last_at_millis - committed_at) as f64);
            cpu.push(ended.cpu.as_secs_f64() * 1e6 / rows as f64);
            rss = rss.max(ended.rss_mib);
            eprintln!("  first record after {first:?} ms, last after {last:?} ms, {rss:.0} MiB");
        }
        let (runs, first_record_ms) = (first.len(), median(first));
        self.plan.print(&[
            ("case", large_name(streaming).into()),
            ("sink", "null".into()),
            ("tx_rows", rows.into()),
            ("first_record_ms", rounded(first_record_ms)),
            ("last_record_ms", rounded(median(last))),
            ("cpu_us_per_event", rounded(median(cpu))),
            ("rss_mib", rounded(rss)),
            ("runs", runs.into()),
            ("target", json!({"first_record_ms": FIRST_RECORD_MAX_MS, "rss_mib": RSS_MAX_MIB})),
            ("ok", (first_record_ms <= FIRST_RECORD_MAX_MS && rss <= RSS_MAX_MIB).into()),
        ]);
        Ok(())
    }

    /// A sink that takes nothing, while far more than may be under way waits in the log.
    async fn stalled_sink(&self) -> anyhow::Result<()> {
        let bound = tenure_cdc::publisher::PublisherSettings::default().inflight_bytes_max as u64;
        // An event takes at least this much.
        let rows = STALL_TIMES * bound / 400 / 100 * 100;
        let stretch = self.fill(100, rows, false).await?;
        let slot = self.copy(&stretch).await?;
        let job =
            Job { stall: Some(STALL), ..self.job(&slot, SinkKind::Null, stretch.until, stretch.events)? };
        let ended = self.start(&job)?.end(None).await?;
        let told = told(&ended)?;
        ensure!(told.events >= stretch.events, "published {} of {}", told.events, stretch.events);
        self.drop_slot(&slot).await?;
        self.forget(&stretch).await?;
        std::fs::remove_dir_all(&job.folder)?;
        self.plan.print(&[
            ("case", "stalled_sink".into()),
            ("sink", "null".into()),
            ("tx_rows", stretch.rows.into()),
            ("events", stretch.events.into()),
            ("rss_mib", rounded(ended.rss_mib)),
            ("runs", 1.into()),
            ("target", json!({"rss_mib": RSS_MAX_MIB})),
            ("ok", (ended.rss_mib <= RSS_MAX_MIB).into()),
        ]);
        Ok(())
    }

    /// From an event's commit, as the server dates it, to the sink's acknowledgement of its record.
    async fn latency(&self, sink: SinkKind) -> anyhow::Result<()> {
        let (mut p50, mut p99, mut rate, mut cpu, mut rss) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0.0f64);
        let mut syncs = Vec::new();
        while self.plan.again(p50.len(), LONG_RUNS_MAX) {
            syncs.extend(self.time_syncs()?);
            let (told, per_second, ended) = self.latency_once(sink).await?;
            p50.push(told.p50_ms.unwrap_or(f64::NAN));
            p99.push(told.p99_ms.unwrap_or(f64::NAN));
            rate.push(per_second);
            cpu.push(ended.cpu.as_secs_f64() * 1e6 / told.events as f64);
            rss = rss.max(ended.rss_mib);
            eprintln!(
                "  {per_second:.0} events/s: p50 {p50:.1?} ms, p99 {p99:.1?} ms, {} calls of {:.0} records",
                told.calls,
                told.records as f64 / told.calls.max(1) as f64
            );
        }
        let (runs, p99, rate) = (p99.len(), median(p99), median(rate));
        self.plan.print(&[
            ("case", "latency".into()),
            ("sink", sink.name().into()),
            ("tx_rows", LATENCY_ROWS.into()),
            ("rate", rounded(rate)),
            ("p50_ms", rounded(median(p50))),
            ("p99_ms", rounded(p99)),
            // What the disk itself takes, right before.
            ("sync_p50_ms", rounded(percentile(&mut syncs, 0.5))),
            ("sync_p99_ms", rounded(percentile(&mut syncs, 0.99))),
            ("cpu_us_per_event", rounded(median(cpu))),
            ("rss_mib", rounded(rss)),
            ("runs", runs.into()),
            ("target", json!({"p99_ms": P99_MAX_MS, "rate": LATENCY_RATE})),
            // At a lower rate than was asked for, it says nothing about the aim.
            ("ok", (p99 <= P99_MAX_MS && rate >= LATENCY_RATE as f64 * RATE_REACHED_MIN).into()),
        ]);
        Ok(())
    }

    /// How long the disk takes to keep a page, in milliseconds.
    fn time_syncs(&self) -> anyhow::Result<Vec<f64>> {
        let mut file: File = tempfile::tempfile_in(self.cluster.folder())?;
        let mut once = || -> anyhow::Result<f64> {
            let began = SystemClock.monotonic();
            file.write_all(&[0; 4096])?;
            file.sync_data()?;
            Ok(SystemClock.monotonic().since(began).as_secs_f64() * 1000.0)
        };
        (0..SYNCS).map(|_| once()).collect()
    }

    async fn latency_once(&self, sink: SinkKind) -> anyhow::Result<(Told, f64, Ended)> {
        let seconds = if self.plan.runs == 1 { LATENCY_SECONDS.min(3) } else { LATENCY_SECONDS };
        eprintln!("latency at {LATENCY_RATE} events/s, sink {}, {seconds} s …", sink.name());
        let slot = self.slot_here().await?;
        let events = LATENCY_RATE * seconds;
        let job = Job { latency: true, ..self.job(&slot, sink, Lsn(0), events)? };
        let mut publisher = self.start(&job)?;
        publisher.says(STREAMING).await?;
        let began = SystemClock.monotonic();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..LATENCY_SESSIONS {
            let client = self.cluster.client().await?;
            let gap = Duration::from_nanos(1_000_000_000 * LATENCY_SESSIONS * LATENCY_ROWS / LATENCY_RATE);
            let transactions = events / LATENCY_ROWS / LATENCY_SESSIONS;
            writers.spawn(async move {
                let place = client.prepare(&format!("CALL place({LATENCY_ROWS})")).await?;
                let first = began + gap * writer as u32 / LATENCY_SESSIONS as u32;
                for number in 0..transactions {
                    SystemClock.sleep_until(first + gap * number as u32).await;
                    client.execute(&place, &[]).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written??;
        }
        let took = SystemClock.monotonic().since(began).as_secs_f64();
        self.end_of_log().await?;
        let ended = publisher.end(None).await?;
        let told = told(&ended)?;
        self.drop_slot(&slot).await?;
        std::fs::remove_dir_all(&job.folder)?;
        let rate = told.events as f64 / took;
        Ok((told, rate, ended))
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(&mut values.into_iter().collect::<Vec<_>>(), 0.5)
}

fn told(ended: &Ended) -> anyhow::Result<Told> {
    let last = ended.output.lines().last().context("the publisher said nothing")?;
    serde_json::from_str(last).with_context(|| format!("the publisher said {last}"))
}

fn say_machine(plan: &Plan, server: &str) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprintln!(
        "machine: {cores} cores, {}, Linux {}, load {}",
        model.trim_matches([':', ' ', '\t']),
        kernel.trim(),
        load.trim()
    );
    eprintln!(
        "server: Postgres {server} of our own, on loopback; both readers: pgoutput, text, the same protocol \
         version and options, copies of one slot; pg_recvlogical writes to /dev/null; up to {} runs in \
         turn, the median of ratios",
        plan.runs
    );
}
