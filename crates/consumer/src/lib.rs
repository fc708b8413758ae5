//! Reads the shards that a worker holds and hands their records to your code.
//!
//! ```text
//!   leases ──► Worker ──► one task per shard: ShardReader ──► Delivery ──► your ShardProcessor
//!                                              (ahead, within a budget)       │ settled
//!              lease row ◄── checkpoint and marks ◄── Watermark ◄─────────────┘
//! ```
//!
//! What decides is pure: [`dedup`], [`marks`], [`opening`], [`watermark`], `intake`, `progress`.
//! What does it is thin: `shard_reader`, `delivery`, `shard_task`, [`Worker`].
//!
//! A processor sees every record at least once, in the order of its shard, and again only what it had processed
//! after its last checkpoint before a crash. Copies that a publisher of changes sent are dropped. For an effect
//! of exactly once, `transactional_marks` keeps the marks in the transaction of the effect.
//!
//! [`Consumer`] puts leases and worker together: begin there, and with the programs in `examples/`.

mod board;
mod checkpointer;
mod claim_checks;
mod consumer;
pub mod dedup;
mod delivery;
pub mod header;
mod intake;
mod keyed;
pub mod marks;
mod meters;
pub mod opening;
mod processor;
mod progress;
mod record;
mod recovery;
mod retention;
mod settings;
mod shard_reader;
mod shard_task;
mod stop;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod transactional_marks;
pub mod watermark;
mod worker;

pub use board::{ShardState, ShardStatus};
pub use checkpointer::Checkpointer;
pub use consumer::{Builder, Consumer};
pub use keyed::{Keyed, KeyedProcessor};
pub use opening::{SeekTo, Start};
pub use processor::{Batch, Drain, Failure, ProcessorFactory, Settlement, ShardContext, ShardProcessor};
pub use record::{Delivered, Place, Pointer, PointerKind};
pub use settings::{OnDamaged, OnFailure, Settings};
pub use stop::Stop;
pub use tenure_backend::{Env, Error, Kind, Result};
pub use worker::{Worker, WorkerHandle};
