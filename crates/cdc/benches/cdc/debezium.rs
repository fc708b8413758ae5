//! Debezium's embedded engine beside ours: a small Java program of our own, `peers/Debezium.java`.
//!
//! `xtask` fetches the jars and says where they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cases::Run;
use crate::cluster::{Cluster, PUBLICATION};
use crate::process::Watched;

const SOURCE: &str = include_str!("peers/Debezium.java");
/// Where `xtask` says that the jars are.
const JARS: &str = "TENURE_BENCH_DEBEZIUM_JARS";
/// Far more than it needs, and less than Java would take of a large machine by itself.
const HEAP: &str = "-Xmx512m";

/// The compiled program.
pub(crate) struct Debezium {
    class_path: String,
}

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
        let jars: PathBuf = std::env::var_os(JARS)
            .with_context(|| format!("no jars: run it by `cargo xtask bench cdc`, or set {JARS}"))?
            .into();
        let classes = folder.join("debezium");
        std::fs::create_dir_all(&classes)?;
        let source = classes.join("Debezium.java");
        std::fs::write(&source, SOURCE)?;
        let jars = format!("{}/*", jars.display());
        let mut javac = Command::new("javac");
        let compiled = javac.args(["-cp", &jars, "-d"]).arg(&classes).arg(&source).output();
        let compiled = compiled.context("run javac: install a JDK, on Debian `default-jdk-headless`")?;
        ensure!(compiled.status.success(), "javac: {}", String::from_utf8_lossy(&compiled.stderr).trim());
        Ok(Self { class_path: format!("{jars}:{}", classes.display()) })
    }

    /// Reads so many events from a slot. Neither its start nor the CPU time of that counts.
    pub(crate) async fn run(&self, cluster: &Cluster, slot: &str, events: u64) -> anyhow::Result<Run> {
        let mut java = Command::new("java");
        java.args([HEAP, "-cp", &self.class_path, "Debezium"]);
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
