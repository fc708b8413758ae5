//! `[consumer]`: who reads the stream, how the shards are shared, and what becomes of what fails.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_store::{KeyAttribute, TableSpec};
use tenure_textual::{Count, Size, Text, Textual};

use crate::timestamp;

/// `[consumer]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Consumption {
    /// The application: workers of one share the shards. Also the name of its lease table. Default: `tenure`.
    pub(crate) app: String,
    /// This worker's name. Default: made of the host, the process and a random number.
    pub(crate) worker: Option<String>,
    /// How long a lease lasts without a sign of life; the same for all workers. Default: `10s`.
    pub(crate) lease: Text<Duration>,
    /// Where shards are begun that nobody has read. Default: `trim-horizon`.
    pub(crate) from: Text<From>,
    /// Most leases of one worker, unless they are dynamic. Default: no bound.
    pub(crate) max_leases: Option<Text<Count>>,
    /// Whether the workers agree on how many leases each may hold, in the table `<stream>_meta`. Default: `false`.
    pub(crate) enable_dynamic_max_leases: Text<bool>,
    /// The bound of dynamic leases. Default: 80.
    pub(crate) max_leases_limit: Text<Count>,
    /// How many workers there are meant to be: a number, `heartbeats`, or `kubernetes:…`. Default: the variable
    /// `WORKER_COUNT`, or as many as give signs of life.
    pub(crate) worker_count: Option<Text<WorkerCount>>,
    /// What leases are shared out by: `count` or `bytes`. Default: `count`.
    pub(crate) balance: BalanceBy,
    /// How often progress is stored. Default: `5s`.
    pub(crate) checkpoint_interval: Text<Duration>,
    /// Most bytes that are read ahead. Default: `256MiB`.
    pub(crate) buffer_bytes: Text<Size>,
    /// How often a batch is tried. Default: 5.
    pub(crate) attempts: Text<Count>,
    /// What becomes of a record that fails: `stop` (its shard stops) or `dead_letter`. Default: `stop`.
    pub(crate) on_failure: OnFailure,
}

impl Default for Consumption {
    fn default() -> Self {
        Self {
            app: "tenure".to_owned(),
            worker: None,
            lease: Text(Duration::from_secs(10)),
            from: Text(From::TrimHorizon),
            max_leases: None,
            enable_dynamic_max_leases: Text(false),
            max_leases_limit: Text(Count(80)),
            worker_count: None,
            balance: BalanceBy::Count,
            checkpoint_interval: Text(Duration::from_secs(5)),
            buffer_bytes: Text(Size(256 << 20)),
            attempts: Text(Count(5)),
            on_failure: OnFailure::Stop,
        }
    }
}

impl Consumption {
    /// How leases are kept, as far as it is said here.
    pub(crate) fn lease_settings(&self) -> tenure_leases::Settings {
        let usual = tenure_leases::Settings::default();
        tenure_leases::Settings {
            lease: self.lease.0,
            // Whoever chooses long leases is patient.
            progress_timeout: usual.progress_timeout.map(|timeout| timeout.max(self.lease.0)),
            ..usual
        }
    }

    /// What is wrong, by the name of its key. `elections` is the table of the elections.
    pub(crate) fn validate(&self, elections: &str) -> Result<(), (&'static str, String)> {
        let app = &self.app;
        let lease_table = TableSpec::new(app.as_str(), KeyAttribute::text("leaseKey"));
        lease_table
            .validate()
            .map_err(|error| ("app", format!("the name of its lease table: {}", error.chain())))?;
        if app == elections || app.starts_with(OWN_TABLES) {
            let message =
                format!("`{app}` is the name of a table of Tenure's own: choose another application name");
            return Err(("app", message));
        }
        self.lease_settings().timing().map_err(|error| ("lease", error.chain()))?;
        if self.checkpoint_interval.0 < CHECKPOINT_INTERVAL_MIN {
            let message = "less than 10ms: each is a write to the lease table; 5s is usual".to_owned();
            return Err(("checkpoint_interval", message));
        }
        let buffer = usize::try_from(self.buffer_bytes.0.0).unwrap_or(usize::MAX);
        let reading =
            tenure_consumer::Settings { budget_bytes: buffer, ..tenure_consumer::Settings::default() };
        if reading.validate().is_err() {
            return Err(("buffer_bytes", "give 20MiB to 1024GiB: one read must fit twice".to_owned()));
        }
        Ok(())
    }
}

/// What the names of our own tables begin with.
const OWN_TABLES: &str = "tenure_";
/// As the consumer's own bound.
const CHECKPOINT_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Who tells how many workers there are meant to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerCount {
    /// So many.
    Declared(u32),
    /// As many as give signs of life, whatever `WORKER_COUNT` says.
    Heartbeats,
    /// The Kubernetes API.
    Kubernetes(KubernetesCount),
}

/// What is counted by the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KubernetesCount {
    pub(crate) workload: CountedWorkload,
    /// Absent: that of the configuration.
    pub(crate) namespace: Option<String>,
    /// Absent: `KUBECONFIG`, the home directory, or the pod that we run in.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CountedWorkload {
    /// Pods of a label selector that are ready.
    Pods(String),
    /// Declared replicas.
    Deployment(String),
    /// Declared replicas.
    StatefulSet(String),
}

