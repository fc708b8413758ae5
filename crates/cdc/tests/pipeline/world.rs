//! A database of its own, a stream and a store in memory, and pipelines between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use tenure_backend::Env;
use tenure_cdc::quarantine::Quarantine;
use tenure_cdc::server::{self, Lifetime, SnapshotUse};
use tenure_cdc::service::{End, LeadershipBy, Service};
use tenure_cdc::settings::PipelineSettings;
use tenure_cdc::sink::{Sink, StreamSink};
use tenure_cdc::transport::{Endpoint, PublicationName, Session, SlotName};
use tenure_clock::{Clock as _, Monotonic, SystemClock, within};
use tenure_election::AdvisorySettings;
use tenure_stream::identity::{Lanes, Position};
use tenure_stream::kpl::deaggregate;
use tenure_stream::{Cursor, HashRange, Position as At, Read, ShardId, Stream, StreamExt as _, StreamSpec};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

/// Longer than any test should wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn soon() -> Monotonic {
    SystemClock.deadline(PATIENCE)
}

/// The server that tests share.
fn server_url() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A running pipeline.
pub(crate) struct Running {
    pub(crate) service: Service,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<tenure_backend::Result<End>>,
}

impl Running {
    /// Asks it to stop, and waits.
    pub(crate) async fn end(self) -> tenure_backend::Result<End> {
        self.stop.cancel();
        in_time(self.task).await.unwrap()
    }

    /// Ends it as a crash does: at once, without a word.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = in_time(self.task).await;
    }
}

pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    within(&SystemClock, soon(), Box::pin(future)).await.expect("done within a minute")
}

/// Asks until it is so.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let by = soon();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(SystemClock.monotonic() < by, "never came: {what}");
        SystemClock.sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) url: String,
    pub(crate) database: String,
    pub(crate) sql: Client,
    pub(crate) stream: Arc<dyn Stream>,
    pub(crate) store: Arc<dyn tenure_store::Store>,
    pub(crate) slot: SlotName,
    pub(crate) lanes: Lanes,
    seen: tokio::sync::Mutex<Seen>,
    leftovers: Leftovers,
}

/// What a test that fails leaves on the shared server: removed with the value.
struct Leftovers {
    database: String,
    removed: bool,
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        let database = self.database.clone();
        // A runtime of its own: that of the test is about to end.
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(remove(&database)))
        });
        let _ = removing.join();
    }
}

/// Removes a database and its slot, which have the same name, though a pipeline still reads from it.
async fn remove(database: &str) {
    let Ok((admin, connection)) = tokio_postgres::connect(&server_url(), NoTls).await else { return };
    tokio::spawn(connection);
    let end = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{database}'"
    );
    let drop = format!("SELECT pg_drop_replication_slot('{database}')");
    for _ in 0..100 {
        let _ = admin.batch_execute(&end).await;
        match admin.batch_execute(&drop).await {
            Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => {
                SystemClock.sleep(Duration::from_millis(50)).await;
            }
            _ => break,
        }
    }
    let _ = admin.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await;
}

