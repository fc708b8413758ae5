//! The Prometheus endpoint of long-running commands.

use std::net::SocketAddr;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Bounds of the call-duration histograms: from an embedded read (tens of microseconds) to a deadline.
const CALL_SECONDS: [f64; 12] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0];

/// Serves the metrics of this process at `http://listen/metrics`. Call it before a store is opened.
///
/// # Errors
/// If nothing can listen there.
pub(crate) fn begin(listen: SocketAddr) -> anyhow::Result<()> {
    PrometheusBuilder::new()
        .with_http_listener(listen)
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &CALL_SECONDS)
        .context("set up the metrics")?
        .install()
        .with_context(|| format!("serve metrics at {listen}: choose another address with --metrics"))?;
    tracing::info!(%listen, "serving metrics");
    Ok(())
}
