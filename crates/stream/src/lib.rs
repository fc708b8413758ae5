//! A sharded, ordered, replayable log.
//!
//! Kinesis's model is the model: shards own ranges of a 128-bit hash space, a record goes to the shard
//! whose range holds the MD5 of its partition key (or its explicit hash key), order holds within a
//! shard, a closed shard ends and its children go on.
//!
//! - [`Stream`] is the trait; [`open`] makes one from an address (`sqlite:./tenure.db`).
//! - `shard.rs`, `sequence.rs`, `record.rs`, `limits.rs`, `reshaping.rs` are pure: how a record chooses
//!   its shard is [`HashKey::of`] and [`route`].
//! - [`identity`] is what a published change carries, so that nobody takes it for another or for new.
//! - [`kpl`] puts several records in one and takes them apart, in Amazon's format.
//! - Backends: [`Memory`], `Sqlite`, `Kinesis` (a feature each). Wrappers: [`Faulty`], [`Instrumented`].
//! - [`conformance`] is the suite that every one of them passes.

#[cfg(any(feature = "conformance", doc))]
pub mod conformance;
mod digests;
mod embedded;
mod faulty;
pub mod identity;
mod instrumented;
#[cfg(feature = "kinesis")]
mod kinesis;
pub mod kpl;
mod limits;
mod lineage;
mod memory;
mod opening;
mod record;
pub mod reshaping;
mod sequence;
mod shard;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stream;

pub use faulty::Faulty;
pub use instrumented::Instrumented;
#[cfg(feature = "kinesis")]
pub use kinesis::{Kinesis, KinesisPlace};
pub use limits::{
    BYTES_PER_READ, KEY_CHARACTERS_MAX, Limits, RECORD_BYTES_RANGE, RECORDS_PER_PUT_MAX,
    RECORDS_PER_READ_MAX, SHARDS_MAX, ShardRate, check_name,
};
pub use memory::Memory;
pub use opening::open;
pub use record::{Batch, Cursor, Position, Put, Read, Record, Stored};
pub use sequence::SequenceNumber;
pub use shard::{HashKey, HashRange, Shard, ShardId, route};
#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;
pub use stream::{Description, Page, PageToken, ShardPage, Stream, StreamExt, StreamSpec};
/// What every backend shares, for callers that match on [`Kind`].
pub use tenure_backend::{Env, Error, Kind, Result};
