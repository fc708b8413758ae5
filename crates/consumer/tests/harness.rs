//! A small world: a stream in memory, a clock that moves by hand, and a keeper of leases that the test drives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Entropy, ManualTime, Monotonic, WallTime};
use tenure_consumer::{
    Batch, Drain, Failure, ProcessorFactory, Settings, ShardContext, ShardProcessor, Start, Worker,
    WorkerHandle,
};
use tenure_leases::holding::{KeeperSide, Request};
use tenure_leases::{Checkpoint, Ending, Holding, Lease, LeaseKey};
use tenure_store::Store;
use tenure_stream::{Memory, Record, Shard, ShardId, Stream, StreamExt as _, StreamSpec};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub(crate) const FOREVER: Monotonic = Monotonic::NEVER;

pub(crate) struct World {
    pub(crate) time: ManualTime,
    pub(crate) env: Env,
    pub(crate) stream: Arc<dyn Stream>,
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) settings: Settings,
    pub(crate) log: Log,
    pub(crate) rows: Arc<Mutex<Rows>>,
    keepers: BTreeMap<ShardId, mpsc::Sender<Order>>,
    worker: Option<Running>,
}

struct Running {
    holdings: mpsc::Sender<Holding>,
    handle: WorkerHandle,
    task: JoinHandle<Result<()>>,
}

/// The lease table, and everything that was asked of it.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) leases: BTreeMap<ShardId, Lease>,
    pub(crate) history: Vec<String>,
    /// Refuse the next so many requests.
    pub(crate) refuse: Vec<Kind>,
    /// An operator has sent a reader back.
    pub(crate) may_go_back: bool,
}

enum Order {
    End(Ending),
    Extend(Monotonic),
    StuckSince(oneshot::Sender<Option<Monotonic>>),
    Measured(oneshot::Sender<Option<f64>>),
}

/// What processors were told.
#[derive(Clone, Default)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    pub(crate) fn has(&self, line: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|one| one == line)
    }
}

pub(crate) fn settings() -> Settings {
    Settings { checkpoint_every: Some(Duration::from_secs(1)), ..Settings::default() }
}

impl World {
    pub(crate) async fn new(shards: u32) -> Self {
        Self::with(shards, settings()).await
    }

