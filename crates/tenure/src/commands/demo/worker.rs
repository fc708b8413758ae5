//! What a worker of the demo does: it carries out every change once, in one transaction with its marks.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use serde::Deserialize;
use tenure_consumer::transactional_marks::PostgresMarks;
use tenure_consumer::{Batch, Consumer, Failure, ShardContext, ShardProcessor, Start};
use tenure_leases::capacity::{self, Heartbeats};
use tokio_postgres::{Client, NoTls};

use super::site::{APP, LEASE};
use super::wire::{Report, report};
use crate::context::Context;
use crate::shutdown;

/// A worker of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its name
    #[arg(long)]
    name: String,
    /// Where the effects go
    #[arg(long)]
    postgres: String,
}

/// Works until it is asked to end.
pub(super) async fn run(args: Args, context: &Context) -> Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    let (store, stream) = (context.store().await?, context.stream().await?);
    PostgresMarks::prepare(&connect(&args.postgres).await?).await?;
    let url: Arc<str> = args.postgres.into();
    let leases = tenure_leases::Settings {
        lease: LEASE,
        // Shards come and go quickly here.
        list_interval: LEASE / 3,
        move_interval: Some(LEASE),
        ..tenure_leases::Settings::default()
    };
    let cap = capacity::Settings { lease: LEASE, heartbeat: LEASE / 3, ..capacity::Settings::default() };
    let consumer = Consumer::builder(stream, store, APP, args.name)
        .env(context.env.clone())
        .leases(leases)
        .capacity(cap, Arc::new(Heartbeats))
        .start(move |_: &ShardContext| Effects { url: url.clone(), db: None })
        .await?;
    let telling = consumer.cap().map(|mut caps| {
        tokio::spawn(async move {
            loop {
                let leases = caps.borrow_and_update().value;
                // If nobody listens, the demo is ending.
                if report(&Report::Cap { leases }).is_err() || caps.changed().await.is_err() {
                    return;
                }
            }
        })
    });
    tokio::select! {
        ended = consumer.ended() => ended?,
        () = stop.cancelled() => {}
    }
    consumer.stop().await?;
    if let Some(telling) = telling {
        telling.abort();
    }
    Ok(ExitCode::SUCCESS)
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to Postgres")?;
    // It ends with the client, and whatever it meets, the client meets too.
    tokio::spawn(connection);
    Ok(client)
}

/// Carries out the changes of one shard.
struct Effects {
    url: Arc<str>,
    db: Option<(Client, PostgresMarks)>,
}

#[async_trait]
impl ShardProcessor for Effects {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let mut client = connect(&self.url).await?;
        let (marks, start) = PostgresMarks::claim(&mut client, shard).await?;
        self.db = Some((client, marks));
        Ok(start)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let Some((client, marks)) = &mut self.db else { return Err("not begun".into()) };
        let applying = marks.begin(client, batch).await?;
        let (mut tables, mut ids, mut versions) = (Vec::new(), Vec::new(), Vec::new());
        for record in applying.records() {
            let Some(change) = Change::read(&record.data)? else { continue };
            tables.push(change.table);
            ids.push(change.key.id);
            versions.push(change.after.map(|row| row.version));
        }
        let apply = "SELECT effects.apply(tab, id, version) FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS c (tab, id, version)";
        applying.transaction().execute(apply, &[&tables, &ids, &versions]).await?;
        applying.commit().await?;
        report(&Report::Applied { changes: tables.len() as u64 })?;
        Ok(())
    }
}

/// What the demo needs to know of an event.
#[derive(Deserialize)]
struct Change {
    op: String,
    table: String,
    key: KeyColumns,
    after: Option<RowColumns>,
}

#[derive(Deserialize)]
struct KeyColumns {
    id: i64,
}

#[derive(Deserialize)]
struct RowColumns {
    version: i64,
}

impl Change {
    /// The change of a row; `None` of events that are none.
    fn read(event: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Kind<'a> {
            op: &'a str,
        }
        let kind: Kind<'_> = serde_json::from_slice(event)?;
        if !matches!(kind.op, "insert" | "update" | "delete") {
            return Ok(None);
        }
        let change: Self = serde_json::from_slice(event)?;
        // A key that changes is a delete and an insert: an update always has a row after it.
        Ok(Some(change).filter(|change| change.op == "delete" || change.after.is_some()))
    }
}
