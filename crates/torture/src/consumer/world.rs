//! The stream, the workers and what is done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tenure_backend::Env;
use tenure_clock::{Clock as _, Entropy, Monotonic, SystemClock, within};
use tenure_leases::admin::Admin;
use tenure_leases::{Checkpoint, Settings};
use tenure_scratch_postgres::{End, ScratchPostgres};
use tenure_store::{Condition, Item, KeyAttribute, Store, StoreExt as _, TableSpec};
use tenure_stream::{Stream, StreamSpec};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::ledger::{Ledger, RecordId, SeenCheckpoint, Tenure};
use super::plan::{Fault, plan};
use super::summary::Summary;
use super::worker::{LEASE, Line, PLAIN};
use super::writer::Writer;
use crate::PATIENCE;
use crate::percentile;

/// Workers to begin with, and at all times but for what is being done to them.
const WORKERS: usize = 4;
const SHARDS: u32 = 6;
const SHARDS_RANGE: std::ops::RangeInclusive<u32> = 3..=9;
/// Between two faults, so that there is work to disturb.
const BETWEEN: Duration = Duration::from_millis(700);
/// How often checkpoints are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A shard that was drained is given within this, unless its worker was killed or paused meanwhile.
const GIVING: Duration = Duration::from_secs(5);
/// How often it is tried to stop a worker while it does not hold the lock of the store's file.
const STOPS_MAX: u32 = 10;
const PROBES: &str = "probes";

/// Everything.
pub(crate) struct World {
    folder: PathBuf,
    json: bool,
    env: Env,
    entropy: Entropy,
    began: Monotonic,
    store_url: String,
    stream_url: String,
    store: Arc<dyn Store>,
    stream: Arc<dyn Stream>,
    postgres: ScratchPostgres,
    sql: Client,
    workers: Vec<Process>,
    started: usize,
    /// When each worker was killed or paused, until when.
    disturbed: BTreeMap<String, Vec<(Monotonic, Monotonic)>>,
    /// Who was killed when, with which shards.
    killed: Vec<(Monotonic, BTreeSet<String>)>,
    summary: Summary,
}

struct Process {
    name: String,
    child: Child,
}

impl Process {
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { bail!("{} has ended by itself", self.name) };
        kill_process(pid, signal).with_context(|| format!("signal {}", self.name))
    }
}

impl World {
    pub(crate) async fn build(
        folder: &Path,
        store_url: Option<String>,
        stream_url: Option<String>,
        seed: u64,
        json: bool,
    ) -> Result<Self> {
        let env = Env::system();
        let began = SystemClock.monotonic();
        let store_url = store_url.unwrap_or_else(|| format!("sqlite:{}", folder.join("store.db").display()));
        let stream_url = stream_url
            .unwrap_or_else(|| format!("sqlite:{}?name=torture", folder.join("stream.db").display()));
        let store = tenure_store::open(&store_url, &env).await.context("open the store")?;
        let stream = tenure_stream::open(&stream_url, &env).await.context("open the stream")?;
        let by = SystemClock.deadline(PATIENCE);
        stream.create(by, &StreamSpec::with_shards(SHARDS)).await.context("make the stream")?;
        let probes = TableSpec::new(PROBES, KeyAttribute::text("probe"));
        store.ensure_table(by, &probes).await.context("make a table")?;
        // A worker that is stopped in the middle of a transaction must not hold its shard's row for ever.
        let settings = ["idle_in_transaction_session_timeout=2s"];
        let postgres = ScratchPostgres::start_new(&folder.join("postgres"), &settings).await?;
        let sql = postgres.connect("torture").await?;
        let effects = "CREATE TABLE effects (key bigint, number bigint, times bigint NOT NULL, PRIMARY KEY (key, number))";
        sql.batch_execute(effects).await.context("make the table of effects")?;
        let backend = |url: &str| url.split(':').next().unwrap_or_default().to_owned();
        let backend = format!("{}+{}", backend(&store_url), backend(&stream_url));
        Ok(Self {
            folder: folder.to_owned(),
            json,
            env,
            entropy: Entropy::seeded(seed),
            began,
            store_url,
            stream_url,
            store,
            stream,
            postgres,
            sql,
            workers: Vec::new(),
            started: 0,
            disturbed: BTreeMap::new(),
            killed: Vec::new(),
            summary: Summary { torture: "consumer", backend, seed, ..Summary::default() },
        })
    }

