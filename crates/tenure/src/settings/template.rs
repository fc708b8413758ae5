//! The commented `tenure.toml` that `tenure init` writes.

/// What the file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preset {
    /// Rows and records in SQLite files beside it: one machine, nothing to install.
    Embedded,
    /// Rows in DynamoDB, records in Kinesis.
    Aws,
    /// Rows in Postgres, records in Kinesis.
    Mixed,
}

impl Preset {
    const fn summary(self) -> &'static str {
        match self {
            Self::Embedded => "embedded: rows and records in SQLite files, nothing else to run",
            Self::Aws => "AWS: rows in DynamoDB, records in Kinesis (needs a build with `--features aws`)",
            Self::Mixed => {
                "mixed: rows in Postgres, records in Kinesis (needs a build with `--features aws`)"
            }
        }
    }

    const fn store(self) -> &'static str {
        match self {
            Self::Embedded => "sqlite:./tenure.db",
            Self::Aws => "dynamodb:?region=eu-west-1",
            Self::Mixed => "postgres://tenure@localhost:5432/tenure",
        }
    }

    const fn stream(self) -> &'static str {
        match self {
            Self::Embedded => "sqlite:./tenure.db",
            Self::Aws | Self::Mixed => "kinesis:tenure?region=eu-west-1",
        }
    }

    /// What stands under `[postgres]`.
    const fn database(self) -> &'static str {
        match self {
            Self::Embedded | Self::Aws => r##"# url = "postgres://tenure@localhost:5432/app""##,
            Self::Mixed => r#"url = "postgres://tenure@localhost:5432/app""#,
        }
    }
}

