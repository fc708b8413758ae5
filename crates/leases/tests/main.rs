//! Tests across the crate's modules.

mod fleet;
