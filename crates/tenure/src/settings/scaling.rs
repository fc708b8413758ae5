//! `[autoscaler]`: which cluster is scaled, between which bounds, and by whom it is told.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_autoscaler::observation::Resources;
use tenure_autoscaler::rows::{self, LOGS_TABLE, STATE_TABLE};
use tenure_autoscaler::state::Place;
use tenure_autoscaler::{Policy, Readiness};

use super::text::{Amount, Count, Size, Text};

/// `[autoscaler]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scaling {
    /// The table of the state item, in the store. Default: `k3s-autoscaler-state`.
    pub(crate) state_table: String,
    /// The table of its log. Default: `k3s-autoscaler-logs`.
    pub(crate) logs_table: String,
    /// The cluster's name: instances carry it as a tag. Default: none, and nothing can be run.
    pub(crate) cluster: Option<String>,
    /// Fewest workers. Default: 1.
    pub(crate) workers_min: Text<Amount>,
    /// Most workers. Default: none, and nothing can be run.
    pub(crate) workers_max: Option<Text<Count>>,
    /// The launch template of a worker, by id or name. Default: none, and nothing can be run.
    pub(crate) launch_template: Option<String>,
    /// Its version, a number. Default: `1`.
    pub(crate) launch_template_version: Text<Count>,
    /// Where instances are launched, in order of preference: names of subnets, separated by commas.
    pub(crate) subnets: Option<String>,
    /// How they are bought, in order of preference: `spot`, `on-demand`, or both. Default: `on-demand`.
    pub(crate) markets: String,
    /// The region of EC2, and another endpoint than its own. Default: as AWS's environment says.
    pub(crate) region: Option<String>,
    /// See `region`.
    pub(crate) endpoint: Option<String>,
    /// The kubeconfig. Default: as `kubectl` finds it, or the pod's own.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Prometheus. Default: none, and nothing is ever taken away.
    pub(crate) prometheus: Option<String>,
    /// How a node that has joined is recognised: `node` or `prometheus`. Default: `node`.
    pub(crate) readiness: ReadyBy,
    /// What a new worker has to give: thousandths of a core, and memory. Default: 2000, 4GiB.
    pub(crate) worker_cpu_millis: Text<Count>,
    /// See `worker_cpu_millis`.
    pub(crate) worker_memory: Text<Size>,
    /// How long pods wait before workers are added. Default: `30s`.
    pub(crate) pending_window: Text<Duration>,
    /// How long nodes idle before they are taken away, and below which share of CPU and memory. Default: `10m`, 30.
    pub(crate) idle_window: Text<Duration>,
    /// See `idle_window`.
    pub(crate) idle_percent: Text<Count>,
    /// How long after an action nothing new begins. Default: `5m`.
    pub(crate) cooldown: Text<Duration>,
    /// How long a scale-up, and a scale-down, may take. Default: `10m`, `15m`.
    pub(crate) join_timeout: Text<Duration>,
    /// See `join_timeout`.
    pub(crate) drain_timeout: Text<Duration>,
}

/// How a node that has joined is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReadyBy {
    /// By its Ready condition.
    #[default]
    Node,
    /// By the query of Prometheus.
    Prometheus,
}

impl Default for Scaling {
    fn default() -> Self {
        // The windows of a policy are the defaults here, too.
        let usual = Policy::new("", 1, 1, Vec::new());
        let percent = Count(usual.idle_percent);
        Self {
            state_table: STATE_TABLE.to_owned(),
            logs_table: LOGS_TABLE.to_owned(),
            cluster: None,
            workers_min: Text(Amount(1)),
            workers_max: None,
            launch_template: None,
            launch_template_version: Text(Count(1)),
            subnets: None,
            markets: "on-demand".to_owned(),
            region: None,
            endpoint: None,
            kubeconfig: None,
            prometheus: None,
            readiness: ReadyBy::Node,
            worker_cpu_millis: Text(Count(2000)),
            worker_memory: Text(Size(4 << 30)),
            pending_window: Text(usual.pending_window),
            idle_window: Text(usual.idle_window),
            idle_percent: Text(percent),
            cooldown: Text(usual.cooldown),
            join_timeout: Text(usual.join_timeout),
            drain_timeout: Text(usual.drain_timeout),
        }
    }
}

