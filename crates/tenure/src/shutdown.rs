//! Asking a long-running command to end: the first SIGINT or SIGTERM asks, the second leaves at once.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// The signal that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signalled {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signalled {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// What a shell reports of a process that it ended.
    pub(crate) fn status(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        })
    }
}

/// The first SIGINT or SIGTERM, once there was one. Call it once, in place of [`on_signal`].
///
/// # Errors
/// If the signals cannot be listened to.
pub(crate) fn first_signal() -> anyhow::Result<watch::Receiver<Option<Signalled>>> {
    let (told, asked) = watch::channel(None);
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::spawn(async move {
        loop {
            let signal = tokio::select! {
                _ = interrupt.recv() => Signalled::Interrupt,
                _ = terminate.recv() => Signalled::Terminate,
            };
            if told.borrow().is_some() {
                std::process::exit(INTERRUPTED);
            }
            told.send_replace(Some(signal));
        }
    });
    Ok(asked)
}

/// A token that is cancelled by the first SIGINT or SIGTERM. Call it once.
///
/// # Errors
/// If the signals cannot be listened to.
pub(crate) fn on_signal() -> anyhow::Result<CancellationToken> {
    let asked = CancellationToken::new();
    let mut first = first_signal()?;
    tokio::spawn({
        let asked = asked.clone();
        async move {
            if first.wait_for(Option::is_some).await.is_ok() {
                asked.cancel();
            }
        }
    });
    Ok(asked)
}
