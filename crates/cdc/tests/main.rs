//! Tests that need a server.

mod envelope;
