//! Who reads which shard.
//!
//! A lease is one row per shard, in the table format of the KCL, and whoever renews it may deliver the
//! shard's records. This crate keeps leases: it takes, renews, hands over and gives back. It does not read
//! records; that is the consumer's part, which gets a [`Holding`] for every lease that is held.

pub mod capacity;
pub mod holding;
mod lease;

pub use holding::{Ending, Holding};
pub use lease::{Checkpoint, Lease, LeaseKey, WorkerId};
pub use tenure_backend::{Env, Error, Kind, Result};
