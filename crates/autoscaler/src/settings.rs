//! `[autoscaler]` of `tenure.toml`: which cluster is scaled, between which bounds, and by whom it is told.
//!
//! The `tenure` binary and the Lambda read the same keys: the one from its file, `TENURE__AUTOSCALER__KEY` and flags,
//! the other from `TENURE__AUTOSCALER__KEY` alone ([`Settings::from_variables`]). Every value is a text: `30s`,
//! `4GiB`, `true`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_backend::nearest;
use tenure_textual::{Amount, Count, Secret, Size, Text, Textual};

use crate::observation::Resources;
use crate::rows::{self, LOGS_TABLE, STATE_TABLE};
use crate::state::Place;
use crate::{Places, Policy, Readiness};

/// What the variables of the environment begin with.
pub const VARIABLES: &str = "TENURE__AUTOSCALER__";
/// Events that are kept for less would be gone before anybody asks for them.
const RETENTION_MIN: Duration = Duration::from_secs(3600);
/// Most applications that are asked how far they are behind: each costs a look at its table per tick.
const CONSUMERS_MAX: usize = 10;

/// `[autoscaler]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The table of the state item, in the store. Default: `k3s-autoscaler-state`.
    pub state_table: String,
    /// The table of its log. Default: `k3s-autoscaler-logs`.
    pub logs_table: String,
    /// How long events of the log are kept, at least an hour. Default: `90d`.
    pub log_retention: Text<Duration>,
    /// The cluster's name: instances carry it as a tag. Default: none, and nothing can be run.
    pub cluster: Option<String>,
    /// Fewest workers. Default: 1.
    pub workers_min: Text<Amount>,
    /// Most workers. Default: none, and nothing can be run.
    pub workers_max: Option<Text<Count>>,
    /// Most instances that one scale-up launches, 1 to 50. Default: 10.
    pub up_max: Text<Count>,
    /// Most nodes that one scale-down takes away, 1 to 50. Default: 2.
    pub down_max: Text<Count>,
    /// The launch template of a worker, by id or name. Default: none, and nothing can be run.
    pub launch_template: Option<String>,
    /// Its version, a number. Default: 1.
    pub launch_template_version: Text<Count>,
    /// Where instances are launched, in order of preference: names of subnets, separated by commas. Default: none,
    /// and nothing can be run.
    pub subnets: Option<String>,
    /// How they are bought, in order of preference: `spot`, `on-demand`, or both. Default: `on-demand`.
    pub markets: String,
    /// The region of EC2. Default: as AWS's environment says.
    pub region: Option<String>,
    /// Another endpoint of EC2 than the region's own. Default: none.
    pub endpoint: Option<String>,
    /// A profile of AWS's files; it goes before credentials of the environment. Default: as AWS's environment says.
    pub aws_profile: Option<String>,
    /// The kubeconfig. Default: as `kubectl` finds it, or the pod's own.
    pub kubeconfig: Option<PathBuf>,
    /// A context of that kubeconfig. Default: its current one.
    pub kubernetes_context: Option<String>,
    /// The key of the taint that new nodes register with. Default: `tenure.dev/starting`.
    pub startup_taint: String,
    /// Prometheus, `http://host:9090`. Default: none, and nothing is ever taken away.
    pub prometheus: Option<String>,
    /// A bearer token for it. Default: none.
    pub prometheus_token: Option<Text<Secret>>,
    /// The file that holds that token. Default: none.
    pub prometheus_token_file: Option<PathBuf>,
    /// A user of it, with `prometheus_password`, in place of a token. Default: none.
    pub prometheus_user: Option<String>,
    /// See `prometheus_user`.
    pub prometheus_password: Option<Text<Secret>>,
    /// Labels that all series of this cluster have, `label=value` separated by commas. Default: none.
    pub prometheus_selector: Option<Text<Labels>>,
    /// The label of node_exporter's series that holds a node's name. Default: `node`.
    pub prometheus_load_label: String,
    /// The label of kube-state-metrics' series that holds a node's name. Default: `node`.
    pub prometheus_ready_label: String,
    /// Over how long CPU use is averaged, `5s` to `1h`. Default: `2m`.
    pub prometheus_window: Text<Duration>,
    /// How a node that has joined is recognised: `node` or `prometheus`. Default: `node`.
    pub readiness: ReadyBy,
    /// What a new worker has to give, in thousandths of a core. Default: 2000.
    pub worker_cpu_millis: Text<Count>,
    /// What a new worker has to give, in memory. Default: `4GiB`.
    pub worker_memory: Text<Size>,
    /// How long pods wait before workers are added. Default: `30s`.
    pub pending_window: Text<Duration>,
    /// How long nodes idle before they are taken away. Default: `10m`.
    pub idle_window: Text<Duration>,
    /// A node idles below this share of its CPU and of its memory, in percent. Default: 30.
    pub idle_percent: Text<Count>,
    /// Above this share of all workers' CPU or memory, in percent, one worker is added. Default: 85.
    pub busy_percent: Text<Count>,
    /// How old a metric may be and still count, `5s` to `1h`. Default: `2m`.
    pub metrics_age_max: Text<Duration>,
    /// How far the `consumers` may be behind before a worker is added, at least `2s`. Default: none, and they are
    /// not asked.
    pub lag_max: Option<Text<Duration>>,
    /// Whose lag counts: `STREAM/APPLICATION`, separated by commas. Their workers' rows are in the same store.
    /// Default: none.
    pub consumers: Option<Text<Applications>>,
    /// How long after an action nothing new begins. Default: `5m`.
    pub cooldown: Text<Duration>,
    /// How long a scale-up may take until its nodes are ready, two leases to a day. Default: `10m`.
    pub join_timeout: Text<Duration>,
    /// How long a scale-down may take until its nodes are empty, two leases to a day. Default: `15m`.
    pub drain_timeout: Text<Duration>,
    /// After how long a drain deletes what cannot be evicted, less than `drain_timeout`. Default: none, never.
    pub force_after: Option<Text<Duration>>,
    /// Whether pods without a controller may be evicted; nobody brings them back. Default: `false`.
    pub evict_unmanaged: Text<bool>,
    /// Whether pods with local storage may be evicted; what they stored is lost. Default: `false`.
    pub evict_local_storage: Text<bool>,
    /// How long a node that could not be drained is left alone. Default: `1h`.
    pub node_backoff: Text<Duration>,
    /// How long an executor may carry an action on without writing, at least `5s`. Default: `45s`.
    pub lease: Text<Duration>,
    /// By how much the clocks of two executors may differ, at most half a lease. Default: `5s`.
    pub skew: Text<Duration>,
    /// How long after it was first seen an orphan is ended. Default: `1m`.
    pub orphan_after: Text<Duration>,
}

