//! What stands between the autoscaler and its real servers in tests, and what plays the parts that nobody runs.
//!
//! ```text
//!   tenure ──▶ Shim ──▶ moto               client tokens, refusals, lost replies
//!          ──▶ Tap  ──▶ DynamoDB emulator  every write of one table, in order
//!          ──▶ Gate ──▶ API server         falls silent and comes back
//!
//!   Cloud (ec2.rs)           a subnet, a launch template, a control plane in moto   (feature `players`)
//!   Cluster (kubernetes.rs)  kubelets, replica sets, the disruption controller      (feature `players`)
//! ```
//!
//! Everything is on loopback. Servers are `cargo xtask services`'.

#[cfg(feature = "players")]
pub mod ec2;
mod exporter;
mod gate;
mod http1;
#[cfg(feature = "players")]
pub mod kubernetes;
mod shim;
mod tap;

pub use exporter::Exporter;
pub use gate::Gate;
pub use shim::{Call, Fault, NoWatcher, Shim, Watcher};
pub use tap::{NoReader, Reader, Tap, Wrote};

/// A variable of `cargo xtask services env`.
///
/// # Panics
/// If it is not set, with what to do.
#[must_use]
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use \
             `cargo xtask test`"
        )
    })
}
