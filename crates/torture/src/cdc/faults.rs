//! Carries out the plan: builds the world, breaks it, heals it, and has the ledger compared.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use tenure_clock::Entropy;
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_scratch_postgres::{End, ScratchPostgres};
use tenure_stream::identity::Lsn;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::fleet::{LANES, PIPELINE, Process, Site, Told};
use super::ledger::{self, Handover};
use super::plan::{Fault, plan};
use super::reader::Reader;
use super::summary::Summary;
use super::workload::{self, Reins, SCHEMA, TABLES, WRITERS, Workload, committed};
use crate::PATIENCE;
use crate::percentile;

/// One leads, two stand by.
const PROCESSES: usize = 3;
/// Writers wait while the pipeline is further behind than this.
const LAG_BYTES_MAX: i64 = 24 << 20;
/// How often a fault is tried: it may meet a leader that has just gone by itself.
const TRIES_MAX: usize = 20;
/// How often who leads is asked while a failover is measured.
const LOCK_POLL: Duration = Duration::from_millis(3);
/// How long a paused leader may keep everybody from taking over: longer than a lease and a session last.
const PAUSE_PATIENCE: Duration = Duration::from_secs(40);
/// The keys of rows that come with other columns, beyond those of the writers and of what is spilled.
const ALTERED: u64 = WRITERS * 1_000_000 + 900_000;
/// Processes that end by themselves before that alone is what went wrong.
const UNEXPECTED_MAX: usize = 10;

/// Of the server.
const POSTGRES_SETTINGS: [&str; 6] = [
    "wal_level=logical",
    "max_wal_senders=16",
    "max_replication_slots=8",
    // So that transactions of some hundred rows are sent before they commit.
    "logical_decoding_work_mem=64kB",
    // So that a crash is recovered from quickly.
    "checkpoint_timeout=30s",
    "max_wal_size=256MB",
];

/// The server, the processes, the writers, and what was counted.
pub(crate) struct World {
    site: Site,
    json: bool,
    entropy: Entropy,
    began: Monotonic,
    postgres: ScratchPostgres,
    sql: Client,
    fleet: Vec<Process>,
    started: u64,
    /// The highest epoch of a leader that was disturbed.
    disturbed: u64,
    /// The leaders that handed over in good order.
    handed_over: BTreeSet<Handover>,
    failovers_ms: Vec<u64>,
    /// The tables that have a column more now: `items`, `whole`.
    wider: [bool; 2],
    counts: Summary,
}

impl World {
    pub(crate) async fn build(site: Site, seed: u64, json: bool) -> Result<Self> {
        let (began, leadership) = (SystemClock.monotonic(), site.leadership);
        let postgres = ScratchPostgres::start_new(&site.folder.join("postgres"), &POSTGRES_SETTINGS).await?;
        let sql = postgres.connect("torture").await?;
        sql.batch_execute(SCHEMA).await.context("make the tables")?;
        site.call(&["stream", "create", "--shards", "4"]).await?;
        let url = postgres.url("setup");
        let lanes = LANES.to_string();
        let mut setup = vec!["cdc", "setup", "--postgres", &url, "--lanes", &lanes];
        setup.extend(PIPELINE);
        let tables: Vec<_> = TABLES.iter().map(|table| format!("public.{table}")).collect();
        setup.extend(tables.iter().flat_map(|table| ["--table", table]));
        site.call(&setup).await?;
        Ok(Self {
            site,
            json,
            entropy: Entropy::seeded(seed),
            began,
            postgres,
            sql,
            fleet: Vec::new(),
            started: 0,
            disturbed: 0,
            handed_over: BTreeSet::new(),
            failovers_ms: Vec::new(),
            wider: [false; 2],
            counts: Summary { torture: "cdc", seed, leadership: leadership.name(), ..Summary::default() },
        })
    }

    pub(crate) async fn run(&mut self, kills: usize) -> Result<Summary> {
        let workload = Workload::start(&self.postgres.url("writer"), &self.entropy.fork());
        let mut watching = JoinSet::new();
        watching.spawn(hold_when_behind(self.postgres.url("watcher"), workload.reins.clone()));
        self.tend()?;
        let plan = plan(kills, &self.entropy.fork());
        for (number, fault) in plan.iter().enumerate() {
            let measured = self.failovers_ms.len();
            self.inject(*fault).await.with_context(|| format!("fault {}: {}", number + 1, fault.name()))?;
            let failover = self.failovers_ms.get(measured).copied();
            self.tell_fault(*fault, number + 1, plan.len(), workload.reins.ended(), failover)?;
        }
        workload.end().await;
        watching.abort_all();
        self.heal().await?;
        self.compare().await
    }