/// How a node that has joined is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadyBy {
    /// By its Ready condition.
    #[default]
    Node,
    /// By the query of Prometheus.
    Prometheus,
}

/// A key that cannot be used as it is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The key.
    pub key: &'static str,
    /// What is wrong with it, and what to give.
    pub message: String,
}

impl Mistake {
    fn of(key: &'static str, message: impl Into<String>) -> Self {
        Self { key, message: message.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "autoscaler.{}: {}", self.key, self.message)
    }
}

impl std::error::Error for Mistake {}

impl Default for Settings {
    fn default() -> Self {
        // What a policy does by default is the default here, too.
        let usual = Policy::new("", 1, 1, Vec::new());
        Self {
            state_table: STATE_TABLE.to_owned(),
            logs_table: LOGS_TABLE.to_owned(),
            log_retention: Text(Places::default().log_retention),
            cluster: None,
            workers_min: Text(Amount(1)),
            workers_max: None,
            up_max: Text(Count(usual.up_max)),
            down_max: Text(Count(usual.down_max)),
            launch_template: None,
            launch_template_version: Text(Count(1)),
            subnets: None,
            markets: "on-demand".to_owned(),
            region: None,
            endpoint: None,
            aws_profile: None,
            kubeconfig: None,
            kubernetes_context: None,
            startup_taint: "tenure.dev/starting".to_owned(),
            prometheus: None,
            prometheus_token: None,
            prometheus_token_file: None,
            prometheus_user: None,
            prometheus_password: None,
            prometheus_selector: None,
            prometheus_load_label: "node".to_owned(),
            prometheus_ready_label: "node".to_owned(),
            prometheus_window: Text(Duration::from_secs(120)),
            readiness: ReadyBy::Node,
            worker_cpu_millis: Text(Count(2000)),
            worker_memory: Text(Size(4 << 30)),
            pending_window: Text(usual.pending_window),
            idle_window: Text(usual.idle_window),
            idle_percent: Text(Count(usual.idle_percent)),
            busy_percent: Text(Count(usual.busy_percent)),
            metrics_age_max: Text(usual.metrics_age_max),
            lag_max: usual.lag_max.map(Text),
            consumers: None,
            cooldown: Text(usual.cooldown),
            join_timeout: Text(usual.join_timeout),
            drain_timeout: Text(usual.drain_timeout),
            force_after: usual.force_after.map(Text),
            evict_unmanaged: Text(usual.evict_unmanaged),
            evict_local_storage: Text(usual.evict_local_storage),
            node_backoff: Text(usual.node_backoff),
            lease: Text(usual.lease),
            skew: Text(usual.skew),
            orphan_after: Text(usual.orphan_after),
        }
    }
}

