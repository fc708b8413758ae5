//! `tenure consume`: a worker that reads its share of the stream's shards.

use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tenure_backend::Kind;
use tenure_consumer::{
    Consumer, Delivered, OnFailure as FailurePolicy, ProcessorFactory, Settings as ConsumerSettings,
    ShardContext,
};
use tenure_leases::capacity::{Census, Declared, Heartbeats, WORKER_COUNT};
use tenure_leases::{Balance, InitialPosition, Settings as LeaseSettings};
use tokio::sync::SetOnce;

use super::control::{Controls, Gated};
use super::exec::{self, Exec};
use super::print::{Print, Printer};
use super::{App, capacity_settings, flag};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::record_line::RecordLine;
#[cfg(feature = "kubernetes")]
use crate::settings::CountedWorkload;
use crate::settings::{BalanceBy, Flag, From, KubernetesCount, OnFailure, WorkerCount};
use crate::shutdown;

#[derive(clap::Args)]
#[command(after_help = "\
Workers with the same --app share the shards: each has a lease on its own, renews it, and gives it up when
it stops. Whoever starts, stops or crashes, the others take over from the last checkpoint. What `tenure cdc`
published twice is delivered once; what a worker delivered after its last checkpoint comes again if it
crashes. On SIGTERM or SIGINT it finishes what it has, stores its progress and gives its shards away; a command
that has not ended 30 seconds later is killed, and its records come again. A second signal leaves at once.

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

    /// How many workers there are meant to be: a number, heartbeats, or kubernetes:deployment/NAME,
    /// kubernetes:statefulset/NAME or kubernetes:pods/SELECTOR, with ?namespace=NAME if need be
    /// [default: WORKER_COUNT, or those that give signs of life]
    #[arg(long, value_name = "COUNT")]
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
    // A stream that is not there is a mistake in its name; one that cannot be reached is waited for.
    match context.look(async |by| stream.describe(by).await).await {
        Err(error) if error.kind() == Kind::Invalid => {
            return Err(misuse_if_invalid(error)).context("look at the stream");
        }
        _ => {}
    }
    let controls =
        Controls::new(store.clone(), &context.env, &context.settings.election.table, &consumer.app);
    let controls = Arc::new(controls);
    let settings = consumer_settings(context, args.accept_loss);
    let census = census(context).await?;
    let consumer = Consumer::builder(stream, store, &consumer.app, worker)
        .env(context.env.clone())
        .leases(lease_settings(context))
        .settings(settings)
        .capacity(capacity_settings(context), census);
    let printer = Arc::new(Printer::new(stop.clone()));
    let processors: Box<dyn ProcessorFactory> = match args.exec {
        Some(command) => {
            shutdown::before_leaving_at_once(exec::kill_all);
            let command: Arc<str> = command.into();
            Box::new(move |_: &ShardContext| Exec { command: command.clone() })
        }
        None => {
            let printer = printer.clone();
            Box::new(move |_: &ShardContext| Print { printer: printer.clone() })
        }
    };
    let started = Arc::new(SetOnce::new());
    let gated = Gated { inner: processors, controls: controls.clone(), worker: started.clone() };
    let ran = async {
        // A name that was used before is watched for a lease: nobody has to wait for that.
        let consumer = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            started = consumer.start(gated) => started?,
        };
        // Nobody else sets it.
        let _ = started.set(consumer.handle().clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            ended = consumer.ended() => ended?,
            () = controls.pass_on(consumer.handle()) => {}
        }
        consumer.stop().await
    };
    let ran = Box::pin(ran).await;
    ran.map_err(misuse_if_invalid).context("consume the stream")?;
    match printer.take_closed() {
        // Whoever read has seen enough, as after `| head`.
        Some(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Some(error) => Err(anyhow::Error::new(error).context("write to standard output")),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// How leases are kept, as configured.
pub(super) fn lease_settings(context: &Context) -> LeaseSettings {
    let consumer = &context.settings.consumer;
    LeaseSettings {
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
        ..consumer.lease_settings()
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
async fn census(context: &Context) -> anyhow::Result<Arc<dyn Census>> {
    let consumer = &context.settings.consumer;
    if !consumer.enable_dynamic_max_leases.0 {
        if consumer.worker_count.is_some() {
            tracing::warn!("worker_count is of no use without enable_dynamic_max_leases");
        }
        return Ok(Arc::new(Heartbeats));
    }
    match consumer.worker_count.as_ref().map(|count| &count.0) {
        Some(WorkerCount::Declared(count)) => {
            Ok(Arc::new(Declared::new((*count).into()).map_err(misuse_if_invalid)?))
        }
        Some(WorkerCount::Heartbeats) => Ok(Arc::new(Heartbeats)),
        Some(WorkerCount::Kubernetes(of)) => kubernetes(of, context).await,
        None => match std::env::var(WORKER_COUNT) {
            Ok(text) => Ok(Arc::new(Declared::from_variable(&text).map_err(misuse_if_invalid)?)),
            Err(std::env::VarError::NotPresent) => Ok(Arc::new(Heartbeats)),
            Err(error) => Err(misuse(format!("{WORKER_COUNT}: {error}"))),
        },
    }
}

#[cfg(feature = "kubernetes")]
async fn kubernetes(of: &KubernetesCount, context: &Context) -> anyhow::Result<Arc<dyn Census>> {
    use tenure_leases::capacity::{Kubernetes, Workload};
    let workload = match &of.workload {
        CountedWorkload::Pods(selector) => Workload::ReadyPods(selector.clone()),
        CountedWorkload::Deployment(name) => Workload::Deployment(name.clone()),
        CountedWorkload::StatefulSet(name) => Workload::StatefulSet(name.clone()),
    };
    let namespace = of.namespace.as_deref();
    let asked = Kubernetes::connect(of.kubeconfig.as_deref(), namespace, workload, &context.env).await;
    Ok(Arc::new(asked.map_err(misuse_if_invalid).context("count workers by the Kubernetes API")?))
}

#[cfg(not(feature = "kubernetes"))]
#[expect(clippy::unused_async, reason = "as the other")]
async fn kubernetes(of: &KubernetesCount, _: &Context) -> anyhow::Result<Arc<dyn Census>> {
    Err(misuse(format!(
        "worker_count `{}`: this build does not know the Kubernetes API: build it with `--features kubernetes`, or \
         give a number or `heartbeats`",
        of.shown()
    )))
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
