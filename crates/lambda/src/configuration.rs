//! What the environment of the function says.
//!
//! | Variable | |
//! |---|---|
//! | `TENURE__AUTOSCALER__KEY` | as `[autoscaler]` of `tenure.toml`; empty is as good as none |
//! | `STATE_TABLE`, `LOGS_TABLE` | the tables, as older autoscalers were told them; `TENURE__AUTOSCALER__STATE_TABLE` and `…LOGS_TABLE` go before them |
//! | `TENURE__STORE__URL` | the store. Default: `dynamodb:`, in the function's own region |
//! | `TENURE__LOG__FILTER` | a level, or `target=level` pairs. Default: as `AWS_LAMBDA_LOG_LEVEL` says, or `info` |

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tenure_autoscaler::settings::{Settings, VARIABLES};
use tenure_backend::nearest;
use tracing_subscriber::filter::{LevelFilter, Targets};

const STORE: &str = "TENURE__STORE__URL";
const FILTER: &str = "TENURE__LOG__FILTER";
/// What all variables of ours begin with.
const PREFIX: &str = "TENURE__";
/// Where Lambda's own logging controls put their level.
const LAMBDA_LEVEL: &str = "AWS_LAMBDA_LOG_LEVEL";
/// The names that older autoscalers know, and ours.
const OLD_NAMES: [(&str, &str); 2] = [("STATE_TABLE", "STATE_TABLE"), ("LOGS_TABLE", "LOGS_TABLE")];
/// The longest that a call may take.
const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// The configuration of the function.
#[derive(Clone)]
pub struct Configuration {
    /// What is scaled, and how.
    pub settings: Settings,
    /// The store's address, which may hold a secret.
    pub store: String,
    /// What is logged.
    pub filter: Targets,
}

/// Without the store's address.
impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration")
            .field("settings", &self.settings)
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

impl Configuration {
    /// Reads it.
    ///
    /// # Errors
    /// The variable at fault, and what to give.
    pub fn read(environment: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        // Ours alone: what else stands in an environment are secrets of others.
        let known_outside = [LAMBDA_LEVEL, "STATE_TABLE", "LOGS_TABLE"];
        let mut given: BTreeMap<String, String> = environment
            .into_iter()
            .filter(|(name, value)| {
                (name.starts_with(PREFIX) || known_outside.contains(&name.as_str())) && !value.is_empty()
            })
            .collect();
        let store = given.remove(STORE).unwrap_or_else(|| "dynamodb:".to_owned());
        let filter = filter(given.remove(FILTER), given.remove(LAMBDA_LEVEL))?;
        for (old, key) in OLD_NAMES {
            if let Some(table) = given.remove(old) {
                given.entry(format!("{VARIABLES}{key}")).or_insert(table);
            }
        }
        if let Some(name) = given.keys().find(|name| !name.starts_with(VARIABLES)) {
            let hint = nearest(name, [STORE, FILTER].into_iter())
                .map(|near| format!(": did you mean `{near}`?"))
                .unwrap_or_default();
            bail!(
                "environment variable `{name}` is no setting{hint} (known: {VARIABLES}KEY for each key of \
                 [autoscaler], {STORE}, {FILTER})"
            );
        }
        let settings = Settings::from_variables(given).map_err(|message| anyhow!(message))?;
        Ok(Self { settings, store, filter })
    }

    /// How long one call may take: several fit in a lease.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT_MAX.min(self.settings.lease.0 * 2 / 5)
    }
}

fn filter(ours: Option<String>, lambdas: Option<String>) -> Result<Targets> {
    if let Some(text) = ours {
        return text.parse().map_err(|error| {
            anyhow!(
                "{FILTER}: `{text}` does not read ({error}): write a level (error, warn, info, debug, trace, off), or \
                 target=level, separated by commas"
            )
        });
    }
    // Lambda knows a level more, above error.
    let level = match lambdas.as_deref().map(str::to_lowercase).as_deref() {
        None => "info".to_owned(),
        Some("fatal") => "error".to_owned(),
        Some(level) => level.to_owned(),
    };
    // A word that is no level would be taken for a target.
    let level: LevelFilter =
        level.parse().map_err(|error| anyhow!("{LAMBDA_LEVEL}: `{level}` is no level: {error}"))?;
    Ok(Targets::new().with_default(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Configuration> {
        Configuration::read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn refused(variables: &[(&str, &str)]) -> String {
        read(variables).unwrap_err().to_string()
    }

    #[test]
    fn tables_are_told_by_old_names_and_by_ours_which_go_first() {
        let tables = |variables: &[(&str, &str)]| {
            let settings = read(variables).unwrap().settings;
            (settings.state_table, settings.logs_table)
        };
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(tables(&[]), pair("k3s-autoscaler-state", "k3s-autoscaler-logs"));
        let old = [("STATE_TABLE", "old-state"), ("LOGS_TABLE", "old-logs")];
        assert_eq!(tables(&old), pair("old-state", "old-logs"));
        let ours = [old[0], old[1], ("TENURE__AUTOSCALER__STATE_TABLE", "new-state")];
        assert_eq!(tables(&ours), pair("new-state", "old-logs"));
        assert_eq!(tables(&[("STATE_TABLE", "")]).0, "k3s-autoscaler-state", "empty is as good as none");
    }

    #[test]
    fn what_is_wrong_is_told_by_its_variable() {
        assert!(refused(&[("TENURE__STORE__ULR", "x")]).contains("did you mean `TENURE__STORE__URL`"));
        assert!(refused(&[("TENURE__CDC__SLOT", "x")]).contains("`TENURE__CDC__SLOT` is no setting"));
        assert!(refused(&[("TENURE__AUTOSCALER__CLUSTR", "x")]).contains("`TENURE__AUTOSCALER__CLUSTER`"));
        assert!(refused(&[("TENURE__AUTOSCALER__LEASE", "fast")]).starts_with("TENURE__AUTOSCALER__LEASE: "));
        assert!(refused(&[("STATE_TABLE", "a/b")]).starts_with("TENURE__AUTOSCALER__STATE_TABLE: "));
        assert!(refused(&[("TENURE__LOG__FILTER", "tenure=loud")]).contains("write a level"));
        assert!(refused(&[("AWS_LAMBDA_LOG_LEVEL", "loud")]).contains("AWS_LAMBDA_LOG_LEVEL"));
    }

    #[test]
    fn defaults_are_those_of_a_function() {
        let plain = read(&[("PATH", "/bin"), ("AWS_SECRET_ACCESS_KEY", "x")]).unwrap();
        assert_eq!(plain.store, "dynamodb:");
        assert_eq!(plain.call_timeout(), Duration::from_secs(10));
        let shown = |variables: &[(&str, &str)]| read(variables).unwrap().filter.to_string();
        assert_eq!(shown(&[]), "info");
        assert_eq!(shown(&[("AWS_LAMBDA_LOG_LEVEL", "FATAL")]), "error");
        assert_eq!(shown(&[("AWS_LAMBDA_LOG_LEVEL", "DEBUG"), ("TENURE__LOG__FILTER", "warn")]), "warn");
        let short = read(&[("TENURE__AUTOSCALER__LEASE", "20s")]).unwrap();
        assert_eq!(short.call_timeout(), Duration::from_secs(8), "several fit in a lease");
    }
}
