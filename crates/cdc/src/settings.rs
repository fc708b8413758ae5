//! What a pipeline is told.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Result};
use tenure_stream::identity::{Lanes, check_source};

use crate::assembler::SpillSettings;
use crate::publisher::PublisherSettings;
use crate::transport::{PublicationName, SlotName};

/// See the module.
#[derive(Debug, Clone)]
pub struct PipelineSettings {
    /// The pipeline's name: several may feed one stream.
    pub source: Arc<str>,
    /// The slot that it reads from.
    pub slot: SlotName,
    /// What it publishes.
    pub publications: Vec<PublicationName>,
    /// How many lanes; fixed for an era.
    pub lanes: Lanes,
    /// What `pg_logical_emit_message` wrote is published too.
    pub messages: bool,
    /// Large transactions come while they run, and wait on our disk for their commit. Otherwise they wait on
    /// the server's, and come once they have committed, as they always do with `messages`. Off unless asked for,
    /// see `docs/decisions/0007`.
    pub streaming: bool,
    /// How much may be under way.
    pub publisher: PublisherSettings,
    /// Where large transactions wait for their commit.
    pub spill: SpillSettings,
    /// The table for Tenure's own rows.
    pub table: Arc<str>,
    /// How often the checkpoint is written while there is something to write.
    pub checkpoint_interval: Duration,
    /// How often it only follows the server's idle progress.
    pub idle_checkpoint_interval: Duration,
    /// How often the server hears of us.
    pub feedback_interval: Duration,
    /// After this a call to the sink or the store has failed.
    pub call_timeout: Duration,
    /// How long a planned stop waits for the open transaction and for what is under way.
    pub drain_timeout: Duration,
}

impl PipelineSettings {
    /// The settings that suit most.
    #[must_use]
    pub fn new(source: Arc<str>, slot: SlotName, publications: Vec<PublicationName>, lanes: Lanes) -> Self {
        Self {
            source,
            slot,
            publications,
            lanes,
            messages: false,
            streaming: false,
            publisher: PublisherSettings::default(),
            spill: SpillSettings { directory: default_spill_directory(), bytes_max: 64 << 30 },
            table: tenure_election::TABLE.into(),
            checkpoint_interval: Duration::from_millis(500),
            idle_checkpoint_interval: Duration::from_secs(10),
            feedback_interval: Duration::from_secs(2),
            call_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(20),
        }
    }

    /// Checks everything that can be checked without a server.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn validate(&self) -> Result<()> {
        check_source(&self.source)?;
        let publisher = &self.publisher;
        let problem = if self.publications.is_empty() {
            "no publication is named: name at least one"
        } else if publisher.inflight_events_max == 0 || publisher.inflight_bytes_max == 0 {
            "nothing may be under way: give at least one event and one byte"
        } else if publisher.calls_max == 0 {
            "no call may be made: give at least one"
        } else if publisher.backoff_min.is_zero() || publisher.backoff_min > publisher.backoff_max {
            "the first wait after a failure must be more than zero and at most the longest"
        } else if self.feedback_interval.is_zero() || self.call_timeout.is_zero() {
            "intervals and time-outs must be more than zero"
        } else {
            return Ok(());
        };
        Err(Error::invalid(problem))
    }
}

/// The system's directory for temporary files that may be large.
fn default_spill_directory() -> PathBuf {
    let large = PathBuf::from("/var/tmp");
    if large.is_dir() { large } else { std::env::temp_dir() }
}
