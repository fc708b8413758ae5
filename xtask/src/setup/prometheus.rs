//! Debian's Prometheus, unpacked into the cache: a plain program that needs nothing else of its package.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::progress::Step;
use crate::setup::debian::unpack_package;

/// The program, if it was set up.
pub(crate) fn program(cache: &Cache) -> Option<PathBuf> {
    let program = cache.prometheus().join("prometheus");
    program.is_file().then_some(program)
}

pub(super) fn is_there(cache: &Cache) -> bool {
    program(cache).is_some()
}

pub(super) fn install(cache: &Cache) -> Result<()> {
    for needed in ["apt-get", "dpkg-deb"] {
        ensure!(
            super::on_path(needed).is_some(),
            "no `{needed}`: Prometheus comes from Debian. Tests without it: `cargo xtask test --embedded`"
        );
    }
    let folder = cache.prometheus();
    let work = folder.with_added_extension("unfinished");
    if work.exists() {
        fs::remove_dir_all(&work).context("remove what an earlier run left")?;
    }
    let bin = work.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
    let step = Step::begin("download Prometheus");
    let program = unpack_package("prometheus", &work, &step)?.join("usr/bin/prometheus");
    fs::copy(&program, bin.join("prometheus")).with_context(|| format!("copy {}", program.display()))?;
    fs::rename(&bin, &folder).with_context(|| format!("move the program to {}", folder.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    step.done("unpacked");
    Ok(())
}