/// The file's text.
pub(crate) fn template(preset: Preset) -> String {
    let (summary, store, stream, database) =
        (preset.summary(), preset.store(), preset.stream(), preset.database());
    format!(
        r##"# Tenure, {summary}.
#
# Precedence, the later winning:
#   defaults, this file, the environment (TENURE__STORE__URL for store.url), flags (--store).
# `tenure config check` shows the merged result and where each value came from.
# `tenure doctor` tries it out.
#
# Passwords need not stand here: Postgres addresses take theirs from PGPASSWORD, AWS addresses use
# AWS's own environment variables, profiles and roles.

[store]
# Where rows live and change only on conditions:
#   sqlite:PATH                            a file that several processes share; the path is relative to
#                                          the working directory
#   postgres://user@host:5432/database     a table per table; ?schema=, ?sslmode=, ?sslrootcert=
#   dynamodb:                              ?region=, ?profile=, ?endpoint=
#   memory:                                this process alone, gone with it
#   faulty+sqlite:PATH?seed=7&lost=0.05    any of them, going wrong as its seed says
# Default: sqlite:./tenure.db
url = "{store}"

[stream]
# Where records live:
#   sqlite:PATH            the file PATH-stream; ?name=, ?retention_hours=, ?retention_bytes=
#   kinesis:NAME           ?region=, ?profile=, ?endpoint=
#   memory:NAME            this process alone, gone with it
#   faulty+sqlite:PATH     as above
# Default: sqlite:./tenure.db
url = "{stream}"

[election]
# The table in the store that says who leads what; `tenure elect` makes it.
# Default: tenure_coordination
table = "tenure_coordination"
# Lease and renew period of `tenure elect`: `stable` (30s, 10s), `balanced` (15s, 5s) or `fast` (10s, 3s).
# Default: balanced
preset = "balanced"

[log]
# `text` for people or `json` for machines; always on standard error. Default: text
format = "text"
# A level (error, warn, info, debug, trace, off), or target=level pairs separated by commas.
# RUST_LOG and TENURE_LOG are read as well, and go before this file. Default: warn; `tenure elect` and
# `tenure cdc run` tell their own changes of state, too, unless another filter is chosen.
filter = "warn"

[metrics]
# Address and port at which long-running commands serve Prometheus metrics under /metrics.
# Default: none
# listen = "127.0.0.1:9464"

[postgres]
# The database whose changes are captured; `tenure doctor` checks that it can be.
# Default: none
{database}

[cdc]
# What `tenure cdc` captures and where it goes; `tenure cdc setup` makes what is missing.
# The replication slot: a to z, 0 to 9 and _. One per pipeline. Default: tenure
slot = "tenure"
# The publications that say which tables, separated by commas. Default: tenure
publications = "tenure"
# The pipeline's name, in every event: distinct for each pipeline that feeds a stream. Default: tenure
source = "tenure"
# stream (that of [stream]), file:PATH or - (lines of JSON), or null. Default: stream
to = "stream"
# Rows with equal keys share a lane, and a lane keeps its order. Fixed once begun.
# Default: 1024 for a stream, 1 for a file
# lanes = 1024
# Who of several processes leads: advisory (a lock in Postgres) or store (an election on the store).
# Default: advisory
leadership = "advisory"
# Most events, and most bytes of them, that are read and not yet safe in the stream. Default: 100000, 12MiB
inflight_events = 100000
inflight_bytes = "12MiB"
# How long an event may wait for others to travel with. Default: 3ms
linger = "3ms"
# Most records, and most bytes of them, that a shard of a stream is sent in a second; 0 for no limit. A shard
# that has had its share waits, the others go on. Less if others write to the stream too.
# Default: as the stream says (Kinesis: 1000, 1MiB)
# shard_records_per_s = 1000
# shard_bytes_per_s = "1MiB"
# Whether large transactions come while they run, and wait for their commit on our disk instead of the server's.
# Default: false
streaming = false
# Where those wait, and how much of it may be used. Default: /var/tmp, 64GiB
# spill = "/var/tmp"
spill_max = "64GiB"
# Several events in one record, in the aggregated format that Amazon's readers know. Default: true
aggregation = true
# Whether what pg_logical_emit_message wrote is published. Default: false
messages = false
# How much log the server may keep for the slot before it is warned of, and before the run ends: its disk
# fills while the sink is slow. Default: 10GiB, none
retained_warn = "10GiB"
# retained_stop = "100GiB"
# How long a planned stop waits for what is under way. Default: 20s
drain_timeout = "20s"

[consumer]
# How `tenure consume` reads the stream: workers of one application share its shards.
# The application, also the name of its lease table in the store. Default: tenure
app = "tenure"
# This worker's name, distinct for each process. Default: made of the host, the process and a random number
# worker = "worker-1"
# How long a worker keeps its shards without a sign of life; the same for all of an application. Default: 10s
lease = "10s"
# Where shards are begun that nobody has read: trim-horizon (the oldest record), latest, or a moment like
# 2026-11-16T09:30:00Z. Default: trim-horizon
from = "trim-horizon"
# Most shards of this worker. Default: no bound
# max_leases = 20
# Whether workers agree on that number themselves, in the table STREAM_meta: as many as there are shards for
# each worker, and never more than the limit. Default: false, 80
enable_dynamic_max_leases = false
max_leases_limit = 80
# How many workers there are meant to be: a number, heartbeats (as many as give signs of life), or by the
# Kubernetes API (needs a build with `--features kubernetes`) kubernetes:deployment/NAME,
# kubernetes:statefulset/NAME or kubernetes:pods/SELECTOR, with ?namespace=NAME or ?kubeconfig=PATH if need be.
# Default: WORKER_COUNT in the environment, or heartbeats
# worker_count = 3
# What shards are shared out by: count, or bytes (as measured). Default: count
balance = "count"
# How often progress is stored, and how much is read ahead. Default: 5s, 256MiB
checkpoint_interval = "5s"
buffer_bytes = "256MiB"
# How often a record that fails is tried, and what becomes of it then: stop (its shard stops and is tried
# again later) or dead_letter (it is stored, see `tenure dlq`, and the shard goes on). Default: 5, stop
attempts = 5
on_failure = "stop"

[autoscaler]
# What `tenure autoscale` scales, and how; the Lambda reads the same keys from its environment.
# Where its state is: the item `cluster`, and one event for each of its changes; how long events are kept.
# Default: k3s-autoscaler-state, k3s-autoscaler-logs, 90d
state_table = "k3s-autoscaler-state"
logs_table = "k3s-autoscaler-logs"
log_retention = "90d"
# The cluster, by the name that its instances are tagged with, and its bounds. Default: none; 1; none
# cluster = "production"
workers_min = 1
# workers_max = 10
# Most instances that one scale-up launches, and most nodes that one scale-down takes away, 1 to 50. Default: 10, 2
up_max = 10
down_max = 2
# What is launched, and where, in order of preference: each market in every subnet before the next market.
# Default: none, 1; none, on-demand
# launch_template = "lt-0123456789abcdef0"
launch_template_version = 1
# subnets = "subnet-1,subnet-2"
markets = "on-demand"
# Where EC2 and the API server are, and who asks: a profile of AWS's files, a context of the kubeconfig.
# Default: as AWS's and kubectl's own files say
# region = "eu-west-1"
# endpoint = "http://127.0.0.1:5000"
# aws_profile = "scaling"
# kubeconfig = "/etc/rancher/k3s/k3s.yaml"
# kubernetes_context = "production"
# The key of the taint that new nodes register with; it goes when they are recorded as joined.
# Default: tenure.dev/starting
startup_taint = "tenure.dev/starting"
# Where Prometheus is, and who asks: a token, a file that holds it, or a user and a password.
# Default: none, and then nothing is ever taken away
# prometheus = "http://127.0.0.1:9090"
# prometheus_token = "..."
# prometheus_token_file = "/etc/tenure/prometheus-token"
# prometheus_user = "tenure"
# prometheus_password = "..."
# Labels that all series of this cluster have, where one Prometheus watches several. Default: none
# prometheus_selector = "cluster=production"
# The labels that hold a node's name: in node_exporter's and in kube-state-metrics' series. Default: node, node
prometheus_load_label = "node"
prometheus_ready_label = "node"
# Over how long CPU use is averaged, several scrapes; how old a metric may be and still count; 5s to 1h each.
# Default: 2m, 2m
prometheus_window = "2m"
metrics_age_max = "2m"
# How a node that has joined is recognised: node (its Ready condition) or prometheus. Default: node
readiness = "node"
# What a new worker has to give, in thousandths of a core and in memory. Default: 2000, 4GiB
worker_cpu_millis = 2000
worker_memory = "4GiB"
# How long pods wait before workers are added; how long nodes idle, and below which share of CPU and memory in
# percent, before they are taken away; above which share of all workers one is added; how long nothing begins
# after an action. Default: 30s, 10m, 30, 85, 5m
pending_window = "30s"
idle_window = "10m"
idle_percent = 30
busy_percent = 85
cooldown = "5m"
# How far applications may be behind their streams before a worker is added, at least 2s, and which: their workers
# tell if they have enable_dynamic_max_leases, in the same store. Default: none, none
# lag_max = "2m"
# consumers = "orders/billing,orders/audit"
# How long a scale-up and a scale-down may take, two leases to a day. Default: 10m, 15m
join_timeout = "10m"
drain_timeout = "15m"
# After how long a drain deletes what cannot be evicted, less than drain_timeout. Default: never
# force_after = "10m"
# Whether pods may be evicted that nobody brings back, and pods whose local storage is lost. Default: false, false
evict_unmanaged = false
evict_local_storage = false
# How long a node that could not be drained is left alone. Default: 1h
node_backoff = "1h"
# How long an executor may carry an action on without writing, at least 5s, and by how much the clocks of two
# executors may differ, at most half of that. Default: 45s, 5s
lease = "45s"
skew = "5s"
# How long after it was first seen an instance that nothing accounts for is ended. Default: 1m
orphan_after = "1m"
"##
    )
}

#[cfg(test)]
mod tests {
    use super::super::{KEYS, Settings, load};
    use super::*;

    fn read(text: &str) -> Settings {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tenure.toml");
        std::fs::write(&path, text).unwrap();
        load(Some(&path), std::iter::empty(), Vec::new()).unwrap().settings
    }

    #[test]
    fn templates_read_back_and_name_every_key() {
        for preset in [Preset::Embedded, Preset::Aws, Preset::Mixed] {
            let text = template(preset);
            let settings = read(&text);
            settings.validate().unwrap();
            assert_eq!(settings.store.url.reveal(), preset.store());
            assert_eq!(settings.stream.url.reveal(), preset.stream());
            for key in &KEYS {
                assert!(
                    text.contains(&format!("[{}]", key.section))
                        && text.contains(&format!("{} = ", key.name))
                );
            }
        }
        assert_eq!(read(&template(Preset::Embedded)), Settings::default());
    }
}
