//! Effects in a database of the processor's own, counted: each exactly once, whatever is killed when.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rusqlite::Connection;
use tenure_clock::Entropy;
use tenure_consumer::transactional_marks::SqliteMarks;
use tenure_consumer::{Batch, Failure, ShardContext, ShardProcessor, ShardState, Start};
use tenure_leases::{Checkpoint, Ending};
use tenure_stream::{HashKey, Record, ShardId};
use tokio::sync::Semaphore;

use crate::events::{SECOND, aggregated, event, number, record};
use crate::harness::{FOREVER, Log, World};

/// Where a processor is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    BeforeBegin,
    BeforeCommit,
    AfterCommit,
    /// Not killed: the answer to the commit is lost.
    LostAnswer,
}

/// Shared with the test: what to do next, and what was done.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) log: Log,
    pub(crate) kill: Arc<Mutex<Option<Kill>>>,
    /// A batch waits here before it begins.
    pub(crate) gate: Arc<Semaphore>,
}

impl Orders {
    pub(crate) fn new(log: &Log) -> Self {
        Self { log: log.clone(), kill: Arc::default(), gate: Arc::new(Semaphore::new(1_000_000)) }
    }

    pub(crate) fn is_killed(&self, at: Kill) -> bool {
        let mut kill = self.kill.lock().unwrap();
        let hit = *kill == Some(at);
        if hit {
            *kill = None;
            self.log.add("killed");
        }
        hit
    }
}

/// Writes a row for each event.
struct Ledger {
    db: Connection,
    marks: Option<SqliteMarks>,
    orders: Orders,
}

#[async_trait]
impl ShardProcessor for Ledger {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let (marks, start) = SqliteMarks::claim(&mut self.db, shard)?;
        self.marks = Some(marks);
        Ok(start)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        self.orders.log.add("batch");
        self.orders.gate.acquire().await?.forget();
        if self.orders.is_killed(Kill::BeforeBegin) {
            std::future::pending::<()>().await;
        }
        let die = self.orders.is_killed(Kill::BeforeCommit);
        {
            let applying = self.marks.as_ref().unwrap().begin(&mut self.db, batch)?;
            for record in applying.records() {
                let number = number(std::str::from_utf8(&record.data)?).unwrap();
                applying
                    .transaction()
                    .execute("insert into effects (number) values (?1)", [number as i64])?;
            }
            if !die {
                applying.commit()?;
            }
        }
        if die || self.orders.is_killed(Kill::AfterCommit) {
            std::future::pending::<()>().await;
        }
        if self.orders.is_killed(Kill::LostAnswer) {
            return Err("the connection was lost".into());
        }
        Ok(())
    }

    async fn lost(&mut self) {
        self.orders.log.add("lost");
    }
}

fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    db.execute("create table if not exists effects (at integer primary key, number integer not null)", [])
        .unwrap();
    SqliteMarks::prepare(&db).unwrap();
    db
}

fn effects(path: &Path) -> Vec<u64> {
    let db = open(path);
    let mut select = db.prepare("select number from effects order by at").unwrap();
    let rows = select.query_map([], |row| row.get::<_, i64>(0)).unwrap();
    rows.map(|number| number.unwrap() as u64).collect()
}

fn start(world: &mut World, path: PathBuf) -> Orders {
    let orders = Orders::new(&world.log);
    let given = orders.clone();
    world.start(move |_: &ShardContext| Ledger { db: open(&path), marks: None, orders: given.clone() });
    orders
}

/// One lane's events in a row, each chained to the one before.
pub(crate) fn chain(from: u64, to: u64) -> Vec<Record> {
    let data = |index: u64| event(0, 10 * index, 10 * (index - 1), 1);
    (from..=to).map(|index| record(0, data(index))).collect()
}

#[tokio::test]
async fn a_batch_that_comes_again_has_no_effect_again() {
    for kill in [Kill::BeforeBegin, Kill::BeforeCommit, Kill::AfterCommit] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("effects.db");
        let mut world = World::new(1).await;
        world.settings.checkpoint_every = None;
        let orders = start(&mut world, path.clone());
        world.grant(0).await;
        world.put(chain(1, 3)).await;
        world.until("three", || effects(&path).len() == 3).await;
        *orders.kill.lock().unwrap() = Some(kill);
        world.put(chain(4, 6)).await;
        world.logged("killed").await;
        world.kill();
        // The lease says that nothing was processed; the database knows better.
        assert_eq!(world.checkpoint(0), Checkpoint::TrimHorizon);
        start(&mut world, path.clone());
        world.grant(0).await;
        world.put(chain(7, 8)).await;
        world.until("all", || effects(&path).contains(&80)).await;
        assert_eq!(effects(&path), [10, 20, 30, 40, 50, 60, 70, 80], "{kill:?}");
    }
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_has_one_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("effects.db");
    let mut world = World::new(1).await;
    let orders = start(&mut world, path.clone());
    *orders.kill.lock().unwrap() = Some(Kill::LostAnswer);
    world.put(chain(1, 3)).await;
    world.grant(0).await;
    world.logged("killed").await;
    world.put(chain(4, 4)).await;
    world.until("four", || effects(&path).contains(&40)).await;
    assert_eq!(effects(&path), [10, 20, 30, 40]);
}

