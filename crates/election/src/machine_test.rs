//! The rules of `machine.rs`, told as short timelines.
