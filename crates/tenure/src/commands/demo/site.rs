//! The place where the demo happens: one store and one stream, open in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_clock::Monotonic;
use tenure_store::{Env, Kind, Store};
use tenure_stream::{Stream, StreamSpec};

use super::rows;

/// Shards to begin with.
pub(super) const SHARDS: u32 = 4;

/// How long a call may take before it counts as failed. Far above a commit on a slow disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts to open a file that others keep busy.
const OPENINGS_MAX: u32 = 5;

/// The store and the stream.
pub(super) struct Site {
    pub env: Env,
    pub store: Arc<dyn Store>,
    pub stream: Arc<dyn Stream>,
}

impl Site {
    /// Opens both, patiently.
    pub(super) async fn open(file: &Path) -> Result<Self> {
        let env = Env::system();
        let mut attempt = 1;
        let (store, stream) = loop {
            match open_once(file, &env).await {
                Ok(open) => break open,
                Err(error) if error.kind() == Kind::Unavailable && attempt < OPENINGS_MAX => attempt += 1,
                Err(error) => return Err(error).context("open store and stream"),
            }
        };
        Ok(Self { env, store, stream })
    }

    /// Opens both and makes the tables and the shards.
    pub(super) async fn create(file: &Path) -> Result<Self> {
        let site = Self::open(file).await?;
        for table in rows::tables() {
            site.store.ensure_table(site.soon(), &table).await.context("make the tables")?;
        }
        site.stream.create(site.soon(), &StreamSpec::with_shards(SHARDS)).await.context("make the stream")?;
        Ok(site)
    }

    /// The deadline of a call that begins now.
    pub(super) fn soon(&self) -> Monotonic {
        self.env.clock.deadline(CALL_TIMEOUT)
    }
}

/// As any program would, by their addresses.
async fn open_once(file: &Path, env: &Env) -> tenure_store::Result<(Arc<dyn Store>, Arc<dyn Stream>)> {
    let address = format!("sqlite:{}", file.display());
    let store = tenure_store::open(&address, env).await?;
    let stream = tenure_stream::open(&format!("{address}?name=demo"), env).await?;
    Ok((store, stream))
}