    pub(crate) async fn run(&mut self, kills: usize) -> Result<Summary> {
        for _ in 0..WORKERS {
            self.start()?;
        }
        let writer = Writer::start(self.stream.clone());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut watching = JoinSet::new();
        watching.spawn(watch(self.store.clone(), self.env.clone(), seen.clone()));
        self.wait_for("the workers to begin", async |world| Ok(!world.owned().await?.is_empty())).await?;
        let faults = plan(kills, &self.entropy.fork());
        for (number, fault) in faults.iter().enumerate() {
            SystemClock.sleep(BETWEEN).await;
            self.inject(*fault).await.with_context(|| format!("fault {}: {}", number + 1, fault.name()))?;
            let line = json!({"fault": fault.name(), "number": number + 1, "of": faults.len()});
            match self.json {
                true => println!("{line}"),
                false => eprintln!("  {} of {}: {}", number + 1, faults.len(), fault.name()),
            }
        }
        let written = writer.end().await?;
        let wanted = i64::try_from(written.len())?;
        self.wait_for("every record to have its effect", async |world| {
            let row = world.sql.query_one("SELECT count(*) FROM effects", &[]).await?;
            Ok(row.get::<_, i64>(0) >= wanted)
        })
        .await
        // What is missing is for the ledger to say.
        .unwrap_or_else(|error| eprintln!("  {error:#}"));
        self.wait_for("every record to be delivered", async |world| Ok(world.delivered()? >= written.len()))
            .await
            .unwrap_or_else(|error| eprintln!("  {error:#}"));
        for worker in std::mem::take(&mut self.workers) {
            self.leave(worker).await?;
        }
        watching.abort_all();
        let checkpoints = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        self.compare(written, checkpoints).await
    }

    /// Ends everything that was started.
    pub(crate) async fn end(&mut self) -> Result<()> {
        for mut worker in std::mem::take(&mut self.workers) {
            // It may have ended by itself.
            let _ = worker.child.kill().await;
        }
        self.postgres.end(End::Fast).await
    }

