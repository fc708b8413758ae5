//! Lines of JSON to standard error, where CloudWatch picks them up.

use anyhow::anyhow;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Begins to log. Call it once. Fields of the invocation's span, the request id among them, are in every line.
///
/// # Errors
/// If logging has begun already.
pub fn begin(filter: Targets) -> anyhow::Result<()> {
    // The runtime repeats what failed, without the request's id.
    let filter = filter.with_target("lambda_runtime::layers::panic", LevelFilter::OFF);
    tracing_subscriber::registry()
        .with(lines(std::io::stderr).with_filter(filter))
        .try_init()
        .map_err(|error| anyhow!("begin to log: {error}"))
}

/// Says why the program ends: whether logging has begun or not, and whatever it leaves out.
pub fn cannot_run(error: &anyhow::Error) {
    let alone = tracing_subscriber::registry().with(lines(std::io::stderr));
    tracing::subscriber::with_default(alone, || {
        tracing::error!(error = %format!("{error:#}"), "the function cannot run");
    });
}

/// A line of JSON for each event.
pub fn lines<S, W>(to: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    layer().json().flatten_event(true).with_span_list(false).with_writer(to)
}
