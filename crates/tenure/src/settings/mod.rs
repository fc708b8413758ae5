//! What `tenure.toml`, the environment and flags decide.
//!
//! One precedence, the later winning: defaults, the file, `TENURE__SECTION__KEY` in the environment,
//! the flag. [`load`] merges them and remembers where each value came from.

mod address_text;
mod capture;
mod consumption;
mod layers;
mod template;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tenure_autoscaler::settings::Settings as Scaling;

pub(crate) use address_text::AddressText;
pub(crate) use capture::Capture;
#[cfg(feature = "postgres")]
pub(crate) use capture::{Destination, LeadershipKind};
#[cfg(feature = "kubernetes")]
pub(crate) use consumption::CountedWorkload;
pub(crate) use consumption::{BalanceBy, Consumption, From, KubernetesCount, OnFailure, WorkerCount};
pub(crate) use layers::{Flag, Loaded, load, load_alone};
pub(crate) use template::{Preset, template};

/// Everything that can be set. As JSON it is for showing: passwords are masked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// Where rows live.
    pub(crate) store: Store,
    /// Where records live.
    pub(crate) stream: Stream,
    /// Where and how leaders are elected.
    pub(crate) election: Election,
    /// What is logged to standard error, and how.
    pub(crate) log: Log,
    /// What is served to Prometheus.
    pub(crate) metrics: Metrics,
    /// The database whose changes are captured.
    pub(crate) postgres: Database,
    /// How they are captured.
    pub(crate) cdc: Capture,
    /// Who reads the stream, and how.
    pub(crate) consumer: Consumption,
    /// Which cluster is scaled, and how.
    pub(crate) autoscaler: Scaling,
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Store {
    /// The store's address. Default: `sqlite:./tenure.db`, relative to the working directory.
    pub(crate) url: AddressText,
}

/// `[stream]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Stream {
    /// The stream's address. Default: `sqlite:./tenure.db`, kept in the file `./tenure.db-stream`.
    pub(crate) url: AddressText,
}

/// `[election]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Election {
    /// The table of the elections, in the store. Default: `tenure_coordination`.
    pub(crate) table: String,
    /// `stable`, `balanced` or `fast`. Default: `balanced`.
    pub(crate) preset: Pace,
}

/// How long a lease lasts, and how often it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pace {
    /// 30 s, renewed every 10 s.
    Stable,
    /// 15 s, renewed every 5 s.
    #[default]
    Balanced,
    /// 10 s, renewed every 3 s.
    Fast,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// `text` or `json`. Default: `text`.
    pub(crate) format: LogFormat,
    /// A level, or `target=level` pairs separated by commas. Default: `warn`.
    pub(crate) filter: String,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The word that stands for it in a file.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// `[metrics]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    /// Address and port at which long-running commands serve `/metrics`. Default: none.
    pub(crate) listen: Option<SocketAddr>,
}

/// `[postgres]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Database {
    /// The database's address. Default: none, and `tenure doctor` checks no database.
    pub(crate) url: Option<AddressText>,
}

impl Default for Store {
    fn default() -> Self {
        Self { url: AddressText::embedded() }
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self { url: AddressText::embedded() }
    }
}

impl Default for Election {
    fn default() -> Self {
        Self { table: tenure_election::TABLE.to_owned(), preset: Pace::Balanced }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "warn".to_owned() }
    }
}

/// One thing that can be set, by its place in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The table of the file.
    pub(crate) section: &'static str,
    /// The key in it.
    pub(crate) name: &'static str,
}

