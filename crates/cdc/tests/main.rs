//! Tests that need a server.
//! What a server really sends: recorded, and live where one is at hand.

mod capture;
mod corpus;
mod envelope;
mod golden;
mod pipeline;
mod same_either_way;
mod server;
mod transport;
