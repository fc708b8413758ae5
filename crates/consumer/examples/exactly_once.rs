//! Counts events per table in Postgres, each exactly once, whatever is killed when.
//!
//!   cargo run --example exactly_once --features postgres postgres://localhost/shop [STREAM] [STORE]

use async_trait::async_trait;
use tenure_consumer::transactional_marks::PostgresMarks;
use tenure_consumer::{Batch, Consumer, Env, Failure, ShardContext, ShardProcessor, Start};
use tokio_postgres::{Client, NoTls};

struct Totals {
    url: String,
    open: Option<(Client, PostgresMarks)>,
}

#[async_trait]
impl ShardProcessor for Totals {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let (mut db, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        db.batch_execute("create table if not exists totals (name text primary key, events bigint)").await?;
        PostgresMarks::prepare(&db).await?;
        let (marks, start) = PostgresMarks::claim(&mut db, shard).await?;
        self.open = Some((db, marks));
        Ok(start)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let Some((db, marks)) = &mut self.open else { return Err("init comes first".into()) };
        let applying = marks.begin(db, batch).await?;
        for record in applying.records() {
            let event: serde_json::Value = serde_json::from_slice(&record.data).unwrap_or_default();
            let table = event["table"].as_str().unwrap_or("(none)");
            let count = "insert into totals values ($1, 1) on conflict (name) do update set events = totals.events + 1";
            applying.transaction().execute(count, &[&table]).await?;
        }
        Ok(applying.commit().await?)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut addresses = std::env::args().skip(1);
    let url =
        addresses.next().ok_or_else(|| anyhow::anyhow!("name the database: postgres://localhost/shop"))?;
    let stream = addresses.next().unwrap_or_else(|| "sqlite:./tenure.db".to_owned());
    let store = addresses.next().unwrap_or_else(|| "sqlite:./tenure.db".to_owned());

    let env = Env::system();
    let stream = tenure_stream::open(&stream, &env).await?;
    let store = tenure_store::open(&store, &env).await?;
    let worker = format!("worker-{}", std::process::id());

    let make = move |_: &ShardContext| Totals { url: url.clone(), open: None };
    let interrupted = async { _ = tokio::signal::ctrl_c().await };
    Consumer::builder(stream, store, "example-totals", worker).run(make, interrupted).await?;
    Ok(())
}
