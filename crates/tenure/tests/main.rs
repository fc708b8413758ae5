//! The binary, run as a user runs it: in a directory of its own, by its arguments, judged by its output
//! and exit status.

mod autoscale;
mod bad_input;
#[cfg(feature = "postgres")]
mod cdc;
mod consumer;
mod demo;
mod election;
#[cfg(all(feature = "autoscaler", feature = "aws"))]
mod live_cluster;
mod long_running;
mod postgres;
mod secrets;
mod settings;
mod site;
mod tour;
