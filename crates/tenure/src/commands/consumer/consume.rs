//! `tenure consume`: a worker that reads its share of the stream's shards.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use async_trait::async_trait;
use tenure_consumer::{
    Batch, Consumer, Delivered, Failure, OnFailure as FailurePolicy, Settings as ConsumerSettings,
    ShardContext, ShardProcessor, Stop,
};
use tenure_leases::capacity::{Census, Declared, Heartbeats, WORKER_COUNT};
use tenure_leases::{Balance, InitialPosition, Settings as LeaseSettings};
use tokio_util::sync::CancellationToken;

use super::exec::Exec;
use super::{App, capacity_settings, flag};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::record_line::RecordLine;
use crate::settings::{BalanceBy, Flag, From, OnFailure};
use crate::shutdown;

#[derive(clap::Args)]
#[command(after_help = "\
Workers with the same --app share the shards: each has a lease on its own, renews it, and gives it up when
it stops. Whoever starts, stops or crashes, the others take over from the last checkpoint. What `tenure cdc`
published twice is delivered once; what a worker delivered after its last checkpoint comes again if it
crashes. On SIGTERM or SIGINT it finishes what it has, stores its progress and gives its shards away.

Without --exec, records are printed as lines of JSON, and count as processed once they are written.
With --exec, the command is run by `sh -c` for each batch of a shard, with the batch as lines of JSON on its
standard input, and TENURE_APP, TENURE_STREAM and TENURE_SHARD in its environment. It has processed the
batch when it ends with status 0. Other batches of the same shard wait; other shards do not.

Examples:
  tenure consume
  tenure consume --app orders --exec './apply.py'
  tenure consume --app audit --from latest | jq -r .data
  tenure consume --app orders --dynamic-max-leases --worker-count 3")]
pub(crate) struct Args {
    #[command(flatten)]
    app: App,

    /// This worker's name, distinct for each process [default: host, process and a random number]
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,

    /// Run this for each batch of a shard, instead of printing it
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,

    /// Where shards are begun that nobody has read: trim-horizon, latest, or a moment [default: trim-horizon]
    #[arg(long, value_name = "POSITION")]
    from: Option<String>,

    /// How long a worker keeps its shards without a sign of life; the same for all [default: 10s]
    #[arg(long, value_name = "DURATION")]
    lease: Option<String>,

    /// Most shards of this worker [default: no bound]
    #[arg(long, value_name = "N", conflicts_with = "dynamic_max_leases")]
    max_leases: Option<String>,

    /// Agree with the other workers on how many shards each may have, in the table STREAM_meta
    #[arg(long)]
    dynamic_max_leases: bool,

    /// Most shards of a worker even so [default: 80]
    #[arg(long, value_name = "N")]
    max_leases_limit: Option<String>,

    /// How many workers there are meant to be [default: WORKER_COUNT, or those that give signs of life]
    #[arg(long, value_name = "N")]
    worker_count: Option<String>,

    /// How often progress is stored [default: 5s]
    #[arg(long, value_name = "DURATION")]
    checkpoint_interval: Option<String>,

    /// What becomes of a batch that fails again and again: stop or dead_letter [default: stop]
    #[arg(long, value_name = "POLICY")]
    on_failure: Option<String>,