    fn start(&mut self) -> Result<()> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let out = File::create(self.folder.join(format!("{name}.jsonl"))).context("make a log")?;
        let log = File::create(self.folder.join(format!("{name}.log"))).context("make a log")?;
        let child = Command::new(std::env::current_exe().context("find our own binary")?)
            .args(["consumer-worker", "--name", &name, "--store", &self.store_url])
            .args(["--stream", &self.stream_url, "--postgres", &self.postgres.url(&name)])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start a worker")?;
        self.workers.push(Process { name, child });
        Ok(())
    }

    /// Waits until it is so. Workers that end by themselves are what went wrong.
    async fn wait_for(&mut self, what: &str, is_so: impl AsyncFn(&Self) -> Result<bool>) -> Result<()> {
        let by = SystemClock.deadline(PATIENCE);
        loop {
            for worker in &mut self.workers {
                if let Some(status) = worker.child.try_wait().context("look after a worker")? {
                    bail!("{} ended by itself with {status}: see its log", worker.name);
                }
            }
            if is_so(self).await.unwrap_or(false) {
                return Ok(());
            }
            ensure!(SystemClock.monotonic() < by, "waited too long for {what}");
            SystemClock.sleep(LOOK_INTERVAL).await;
        }
    }

    /// The shards that each worker holds, and has not finished.
    async fn owned(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let found = Admin::new(&*self.store, &self.env, PLAIN, &Settings::default()).inventory().await?;
        let mut owned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for lease in found.leases.into_iter().filter(|lease| !lease.checkpoint.is_end()) {
            if let Some(owner) = lease.owner {
                owned.entry(owner.to_string()).or_default().insert(lease.shard.to_string());
            }
        }
        Ok(owned)
    }

    // === faults ===

    async fn inject(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill => self.kill().await?,
            Fault::Pause => self.pause().await?,
            Fault::Join => {
                self.start()?;
                self.summary.joins += 1;
            }
            Fault::Leave => {
                // The others go on with more than one.
                if self.workers.len() < 2 {
                    self.start()?;
                }
                let worker = self.workers.swap_remove(self.choose(self.workers.len()));
                self.leave(worker).await?;
                self.summary.leaves += 1;
            }
            Fault::Reshard => {
                let shards = *SHARDS_RANGE.start() + self.choose(SHARDS_RANGE.count()) as u32;
                let rescaled = self.stream.rescale(SystemClock.deadline(PATIENCE), shards).await;
                rescaled.context("reshard")?;
                self.summary.reshards += 1;
            }
        }
        Ok(())
    }

    fn choose(&self, of: usize) -> usize {
        self.entropy.below(of as u64) as usize
    }

    /// A worker that lives and holds something, and what it holds.
    async fn busy_worker(&mut self) -> Result<(usize, BTreeSet<String>)> {
        loop {
            // What the dead hold does not count.
            self.wait_for("a worker with a shard", async |world| {
                Ok(!world.busy(&world.owned().await?).is_empty())
            })
            .await?;
            let owned = self.owned().await?;
            let busy = self.busy(&owned);
            // Otherwise they have let go since.
            if !busy.is_empty() {
                let index = busy[self.choose(busy.len())];
                return Ok((index, owned.get(&self.workers[index].name).cloned().unwrap_or_default()));
            }
        }
    }

    fn busy(&self, owned: &BTreeMap<String, BTreeSet<String>>) -> Vec<usize> {
        let workers = self.workers.iter().enumerate();
        workers.filter(|(_, worker)| owned.contains_key(&worker.name)).map(|(index, _)| index).collect()
    }

    async fn kill(&mut self) -> Result<()> {
        let (index, shards) = self.busy_worker().await?;
        let mut worker = self.workers.swap_remove(index);
        let at = SystemClock.monotonic();
        worker.child.kill().await.context("kill a worker")?;
        self.disturbed.entry(worker.name).or_default().push((at, Monotonic::NEVER));
        self.killed.push((at, shards.clone()));
        self.summary.kills += 1;
        self.start()?;
        let name = self.workers.last().map(|worker| worker.name.clone()).unwrap_or_default();
        // Others have them, or the new one.
        self.wait_for("a killed worker's shards to be taken", async |world| {
            let owned = world.owned().await?;
            let living: BTreeSet<_> = world.workers.iter().map(|worker| &worker.name).collect();
            let held: BTreeSet<_> = owned
                .iter()
                .filter(|(owner, _)| living.contains(owner))
                .flat_map(|(_, shards)| shards)
                .collect();
            let all: BTreeSet<_> = owned.values().flatten().collect();
            Ok(shards.iter().all(|shard| held.contains(shard) || !all.contains(shard)))
        })
        .await
        .with_context(|| format!("{name} took the place of one that was killed"))
    }

    async fn pause(&mut self) -> Result<()> {
        for attempt in 1..=STOPS_MAX {
            let (index, shards) = self.busy_worker().await?;
            let name = self.workers[index].name.clone();
            self.workers[index].signal(Signal::STOP)?;
            let at = SystemClock.monotonic();
            // One that is stopped in the middle of a commit holds the lock of the store's file.
            let by = SystemClock.deadline(Duration::from_millis(200) * attempt);
            let probe = Item::new().with("probe", "writable");
            if self.store.put(by, PROBES, probe, Condition::Always).await.is_err() {
                self.workers[index].signal(Signal::CONT)?;
                SystemClock.sleep(self.entropy.up_to(Duration::from_millis(50))).await;
                continue;
            }
            let taken = self
                .wait_for("a paused worker's shards to be taken", async |world| {
                    let owned = world.owned().await?;
                    let kept = owned.get(&name).cloned().unwrap_or_default();
                    Ok(shards.is_disjoint(&kept))
                })
                .await;
            // Longer than its leases, in any case.
            SystemClock.sleep(LEASE / 2).await;
            let worker = self.workers.iter().find(|worker| worker.name == name);
            worker.context("a paused worker is gone")?.signal(Signal::CONT)?;
            taken?;
            self.disturbed.entry(name).or_default().push((at, SystemClock.monotonic()));
            self.summary.pauses += 1;
            return Ok(());
        }
        bail!("no worker could be stopped without the lock of the store's file")
    }

    /// A planned stop.
    async fn leave(&mut self, mut worker: Process) -> Result<()> {
        worker.signal(Signal::TERM)?;
        let by = SystemClock.deadline(PATIENCE);
        let status = within(&SystemClock, by, Box::pin(worker.child.wait())).await;
        let Ok(status) = status else { bail!("{} does not end when it is asked to", worker.name) };
        let status = status.context("wait for a worker")?;
        ensure!(status.success(), "{} ended with {status}: see its log", worker.name);
        Ok(())
    }

    // === the end ===

    /// How many distinct records the workers say they got.
    fn delivered(&self) -> Result<usize> {
        let tenures = self.tenures()?;
        let records: BTreeSet<_> =
            tenures.iter().flat_map(|tenure| &tenure.deliveries).map(|(_, record)| *record).collect();
        Ok(records.len())
    }

    /// What the workers told.
    fn tenures(&self) -> Result<Vec<Tenure>> {
        let mut all = Vec::new();
        for number in 1..=self.started {
            let name = format!("worker-{number}");
            let path = self.folder.join(format!("{name}.jsonl"));
            let text = std::fs::read_to_string(&path).context("read what a worker told")?;
            let mut open: BTreeMap<String, Tenure> = BTreeMap::new();
            // A torn last line is what a killed one leaves.
            for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
                match line {
                    Line::Began { shard, at } => {
                        let tenure = Tenure { shard: shard.clone(), began: at, ..Tenure::default() };
                        all.extend(open.insert(shard, tenure));
                    }
                    Line::Got { shard, records } => {
                        let tenure = open.get_mut(&shard).context("a shard that was not begun")?;
                        for (sequence, sub, key, number) in records {
                            tenure.deliveries.push(((place(&sequence)?, sub), RecordId { key, number }));
                        }
                    }
                    Line::Drained { shard, at } => {
                        if let Some(mut tenure) = open.remove(&shard) {
                            tenure.ended_well = !self.was_disturbed(&name, at);
                            all.push(tenure);
                        }
                    }
                }
            }
            all.extend(open.into_values());
        }
        Ok(all)
    }

    /// Whether a worker was killed or paused right after it had drained a shard, before it could give it.
    fn was_disturbed(&self, name: &str, drained: u64) -> bool {
        let times = self.disturbed.get(name).into_iter().flatten();
        let giving = u64::try_from(GIVING.as_nanos()).unwrap_or(u64::MAX);
        times.into_iter().any(|(from, to)| {
            from.as_nanos() < drained.saturating_add(giving) && drained < to.as_nanos().saturating_add(giving)
        })
    }

    async fn compare(
        &mut self,
        written: BTreeSet<RecordId>,
        checkpoints: Vec<SeenCheckpoint>,
    ) -> Result<Summary> {
        let mut effects = BTreeMap::new();
        for row in self.sql.query("SELECT key, number, times FROM effects", &[]).await? {
            let (key, number, times): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            let id = RecordId { key: u32::try_from(key)?, number: number.cast_unsigned() };
            effects.insert(id, times.cast_unsigned());
        }
        let mut ledger = Ledger { written, tenures: self.tenures()?, checkpoints, effects };
        let verdict = ledger.compare();
        let takeovers = self.takeovers(&ledger.tenures);
        self.summary.takeover_ms_p50 = percentile(&takeovers, 0.5);
        self.summary.takeover_ms_p99 = percentile(&takeovers, 0.99);
        self.summary.seconds = SystemClock.monotonic().since(self.began).as_secs();
        self.summary.take(verdict);
        Ok(self.summary.clone())
    }

    /// For each shard of a killed worker, how long it took until somebody read it again.
    fn takeovers(&self, tenures: &[Tenure]) -> Vec<u64> {
        let mut all = Vec::new();
        for (at, shards) in &self.killed {
            for shard in shards {
                let next =
                    tenures.iter().filter(|tenure| tenure.shard == *shard && tenure.began > at.as_nanos());
                if let Some(began) = next.map(|tenure| tenure.began).min() {
                    all.push((began - at.as_nanos()) / 1_000_000);
                }
            }
        }
        all
    }
}