impl Settings {
    /// What the variables of an environment say; those that do not begin with [`VARIABLES`] are none of ours. An
    /// empty one is as good as none, because templates cannot leave one out.
    ///
    /// # Errors
    /// A message that names the variable and what to give.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let known = Self::keys();
        let mut given = serde_json::Map::new();
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(VARIABLES).filter(|_| !value.is_empty()) else { continue };
            let key = name.to_lowercase();
            if name != name.to_uppercase() || !known.contains(&key) {
                let hint = nearest(&key, known.iter().map(String::as_str))
                    .map(|key| format!(": did you mean `{VARIABLES}{}`?", key.to_uppercase()))
                    .unwrap_or_default();
                return Err(format!("environment variable `{variable}` is no setting{hint}"));
            }
            let value = serde_json::Value::String(value);
            let alone = serde_json::Map::from_iter([(key.clone(), value.clone())]);
            // Read alone, so that the message can name it.
            serde_json::from_value::<Self>(alone.into()).map_err(|error| format!("{variable}: {error}"))?;
            given.insert(key, value);
        }
        let settings: Self = serde_json::from_value(given.into()).map_err(|error| error.to_string())?;
        let place =
            |mistake: Mistake| format!("{VARIABLES}{}: {}", mistake.key.to_uppercase(), mistake.message);
        settings.validate().map_err(place)?;
        Ok(settings)
    }

    /// All keys, by their names in the file.
    #[must_use]
    pub fn keys() -> Vec<String> {
        match serde_json::to_value(Self::default()) {
            Ok(serde_json::Value::Object(keys)) => keys.into_iter().map(|(key, _)| key).collect(),
            _ => Vec::new(),
        }
    }

    /// Refuses what could not be used.
    ///
    /// # Errors
    /// The key at fault, and what to give.
    pub fn validate(&self) -> Result<(), Mistake> {
        let table = |name: &'static str, spec: tenure_store::TableSpec| {
            spec.validate().map_err(|error| Mistake::of(name, error.chain()))
        };
        table("state_table", rows::state_table(&self.state_table))?;
        table("logs_table", rows::logs_table(&self.logs_table))?;
        if self.state_table == self.logs_table {
            // Whichever was given.
            let key = if self.logs_table == LOGS_TABLE { "state_table" } else { "logs_table" };
            let message =
                "state and log have the same table, and each needs a table of its own: give it another name";
            return Err(Mistake::of(key, message));
        }
        if self.log_retention.0 < RETENTION_MIN {
            return Err(Mistake::of("log_retention", "less than an hour: give 1h or more; 90d is usual"));
        }
        if listed(&self.markets).is_empty() {
            return Err(Mistake::of("markets", "empty: give spot, on-demand, or both"));
        }
        for market in listed(&self.markets) {
            if !matches!(market, "spot" | "on-demand") {
                return Err(Mistake::of("markets", format!("`{market}` is neither spot nor on-demand")));
            }
        }
        let credentials = "autoscaler.aws_profile, or AWS's own environment,";
        validate_address("endpoint", self.endpoint.as_ref(), credentials)?;
        self.validate_prometheus()?;
        match (&self.lag_max, &self.consumers) {
            (Some(_), None) => {
                let message = "nobody is asked: give autoscaler.consumers, e.g. \"orders/billing\"";
                return Err(Mistake::of("lag_max", message));
            }
            (None, Some(_)) => {
                let message = "nothing comes of it: give autoscaler.lag_max, e.g. \"2m\"";
                return Err(Mistake::of("consumers", message));
            }
            _ => {}
        }
        // What is missing is told when it is needed: most commands need no policy.
        let whole = Self {
            cluster: Some(self.cluster.clone().unwrap_or_else(|| "unnamed".to_owned())),
            workers_max: Some(self.workers_max.unwrap_or(Text(Count(self.workers_min.0.0.max(1))))),
            subnets: Some(self.subnets.clone().unwrap_or_else(|| "none".to_owned())),
            ..self.clone()
        };
        whole.policy().map(drop)
    }

    fn validate_prometheus(&self) -> Result<(), Mistake> {
        let credentials = "autoscaler.prometheus_token, or prometheus_user and prometheus_password,";
        validate_address("prometheus", self.prometheus.as_ref(), credentials)?;
        let given = [
            ("prometheus_token", self.prometheus_token.is_some()),
            ("prometheus_token_file", self.prometheus_token_file.is_some()),
            ("prometheus_user", self.prometheus_user.is_some()),
            ("prometheus_password", self.prometheus_password.is_some()),
            ("prometheus_selector", self.prometheus_selector.is_some()),
        ];
        for (key, is_given) in given {
            if is_given && self.prometheus.is_none() {
                return Err(Mistake::of(key, "there is no autoscaler.prometheus to ask: give its address"));
            }
        }
        if self.readiness == ReadyBy::Prometheus && self.prometheus.is_none() {
            return Err(Mistake::of("readiness", "`prometheus` needs autoscaler.prometheus, its address"));
        }
        let secrets = given.iter().take(3).filter(|(_, is_given)| *is_given).count();
        if secrets > 1 {
            return Err(Mistake::of(
                "prometheus_token",
                "a token, a file of one, or a user: give one of the three",
            ));
        }
        if self.prometheus_user.is_some() != self.prometheus_password.is_some() {
            return Err(Mistake::of("prometheus_user", "a user and a password belong together: give both"));
        }
        #[cfg(feature = "prometheus")]
        self.check_prometheus()?;
        Ok(())
    }

    /// Each setting alone, so that its key can be named.
    #[cfg(feature = "prometheus")]
    fn check_prometheus(&self) -> Result<(), Mistake> {
        use crate::prometheus::Settings as Asked;
        type Change = fn(&mut Asked, &Settings);
        let changes: [(&'static str, Change); 6] = [
            ("prometheus", |asked, from| {
                asked.url = from.prometheus.clone().unwrap_or_else(|| asked.url.clone())
            }),
            ("prometheus_selector", |asked, from| asked.selector = from.selector()),
            ("prometheus_load_label", |asked, from| asked.load_label.clone_from(&from.prometheus_load_label)),
            ("prometheus_ready_label", |asked, from| {
                asked.ready_label.clone_from(&from.prometheus_ready_label);
            }),
            ("prometheus_window", |asked, from| asked.window = from.prometheus_window.0),
            ("metrics_age_max", |asked, from| asked.age_max = from.metrics_age_max.0),
        ];
        for (key, change) in changes {
            let mut asked = Asked::new("http://localhost:9090");
            change(&mut asked, self);
            asked.validate().map_err(|error| Mistake::of(key, error.chain()))?;
        }
        Ok(())
    }

    #[cfg(feature = "prometheus")]
    fn selector(&self) -> BTreeMap<String, String> {
        self.prometheus_selector.as_ref().map(|labels| labels.0.0.clone()).unwrap_or_default()
    }

    /// The policy that is to be carried out.
    ///
    /// # Errors
    /// The key that is missing or cannot be, and what to give.
    pub fn policy(&self) -> Result<Policy, Mistake> {
        let missing = |key, what: &str| Mistake::of(key, format!("not set: give {what}"));
        let cluster = self.cluster.clone();
        let cluster =
            cluster.ok_or_else(|| missing("cluster", "the name that its instances are tagged with"))?;
        let most = self.workers_max;
        let most = most.ok_or_else(|| missing("workers_max", "the most workers there may be"))?;
        let subnets = self.subnets.as_deref().map(listed).unwrap_or_default();
        if subnets.is_empty() {
            return Err(missing("subnets", "where instances are launched, e.g. \"subnet-1,subnet-2\""));
        }
        let place = |market: &str, subnet: &str| Place {
            subnet: subnet.to_owned(),
            market: market.to_owned(),
            template: self.launch_template_version.to_string(),
        };
        // Each market everywhere before the next: the first is what was preferred.
        let places = listed(&self.markets)
            .into_iter()
            .flat_map(|market| subnets.iter().map(move |subnet| place(market, subnet)))
            .collect();
        let policy = Policy {
            cluster,
            workers_min: self.workers_min.0.0,
            workers_max: most.0.0,
            up_max: self.up_max.0.0,
            down_max: self.down_max.0.0,
            places,
            worker: Resources {
                cpu_millis: self.worker_cpu_millis.0.0.into(),
                memory_mib: self.worker_memory.0.0 >> 20,
            },
            readiness: match self.readiness {
                ReadyBy::Node => Readiness::NodeCondition,
                ReadyBy::Prometheus => Readiness::Prometheus,
            },
            pending_window: self.pending_window.0,
            idle_window: self.idle_window.0,
            idle_percent: self.idle_percent.0.0,
            busy_percent: self.busy_percent.0.0,
            lag_max: self.lag_max.map(|lag| lag.0),
            metrics_age_max: self.metrics_age_max.0,
            cooldown: self.cooldown.0,
            join_timeout: self.join_timeout.0,
            drain_timeout: self.drain_timeout.0,
            force_after: self.force_after.map(|after| after.0),
            evict_unmanaged: self.evict_unmanaged.0,
            evict_local_storage: self.evict_local_storage.0,
            node_backoff: self.node_backoff.0,
            lease: self.lease.0,
            skew: self.skew.0,
            orphan_after: self.orphan_after.0,
        };
        policy.check().map_err(|(key, message)| Mistake::of(key, message))?;
        Ok(policy)
    }

    /// Where state and log are, with this long for one call.
    #[must_use]
    pub fn places(&self, call_timeout: Duration) -> Places {
        Places {
            state_table: self.state_table.clone(),
            logs_table: Some(self.logs_table.clone()),
            log_retention: self.log_retention.0,
            call_timeout,
        }
    }

    /// What to connect to. The file of a token is read.
    ///
    /// # Errors
    /// The key that is missing or cannot be used, and what to give.
    #[cfg(feature = "edges")]
    pub fn edges(&self) -> Result<crate::Edges, Mistake> {
        use crate::{Edges, ec2, kubernetes, prometheus};
        let policy = self.policy()?;
        let template = self.launch_template.as_ref();
        let template = template.ok_or_else(|| {
            Mistake::of("launch_template", "not set: give the id (lt-…) or name of a worker's")
        })?;
        let metrics = match &self.prometheus {
            None => None,
            Some(url) => Some(prometheus::Settings {
                credentials: self.credentials()?,
                selector: self.selector(),
                load_label: self.prometheus_load_label.clone(),
                ready_label: self.prometheus_ready_label.clone(),
                window: self.prometheus_window.0,
                age_max: self.metrics_age_max.0,
                ..prometheus::Settings::new(url)
            }),
        };
        let behind = self.lag_max.zip(self.consumers.as_ref());
        Ok(Edges {
            cloud: ec2::Settings {
                region: self.region.clone(),
                profile: self.aws_profile.clone(),
                endpoint: self.endpoint.clone(),
                ..ec2::Settings::new(&policy.cluster, template)
            },
            cluster: kubernetes::Settings {
                kubeconfig: self.kubeconfig.clone(),
                context: self.kubernetes_context.clone(),
                startup_taint: self.startup_taint.clone(),
            },
            metrics,
            behind: behind
                .map(|(enough, of)| crate::backlog::Behind { of: of.0.0.clone(), enough: enough.0 }),
        })
    }

    #[cfg(feature = "edges")]
    fn credentials(&self) -> Result<crate::prometheus::Credentials, Mistake> {
        use crate::prometheus::Credentials;
        if let Some(token) = &self.prometheus_token {
            return Ok(Credentials::Bearer(token.0.reveal().to_owned()));
        }
        if let Some(path) = &self.prometheus_token_file {
            let read = std::fs::read_to_string(path).map_err(|error| {
                Mistake::of("prometheus_token_file", format!("read {}: {error}", path.display()))
            })?;
            let token = read.trim();
            if token.is_empty() {
                let message = format!("{} is empty: put the token there", path.display());
                return Err(Mistake::of("prometheus_token_file", message));
            }
            return Ok(Credentials::Bearer(token.to_owned()));
        }
        Ok(match (&self.prometheus_user, &self.prometheus_password) {
            (Some(user), Some(password)) => {
                Credentials::Basic { user: user.clone(), password: password.0.reveal().to_owned() }
            }
            _ => Credentials::Nobody,
        })
    }
}

