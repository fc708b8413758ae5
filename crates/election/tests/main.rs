//! Tests across the crate's modules.

#[cfg(feature = "postgres")]
mod advisory;
#[cfg(feature = "dynamodb")]
mod emulator;
#[cfg(feature = "dynamodb")]
mod go_peer;
mod model;
mod stores;
