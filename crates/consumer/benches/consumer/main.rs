//! What consuming costs, and how quickly shards change hands.
//!
//! Run it with `cargo xtask bench consumer --json`, or `cargo bench -p tenure-consumer --bench consumer -- --json`;
//! names of cases after it select those alone. Each row says its aim and whether it was met.

mod embedded;
mod fleet;
mod kcl;
mod records;
mod visit;

use anyhow::bail;
use serde_json::json;

fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    records::measure(&plan)?;
    embedded::measure(&plan)?;
    fleet::measure(&plan)?;
    kcl::measure(&plan)
}

/// What is measured, and how it is told.
pub(crate) struct Plan {
    json: bool,
    only: Vec<String>,
}

/// What a value should be.
#[derive(Clone, Copy)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
    /// It stands beside another.
    None,
}

impl Plan {
    fn from_args(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut plan = Self { json: false, only: Vec::new() };
        for argument in arguments {
            match argument.as_str() {
                "--json" => plan.json = true,
                "--bench" => {}
                option if option.starts_with('-') => {
                    bail!("unknown option {option}: there is --json, and names of cases")
                }
                name => plan.only.push(name.to_owned()),
            }
        }
        Ok(plan)
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| case.contains(name.as_str()))
    }

    pub(crate) fn say(&self, case: &str, backend: &str, value: f64, unit: &str, aim: Aim) {
        let value = (value * 1000.0).round() / 1000.0;
        let (target, ok) = match aim {
            Aim::AtMost(target) => (Some(target), value <= target),
            Aim::AtLeast(target) => (Some(target), value >= target),
            Aim::None => (None, true),
        };
        if self.json {
            let row = json!({
                "bench": "consumer", "case": case, "backend": backend, "value": value, "unit": unit,
                "target": target, "ok": ok,
            });
            println!("{row}");
        } else {
            let aim = target.map_or_else(String::new, |target| format!("(aim {target})"));
            println!(
                "{case:<30} {backend:<8} {value:>10.3} {unit:<8} {aim} {}",
                if ok { "" } else { "MISSED" }
            );
        }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// User and system time of this process.
pub(crate) fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in brackets, may hold anything.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse().unwrap_or(0.0)).sum();
    // Linux's clock ticks, as it shows them to user space.
    Ok(ticks / 100.0)
}
