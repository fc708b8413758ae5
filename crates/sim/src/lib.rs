//! A small world in which the real machines live, and everything goes wrong.
//!
//! One event simulator runs the pure machines on clocks of their own against a store that fails,
//! forgets and comes late. A schedule is a number: the seed decides settings, faults and every draw, so
//! a failure replays, and is then made small enough to read. Faults run first and then stop, and the
//! world is expected to heal.

pub mod autoscaler;
pub mod calendar;
pub mod cdc;
pub mod command;
pub mod draws;
pub mod election;
pub mod fault;
pub mod fleet;
pub mod leases;
pub mod network;
pub mod node_clock;
pub mod scenario;
pub mod shrink;
pub mod stage;
pub mod trace;
