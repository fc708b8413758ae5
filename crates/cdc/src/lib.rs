//! Row changes of Postgres, published to a stream: nothing lost, order kept, every event identifiable.

pub mod pgoutput;
pub mod server;
pub mod transport;
