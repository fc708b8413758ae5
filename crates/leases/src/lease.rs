//! A lease as the rest of the crate knows it; `rows.rs` knows how it is stored.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use tenure_stream::{HashRange, SequenceNumber, ShardId};

/// The name of a lease: its shard, with the stream in front where one application reads several
/// (`<stream>:<shard>`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseKey(Arc<str>);

impl LeaseKey {
    /// The lease of a shard, where the application reads one stream.
    #[must_use]
    pub fn of_shard(shard: &ShardId) -> Self {
        Self(shard.as_str().into())
    }

    /// The lease of a shard, where the application reads several streams.
    #[must_use]
    pub fn of_stream(stream: &str, shard: &ShardId) -> Self {
        Self(format!("{stream}:{shard}").into())
    }

    /// As it stands in the table.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for LeaseKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // Most that are compared are the same: names are shared between the rows that a worker has seen.
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for LeaseKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<&str> for LeaseKey {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a worker. No two that live at once may have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// As it stands in the table.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for WorkerId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for WorkerId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<&str> for WorkerId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a shard was processed.
///
/// Checkpoints are ordered: a later one is greater. The three places to begin compare below every record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checkpoint {
    /// Nothing yet: begin with the oldest record that is kept.
    TrimHorizon,
    /// Nothing yet: begin after the newest record.
    Latest,
    /// Nothing yet: begin at the moment that the application is configured with.
    AtTimestamp,
    /// Everything up to and including this record.
    At {
        /// The record as the stream numbers it.
        sequence: SequenceNumber,
        /// Which of the records that were put in one, from 0.
        sub: u64,
    },
    /// Everything: the shard was closed, and has been read to its end.
    ShardEnd,
}

impl Checkpoint {
    /// Whether the shard is done with.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::ShardEnd)
    }
}

/// One lease, as its row said when it was last read.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// Its name.
    pub key: LeaseKey,
    /// The stream, where the application reads several.
    pub stream: Option<Arc<str>>,
    /// The shard.
    pub shard: ShardId,
    /// Who holds it, or is about to. Absent: nobody.
    pub owner: Option<WorkerId>,
    /// Who hands it over at the moment: until this is absent, the owner does not read.
    pub giver: Option<WorkerId>,
    /// Rises with every renewal; whoever sees it stand still for long enough may take the lease.
    pub counter: u64,
    /// How often it changed hands since the last checkpoint.
    pub owner_switches: u64,
    /// How far the shard was processed.
    pub checkpoint: Checkpoint,
    /// The shards that must be read to their end first.
    pub parents: BTreeSet<ShardId>,
    /// The shards that took its place, if that is known.
    pub children: BTreeSet<ShardId>,
    /// The shard's part of the hash space, if that is known.
    pub range: Option<HashRange>,
    /// Measured bytes, in KiB a second, if anybody measured.
    pub throughput_kbps: Option<f64>,
    /// What the consumer stored with the checkpoint (`tenureMarks`). Opaque here.
    pub marks: Option<Bytes>,
}

// For the exhaustive model, which tells states apart by it. A number that was measured has no hash of its own.
impl Hash for Lease {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { key, stream, shard, owner, giver, counter, owner_switches, .. } = self;
        (key, stream, shard, owner, giver, counter, owner_switches).hash(state);
        let Self { checkpoint, parents, children, range, throughput_kbps, marks, .. } = self;
        (checkpoint, parents, children, range, throughput_kbps.map(f64::to_bits), marks).hash(state);
    }
}
