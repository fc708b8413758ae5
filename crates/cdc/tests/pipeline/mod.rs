//! Whole pipelines, from a real server to a stream.

mod content;
mod faults;
mod flow;
#[cfg(feature = "kinesis")]
mod kinesis;
mod refusals;
mod world;