/// What was read of the stream so far.
#[derive(Default)]
struct Seen {
    cursors: BTreeMap<ShardId, Option<Cursor>>,
    events: Vec<Arc<Json>>,
    records: usize,
    distinct: BTreeSet<Position>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_encoding("UTF8").await
    }

    pub(crate) async fn with_encoding(encoding: &str) -> Self {
        // Shown with a test that fails.
        let _ = tracing_subscriber::fmt().with_env_filter("info").with_test_writer().try_init();
        let env = Env::system();
        let database = format!("cdc_{:016x}", env.entropy.u64());
        let server = server_url();
        let create =
            format!("CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'");
        client(&server).await.batch_execute(&create).await.unwrap();
        let leftovers = Leftovers { database: database.clone(), removed: false };
        let (place, _) = server.rsplit_once('/').unwrap();
        let url = format!("{place}/{database}");
        let sql = client(&url).await;
        sql.batch_execute(
            "CREATE TABLE items (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
             CREATE PUBLICATION tenure FOR ALL TABLES",
        )
        .await
        .unwrap();
        let stream = Arc::new(tenure_stream::Memory::new("orders", Arc::new(SystemClock)).unwrap());
        stream.create(soon(), &StreamSpec::with_shards(2)).await.unwrap();
        let store = Arc::new(tenure_store::Memory::new(&env));
        let slot = SlotName::new(&database).unwrap();
        let world = Self {
            env,
            url,
            database,
            sql,
            stream,
            store,
            slot,
            lanes: Lanes::new(64).unwrap(),
            seen: tokio::sync::Mutex::default(),
            leftovers,
        };
        world.create_slot().await;
        world
    }

    pub(crate) async fn session(&self) -> Session {
        Session::connect(&self.endpoint(), Arc::new(SystemClock), soon()).await.unwrap()
    }

    pub(crate) async fn create_slot(&self) {
        let mut session = self.session().await;
        server::create_slot(&mut session, soon(), &self.slot, Lifetime::Permanent, SnapshotUse::Nothing)
            .await
            .unwrap();
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::parse(&self.url).unwrap()
    }

    pub(crate) fn settings(&self) -> PipelineSettings {
        let publication = PublicationName::new("tenure").unwrap();
        let mut settings =
            PipelineSettings::new("shop".into(), self.slot.clone(), vec![publication], self.lanes);
        settings.checkpoint_interval = Duration::from_millis(50);
        settings.publisher.backoff_max = Duration::from_millis(200);
        settings
    }

    pub(crate) fn service(&self, settings: PipelineSettings, sink: Arc<dyn Sink>) -> Service {
        let leadership = LeadershipBy::AdvisoryLock(AdvisorySettings {
            poll: Duration::from_millis(20),
            // Long enough for a busy machine.
            deadline: Duration::from_secs(20),
            server_timeout: Duration::from_secs(25),
            ..AdvisorySettings::default()
        });
        Service::new(self.env.clone(), self.endpoint(), settings, sink, self.store.clone(), leadership)
            .unwrap()
    }

    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(StreamSink::new(self.stream.clone()))
    }

    pub(crate) fn start(&self) -> Running {
        self.start_service(self.service(self.settings(), self.sink()))
    }

    pub(crate) fn start_service(&self, service: Service) -> Running {
        let stop = CancellationToken::new();
        let (running, asked) = (service.clone(), stop.clone());
        let task = tokio::spawn(async move { running.run(asked).await });
        Running { service, stop, task }
    }

    pub(crate) fn quarantine(&self) -> Quarantine {
        Quarantine::new(self.store.clone(), Arc::new(SystemClock), "shop".into(), PATIENCE)
    }

    /// Everything in the stream, each shard in order, parents before children.
    pub(crate) async fn events(&self) -> Vec<Arc<Json>> {
        let mut seen = self.seen.lock().await;
        for shard in self.stream.all_shards(soon()).await.unwrap() {
            let mut next = match seen.cursors.remove(&shard.id) {
                Some(cursor) => cursor,
                None => Some(self.stream.cursor(soon(), &shard.id, &At::TrimHorizon).await.unwrap()),
            };
            while let Some(cursor) = &next {
                let Read::Records(batch) = self.stream.read(soon(), cursor, 1000).await.unwrap() else {
                    panic!("trimmed");
                };
                let at_end = batch.records.is_empty();
                seen.records += batch.records.len();
                for record in batch.records {
                    let apart = deaggregate(&record.partition_key, &record.data, HashRange::uniform(1)[0]);
                    for part in apart.records {
                        let event: Json = serde_json::from_slice(&part.data).unwrap();
                        seen.distinct.insert(id_of(&event));
                        seen.events.push(Arc::new(event));
                    }
                }
                next = batch.next;
                if at_end {
                    break;
                }
            }
            seen.cursors.insert(shard.id, next);
        }
        seen.events.clone()
    }

    /// Waits until so many distinct events are in the stream, and gives all of them.
    pub(crate) async fn events_when(&self, distinct: usize) -> Vec<Arc<Json>> {
        until(&format!("{distinct} distinct events"), || async {
            let events = self.events().await;
            (self.seen.lock().await.distinct.len() >= distinct).then_some(events)
        })
        .await
    }

    /// Everything again from the beginning, and how many records hold it.
    #[cfg(feature = "kinesis")]
    pub(crate) async fn read_afresh(&self, distinct: usize) -> (Vec<Arc<Json>>, usize) {
        *self.seen.lock().await = Seen::default();
        (self.events_when(distinct).await, self.seen.lock().await.records)
    }

    /// Drops what the test made on the shared server.
    pub(crate) async fn clean_up(mut self) {
        until("the slot is free", || async {
            let found = server::slot(&mut self.session().await, soon(), &self.slot).await.unwrap();
            found.is_none_or(|slot| !slot.active).then_some(())
        })
        .await;
        let mut session = self.session().await;
        let _ = server::drop_slot(&mut session, soon(), &self.slot).await;
        drop(session);
        drop(self.sql);
        let admin = client(&server_url()).await;
        let _ = admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.database)).await;
        self.leftovers.removed = true;
    }
}

pub(crate) fn id_of(event: &Json) -> Position {
    event["tenure"]["id"].as_str().unwrap().parse().unwrap()
}

pub(crate) fn by_id(events: &[Arc<Json>]) -> BTreeMap<Position, Vec<&Json>> {
    let mut found: BTreeMap<Position, Vec<&Json>> = BTreeMap::new();
    for event in events {
        found.entry(id_of(event)).or_default().push(event);
    }
    found
}
