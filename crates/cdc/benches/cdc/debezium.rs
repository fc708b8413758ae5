//! Debezium's embedded engine beside ours: a small Java program of our own, `peers/Debezium.java`.
//!
//! `xtask` fetches the jars and says where they are.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use tenure_bench::JavaPeer;

use crate::cases::Run;
use crate::cluster::{Cluster, PUBLICATION};
use crate::process::Watched;

const SOURCE: &str = include_str!("peers/Debezium.java");
/// Where `xtask` says that the jars are.
const JARS: &str = "TENURE_BENCH_DEBEZIUM_JARS";

/// The compiled program.
pub(crate) struct Debezium(JavaPeer);

/// What it tells.
#[derive(Deserialize)]
struct Told {
    seconds: f64,
    cpu_before_seconds: f64,
    cpu_seconds: f64,
}

impl Debezium {
    /// Compiles it in the folder.
    pub(crate) fn prepare(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self(JavaPeer::compile("Debezium", SOURCE, JARS, folder)?))
    }

    /// Reads so many events from a slot. Neither its start nor the CPU time of that counts.
    pub(crate) async fn run(&self, cluster: &Cluster, slot: &str, events: u64) -> anyhow::Result<Run> {
        let mut java = self.0.command();
        java.arg(cluster.port().to_string()).args([slot, PUBLICATION]).arg(events.to_string());
        let ended = Watched::start(java, cluster.folder())?.end(None).await?;
        let last = ended.output.lines().last().context("it said nothing")?;
        let told: Told = serde_json::from_str(last).with_context(|| format!("it said {last}"))?;
        let cpu_us = (told.cpu_seconds - told.cpu_before_seconds) * 1e6 / events as f64;
        let run = Run { events_per_s: events as f64 / told.seconds, cpu_us, rss_mib: ended.rss_mib };
        eprintln!("  Debezium: {:.0} events/s, {cpu_us:.2} us CPU, {:.0} MiB", run.events_per_s, run.rss_mib);
        Ok(run)
    }
}
