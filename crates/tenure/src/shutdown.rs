//! Asking a long-running command to end: the first SIGINT or SIGTERM asks, the second leaves at once.
//!
//! Who signals a process and its whole group, as `timeout` does, sends two: what follows within a moment is the
//! same wish.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use tenure_clock::{Clock as _, SystemClock};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;
/// A signal that follows another so soon is a copy of it.
const COPY_WITHIN: Duration = Duration::from_millis(250);

/// What is done before leaving at once.
static LAST_DEED: OnceLock<fn()> = OnceLock::new();

/// Has something done if a second signal makes the process leave at once: what must not outlive it. The first
/// that is given counts.
pub(crate) fn before_leaving_at_once(deed: fn()) {
    let _ = LAST_DEED.set(deed);
}

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
        let mut copies_until = None;
        loop {
            let signal = tokio::select! {
                _ = interrupt.recv() => Signalled::Interrupt,
                _ = terminate.recv() => Signalled::Terminate,
            };
            match copies_until {
                None => {
                    copies_until = Some(SystemClock.deadline(COPY_WITHIN));
                    told.send_replace(Some(signal));
                }
                Some(until) if SystemClock.monotonic() < until => {}
                Some(_) => {
                    if let Some(deed) = LAST_DEED.get() {
                        deed();
                    }
                    std::process::exit(INTERRUPTED);
                }
            }
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