    pub(crate) async fn with(shards: u32, settings: Settings) -> Self {
        let time = ManualTime::starting_at(WallTime::from_millis(1_800_000_000_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(7) };
        let stream: Arc<dyn Stream> = Arc::new(Memory::new("orders", env.clock.clone()).unwrap());
        stream.create(FOREVER, &StreamSpec::with_shards(shards)).await.unwrap();
        Self {
            time,
            env,
            stream,
            store: None,
            settings,
            log: Log::default(),
            rows: Arc::default(),
            keepers: BTreeMap::new(),
            worker: None,
        }
    }

    /// Another process beside this one: the same stream, store, leases and time.
    pub(crate) fn beside(&self) -> Self {
        Self {
            time: self.time.clone(),
            env: self.env.clone(),
            stream: self.stream.clone(),
            store: self.store.clone(),
            settings: self.settings.clone(),
            log: Log::default(),
            rows: self.rows.clone(),
            keepers: BTreeMap::new(),
            worker: None,
        }
    }

    /// Starts a worker with this factory, in place of the one that ran.
    pub(crate) fn start(&mut self, factory: impl ProcessorFactory + 'static) {
        self.kill();
        let streams = vec![self.stream.clone()];
        let worker = Worker::new(
            "app",
            streams,
            self.store.clone(),
            self.env.clone(),
            self.settings.clone(),
            Arc::new(factory),
        )
        .unwrap();
        let (holdings, granted) = mpsc::channel(64);
        let handle = worker.handle();
        let task = tokio::spawn(worker.run(granted));
        self.worker = Some(Running { holdings, handle, task });
    }

    /// Starts a worker that logs what it gets.
    pub(crate) fn start_recorder(&mut self) {
        let log = self.log.clone();
        self.start(move |_: &ShardContext| Recorder::new(log.clone()));
    }

    /// As if the process had been killed.
    pub(crate) fn kill(&mut self) {
        if let Some(running) = self.worker.take() {
            running.task.abort();
        }
        self.keepers.clear();
    }

    pub(crate) fn handle(&self) -> &WorkerHandle {
        &self.worker.as_ref().unwrap().handle
    }

    pub(crate) async fn shards(&self) -> Vec<Shard> {
        self.stream.all_shards(FOREVER).await.unwrap()
    }

    /// Makes the row of a shard, if there is none.
    pub(crate) async fn row(&self, shard: &ShardId, checkpoint: Checkpoint) {
        if self.rows.lock().unwrap().leases.contains_key(shard) {
            return;
        }
        let shards = self.shards().await;
        let listed = shards.iter().find(|listed| listed.id == *shard);
        self.rows.lock().unwrap().leases.entry(shard.clone()).or_insert_with(|| Lease {
            key: LeaseKey::of_shard(shard),
            stream: None,
            shard: shard.clone(),
            owner: None,
            giver: None,
            counter: 0,
            owner_switches: 0,
            checkpoint,
            parents: listed.map(|listed| listed.parents().cloned().collect()).unwrap_or_default(),
            children: BTreeSet::new(),
            range: listed.map(|listed| listed.hash_range),
            throughput_kbps: None,
            marks: None,
        });
    }

    /// Grants a shard from its row on, for ever.
    pub(crate) async fn grant(&mut self, shard: u64) -> ShardId {
        self.grant_until(shard, FOREVER).await
    }

    pub(crate) async fn grant_until(&mut self, shard: u64, deadline: Monotonic) -> ShardId {
        let id = ShardId::numbered(shard);
        self.row(&id, Checkpoint::TrimHorizon).await;
        let (lease, parents) = {
            let mut rows = self.rows.lock().unwrap();
            let lease = rows.leases.get_mut(&id).unwrap();
            lease.counter += 1;
            let lease = lease.clone();
            let parents =
                lease.parents.iter().filter_map(|parent| rows.leases.get(parent).cloned()).collect();
            (lease, parents)
        };
        let (side, holding) = KeeperSide::grant(self.env.clock.clone(), lease, parents, deadline);
        let (orders, ordered) = mpsc::channel(8);
        tokio::spawn(keep(side, ordered, id.clone(), self.rows.clone()));
        self.keepers.insert(id.clone(), orders);
        self.worker.as_ref().unwrap().holdings.send(holding).await.unwrap();
        id
    }

    pub(crate) async fn end(&self, shard: u64, how: Ending) {
        self.keepers[&ShardId::numbered(shard)].send(Order::End(how)).await.unwrap();
    }

    pub(crate) async fn extend(&self, shard: u64, deadline: Monotonic) {
        self.keepers[&ShardId::numbered(shard)].send(Order::Extend(deadline)).await.unwrap();
    }

    pub(crate) async fn stuck_since(&self, shard: u64) -> Option<Monotonic> {
        let (reply, answer) = oneshot::channel();
        self.keepers[&ShardId::numbered(shard)].send(Order::StuckSince(reply)).await.unwrap();
        answer.await.unwrap()
    }

    pub(crate) async fn measured(&self, shard: u64) -> Option<f64> {
        let (reply, answer) = oneshot::channel();
        self.keepers[&ShardId::numbered(shard)].send(Order::Measured(reply)).await.unwrap();
        answer.await.unwrap()
    }

    pub(crate) async fn put(&self, records: impl IntoIterator<Item = Record>) {
        let records: Vec<Record> = records.into_iter().collect();
        let puts = self.stream.put_all(FOREVER, &records).await.unwrap();
        assert!(puts.iter().all(|put| put.stored().is_some()));
    }

    /// Records with these contents, all of one key.
    pub(crate) async fn put_texts<'a>(&self, texts: impl IntoIterator<Item = &'a str>) {
        self.put(texts.into_iter().map(|text| Record::new("key", text.to_owned()))).await;
    }

    /// Lets time pass until something is true.
    #[track_caller]
    pub(crate) fn until(
        &self,
        what: &'static str,
        mut holds: impl FnMut() -> bool,
    ) -> impl Future<Output = ()> {
        let time = self.time.clone();
        let caller = std::panic::Location::caller();
        async move {
            // Two minutes of its own time, in which everything that waits has waited.
            for _ in 0..24_000 {
                for _ in 0..30 {
                    tokio::task::yield_now().await;
                }
                if holds() {
                    return;
                }
                time.advance(Duration::from_millis(5));
            }
            panic!("{caller}: never: {what}");
        }
    }

    /// Waits until the log has this line.
    #[track_caller]
    pub(crate) fn logged(&self, line: &'static str) -> impl Future<Output = ()> {
        let log = self.log.clone();
        self.until(line, move || log.has(line))
    }