/// All of them. A test compares them with [`Settings`].
pub(crate) const KEYS: [Key; 87] = [
    Key { section: "store", name: "url" },
    Key { section: "stream", name: "url" },
    Key { section: "election", name: "table" },
    Key { section: "election", name: "preset" },
    Key { section: "log", name: "format" },
    Key { section: "log", name: "filter" },
    Key { section: "metrics", name: "listen" },
    Key { section: "postgres", name: "url" },
    Key { section: "cdc", name: "slot" },
    Key { section: "cdc", name: "publications" },
    Key { section: "cdc", name: "source" },
    Key { section: "cdc", name: "to" },
    Key { section: "cdc", name: "lanes" },
    Key { section: "cdc", name: "leadership" },
    Key { section: "cdc", name: "inflight_events" },
    Key { section: "cdc", name: "inflight_bytes" },
    Key { section: "cdc", name: "linger" },
    Key { section: "cdc", name: "shard_records_per_s" },
    Key { section: "cdc", name: "shard_bytes_per_s" },
    Key { section: "cdc", name: "streaming" },
    Key { section: "cdc", name: "spill" },
    Key { section: "cdc", name: "spill_max" },
    Key { section: "cdc", name: "aggregation" },
    Key { section: "cdc", name: "messages" },
    Key { section: "cdc", name: "retained_warn" },
    Key { section: "cdc", name: "retained_stop" },
    Key { section: "cdc", name: "drain_timeout" },
    Key { section: "consumer", name: "app" },
    Key { section: "consumer", name: "worker" },
    Key { section: "consumer", name: "lease" },
    Key { section: "consumer", name: "from" },
    Key { section: "consumer", name: "max_leases" },
    Key { section: "consumer", name: "enable_dynamic_max_leases" },
    Key { section: "consumer", name: "max_leases_limit" },
    Key { section: "consumer", name: "worker_count" },
    Key { section: "consumer", name: "balance" },
    Key { section: "consumer", name: "checkpoint_interval" },
    Key { section: "consumer", name: "buffer_bytes" },
    Key { section: "consumer", name: "attempts" },
    Key { section: "consumer", name: "on_failure" },
    Key { section: "autoscaler", name: "state_table" },
    Key { section: "autoscaler", name: "logs_table" },
    Key { section: "autoscaler", name: "log_retention" },
    Key { section: "autoscaler", name: "cluster" },
    Key { section: "autoscaler", name: "workers_min" },
    Key { section: "autoscaler", name: "workers_max" },
    Key { section: "autoscaler", name: "up_max" },
    Key { section: "autoscaler", name: "down_max" },
    Key { section: "autoscaler", name: "launch_template" },
    Key { section: "autoscaler", name: "launch_template_version" },
    Key { section: "autoscaler", name: "subnets" },
    Key { section: "autoscaler", name: "markets" },
    Key { section: "autoscaler", name: "region" },
    Key { section: "autoscaler", name: "endpoint" },
    Key { section: "autoscaler", name: "aws_profile" },
    Key { section: "autoscaler", name: "kubeconfig" },
    Key { section: "autoscaler", name: "kubernetes_context" },
    Key { section: "autoscaler", name: "startup_taint" },
    Key { section: "autoscaler", name: "prometheus" },
    Key { section: "autoscaler", name: "prometheus_token" },
    Key { section: "autoscaler", name: "prometheus_token_file" },
    Key { section: "autoscaler", name: "prometheus_user" },
    Key { section: "autoscaler", name: "prometheus_password" },
    Key { section: "autoscaler", name: "prometheus_selector" },
    Key { section: "autoscaler", name: "prometheus_load_label" },
    Key { section: "autoscaler", name: "prometheus_ready_label" },
    Key { section: "autoscaler", name: "prometheus_window" },
    Key { section: "autoscaler", name: "readiness" },
    Key { section: "autoscaler", name: "worker_cpu_millis" },
    Key { section: "autoscaler", name: "worker_memory" },
    Key { section: "autoscaler", name: "pending_window" },
    Key { section: "autoscaler", name: "idle_window" },
    Key { section: "autoscaler", name: "idle_percent" },
    Key { section: "autoscaler", name: "busy_percent" },
    Key { section: "autoscaler", name: "metrics_age_max" },
    Key { section: "autoscaler", name: "lag_max" },
    Key { section: "autoscaler", name: "consumers" },
    Key { section: "autoscaler", name: "cooldown" },
    Key { section: "autoscaler", name: "join_timeout" },
    Key { section: "autoscaler", name: "drain_timeout" },
    Key { section: "autoscaler", name: "force_after" },
    Key { section: "autoscaler", name: "evict_unmanaged" },
    Key { section: "autoscaler", name: "evict_local_storage" },
    Key { section: "autoscaler", name: "node_backoff" },
    Key { section: "autoscaler", name: "lease" },
    Key { section: "autoscaler", name: "skew" },
    Key { section: "autoscaler", name: "orphan_after" },
];

