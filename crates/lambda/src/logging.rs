//! Lines of JSON to standard error, where CloudWatch picks them up.

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Begins to log. Call it once. Fields of the invocation's span, the request id among them, are in every line.
///
/// # Errors
/// If logging has begun already.
pub fn begin(filter: Targets) -> anyhow::Result<()> {
    let lines = layer().json().flatten_event(true).with_span_list(false).with_writer(std::io::stderr);
    // The runtime repeats what failed, without the request's id.
    let lines = lines.with_filter(filter.with_target("lambda_runtime::layers::panic", LevelFilter::OFF));
    tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .map_err(|error| anyhow::anyhow!("begin to log: {error}"))
}
