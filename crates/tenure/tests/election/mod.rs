//! Elections between real processes: `tenure elect`, `leaders` and `resign`, and what happens when processes
//! are killed, stopped, or live in another hour, and when the store goes away.
//!
//! `stories.rs` tells what must happen; the files with the names of stores tell it there.
#![cfg(feature = "sqlite")]

mod bad_input;
mod candidate;
#[cfg(feature = "aws")]
mod dynamodb_local;
mod sqlite;
mod stories;
mod world;
