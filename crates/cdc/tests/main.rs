//! What a server really sends: recorded, and live where one is at hand.

mod capture;
mod corpus;
mod golden;
mod same_either_way;
mod server;
