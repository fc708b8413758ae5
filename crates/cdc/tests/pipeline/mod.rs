//! Whole pipelines, from a real server to a stream.

mod content;
mod faults;
mod flow;
mod refusals;
mod world;
