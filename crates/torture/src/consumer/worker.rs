//! A worker under torture: two applications in one process. One goes by its checkpoints alone and tells what it
//! got; the other has its effects in Postgres, in one transaction with its marks.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure_backend::Env;
use tenure_clock::{Clock as _, SystemClock};
use tenure_consumer::transactional_marks::PostgresMarks;
use tenure_consumer::{
    Batch, Builder, Consumer, Drain, Failure, Settings, ShardContext, ShardProcessor, Start,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Client, NoTls};

/// The application that tells what it got.
pub(crate) const PLAIN: &str = "plain";
/// The application with effects of exactly once.
const EXACT: &str = "exact";
/// Without a sign of life for so long, a worker loses its leases.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// Far less often than batches, so that a crash has something to repeat.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    name: String,
    #[arg(long)]
    store: String,
    #[arg(long)]
    stream: String,
    /// Where the effects go.
    #[arg(long)]
    postgres: String,
}

/// What a worker tells, a line each.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// It begins with a shard, at this moment of the machine's monotonic clock.
    Began { shard: String, at: u64 },
    /// These were delivered to it: place, place within, key, number.
    Got { shard: String, records: Vec<(String, u64, u32, u64)> },
    /// It has drained a shard; the checkpoint follows.
    Drained { shard: String, at: u64 },
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let env = Env::system();
    let store = tenure_store::open(&args.store, &env).await?;
    let stream = tenure_stream::open(&args.stream, &env).await?;
    let url: Arc<str> = args.postgres.into();
    PostgresMarks::prepare(&connect(&url).await?).await?;
    let consumer = |app: &str| {
        let builder = Consumer::builder(stream.clone(), store.clone(), app, &args.name).env(env.clone());
        settings(builder)
    };
    // Before anything takes long: without a listener, the signal ends the process at once.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let plain =
        consumer(PLAIN).start(|shard: &ShardContext| Plain { shard: shard.shard().to_string() }).await?;
    let exact = consumer(EXACT).start(move |_: &ShardContext| Exact { url: url.clone(), db: None }).await?;
    tokio::select! {
        ended = plain.ended() => ended?,
        ended = exact.ended() => ended?,
        _ = terminate.recv() => {}
    }
    let (plain, exact) = tokio::join!(plain.stop(), exact.stop());
    plain?;
    Ok(exact?)
}

fn settings(builder: Builder) -> Builder {
    builder
        .leases(tenure_leases::Settings {
            lease: LEASE,
            list_interval: LEASE / 2,
            move_interval: Some(LEASE),
            ..tenure_leases::Settings::default()
        })
        .settings(Settings { checkpoint_every: Some(CHECKPOINT_INTERVAL), ..Settings::default() })
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to Postgres")?;
    // It ends with the client, and whatever it meets, the client meets too.
    tokio::spawn(connection);
    Ok(client)
}

fn tell(line: &Line) -> Result<(), Failure> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    // One write, so that a kill tears at most the last line.
    Ok(std::io::stdout().lock().write_all(&text)?)
}

/// The key and the number that a record's content names.
fn parse(data: &[u8]) -> Result<(u32, u64), Failure> {
    let text = std::str::from_utf8(data)?;
    let (key, number) = text.split_once(':').ok_or("not a record of the torture's")?;
    Ok((key.parse()?, number.parse()?))
}

/// Tells what it gets of one shard.
struct Plain {
    shard: String,
}

#[async_trait]
impl ShardProcessor for Plain {
    async fn init(&mut self, _shard: &ShardContext) -> Result<Start, Failure> {
        tell(&Line::Began { shard: self.shard.clone(), at: SystemClock.monotonic().as_nanos() })?;
        Ok(Start::Lease)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let mut records = Vec::with_capacity(batch.records().len());
        for record in batch.records() {
            let (key, number) = parse(&record.data)?;
            records.push((record.sequence.to_string(), record.sub, key, number));
        }
        tell(&Line::Got { shard: self.shard.clone(), records })
    }

    async fn drain(&mut self, _why: Drain) -> Result<(), Failure> {
        tell(&Line::Drained { shard: self.shard.clone(), at: SystemClock.monotonic().as_nanos() })
    }
}

/// Carries out the records of one shard.
struct Exact {
    url: Arc<str>,
    db: Option<(Client, PostgresMarks)>,
}

#[async_trait]
impl ShardProcessor for Exact {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let mut client = connect(&self.url).await?;
        let (marks, start) = PostgresMarks::claim(&mut client, shard).await?;
        self.db = Some((client, marks));
        Ok(start)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let Some((client, marks)) = &mut self.db else { return Err("not begun".into()) };
        let applying = marks.begin(client, batch).await?;
        let (mut keys, mut numbers) = (Vec::new(), Vec::new());
        for record in applying.records() {
            let (key, number) = parse(&record.data)?;
            keys.push(i64::from(key));
            numbers.push(i64::try_from(number)?);
        }
        let apply = "INSERT INTO effects (key, number, times)
            SELECT key, number, 1 FROM unnest($1::bigint[], $2::bigint[]) AS r (key, number)
            ON CONFLICT (key, number) DO UPDATE SET times = effects.times + 1";
        applying.transaction().execute(apply, &[&keys, &numbers]).await?;
        Ok(applying.commit().await?)
    }
}
