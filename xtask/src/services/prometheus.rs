//! Prometheus, on loopback, with nothing to scrape: tests name their exporters in a folder that it watches.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::server::Launch;
use crate::cache::Cache;
use crate::setup;

/// Where tests put files like `[{"targets": ["127.0.0.1:1234"], "labels": {"site": "x"}}]`, named `*.json`.
pub(super) fn targets_path(dir: &Path) -> PathBuf {
    dir.join("targets")
}

pub(super) fn launch(cache: &Cache, dir: &Path, port: u16) -> Result<Launch> {
    let program = setup::prometheus_program(cache).context("no Prometheus: run `cargo xtask setup`")?;
    let targets = targets_path(dir);
    fs::create_dir(&targets).with_context(|| format!("create {}", targets.display()))?;
    let config = dir.join("prometheus.yml");
    fs::write(&config, configuration(&targets)).with_context(|| format!("write {}", config.display()))?;
    let arguments = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", dir.join("data").display()),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    let arguments = arguments.map(Into::into).into();
    Ok(Launch { program: program.into(), arguments, environment: Vec::new(), user: None })
}

/// Often, so that tests need not wait.
fn configuration(targets: &Path) -> String {
    format!(
        "global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
- job_name: tests
  file_sd_configs:
  - files: ['{}/*.json']
    refresh_interval: 1s
",
        targets.display()
    )
}