/// Applications that read streams, as `STREAM/APPLICATION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applications(pub Vec<(String, String)>);

impl Textual for Applications {
    fn read(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` names no application: write STREAM/APPLICATION, separated by commas");
        let read = |word: &str| {
            let (stream, app) = word.split_once('/').ok_or_else(wrong)?;
            match stream.is_empty() || app.is_empty() || app.contains('/') {
                true => Err(wrong()),
                false => Ok((stream.to_owned(), app.to_owned())),
            }
        };
        let all: Vec<_> = listed(text).into_iter().map(read).collect::<Result<_, _>>()?;
        match all.len() {
            0 => Err(wrong()),
            1..=CONSUMERS_MAX => Ok(Self(all)),
            many => Err(format!("{many} applications: name {CONSUMERS_MAX} at most")),
        }
    }

    fn shown(&self) -> String {
        let all: Vec<_> = self.0.iter().map(|(stream, app)| format!("{stream}/{app}")).collect();
        all.join(",")
    }
}

/// Labels of series and their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels(pub BTreeMap<String, String>);

impl Textual for Labels {
    fn read(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no selector: write label=value, separated by commas");
        let read = |word: &str| {
            let (label, value) = word.split_once('=').ok_or_else(wrong)?;
            Ok::<_, String>((label.trim().to_owned(), value.trim().to_owned()))
        };
        let all: BTreeMap<_, _> = listed(text).into_iter().map(read).collect::<Result<_, _>>()?;
        if all.is_empty() { Err(wrong()) } else { Ok(Self(all)) }
    }

    fn shown(&self) -> String {
        let all: Vec<_> = self.0.iter().map(|(label, value)| format!("{label}={value}")).collect();
        all.join(",")
    }
}

/// An address is shown in messages and to whoever asks for the settings: no place for a secret, and the message shows
/// none.
fn validate_address(key: &'static str, url: Option<&String>, credentials: &str) -> Result<(), Mistake> {
    let what = match url {
        Some(url) if url.contains('@') => "a user",
        Some(url) if url.contains(['?', '#']) => "a query",
        _ => return Ok(()),
    };
    let message = format!("an address with {what} in it: give the address alone; {credentials} say who asks");
    Err(Mistake::of(key, message))
}

fn listed(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let variables = text.lines().map(|line| {
            let (key, value) = line.trim().split_once('=').unwrap();
            (format!("{VARIABLES}{}", key.to_uppercase()), value.to_owned())
        });
        Settings::from_variables(variables)
    }

    /// Whatever a policy has differs from its default here.
    const WHOLE: &str = "cluster=c
        workers_min=2
        workers_max=30
        up_max=11
        down_max=3
        launch_template=workers
        launch_template_version=7
        aws_profile=scaling
        kubernetes_context=production
        subnets=a, b
        markets=spot,on-demand
        prometheus=http://prometheus:9090
        prometheus_token=hunter2
        readiness=prometheus
        worker_cpu_millis=4000
        worker_memory=8GiB
        pending_window=31s
        idle_window=11m
        idle_percent=31
        busy_percent=86
        metrics_age_max=3m
        lag_max=1m
        consumers=orders/billing,orders/audit
        cooldown=6m
        join_timeout=11m
        drain_timeout=16m
        force_after=14m
        evict_unmanaged=true
        evict_local_storage=true
        node_backoff=2h
        lease=50s
        skew=6s
        orphan_after=2m";

    #[test]
    fn every_key_of_a_policy_reaches_it() {
        let policy = read(WHOLE).unwrap().policy().unwrap();
        let places =
            policy.places.iter().map(|place| format!("{} {} {}", place.market, place.subnet, place.template));
        assert_eq!(places.collect::<Vec<_>>(), ["spot a 7", "spot b 7", "on-demand a 7", "on-demand b 7"]);
        let usual = Policy::new("c", 2, 30, policy.places.clone());
        let (shown, usual) = (format!("{policy:#?}"), format!("{usual:#?}"));
        let same: Vec<_> = shown
            .lines()
            .zip(usual.lines())
            .skip_while(|(line, _)| !line.contains("worker: "))
            .filter(|(line, other)| line == other && line.contains(": ") && !line.ends_with('{'))
            .collect();
        assert!(same.is_empty(), "still as by default: {same:?}");
        assert_eq!((policy.up_max, policy.down_max, policy.lag_max), (11, 3, Some(Duration::from_secs(60))));
    }

    #[test]
    fn a_policy_says_what_it_lacks() {
        let lacks = |text: &str| read(text).unwrap().policy().unwrap_err().key;
        assert_eq!(lacks("markets=spot"), "cluster");
        assert_eq!(lacks("cluster=c"), "workers_max");
        assert_eq!(lacks("cluster=c\nworkers_max=3"), "subnets");
    }

    #[test]
    fn what_cannot_work_is_refused_by_its_key() {
        let wrong = |text: &str, key: &str, says: &str| {
            let message = read(text).unwrap_err();
            let named = format!("{VARIABLES}{}: ", key.to_uppercase());
            assert!(message.starts_with(&named) && message.contains(says), "{text}: {message}");
        };
        wrong("markets=cheap", "markets", "neither spot nor on-demand");
        wrong("markets=,", "markets", "give spot");
        wrong("readiness=prometheus", "readiness", "its address");
        wrong("readiness=luck", "readiness", "prometheus");
        wrong("logs_table=k3s-autoscaler-state", "logs_table", "another name");
        wrong("state_table=k3s-autoscaler-logs", "state_table", "another name");
        wrong("state_table=mine\nlogs_table=mine", "logs_table", "another name");
        wrong("log_retention=5m", "log_retention", "1h or more");
        wrong("workers_min=4\nworkers_max=3", "workers_max", "raise the other");
        wrong("workers_max=0", "workers_max", "above zero");
        wrong("up_max=51", "up_max", "1 to 50");
        wrong("down_max=51", "down_max", "1 to 50");
        wrong("busy_percent=101", "busy_percent", "1 to 100");
        wrong("idle_percent=90", "idle_percent", "busy_percent");
        wrong("lease=1s", "lease", "at least");
        wrong("skew=30s", "lease", "two skews");
        wrong("join_timeout=1m", "join_timeout", "two leases");
        wrong("force_after=15m", "force_after", "give less");
        wrong("lag_max=1m", "lag_max", "autoscaler.consumers");
        wrong("lag_max=1s\nconsumers=a/b", "lag_max", "give more");
        wrong("consumers=a/b", "consumers", "autoscaler.lag_max");
        wrong("consumers=orders", "consumers", "STREAM/APPLICATION");
        wrong("evict_unmanaged=yes", "evict_unmanaged", "neither true nor false");
        wrong("orphan_after=60", "orphan_after", "like 500ms");
        wrong("worker_memory=1B", "worker_memory", "instance type");
        wrong("prometheus=http://a:b@host", "prometheus", "prometheus_password");
        wrong("endpoint=http://a:b@host", "endpoint", "aws_profile");
        for address in
            ["http://u:hunter2@host", "http://host?token=hunter2", "u:hunter2@host", "http://host/#hunter2"]
        {
            for key in ["endpoint", "prometheus"] {
                let message = read(&format!("{key}={address}")).unwrap_err();
                assert!(message.contains("the address alone") && !message.contains("hunter2"), "{message}");
            }
        }
        wrong("prometheus_token=x", "prometheus_token", "its address");
        wrong("prometheus=http://p\nprometheus_user=x", "prometheus_user", "give both");
        wrong(
            "prometheus=http://p\nprometheus_token=x\nprometheus_token_file=y",
            "prometheus_token",
            "one of",
        );
        wrong("prometheus=http://p\nprometheus_selector=x", "prometheus_selector", "label=value");
        let message = read("cooldwn=5m").unwrap_err();
        assert!(message.contains("did you mean `TENURE__AUTOSCALER__COOLDOWN`"), "{message}");
        let message =
            Settings::from_variables([(format!("{VARIABLES}cluster"), "c".to_owned())]).unwrap_err();
        assert!(message.contains("did you mean `TENURE__AUTOSCALER__CLUSTER`"), "{message}");
        assert_eq!(read("cluster=\ncooldown=5m"), Ok(Settings::default()), "an empty variable is none");
    }

    #[cfg(feature = "prometheus")]
    #[test]
    fn what_prometheus_cannot_be_asked_is_refused_by_its_key() {
        let wrong = |line: &str| read(&format!("prometheus=http://p\n{line}")).unwrap_err();
        for line in [
            "prometheus_selector=1x=y",
            "prometheus_load_label=a-b",
            "prometheus_ready_label=a-b",
            "prometheus_window=1s",
            "metrics_age_max=2h",
        ] {
            let key = line.split('=').next().unwrap().to_uppercase();
            assert!(wrong(line).starts_with(&format!("{VARIABLES}{key}: ")), "{}", wrong(line));
        }
        assert!(read("prometheus=host:9090").unwrap_err().starts_with("TENURE__AUTOSCALER__PROMETHEUS: "));
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings = read(WHOLE).unwrap();
        let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    }

    #[cfg(feature = "edges")]
    #[test]
    fn every_edge_gets_its_settings() {
        let settings = read(WHOLE).unwrap();
        let edges = settings.edges().unwrap();
        assert_eq!((edges.cloud.cluster.as_str(), edges.cloud.launch_template.as_str()), ("c", "workers"));
        assert_eq!(edges.cloud.profile.as_deref(), Some("scaling"));
        assert_eq!(edges.cluster.context.as_deref(), Some("production"));
        let metrics = edges.metrics.unwrap();
        assert_eq!(metrics.credentials, crate::prometheus::Credentials::Bearer("hunter2".to_owned()));
        assert_eq!(metrics.age_max, Duration::from_secs(180));
        let behind = edges.behind.unwrap();
        assert_eq!(behind.of.len(), 2);
        assert_eq!(behind.enough, Duration::from_secs(60));
        let lacks = Settings { launch_template: None, ..settings.clone() };
        assert_eq!(lacks.edges().unwrap_err().key, "launch_template");
        let file = tempfile::NamedTempFile::new().unwrap();
        let from_file = Settings {
            prometheus_token: None,
            prometheus_token_file: Some(file.path().to_owned()),
            ..settings
        };
        assert_eq!(from_file.edges().unwrap_err().key, "prometheus_token_file");
        std::fs::write(file.path(), "from-a-file\n").unwrap();
        let credentials = from_file.edges().unwrap().metrics.unwrap().credentials;
        assert_eq!(credentials, crate::prometheus::Credentials::Bearer("from-a-file".to_owned()));
    }
}
