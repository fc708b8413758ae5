//! The consumer with streams and leases that the tests drive by hand.

mod endings;
mod failures;
mod harness;
mod reading;
