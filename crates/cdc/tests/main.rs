//! Tests that need a server.