    /// Ends everything that was started.
    pub(crate) async fn end(&mut self) -> Result<()> {
        for mut process in std::mem::take(&mut self.fleet) {
            // It may have ended by itself.
            let _ = process.signal(Signal::KILL);
            process.end_within(PATIENCE).await?;
        }
        // Before its folder goes.
        self.postgres.end(End::Fast).await
    }

    fn tell_fault(
        &self,
        fault: Fault,
        number: usize,
        of: usize,
        transactions: u64,
        failover: Option<u64>,
    ) -> Result<()> {
        let seconds = SystemClock.monotonic().since(self.began).as_secs_f64();
        if self.json {
            let line = json!({
                "fault": fault.name(),
                "number": number,
                "of": of,
                "seconds": (seconds * 10.0).round() / 10.0,
                "kills": self.counts.kills,
                "transactions": transactions,
                "failover_ms": failover,
            });
            writeln!(std::io::stdout().lock(), "{line}").context("tell of a fault")?;
        } else {
            let failover = failover.map(|millis| format!(", failover {millis} ms")).unwrap_or_default();
            eprintln!("{seconds:6.1} s  {number:3}/{of}  {}{failover}", fault.name());
        }
        Ok(())
    }

    // === The processes ===

    /// Starts what is missing. A process that ended by itself is told.
    fn tend(&mut self) -> Result<()> {
        let mut place = 0;
        while place < self.fleet.len() {
            match self.fleet[place].ended()? {
                None => place += 1,
                Some(status) => {
                    let process = self.fleet.remove(place);
                    self.count(&process);
                    // One that met a fault of the stream before it stood by has only failed to start.
                    match self.has_stood_by(&process) || status.code() != Some(1) {
                        true => self.counts.unexpected_exits += 1,
                        false => self.counts.failed_starts += 1,
                    }
                    eprintln!("{} ended by itself, {status}: {}", process.name, self.last_words(&process));
                    ensure!(
                        self.counts.unexpected_exits <= UNEXPECTED_MAX,
                        "processes keep ending by themselves"
                    );
                }
            }
        }
        while self.fleet.len() < PROCESSES {
            self.started += 1;
            let url = self.postgres.url(&format!("torture-{}", self.started));
            self.fleet.push(Process::start(&self.site, self.started, &url, self.counts.seed)?);
        }
        Ok(())
    }

    /// Whether it came so far as to tell its state.
    fn has_stood_by(&self, process: &Process) -> bool {
        let lines = self.site.folder.join(format!("{}.jsonl", process.name));
        std::fs::metadata(lines).is_ok_and(|lines| lines.len() > 0)
    }

    fn last_words(&self, process: &Process) -> String {
        let log = std::fs::read_to_string(self.site.folder.join(format!("{}.log", process.name)));
        log.unwrap_or_default().lines().last().unwrap_or("without a word").to_owned()
    }

    /// Takes over what a process told before it goes.
    fn count(&mut self, process: &Process) {
        self.counts.throttles += process.told.throttles;
        self.counts.lost_replies += process.told.lost_replies;
        self.disturbed = self.disturbed.max(process.told.epoch);
    }

    /// The name of the process that leads; `None` while nobody does, or Postgres is down.
    async fn leader(&mut self) -> Option<String> {
        if self.sql.is_closed() {
            self.sql = self.postgres.connect("torture").await.ok()?;
        }
        let found = self.sql.query_opt(self.site.leadership.holder(), &[]).await.ok()?;
        found.map(|row| row.get(0))
    }

