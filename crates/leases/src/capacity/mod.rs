//! How many leases a worker may hold.
//!
//! One row says it for all workers of an application: `max = min(limit, ceil(shards / workers))`. A worker
//! that starts reads the row, and writes it on a condition if it sees other numbers; whoever loses that race
//! uses the winner's row. After that one elected leader keeps the row true to the fleet that lives, and every
//! worker watches it, so that nobody needs a restart.
//!
//! The table is shared with workers of the same protocol written in Go. Their columns keep their names, types
//! and meaning; ours are beside them and may be missing, because a Go worker's put wipes them.
//!
//! ```text
//!   shards, workers ──► row's max ─┐
//!   demand (leases not at their end) ──► cap in effect, never above the limit ──► keeper
//! ```
//!
//! `formula.rs` and `machine.rs` decide, `rows.rs` translates, `manager.rs` carries out.

mod census;
mod explain;
mod formula;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod machine;
mod manager;
mod rows;
mod settings;

pub use census::{Census, Count, Declared, Heartbeats, OpenShards, WORKER_COUNT};
pub use explain::{Alarm, Explanation, Survey, survey};
pub use formula::{Cap, Deficit, LIMIT, Why, effective, max_leases};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{Kubernetes, Workload};
pub use machine::{
    Adjuster, Evidence, Fleet, Member, Opening, Report, TICKS_DOWN, TICKS_UP, Target, opening,
};
pub use manager::{Builder, CapacityHandle, CapacityManager};
pub use rows::{Behind, Ours, Place, Row, table_spec};
pub use settings::{OnDeficit, Settings};
