//! Behaviour of the whole crate, on a simulated cloud and cluster.

mod bad_input;
mod crash_matrix;
mod old_writers;
mod ordering_rules;
mod seed_items;
mod stories;
mod table;
