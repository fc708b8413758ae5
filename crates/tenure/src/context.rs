//! What every command gets: the settings, the time, and where to print.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tenure_backend::{Env, Kind, Result, Retry, retry_policy};
use tenure_clock::Monotonic;
use tenure_store::{Store, TableSpec};
use tenure_stream::{Shard, Stream, StreamExt};

use crate::failure::{misuse, misuse_if_invalid};
use crate::output::Output;
use crate::settings::Settings;

/// Longest pause before looking again.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often a backend that cannot be reached is tried: a person waits, and would rather know.
const UNAVAILABLE_MAX: u32 = 3;

/// The surroundings of one command.
#[derive(Debug)]
pub(crate) struct Context {
    /// What was configured.
    pub(crate) settings: Settings,
    /// Time and randomness.
    pub(crate) env: Env,
    /// How long one call may take.
    pub(crate) timeout: Duration,
    /// Where answers go.
    pub(crate) out: Output,
}

impl Context {
    /// The moment by which a call that is made now must be answered.
    pub(crate) fn by(&self) -> Monotonic {
        self.env.clock.deadline(self.timeout)
    }

    /// Opens the store, observed.
    pub(crate) async fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        let url = &self.settings.store.url;
        let inner = tenure_store::open(url.reveal(), &self.env)
            .await
            .map_err(misuse_if_invalid)
            .with_context(|| format!("open store {url}"))?;
        Ok(Arc::new(tenure_store::Instrumented::new(inner, self.env.clock.clone())))
    }

    /// Opens the stream, observed.
    pub(crate) async fn stream(&self) -> anyhow::Result<Arc<dyn Stream>> {
        let url = &self.settings.stream.url;
        let inner = tenure_stream::open(url.reveal(), &self.env)
            .await
            .map_err(misuse_if_invalid)
            .with_context(|| format!("open stream {url}"))?;
        Ok(Arc::new(tenure_stream::Instrumented::new(inner, self.env.clock.clone())))
    }

    /// Makes a call that only looks, again if it may be: until the time of one call has passed if it
    /// is throttled, and a few times if the backend cannot be reached.
    ///
    /// # Errors
    /// The last one.
    pub(crate) async fn look<T>(&self, call: impl AsyncFn(Monotonic) -> Result<T>) -> Result<T> {
        let by = self.by();
        let mut unavailable = 0;
        loop {
            let error = match call(by).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            unavailable += u32::from(error.kind() == Kind::Unavailable);
            let again = match retry_policy(error.kind()) {
                Retry::AfterBackoff => true,
                Retry::Soon => unavailable < UNAVAILABLE_MAX,
                Retry::AfterReadingBack | Retry::Never => false,
            };
            let pause = PAUSE_MAX / 2 + self.env.entropy.up_to(PAUSE_MAX / 2);
            if !again || self.env.clock.monotonic() + pause >= by {
                return Err(error);
            }
            tracing::debug!(error = %error.chain(), "a look failed; looking again");
            self.env.clock.sleep(pause).await;
        }
    }

    /// What a table looks like.
    ///
    /// # Errors
    /// A misuse if there is none of that name.
    pub(crate) async fn table(&self, store: &dyn Store, name: &str) -> anyhow::Result<TableSpec> {
        let found =
            self.look(async |by| store.describe_table(by, name).await).await.map_err(misuse_if_invalid)?;
        found.ok_or_else(|| {
            misuse(format!(
                "table `{name}` does not exist in {}: create it with `tenure store create-table {name} --hash pk`, \
                 or correct the name",
                self.settings.store.url
            ))
        })
    }

    /// All shards, closed ones included.
    ///
    /// # Errors
    /// A misuse if there is no such stream.
    pub(crate) async fn shards(&self, stream: &dyn Stream) -> anyhow::Result<Vec<Shard>> {
        let shards = self.look(async |by| stream.all_shards(by).await).await;
        shards.map_err(misuse_if_invalid).context("list the shards")
    }
}