    /// Waits until the lease table was asked for this.
    #[track_caller]
    pub(crate) fn asked(&self, line: &'static str) -> impl Future<Output = ()> {
        let rows = self.rows.clone();
        self.until(line, move || rows.lock().unwrap().history.iter().any(|one| one == line))
    }

    /// Lets so much time pass, and everybody do what they do in it.
    pub(crate) async fn pass(&self, duration: Duration) {
        let until = self.env.clock.deadline(duration);
        let clock = self.env.clock.clone();
        self.until("time passes", move || clock.monotonic() >= until).await;
    }

    pub(crate) fn history(&self) -> Vec<String> {
        self.rows.lock().unwrap().history.clone()
    }

    pub(crate) fn checkpoint(&self, shard: u64) -> Checkpoint {
        self.rows.lock().unwrap().leases[&ShardId::numbered(shard)].checkpoint.clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Does what is asked for, and what is ordered.
async fn keep(
    mut side: KeeperSide,
    mut orders: mpsc::Receiver<Order>,
    shard: ShardId,
    rows: Arc<Mutex<Rows>>,
) {
    let mut is_over = false;
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::End(how)) => {
                    is_over |= how == Ending::Lost;
                    side.end(how);
                }
                Some(Order::Extend(deadline)) => side.extend(deadline),
                Some(Order::StuckSince(reply)) => _ = reply.send(side.stuck_since()),
                Some(Order::Measured(reply)) => _ = reply.send(side.take_measured()),
                // The worker was killed.
                None => return,
            },
            request = side.requests.recv() => {
                let Some(request) = request else { return };
                let mut rows = rows.lock().unwrap();
                let refused = if is_over { Some(Kind::Fenced) } else { rows.refuse.pop() };
                let answer = |done: bool| match refused {
                    Some(kind) => Err(Error::new(kind, "refused")),
                    None if done => Ok(()),
                    None => Err(Error::new(Kind::Fenced, "given away")),
                };
                match request {
                    Request::Checkpoint { at, marks, reply } => {
                        if refused.is_none() {
                            rows.history.push(format!("checkpoint {}", shown(&at)));
                            let may_go_back = rows.may_go_back;
                            let lease = rows.leases.get_mut(&shard).unwrap();
                            assert!(
                                may_go_back || at > lease.checkpoint || (at == lease.checkpoint && marks != lease.marks), "checkpoints go on: {at:?} after {:?}", lease.checkpoint);
                            lease.checkpoint = at;
                            lease.marks = marks;
                        }
                        let _ = reply.send(answer(true));
                    }
                    Request::Give { reply } => {
                        if refused.is_none() {
                            rows.history.push(format!("give {}", shard.number().unwrap()));
                            is_over = true;
                        }
                        let _ = reply.send(answer(true));
                        if is_over {
                            // In the same moment, as the keeper does it.
                            side.end(Ending::Lost);
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn shown(checkpoint: &Checkpoint) -> String {
    match checkpoint {
        Checkpoint::At { sequence, sub } => format!("{sequence}.{sub}"),
        other => format!("{other:?}"),
    }
}

/// Logs what it gets, and fails as it is told.
pub(crate) struct Recorder {
    pub(crate) log: Log,
    pub(crate) hook: Hook,
}

type Hook = Arc<dyn Fn(&str) -> Result<(), Failure> + Send + Sync>;

impl Recorder {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, hook: Arc::new(|_| Ok(())) }
    }

    /// Asks the hook before each record.
    pub(crate) fn hooked(
        log: Log,
        hook: impl Fn(&str) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { log, hook: Arc::new(hook) }
    }
}

#[async_trait]
impl ShardProcessor for Recorder {
    async fn init(&mut self, _: &ShardContext) -> Result<Start, Failure> {
        self.log.add("init");
        Ok(Start::Lease)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        for record in batch.records() {
            let text = String::from_utf8_lossy(&record.data).into_owned();
            assert!(batch.is_valid(), "{text} is delivered although the lease is not valid");
            (self.hook)(&text)?;
            self.log.add(text);
        }
        Ok(())
    }

    async fn drain(&mut self, why: Drain) -> Result<(), Failure> {
        self.log.add(format!("drain {why:?}"));
        Ok(())
    }

    async fn lost(&mut self) {
        self.log.add("lost");
    }
}
