//! Tests across the crate's modules.

mod capacity;
mod fleet;
mod model;
