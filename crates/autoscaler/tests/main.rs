//! Behaviour of the whole crate, on a simulated cloud and cluster; and of the drivers, on real servers.

mod asked;
mod bad_input;
#[cfg(any(feature = "kubernetes", feature = "prometheus"))]
mod canned;
mod crash_matrix;
mod doubts;
#[cfg(feature = "ec2")]
mod ec2;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod model;
#[cfg(feature = "dynamodb")]
mod old_peers;
mod old_writers;
mod ordering_rules;
#[cfg(feature = "prometheus")]
mod prometheus;
mod seed_items;
mod stories;
mod table;
