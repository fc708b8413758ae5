//! Who reads which shard.
//!
//! A lease is one row per shard, in the table format of the KCL, and whoever renews it may deliver the
//! shard's records. This crate keeps leases: it takes, renews, hands over and gives back. It does not read
//! records; that is the consumer's part, which gets a [`Holding`] for every lease that is held.
//!
//! `machine.rs` decides for one worker, `plan.rs` who should hold what, `lineage.rs` which leases there should
//! be; `rows.rs` translates, `keeper.rs` and `calls.rs` carry out, `admin.rs` is for a person at a terminal.

pub mod admin;
mod attempt;
mod calls;
pub mod holding;
mod keeper;
mod lease;
pub mod lineage;
pub mod machine;
pub mod plan;
pub mod rows;
mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use attempt::{Attempt, Note, Presence};
pub use holding::{Ending, Holding};
pub use keeper::{Builder, Keeper, KeeperHandle};
pub use lease::{Checkpoint, Lease, LeaseKey, WorkerId};
pub use settings::{Balance, COORDINATION_TABLE, InitialPosition, Settings, Timing};
pub use tenure_backend::{Env, Error, Kind, Result};
