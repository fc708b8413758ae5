//! Row changes of Postgres, published to a stream: nothing lost, order kept, every event identifiable.

pub mod envelope;
pub mod pgoutput;
pub mod table;
mod value;
