//! As `effects.rs`, in Postgres. Needs `TENURE_TEST_POSTGRES`.

use async_trait::async_trait;
use tenure_clock::{Clock as _, Entropy, SystemClock};
use tenure_consumer::transactional_marks::PostgresMarks;
use tenure_consumer::{Batch, Failure, ShardContext, ShardProcessor, Start};
use tokio_postgres::{Client, NoTls};

use crate::effects::{Kill, Orders, chain};
use crate::events::number;
use crate::harness::World;

/// A schema of its own, dropped at the end.
pub(crate) struct Place {
    url: String,
    schema: String,
}

impl Place {
    pub(crate) async fn new() -> Option<Self> {
        let Ok(url) = std::env::var("TENURE_TEST_POSTGRES") else {
            eprintln!("skipped: TENURE_TEST_POSTGRES is not set");
            return None;
        };
        let schema = format!("marks_{}", Entropy::system().nonce());
        let place = Self { url, schema };
        let db = place.connect().await;
        db.batch_execute(&format!("create schema {}", place.schema)).await.unwrap();
        db.batch_execute("create table effects (at bigserial primary key, number bigint not null)")
            .await
            .unwrap();
        PostgresMarks::prepare(&db).await.unwrap();
        PostgresMarks::prepare(&db).await.unwrap();
        Some(place)
    }

    /// For another program, which shall find the schema by itself.
    pub(crate) fn url(&self) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}options=-csearch_path%3D{}", self.url, self.schema)
    }

    pub(crate) async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("set search_path to {}", self.schema)).await.unwrap();
        client
    }

    async fn effects(&self) -> Vec<i64> {
        let rows = self.connect().await.query("select number from effects order by at", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn drop(self) {
        let db = self.connect().await;
        db.batch_execute(&format!("drop schema {} cascade", self.schema)).await.unwrap();
    }

    /// Real time: the server knows no other.
    async fn until(&self, world: &World, what: &str, count: usize) {
        for _ in 0..1500 {
            if self.effects().await.len() >= count {
                return;
            }
            SystemClock.sleep(std::time::Duration::from_millis(20)).await;
            world.time.advance(std::time::Duration::from_millis(20));
        }
        panic!("never: {what}, but {:?}", self.effects().await);
    }
}

struct Ledger {
    place: std::sync::Arc<Place>,
    db: Option<Client>,
    marks: Option<PostgresMarks>,
    orders: Orders,
}

#[async_trait]
impl ShardProcessor for Ledger {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let mut db = self.place.connect().await;
        let (marks, start) = PostgresMarks::claim(&mut db, shard).await?;
        (self.db, self.marks) = (Some(db), Some(marks));
        Ok(start)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        self.orders.log.add("batch");
        self.orders.gate.acquire().await?.forget();
        if self.orders.is_killed(Kill::BeforeBegin) {
            std::future::pending::<()>().await;
        }
        let (Some(marks), Some(db)) = (&self.marks, &mut self.db) else { return Err("no init".into()) };
        let applying = marks.begin(db, batch).await?;
        for record in applying.records() {
            let number = number(std::str::from_utf8(&record.data)?).unwrap() as i64;
            applying.transaction().execute("insert into effects (number) values ($1)", &[&number]).await?;
        }
        if self.orders.is_killed(Kill::BeforeCommit) {
            std::future::pending::<()>().await;
        }
        applying.commit().await?;
        if self.orders.is_killed(Kill::AfterCommit) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn lost(&mut self) {
        self.orders.log.add("lost");
    }
}

fn start(world: &mut World, place: &std::sync::Arc<Place>) -> Orders {
    let orders = Orders::new(&world.log);
    let (given, place) = (orders.clone(), place.clone());
    world.start(move |_: &ShardContext| Ledger {
        place: place.clone(),
        db: None,
        marks: None,
        orders: given.clone(),
    });
    orders
}

async fn logged(world: &World, line: &str) {
    for _ in 0..1500 {
        if world.log.has(line) {
            return;
        }
        SystemClock.sleep(std::time::Duration::from_millis(20)).await;
        world.time.advance(std::time::Duration::from_millis(20));
    }
    panic!("never: {line}");
}

#[tokio::test]
async fn each_event_has_one_effect_in_postgres() {
    let Some(place) = Place::new().await else { return };
    let place = std::sync::Arc::new(place);
    let mut world = World::new(1).await;
    world.settings.checkpoint_every = None;
    let mut count = 0;
    for kill in [Kill::BeforeBegin, Kill::BeforeCommit, Kill::AfterCommit] {
        let orders = start(&mut world, &place);
        world.grant(0).await;
        world.put(chain(count + 1, count + 2)).await;
        count += 2;
        place.until(&world, "two more", count as usize).await;
        *orders.kill.lock().unwrap() = Some(kill);
        world.put(chain(count + 1, count + 1)).await;
        count += 1;
        logged(&world, "killed").await;
        world.kill();
        world.log.take();
    }
    // A zombie is paused before its transaction while another takes its lease.
    let orders = start(&mut world, &place);
    orders.gate.forget_permits(1_000_000);
    world.grant(0).await;
    world.put(chain(count + 1, count + 1)).await;
    count += 1;
    logged(&world, "batch").await;
    let mut other = world.beside();
    start(&mut other, &place);
    other.grant(0).await;
    place.until(&other, "the other's", count as usize).await;
    orders.gate.add_permits(1000);
    logged(&world, "lost").await;
    other.put(chain(count + 1, count + 1)).await;
    count += 1;
    place.until(&other, "all", count as usize).await;
    let expected: Vec<i64> = (1..=count as i64).map(|index| 10 * index).collect();
    assert_eq!(place.effects().await, expected);
    world.kill();
    other.kill();
    drop(world);
    drop(other);
    // The tasks let go of their connections.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let url = (place.url.clone(), place.schema.clone());
    Place { url: url.0, schema: url.1 }.drop().await;
}
