//! The consumer with streams and leases that the tests drive by hand.

mod effects;
mod effects_postgres;
mod endings;
mod events;
mod examples;
mod failures;
mod fleet;
mod harness;
mod keyed;
mod reading;
mod retention;
