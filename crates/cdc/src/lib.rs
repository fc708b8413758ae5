//! Row changes of Postgres, published to a stream: nothing lost, order kept, every event identifiable.

pub mod assembler;
pub mod checkpoint;
pub mod envelope;
pub mod framing;
pub mod frontier;
pub mod pgoutput;
pub mod publisher;
pub mod quarantine;
pub mod sink;
mod spill;
pub mod start;
pub mod table;
mod value;
