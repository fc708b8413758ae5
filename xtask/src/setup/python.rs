//! Programs of Python's, each in an environment of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;

/// One program at one version.
pub(super) struct Program {
    /// The folder of its environment.
    pub(super) name: &'static str,
    /// What is installed, with its extras.
    pub(super) package: &'static str,
    pub(super) version: &'static str,
}

/// Checks templates of CloudFormation.
pub(super) const CFN_LINT: Program = Program { name: "cfn-lint", package: "cfn-lint", version: "1.58.0" };

impl Program {
    /// The Python that has it, if it was set up. A program's own script names the folder in which it was made, so it is
    /// started by this Python.
    pub(super) fn python(&self, cache: &Cache) -> Option<PathBuf> {
        let python = cache.python(self.name, self.version).join("bin/python");
        python.exists().then_some(python)
    }

    pub(super) fn install(&self, cache: &Cache) -> Result<()> {
        let folder = cache.python(self.name, self.version);
        let unfinished = folder.with_added_extension("unfinished");
        for left in [&folder, &unfinished] {
            if left.exists() {
                fs::remove_dir_all(left).context("remove what an earlier run left")?;
            }
        }
        let step = Step::begin(format!("pip install {}=={}", self.package, self.version));
        let mut venv = Command::new("python3");
        child::run_quietly(venv.args(["-m", "venv"]).arg(&unfinished), &step)
            .context("on Debian, python3-venv is needed")?;
        let mut pip = Command::new(unfinished.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.arg(format!("{}=={}", self.package, self.version));
        child::run_quietly(&mut pip, &step).context("is the Python package index reachable?")?;
        fs::rename(&unfinished, &folder).with_context(|| format!("move it to {}", folder.display()))?;
        step.done("installed");
        Ok(())
    }
}

/// The Python with cfn-lint, if it was set up.
pub(crate) fn cfn_lint(cache: &Cache) -> Option<PathBuf> {
    CFN_LINT.python(cache)
}
