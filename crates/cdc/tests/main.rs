//! Tests that need a server.

mod transport;