impl Key {
    /// `section.name`.
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// `TENURE__SECTION__NAME`.
    pub(crate) fn variable(&self) -> String {
        format!("TENURE__{}__{}", self.section.to_uppercase(), self.name.to_uppercase())
    }

    /// The key with this path.
    pub(crate) fn at(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.path() == path)
    }
}

impl Settings {
    /// What no single value shows to be wrong: the key at fault, and what to do.
    ///
    /// # Errors
    /// The first mistake found.
    pub(crate) fn validate(&self) -> Result<(), (&'static Key, String)> {
        let at = |path: &str| Key::at(path).unwrap_or(&KEYS[0]);
        crate::logging::filter(&self.log.filter).map_err(|message| (at("log.filter"), message))?;
        tenure_election::table_spec(&self.election.table)
            .validate()
            .map_err(|error| (at("election.table"), error.chain()))?;
        if let Some(scheme) = self.postgres.url.as_ref().map(AddressText::scheme)
            && !matches!(scheme, "postgres" | "postgresql")
        {
            let message = format!("`{scheme}:` is no database: write postgres://user@host:port/database");
            return Err((at("postgres.url"), message));
        }
        self.cdc.validate().map_err(|(name, message)| (at(&format!("cdc.{name}")), message))?;
        let consumer = self.consumer.validate(&self.election.table);
        consumer.map_err(|(name, message)| (at(&format!("consumer.{name}")), message))?;
        let autoscaler = self.autoscaler.validate();
        autoscaler.map_err(|mistake| (at(&format!("autoscaler.{}", mistake.key)), mistake.message))
    }

    /// The value of a key as it may be shown: masked, and absent if there is none.
    pub(crate) fn shown(&self, key: &Key) -> Option<String> {
        let all = serde_json::to_value(self).unwrap_or_default();
        all[key.section][key.name].as_str().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_of_the_settings() {
        let all = serde_json::to_value(Settings::default()).unwrap();
        let mut found = Vec::new();
        for (section, keys) in all.as_object().unwrap() {
            found.extend(keys.as_object().unwrap().keys().map(|name| format!("{section}.{name}")));
        }
        let mut listed: Vec<_> = KEYS.iter().map(Key::path).collect();
        found.sort();
        listed.sort();
        assert_eq!(found, listed);
    }

    #[test]
    fn what_a_value_alone_does_not_show_is_validated() {
        let mut settings = Settings::default();
        assert_eq!(settings.validate(), Ok(()));
        settings.log.filter = "tenure=loud".to_owned();
        assert!(settings.validate().unwrap_err().1.contains("tenure=loud"));
        settings = Settings::default();
        settings.election.table = "a/b".to_owned();
        assert_eq!(settings.validate().unwrap_err().0.path(), "election.table");
        settings = Settings::default();
        settings.postgres.url = Some("sqlite:x".parse().unwrap());
        assert_eq!(settings.validate().unwrap_err().0.path(), "postgres.url");
        settings = Settings::default();
        settings.autoscaler.logs_table.clone_from(&settings.autoscaler.state_table);
        assert_eq!(settings.validate().unwrap_err().0.path(), "autoscaler.logs_table");
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn what_is_captured_is_validated() {
        let refused = |text: &str| {
            let settings: Settings = toml::from_str(&format!("[cdc]\n{text}")).unwrap();
            settings.validate().unwrap_err()
        };
        assert_eq!(refused("slot = 'Orders'").0.path(), "cdc.slot");
        assert_eq!(refused("source = ''").0.path(), "cdc.source");
        assert_eq!(refused("lanes = '99999'").0.path(), "cdc.lanes");
        assert_eq!(refused("inflight_bytes = '0'").0.path(), "cdc.inflight_bytes");
        for bad in ["to = 'kafka:x'", "to = 'file:'", "linger = '3'", "messages = 'yes'", "lanes = '0'"] {
            assert!(toml::from_str::<Settings>(&format!("[cdc]\n{bad}")).is_err(), "{bad}");
        }
    }
}
