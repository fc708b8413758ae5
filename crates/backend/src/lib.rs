//! What every backend of the store and of the stream shares.
//!
//! - [`Address`]: how a backend is named on a command line, and how a wrong name is refused.
//! - [`Error`] and [`Kind`]: what went wrong, told by what the caller should do about it.
//! - [`aws`]: who we are and how AWS is spoken to, whichever of its services is.
//! - [`Faults`]: which call goes wrong, and how; drawn from a seed, carried out by the wrappers
//!   `Faulty` of the two crates.
//! - [`kubernetes`]: where an API server is, and who we are there.
//! - [`postgres_tls`]: `sslmode`, as every client of Postgres here means it.
//! - [`sqlite`]: one file, several processes, one fsync for many writes.

mod address;
#[cfg(feature = "aws")]
pub mod aws;
mod error;
mod faults;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "postgres")]
pub mod postgres_tls;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::sync::Arc;

use tenure_clock::{Clock, Entropy, SystemClock};

pub use address::{Address, nearest, percent_decoded};
pub use error::{Error, Kind, Result, Retry, retry_policy};
pub use faults::{Fate, FaultCounts, FaultRates, Faults};

/// The time and the randomness that a backend works with.
#[derive(Debug, Clone)]
pub struct Env {
    /// Dates, deadlines and waits.
    pub clock: Arc<dyn Clock>,
    /// Ids, nonces and jitter.
    pub entropy: Entropy,
}

impl Env {
    /// The machine's own clock and randomness.
    #[must_use]
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), entropy: Entropy::system() }
    }
}