impl Textual for WorkerCount {
    fn read(text: &str) -> Result<Self, String> {
        if text == "heartbeats" {
            return Ok(Self::Heartbeats);
        }
        if let Some(rest) = text.strip_prefix("kubernetes:") {
            return KubernetesCount::read(rest).map(Self::Kubernetes);
        }
        Count::read(text).map(|count| Self::Declared(count.0)).map_err(|message| {
            format!(
                "{message}: write how many workers there are, heartbeats, or kubernetes:deployment/NAME, \
                 kubernetes:statefulset/NAME or kubernetes:pods/SELECTOR"
            )
        })
    }

    fn shown(&self) -> String {
        match self {
            Self::Declared(count) => count.to_string(),
            Self::Heartbeats => "heartbeats".to_owned(),
            Self::Kubernetes(count) => count.shown(),
        }
    }
}

impl KubernetesCount {
    /// What stands behind `kubernetes:`.
    fn read(text: &str) -> Result<Self, String> {
        let (what, options) = text.split_once('?').unwrap_or((text, ""));
        let wrong = || {
            format!(
                "`kubernetes:{text}` names nothing to count: write kubernetes:deployment/NAME, \
                 kubernetes:statefulset/NAME or kubernetes:pods/SELECTOR (like app=orders)"
            )
        };
        let (kind, name) = what.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
        let workload = match kind {
            "pods" => CountedWorkload::Pods(name.to_owned()),
            "deployment" => CountedWorkload::Deployment(name.to_owned()),
            "statefulset" => CountedWorkload::StatefulSet(name.to_owned()),
            _ => return Err(wrong()),
        };
        let (mut namespace, mut kubeconfig) = (None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("namespace", name)) if !name.is_empty() => namespace = Some(name.to_owned()),
                Some(("kubeconfig", path)) if !path.is_empty() => kubeconfig = Some(path.into()),
                _ => {
                    return Err(format!(
                        "`{option}` is no option here: write namespace=NAME or kubeconfig=PATH"
                    ));
                }
            }
        }
        Ok(Self { workload, namespace, kubeconfig })
    }

    pub(crate) fn shown(&self) -> String {
        let workload = match &self.workload {
            CountedWorkload::Pods(selector) => format!("pods/{selector}"),
            CountedWorkload::Deployment(name) => format!("deployment/{name}"),
            CountedWorkload::StatefulSet(name) => format!("statefulset/{name}"),
        };
        let namespace = self.namespace.as_ref().map(|name| format!("namespace={name}"));
        let kubeconfig = self.kubeconfig.as_ref().map(|path| format!("kubeconfig={}", path.display()));
        let options = [namespace, kubeconfig].into_iter().flatten().collect::<Vec<_>>().join("&");
        format!("kubernetes:{workload}{}{options}", if options.is_empty() { "" } else { "?" })
    }
}

/// What leases are shared out by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BalanceBy {
    /// As many for one as for another.
    Count,
    /// As many bytes a second.
    Bytes,
}

/// What becomes of a record that fails again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnFailure {
    /// Its shard is given back and tried again later.
    Stop,
    /// It is stored as a dead letter, and its shard goes on.
    DeadLetter,
}

/// Where a shard is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    TrimHorizon,
    Latest,
    At(tenure_clock::WallTime),
}

impl Textual for From {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "trim-horizon" | "trim_horizon" => Ok(Self::TrimHorizon),
            "latest" => Ok(Self::Latest),
            _ => timestamp::parse(text).map(Self::At).map_err(|_| {
                format!(
                    "`{text}` is no beginning: write trim-horizon (the oldest record), latest (what comes from now \
                     on), or a moment like 2026-11-16T09:30:00Z"
                )
            }),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::TrimHorizon => "trim-horizon".to_owned(),
            Self::Latest => "latest".to_owned(),
            Self::At(moment) => moment.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_counts_read_as_they_are_shown() {
        for text in [
            "3",
            "heartbeats",
            "kubernetes:deployment/orders",
            "kubernetes:statefulset/orders?namespace=shop",
            "kubernetes:pods/app=orders,tier!=test?namespace=shop&kubeconfig=/etc/k",
        ] {
            assert_eq!(WorkerCount::read(text).unwrap().shown(), text);
        }
        for (text, says) in [
            ("0", "kubernetes:deployment/NAME"),
            ("many", "heartbeats"),
            ("kubernetes:", "names nothing"),
            ("kubernetes:deployment/", "names nothing"),
            ("kubernetes:job/x", "names nothing"),
            ("kubernetes:pods/app=x?nmespace=y", "namespace=NAME"),
        ] {
            let message = WorkerCount::read(text).unwrap_err();
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_by_its_key() {
        let refused = |change: fn(&mut Consumption)| {
            let mut settings = Consumption::default();
            assert_eq!(settings.validate("elections"), Ok(()));
            change(&mut settings);
            settings.validate("elections").unwrap_err().0
        };
        for app in ["", "x", "a/b", "elections", "tenure_dead_letters"] {
            let settings = Consumption { app: app.to_owned(), ..Consumption::default() };
            assert_eq!(settings.validate("elections").unwrap_err().0, "app", "{app}");
        }
        assert_eq!(refused(|settings| settings.lease = Text(Duration::ZERO)), "lease");
        assert_eq!(
            refused(|settings| settings.checkpoint_interval = Text(Duration::ZERO)),
            "checkpoint_interval"
        );
        assert_eq!(refused(|settings| settings.buffer_bytes = Text(Size(1))), "buffer_bytes");
    }
}
