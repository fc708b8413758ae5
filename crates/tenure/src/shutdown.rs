//! Asking a long-running command to end: the first SIGINT or SIGTERM asks, the second leaves at once.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// A token that is cancelled by the first SIGINT or SIGTERM. Call it once.
///
/// # Errors
/// If the signals cannot be listened to.
pub(crate) fn on_signal() -> anyhow::Result<CancellationToken> {
    let asked = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::spawn({
        let asked = asked.clone();
        async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if asked.is_cancelled() {
                    std::process::exit(INTERRUPTED);
                }
                asked.cancel();
            }
        }
    });
    Ok(asked)
}
