//! Reads the shards that a worker holds and hands their records to your code.

pub mod dedup;
pub mod header;
mod intake;
pub mod marks;
pub mod opening;
mod progress;
mod record;
mod settings;
mod stop;
pub mod watermark;

pub use record::{Delivered, Place, Pointer, PointerKind};
pub use settings::{OnDamaged, OnFailure, Settings};
pub use stop::Stop;