impl Scaling {
    /// What is wrong, by the name of its key.
    pub(crate) fn validate(&self) -> Result<(), (&'static str, String)> {
        let table = |name: &'static str, spec: tenure_store::TableSpec| {
            spec.validate().map_err(|error| (name, error.chain()))
        };
        table("state_table", rows::state_table(&self.state_table))?;
        table("logs_table", rows::logs_table(&self.logs_table))?;
        if self.state_table == self.logs_table {
            return Err(("logs_table", "the log needs a table of its own: give it another name".to_owned()));
        }
        for market in listed(&self.markets) {
            if !matches!(market, "spot" | "on-demand") {
                return Err(("markets", format!("`{market}` is neither spot nor on-demand")));
            }
        }
        if self.readiness == ReadyBy::Prometheus && self.prometheus.is_none() {
            return Err(("readiness", "`prometheus` needs autoscaler.prometheus, its address".to_owned()));
        }
        if self.workers_max.is_some() && self.cluster.is_some() && self.subnets.is_some() {
            self.policy()
                .and_then(|policy| policy.validate().map_err(|error| ("workers_max", error.chain())))?;
        }
        Ok(())
    }

    /// The policy that is to be carried out.
    ///
    /// # Errors
    /// The key that is missing, and what to give.
    pub(crate) fn policy(&self) -> Result<Policy, (&'static str, String)> {
        let missing = |what: &str| format!("not set: give {what}");
        let cluster = self
            .cluster
            .clone()
            .ok_or_else(|| ("cluster", missing("the name that its instances are tagged with")))?;
        let most =
            self.workers_max.ok_or_else(|| ("workers_max", missing("the most workers there may be")))?;
        let subnets = self.subnets.as_deref().map(listed).unwrap_or_default();
        if subnets.is_empty() {
            return Err(("subnets", missing("where instances are launched, e.g. \"subnet-1,subnet-2\"")));
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
        Ok(Policy {
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
            cooldown: self.cooldown.0,
            join_timeout: self.join_timeout.0,
            drain_timeout: self.drain_timeout.0,
            ..Policy::new(cluster, self.workers_min.0.0, most.0.0, places)
        })
    }
}

fn listed(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Scaling {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_policy_says_what_it_lacks() {
        let lacks = |text: &str| read(text).policy().unwrap_err().0;
        assert_eq!(lacks(""), "cluster");
        assert_eq!(lacks("cluster = 'c'"), "workers_max");
        assert_eq!(lacks("cluster = 'c'\nworkers_max = '3'"), "subnets");
        let whole = "cluster = 'c'\nworkers_max = '3'\nsubnets = 'a, b'\nmarkets = 'spot,on-demand'";
        let policy = read(whole).policy().unwrap();
        let places: Vec<_> =
            policy.places.iter().map(|place| format!("{} {}", place.market, place.subnet)).collect();
        assert_eq!(places, ["spot a", "spot b", "on-demand a", "on-demand b"]);
    }

    #[test]
    fn what_cannot_work_is_refused_by_its_key() {
        let wrong = |text: &str| read(text).validate().unwrap_err().0;
        assert_eq!(wrong("markets = 'cheap'"), "markets");
        assert_eq!(wrong("readiness = 'prometheus'"), "readiness");
        assert_eq!(wrong("logs_table = 'k3s-autoscaler-state'"), "logs_table");
        let bounds = "cluster = 'c'\nworkers_min = '4'\nworkers_max = '3'\nsubnets = 'a'";
        assert_eq!(wrong(bounds), "workers_max");
        assert_eq!(read("").validate(), Ok(()));
    }
}