fn place(sequence: &str) -> Result<u128> {
    // Kinesis's numbers have 56 digits: their last 38 tell records of one shard apart and in order.
    let from = sequence.len().saturating_sub(38);
    sequence[from..].parse().with_context(|| format!("sequence number {sequence}"))
}

/// Looks at the checkpoints again and again.
async fn watch(store: Arc<dyn Store>, env: Env, seen: Arc<Mutex<Vec<SeenCheckpoint>>>) {
    let settings = Settings::default();
    let admin = Admin::new(&*store, &env, PLAIN, &settings);
    let mut last: BTreeMap<String, Checkpoint> = BTreeMap::new();
    loop {
        let looking = within(&SystemClock, SystemClock.deadline(CALL_TIMEOUT), Box::pin(admin.inventory()));
        if let Ok(Ok(found)) = looking.await {
            let at = SystemClock.monotonic().as_nanos();
            for lease in found.leases {
                let shard = lease.shard.to_string();
                if last.get(&shard) == Some(&lease.checkpoint) {
                    continue;
                }
                let place = match &lease.checkpoint {
                    Checkpoint::At { sequence, sub } => {
                        place(&sequence.to_string()).ok().map(|at| (at, *sub))
                    }
                    Checkpoint::ShardEnd => Some((u128::MAX, 0)),
                    _ => None,
                };
                last.insert(shard.clone(), lease.checkpoint);
                if let Some(place) = place {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push(SeenCheckpoint { shard, at, place });
                }
            }
        }
        SystemClock.sleep(LOOK_INTERVAL).await;
    }
}
