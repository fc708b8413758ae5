//! Looking at something again and again, and showing what became of it, until somebody says stop.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tenure_backend::{Result, Retry, retry_policy};

use crate::context::Context;
use crate::shutdown;

/// Calls `look` at every interval and hands what it found to `show`, until SIGINT or SIGTERM.
///
/// # Errors
/// The first that looking again would not mend; others are logged.
pub(crate) async fn until_asked_to_end<T>(
    context: &Context,
    table: &str,
    interval: Duration,
    look: impl AsyncFn() -> Result<T>,
    mut show: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let asked_to_end = shutdown::on_signal()?;
    while !asked_to_end.is_cancelled() {
        let found = tokio::select! {
            found = look() => found,
            () = asked_to_end.cancelled() => break,
        };
        match found {
            Ok(found) => {
                show(found)?;
                context.out.flush()?;
            }
            Err(error) if matches!(retry_policy(error.kind()), Retry::Soon | Retry::AfterBackoff) => {
                tracing::warn!(error = %error.chain(), table, "the rows could not be read; looking again");
            }
            Err(error) => return Err(error).with_context(|| format!("watch table `{table}`")),
        }
        tokio::select! {
            () = context.env.clock.sleep(interval) => {}
            () = asked_to_end.cancelled() => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}
