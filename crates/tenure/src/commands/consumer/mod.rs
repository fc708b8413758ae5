//! Reading the stream: `tenure consume`, and what its workers agree on.
//!
//! - `consume.rs` runs a worker; `print.rs` prints its records, `exec.rs` runs a command for them.
//! - `leases.rs` shows and moves leases, `control.rs` is how it tells workers to pause and seek; `workers.rs` and `capacity.rs` show how many each worker may hold.

pub(crate) mod capacity;
pub(crate) mod consume;
mod control;
mod exec;
pub(crate) mod leases;
mod print;
pub(crate) mod workers;

use tenure_leases::capacity::Settings as CapacitySettings;

use crate::context::Context;
use crate::settings::Flag;

/// Which application.
#[derive(clap::Args)]
pub(crate) struct App {
    /// The application whose workers share the stream [default: tenure]
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
}

impl App {
    fn flags(&self) -> Vec<Flag> {
        flag("--app", "consumer.app", self.app.as_ref()).into_iter().collect()
    }
}

/// A flag that was given.
fn flag(name: &'static str, path: &'static str, value: Option<&String>) -> Option<Flag> {
    value.map(|value| Flag { name, path, value: value.clone() })
}

/// How many leases a worker may hold, as configured.
fn capacity_settings(context: &Context) -> CapacitySettings {
    let consumer = &context.settings.consumer;
    let usual = CapacitySettings::default();
    CapacitySettings {
        enable_dynamic_max_leases: consumer.enable_dynamic_max_leases.0,
        max_leases: consumer.max_leases.map_or(usual.max_leases, |max| max.0.0.into()),
        limit: consumer.max_leases_limit.0.0.into(),
        lease: consumer.lease.0,
        ..usual
    }
}
