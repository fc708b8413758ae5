//! Tracing to standard error, as text or as JSON lines.

use std::io::{self, IsTerminal};

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

use crate::settings::{Log, LogFormat};

/// Begins to log. Call it once.
///
/// # Errors
/// If the filter does not read, or logging has begun already.
pub(crate) fn begin(log: &Log) -> anyhow::Result<()> {
    let filter = filter(&log.filter).map_err(crate::failure::misuse)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match log.format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().try_init(),
    }
    .map_err(|error| anyhow!("begin to log: {error}"))
}

/// What the Postgres driver says below this level repeats statements with their values: row contents,
/// which stay out of logs whatever the filter asks for.
const DRIVER_CAP: &str = "tokio_postgres=warn";

/// The Kubernetes client logs every connection that fails as an error of its own. We are told of it, too, and say
/// what to do: once is enough, unless somebody asks for it.
const CLIENT_CAP: (&str, &str) = ("kube_client", "kube_client::client::builder=off");

/// Reads a filter such as `warn` or `info,tenure_store=debug`.
///
/// # Errors
/// A message that says what was expected.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, String> {
    let filter = EnvFilter::try_new(text).map_err(|error| {
        format!("log filter `{text}` does not read ({error}): write a level (error, warn, info, debug, trace, off), or target=level, separated by commas")
    })?;
    let (client, client_cap) = CLIENT_CAP;
    let caps = [DRIVER_CAP].into_iter().chain(Some(client_cap).filter(|_| !text.contains(client)));
    caps.into_iter().try_fold(filter, |filter, cap| {
        let cap = cap.parse().map_err(|error| format!("log filter `{cap}`: {error}"))?;
        Ok(filter.add_directive(cap))
    })
}
