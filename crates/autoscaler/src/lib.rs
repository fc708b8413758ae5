//! Cluster scaling as crash-safe, resumable actions on one row.
//!
//! One item holds what is under way. A tick reads it, looks at instances, nodes and pods, decides, records
//! and acts; any tick may die anywhere, and the next one, in any process, goes on.
//!
//! ```text
//!   state.rs · rows.rs        what is stored
//!   table.rs · change.rs      the one transition table: writes, checker, documentation
//!   machine.rs                step(state, observation, policy, now) -> effects; pure
//!   executor.rs · ports.rs    carries them out: cloud, cluster, metrics
//!   book.rs                   the item and its log in a store
//!   kubernetes.rs             the cluster by its API server    (feature `kubernetes`)
//!   prometheus.rs             loads by its HTTP API            (feature `prometheus`)
//!   ec2.rs                    instances by the AWS SDK         (feature `ec2`)
//!   edges.rs                  all three together
//!   backlog.rs                how far consumers are behind     (feature `backlog`)
//!   trial.rs                  a policy on a trace of demand, on paper
//!   check.rs · repair.rs      what is wrong with an item, and mending it
//!   settings.rs               what an operator writes          (feature `settings`)
//! ```

#[cfg(feature = "backlog")]
pub mod backlog;
mod book;
pub mod change;
pub mod check;
#[cfg(feature = "ec2")]
pub mod ec2;
#[cfg(feature = "edges")]
mod edges;
mod executor;
#[cfg(any(feature = "ec2", feature = "kubernetes"))]
mod intent;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod log;
pub mod machine;
pub mod observation;
pub mod placement;
mod policy;
pub mod ports;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub mod repair;
pub mod rows;
pub mod rules;
#[cfg(feature = "settings")]
pub mod settings;
pub mod state;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trial;

pub use book::{Book, Places};
#[cfg(feature = "edges")]
pub use edges::Edges;
pub use executor::{Adopted, Builder, Drain, DrainCheck, Executor, Leftovers, Plan, Planned, Ports, Tick};
pub use machine::{Effect, Needs, Now, Step, needs, step};
pub use policy::{Policy, Readiness};
