//! Row changes of Postgres, published to a stream: nothing lost, order kept, every event identifiable.

pub mod assembler;
pub mod pgoutput;
mod spill;
