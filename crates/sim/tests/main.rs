//! The worlds hold, the positive controls do not, and every run can be told again.

mod autoscaler;
mod cdc;
mod election;
mod leases;
mod processes;

const THREADS: usize = 2;

fn long() -> bool {
    std::env::var_os("TENURE_LONG").is_some_and(|value| value == "1")
}

fn quiet(_done: u64) {}