    /// Go on after records that were trimmed, or events that are missing
    #[arg(long)]
    accept_loss: bool,
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let yes = "true".to_owned();
        let mut flags = self.app.flags();
        flags.extend(
            [
                flag("--worker", "consumer.worker", self.worker.as_ref()),
                flag("--from", "consumer.from", self.from.as_ref()),
                flag("--lease", "consumer.lease", self.lease.as_ref()),
                flag("--max-leases", "consumer.max_leases", self.max_leases.as_ref()),
                flag(
                    "--dynamic-max-leases",
                    "consumer.enable_dynamic_max_leases",
                    self.dynamic_max_leases.then_some(&yes),
                ),
                flag("--max-leases-limit", "consumer.max_leases_limit", self.max_leases_limit.as_ref()),
                flag("--worker-count", "consumer.worker_count", self.worker_count.as_ref()),
                flag(
                    "--checkpoint-interval",
                    "consumer.checkpoint_interval",
                    self.checkpoint_interval.as_ref(),
                ),
                flag("--on-failure", "consumer.on_failure", self.on_failure.as_ref()),
            ]
            .into_iter()
            .flatten(),
        );
        flags
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    let (store, stream) = (context.store().await?, context.stream().await?);
    let consumer = &context.settings.consumer;
    let worker = match &consumer.worker {
        Some(name) => name.clone(),
        None => crate::instance::name(&context.env).context("name this worker")?,
    };
    let settings = consumer_settings(context, args.accept_loss);
    let consumer = Consumer::builder(stream, store, &consumer.app, worker)
        .env(context.env.clone())
        .leases(lease_settings(context))
        .settings(settings)
        .capacity(capacity_settings(context), census(context)?);
    let printer = Arc::new(Printer { stop: stop.clone(), closed: Mutex::new(None) });
    let ran = match args.exec {
        Some(command) => {
            let command: Arc<str> = command.into();
            Box::pin(
                consumer.run(move |_: &ShardContext| Exec { command: command.clone() }, stop.cancelled()),
            )
            .await
        }
        None => {
            let printer = printer.clone();
            Box::pin(
                consumer.run(move |_: &ShardContext| Print { printer: printer.clone() }, stop.cancelled()),
            )
            .await
        }
    };
    ran.map_err(misuse_if_invalid).context("consume the stream")?;
    match printer.closed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(anyhow::Error::new(error).context("write to standard output")),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// How leases are kept, as configured.
pub(super) fn lease_settings(context: &Context) -> LeaseSettings {
    let consumer = &context.settings.consumer;
    LeaseSettings {
        lease: consumer.lease.0,
        balance: match consumer.balance {
            BalanceBy::Count => Balance::Count,
            BalanceBy::Bytes => Balance::Bytes,
        },
        initial: match consumer.from.0 {
            From::TrimHorizon => InitialPosition::TrimHorizon,
            From::Latest => InitialPosition::Latest,
            From::At(_) => InitialPosition::AtTimestamp,
        },
        coordination_table: context.settings.election.table.clone(),
        ..LeaseSettings::default()
    }
}

/// How records are read, as configured.
fn consumer_settings(context: &Context, accept_loss: bool) -> ConsumerSettings {
    let consumer = &context.settings.consumer;
    ConsumerSettings {
        budget_bytes: usize::try_from(consumer.buffer_bytes.0.0).unwrap_or(usize::MAX),
        checkpoint_every: Some(consumer.checkpoint_interval.0),
        attempts_max: consumer.attempts.0.0,
        on_failure: match consumer.on_failure {
            OnFailure::Stop => FailurePolicy::Stop,
            OnFailure::DeadLetter => FailurePolicy::DeadLetter,
        },
        initial_timestamp: match consumer.from.0 {
            From::At(moment) => Some(moment),
            From::TrimHorizon | From::Latest => None,
        },
        accept_loss,
        ..ConsumerSettings::default()
    }
}

/// Who tells how many workers there are meant to be.
fn census(context: &Context) -> anyhow::Result<Arc<dyn Census>> {
    if let Some(count) = context.settings.consumer.worker_count {
        return Ok(Arc::new(Declared::new(count.0.0.into()).map_err(misuse_if_invalid)?));
    }
    match std::env::var(WORKER_COUNT) {
        Ok(text) => Ok(Arc::new(Declared::from_variable(&text).map_err(misuse_if_invalid)?)),
        Err(std::env::VarError::NotPresent) => Ok(Arc::new(Heartbeats)),
        Err(error) => Err(misuse(format!("{WORKER_COUNT}: {error}"))),
    }
}

/// Records of a shard, a line of JSON each.
pub(super) fn lines(shard: &ShardContext, records: &[Delivered]) -> Vec<u8> {
    let mut lines = Vec::new();
    let shard = shard.shard().as_str();
    for record in records {
        let sub = Some(record.sub).filter(|_| record.is_part());
        let line = RecordLine::new(
            shard,
            &record.sequence,
            sub,
            record.arrived,
            &record.partition_key,
            &record.data,
        );
        // Text and numbers always have a form.
        let _ = serde_json::to_writer(&mut lines, &line);
        lines.push(b'\n');
    }
    lines
}

/// Standard output, shared by all shards.
struct Printer {
    stop: CancellationToken,
    /// Why nothing can be printed any more.
    closed: Mutex<Option<std::io::Error>>,
}

struct Print {
    printer: Arc<Printer>,
}

#[async_trait]
impl ShardProcessor for Print {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let lines = lines(batch.shard(), batch.records());
        // Whoever reads our output may be slow, and leases must be renewed meanwhile.
        let written = tokio::task::spawn_blocking(move || {
            let mut out = std::io::stdout().lock();
            out.write_all(&lines).and_then(|()| out.flush())
        });
        if let Err(error) = written.await? {
            let shown = error.to_string();
            *self.printer.closed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            // Nobody is left to read for.
            self.printer.stop.cancel();
            // No record is to blame.
            return Err(Stop::Processor(shown).into());
        }
        Ok(())
    }
}