    /// The place of a process that leads and of which that much is true.
    async fn leader_that(&mut self, is_so: impl Fn(&Told) -> bool) -> Result<usize> {
        let by = SystemClock.deadline(PATIENCE);
        loop {
            self.tend()?;
            if let Some(name) = self.leader().await
                && let Some(place) = self.fleet.iter().position(|process| process.name == name)
                && let Ok(told) = self.fleet[place].ask().await
                && told.epoch > self.disturbed
                && is_so(&told)
            {
                return Ok(place);
            }
            ensure!(SystemClock.monotonic() < by, "no process leads with records in flight");
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    }

    /// The leader, some time into its term, with records in flight right now.
    async fn busy_leader(&mut self) -> Result<usize> {
        self.leader_that(|told| told.has_work()).await?;
        // Often before its first checkpoint, and often enough after it for the pipeline to get on.
        let dwell = if self.entropy.chance(0.6) { 900 } else { 3000 };
        SystemClock.sleep(self.entropy.up_to(Duration::from_millis(dwell))).await;
        self.leader_that(|told| told.has_work()).await
    }

    /// Waits until somebody else leads.
    async fn await_other_than(&mut self, name: &str) -> Result<()> {
        ensure!(self.another_leads(name, PATIENCE).await, "nobody took over from {name}");
        Ok(())
    }

    async fn another_leads(&mut self, name: &str, patience: Duration) -> bool {
        let by = SystemClock.deadline(patience);
        loop {
            if self.leader().await.is_some_and(|leader| leader != name) {
                return true;
            }
            if SystemClock.monotonic() >= by {
                return false;
            }
            SystemClock.sleep(LOCK_POLL).await;
        }
    }

    /// Kills a process, without a chance to say anything.
    async fn kill(&mut self, place: usize) -> Result<Process> {
        let mut process = self.fleet.remove(place);
        self.count(&process);
        process.signal(Signal::KILL)?;
        ensure!(process.end_within(PATIENCE).await?.is_some(), "{} survives SIGKILL", process.name);
        Ok(process)
    }

    /// Kills the leader, and measures until another holds the lock.
    async fn kill_and_measure(&mut self, place: usize) -> Result<()> {
        let name = self.fleet[place].name.clone();
        let killed = SystemClock.monotonic();
        self.kill(place).await?;
        self.await_other_than(&name).await?;
        self.failovers_ms
            .push(u64::try_from(SystemClock.monotonic().since(killed).as_millis()).unwrap_or(u64::MAX));
        Ok(())
    }

    // === The faults ===

    async fn inject(&mut self, fault: Fault) -> Result<()> {
        for _ in 0..TRIES_MAX {
            self.tend()?;
            let happened = match fault {
                Fault::Kill => self.kill_leader().await?,
                Fault::KillInSpill => self.kill_in_spill().await?,
                Fault::KillInHandover => self.kill_in_handover().await?,
                Fault::KillInAlter => self.kill_in_alter().await?,
                Fault::Alter => self.alter().await?,
                Fault::Handover => self.hand_over().await?,
                Fault::Pause => self.pause().await?,
                Fault::PostgresCrash => self.crash_postgres().await?,
                Fault::Reshard => self.reshard().await?,
                Fault::KillStandby => self.kill_standby().await?,
            };
            if happened {
                return Ok(());
            }
        }
        bail!("it could not be brought about in {TRIES_MAX} tries")
    }

    async fn kill_leader(&mut self) -> Result<bool> {
        let place = self.busy_leader().await?;
        self.kill_and_measure(place).await?;
        self.counts.kills += 1;
        Ok(true)
    }

    /// A transaction of thousands of rows stays open until the leader has some of it on its disk.
    async fn kill_in_spill(&mut self) -> Result<bool> {
        let client = self.postgres.connect("spiller").await?;
        let first = WRITERS * 1_000_000;
        let half = first + 1500 + self.entropy.below(1000);
        let sql = [
            "BEGIN".to_owned(),
            workload::insert("items", first, first + 3000, "repeat('s', 200)"),
            "SAVEPOINT a".to_owned(),
            workload::delete("items", first, half),
        ];
        client.batch_execute(&sql.join(";\n")).await.context("write a large transaction")?;
        let place = self.leader_that(|told| told.spilled_bytes > 0).await?;
        self.kill_and_measure(place).await?;
        self.counts.kills += 1;
        self.counts.kills_in_spill += 1;
        let end = ["COMMIT", "ROLLBACK TO a; COMMIT", "ROLLBACK"][self.entropy.below(3) as usize];
        client.batch_execute(end).await.context("end a large transaction")?;
        Ok(true)
    }

    async fn kill_in_handover(&mut self) -> Result<bool> {
        let place = self.busy_leader().await?;
        self.fleet[place].signal(Signal::TERM)?;
        SystemClock.sleep(self.entropy.up_to(Duration::from_millis(150))).await;
        let holds = self.leader().await.is_some_and(|name| name == self.fleet[place].name);
        if let Some(status) = self.fleet[place].ended()? {
            // It was quicker: a handover like any other.
            let process = self.fleet.remove(place);
            self.note_handover(&process, status, false)?;
            return Ok(false);
        }
        let process = self.kill(place).await?;
        self.await_other_than(&process.name).await?;
        if holds {
            self.counts.kills += 1;
            self.counts.kills_in_handover += 1;
        }
        Ok(holds)
    }

    /// The next leader has never seen the table as it was, and tells readers of it all the same.
    async fn kill_in_alter(&mut self) -> Result<bool> {
        let place = self.busy_leader().await?;
        let process = self.kill(place).await?;
        self.change_columns().await?;
        self.await_other_than(&process.name).await?;
        self.counts.kills += 1;
        self.counts.kills_in_alter += 1;
        Ok(true)
    }

    async fn alter(&mut self) -> Result<bool> {
        self.busy_leader().await?;
        self.change_columns().await?;
        Ok(true)
    }

    async fn change_columns(&mut self) -> Result<()> {
        let table = self.entropy.below(2) as usize;
        let wider = &mut self.wider[table];
        *wider = !*wider;
        let key = ALTERED + self.counts.alters as u64;
        let sql = workload::alter(["items", "whole"][table], *wider, key);
        let client = self.postgres.connect("alterer").await?;
        client.batch_execute(&sql).await.context("alter a table")?;
        self.counts.alters += 1;
        Ok(())
    }

    async fn hand_over(&mut self) -> Result<bool> {
        // Beyond whatever an earlier leader can have published, so that any copy after this is the handover's.
        let end = self.end_of_log().await?;
        let place = self.leader_that(|told| told.published >= end.0 && told.has_work()).await?;
        let mut process = self.fleet.remove(place);
        process.signal(Signal::TERM)?;
        let status = process.end_within(PATIENCE).await?;
        let Some(status) = status else { bail!("{} does not end when it is asked to", process.name) };
        self.await_other_than(&process.name).await?;
        self.note_handover(&process, status, true)
    }

    /// Whether it was one in good order: the process says so, and by its exit status too.
    fn note_handover(&mut self, process: &Process, status: ExitStatus, caught_up: bool) -> Result<bool> {
        self.count(process);
        let read = |kind: &str| {
            let path = self.site.folder.join(format!("{}.{kind}", process.name));
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let settled = read("log")?.contains("everything is settled and confirmed");
        let lines = read("jsonl")?;
        let last: Json = serde_json::from_str(lines.lines().last().unwrap_or_default())
            .with_context(|| format!("{} did not tell of its end", process.name))?;
        let epoch = last["epoch"].as_u64().filter(|_| last["event"] == "end");
        let epoch = epoch.with_context(|| format!("{} did not tell of its end", process.name))?;
        let in_good_order = settled && status.success();
        if in_good_order {
            self.handed_over.insert(Handover { epoch, caught_up });
            self.counts.handovers += 1;
            self.counts.handovers_caught_up += usize::from(caught_up);
        } else {
            self.counts.handovers_cut_short += 1;
            eprintln!("{} did not hand over in good order: {}", process.name, self.last_words(process));
        }
        Ok(in_good_order)
    }

    /// The leader stands still until another leads, and then goes on as if nothing had happened.
    async fn pause(&mut self) -> Result<bool> {
        let place = self.busy_leader().await?;
        let name = self.fleet[place].name.clone();
        self.disturbed = self.disturbed.max(self.fleet[place].told.epoch);
        self.fleet[place].signal(Signal::STOP)?;
        let waited = self.another_leads(&name, PAUSE_PATIENCE).await;
        SystemClock.sleep(self.entropy.up_to(Duration::from_millis(500))).await;
        self.fleet[place].signal(Signal::CONT)?;
        if !waited {
            // Stopped in the middle of a commit, it kept the store's file: nobody else could get on.
            return Ok(false);
        }
        self.counts.pauses += 1;
        // What it does now is what this is about.
        SystemClock.sleep(Duration::from_millis(500)).await;
        Ok(true)
    }

    async fn crash_postgres(&mut self) -> Result<bool> {
        let place = self.busy_leader().await?;
        self.disturbed = self.disturbed.max(self.fleet[place].told.epoch);
        self.postgres.crash_and_restart().await?;
        self.counts.pg_crashes += 1;
        Ok(true)
    }

    async fn reshard(&mut self) -> Result<bool> {
        self.busy_leader().await?;
        let shards = [2, 3, 4, 6, 8][self.entropy.below(5) as usize].to_string();
        self.site.call(&["--timeout", "60s", "stream", "rescale", &shards]).await?;
        self.counts.reshards += 1;
        Ok(true)
    }

    async fn kill_standby(&mut self) -> Result<bool> {
        let leads = self.leader_that(|_| true).await?;
        let place = (leads + 1 + self.entropy.below(PROCESSES as u64 - 1) as usize) % self.fleet.len();
        if place == leads {
            return Ok(false);
        }
        self.kill(place).await?;
        self.counts.standby_kills += 1;
        Ok(true)
    }

    // === The end ===

    /// Without faults and without writers, everything is published.
    async fn heal(&mut self) -> Result<()> {
        eprintln!("healing");
        for mut process in std::mem::take(&mut self.fleet) {
            // What it counted since it was last asked.
            let _ = process.ask().await;
            // One that ended by itself needs no signal.
            let _ = process.signal(Signal::TERM);
            if process.end_within(PATIENCE).await?.is_none() {
                bail!("{} does not end when it is asked to", process.name);
            }
            self.count(&process);
        }
        let end = self.end_of_log().await?;
        let mut healer = Process::start_healing(&self.site, &self.postgres.url("healer"))?;
        let status = healer.end_within(PATIENCE * 2).await?;
        let status = status.with_context(|| {
            format!("what was committed is not settled after {} s without faults", (PATIENCE * 2).as_secs())
        })?;
        ensure!(status.success(), "the healer ended with {status}: {}", self.last_words(&healer));
        let url = self.postgres.url("status");
        let mut arguments = vec!["--json", "cdc", "status", "--postgres", &url];
        arguments.extend(PIPELINE);
        let told: Json =
            serde_json::from_str(&self.site.call(&arguments).await?).context("read the status")?;
        let row: Lsn = told["checkpoint"]["lsn"].as_str().context("there is no checkpoint")?.parse()?;
        ensure!(row >= end, "the checkpoint is {row} and the log went on to {end}");
        Ok(())
    }

    async fn end_of_log(&self) -> Result<Lsn> {
        let sql = self.postgres.connect("torture").await?;
        let end: String = sql.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?.get(0);
        end.parse().context("read the end of the log")
    }

    async fn compare(&mut self) -> Result<Summary> {
        eprintln!("comparing");
        let sql = self.postgres.connect("torture").await?;
        let committed = committed(&sql, LANES).await?;
        let shards = Reader::open(&self.site).await?.read().await?;
        let mut summary = self.counts.clone();
        summary.failover_ms_p50 = percentile(&self.failovers_ms, 0.5);
        summary.failover_ms_p99 = percentile(&self.failovers_ms, 0.99);
        summary.take(ledger::compare(&committed, &shards, &self.handed_over));
        summary.seconds = SystemClock.monotonic().since(self.began).as_secs();
        Ok(summary)
    }
}

/// Has the writers wait while the pipeline is far behind, so that it can heal in bounded time.
async fn hold_when_behind(url: String, reins: Arc<Reins>) {
    const LAG: &str = "SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots";
    let mut client: Option<Client> = None;
    loop {
        if client.as_ref().is_none_or(Client::is_closed) {
            client = workload::connect(&url).await;
        }
        if let Some(client) = &client
            && let Ok(Some(row)) = client.query_opt(LAG, &[]).await
        {
            reins.hold(row.get::<_, Option<i64>>(0).is_some_and(|lag| lag > LAG_BYTES_MAX));
        }
        SystemClock.sleep(Duration::from_millis(100)).await;
    }
}