#[tokio::test]
async fn a_zombie_has_no_effect_after_another_has_claimed_its_shard() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("effects.db");
    let mut zombie = World::new(1).await;
    let orders = start(&mut zombie, path.clone());
    orders.gate.forget_permits(1_000_000);
    zombie.grant(0).await;
    zombie.put(chain(1, 2)).await;
    zombie.logged("batch").await;
    // It is paused right before its transaction. Meanwhile its lease is taken.
    let mut other = zombie.beside();
    start(&mut other, path.clone());
    other.grant(0).await;
    other.put(chain(3, 3)).await;
    other.until("three", || effects(&path).len() == 3).await;
    orders.gate.add_permits(1_000);
    zombie.logged("lost").await;
    zombie.pass(SECOND).await;
    other.put(chain(4, 4)).await;
    other.until("four", || effects(&path).len() == 4).await;
    assert_eq!(effects(&path), [10, 20, 30, 40]);
    // Nor can it claim the shard again.
    zombie.rows.lock().unwrap().leases.get_mut(&ShardId::numbered(0)).unwrap().counter = 0;
    let third = zombie.beside();
    let mut third = third;
    start(&mut third, path.clone());
    third.grant(0).await;
    third.logged("lost").await;
    // Until somebody says that the lease row was made anew.
    SqliteMarks::forget_fence(&open(&path), "app", "orders", "shardId-000000000000").unwrap();
    other.kill();
    third.grant(0).await;
    third.put(chain(5, 5)).await;
    third.until("five", || effects(&path).len() == 5).await;
    assert_eq!(effects(&path), [10, 20, 30, 40, 50]);
}

#[tokio::test]
async fn a_child_goes_on_with_what_the_rows_of_its_parents_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("effects.db");
    let mut world = World::new(1).await;
    start(&mut world, path.clone());
    world.grant(0).await;
    world.put(chain(1, 3)).await;
    world.until("three", || effects(&path).len() == 3).await;
    world.stream.split(FOREVER, &ShardId::numbered(0), HashKey(1 << 127)).await.unwrap();
    world.asked("give 0").await;
    // Its marks beside the lease are gone: those in the database count.
    world.rows.lock().unwrap().leases.get_mut(&ShardId::numbered(0)).unwrap().marks = None;
    world.grant(1).await;
    world.put(chain(2, 3)).await;
    world.put(chain(4, 4)).await;
    world.until("four", || effects(&path).contains(&40)).await;
    assert_eq!(effects(&path), [10, 20, 30, 40]);
}

#[tokio::test]
async fn whatever_is_killed_when_each_event_has_one_effect() {
    for seed in 0..12 {
        let entropy = Entropy::seeded(seed);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("effects.db");
        let mut world = World::new(1).await;
        world.settings.records_per_read_max = 3;
        world.settings.checkpoint_every = Some(SECOND / 50);
        let mut published = 0;
        for _ in 0..8 {
            let orders = start(&mut world, path.clone());
            world.grant(0).await;
            let kill = [Kill::BeforeBegin, Kill::BeforeCommit, Kill::AfterCommit][entropy.below(3) as usize];
            // Copies of some that were published before, alone or several in one, and then news.
            let from = published + 1 - entropy.below(published.min(3) + 1);
            let to = published + 1 + entropy.below(5);
            if entropy.chance(0.5) {
                world.put(chain(from, to)).await;
            } else {
                let events: Vec<_> =
                    (from..=to).map(|index| event(0, 10 * index, 10 * (index - 1), 1)).collect();
                world.put([aggregated(0, &events)]).await;
            }
            published = published.max(to);
            if entropy.chance(0.5) {
                world.pass(SECOND / 20).await;
            }
            *orders.kill.lock().unwrap() = Some(kill);
            if entropy.chance(0.7) {
                world.put(chain(published + 1, published + 2)).await;
                published += 2;
                world.logged("killed").await;
            } else {
                world.end(0, Ending::Stop).await;
                let rows = world.rows.clone();
                world
                    .until("given or killed", || {
                        rows.lock().unwrap().history.iter().any(|line| line == "give 0")
                            || orders.log.has("killed")
                    })
                    .await;
            }
            world.kill();
            world.log.take();
            world.rows.lock().unwrap().history.clear();
        }
        start(&mut world, path.clone());
        world.grant(0).await;
        world.until("all", || effects(&path).contains(&(10 * published))).await;
        let expected: Vec<u64> = (1..=published).map(|index| 10 * index).collect();
        assert_eq!(effects(&path), expected, "seed {seed}");
        assert!(!matches!(world.handle().status()[0].state, ShardState::Stopped(_)));
    }
}
