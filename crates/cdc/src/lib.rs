//! Row changes of Postgres, published to a stream: nothing lost, order kept, every event identifiable.
//!
//! ```text
//! transport ─► pgoutput ─► assembler ─► intake ─► publisher ─► sink
//!     ▲                               (lanes)       │ frontier
//!     └────────── feedback ◄── checkpoint row ◄─────┘
//! ```
//!
//! [`service::Service`] runs it all. What decides is pure: [`pgoutput`], [`intake`], [`publisher`],
//! [`shard_budget`], [`frontier`], [`checkpoint`], [`start`]. What does it is thin: [`transport`], [`sink`], `pipeline`.

pub mod assembler;
pub mod checkpoint;
pub mod envelope;
pub mod framing;
pub mod frontier;
pub mod intake;
pub mod pgoutput;
mod pipeline;
pub mod progress;
pub mod publisher;
#[cfg(test)]
mod seed_errors_test;
pub mod server;
pub mod service;
pub mod settings;
pub mod shapes;
pub mod shard_budget;
pub mod sink;
mod spill;
pub mod start;
pub mod table;
pub mod transport;
mod value;

/// What does not fit in the stream.
pub use tenure_quarantine as quarantine;
