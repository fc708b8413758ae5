//! SIGINT, SIGTERM and SIGHUP ask for an orderly end: the child is told, services go down.
//!
//! A second signal leaves at once; the guard process of the services then cleans up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// 128 + SIGINT, as shells report it.
pub(crate) const EXIT_CODE: u8 = 130;

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

pub(crate) fn watch() -> Result<()> {
    let requested = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag down and raises it, the second exits.
        flag::register_conditional_shutdown(signal, EXIT_CODE.into(), Arc::clone(requested))
            .and_then(|_| flag::register(signal, Arc::clone(requested)))
            .context("watch for signals")?;
    }
    Ok(())
}

pub(crate) fn requested() -> bool {
    REQUESTED.get().is_some_and(|flag| flag.load(Ordering::SeqCst))
}

/// For waiting loops: an error once somebody asked us to end.
pub(crate) fn check() -> Result<()> {
    if requested() {
        bail!("interrupted by a signal");
    }
    Ok(())
}
