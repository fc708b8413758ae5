//! moto, the emulator of EC2, in an environment of Python's own.
//!
//! Only for EC2: as a store or a stream it loses what it acknowledged.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;

const PACKAGE: &str = "moto[ec2,server]";
const VERSION: &str = "5.2.5";

/// The Python that has it, if it was set up. Its own scripts name the folder in which they were made, so
/// `python -m moto.server` is how it starts.
pub(crate) fn python(cache: &Cache) -> Option<PathBuf> {
    let python = cache.python("moto", VERSION).join("bin/python");
    python.exists().then_some(python)
}

pub(super) fn is_there(cache: &Cache) -> bool {
    python(cache).is_some()
}

pub(super) fn install(cache: &Cache) -> Result<()> {
    let folder = cache.python("moto", VERSION);
    let unfinished = folder.with_added_extension("unfinished");
    for left in [&folder, &unfinished] {
        if left.exists() {
            fs::remove_dir_all(left).context("remove what an earlier run left")?;
        }
    }
    let step = Step::begin(format!("pip install {PACKAGE}=={VERSION}"));
    let mut venv = Command::new("python3");
    child::run_quietly(venv.args(["-m", "venv"]).arg(&unfinished), &step)
        .context("on Debian, python3-venv is needed")?;
    let mut pip = Command::new(unfinished.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.arg(format!("{PACKAGE}=={VERSION}"));
    child::run_quietly(&mut pip, &step).context("is the Python package index reachable?")?;
    fs::rename(&unfinished, &folder).with_context(|| format!("move it to {}", folder.display()))?;
    step.done("installed");
    Ok(())
}
