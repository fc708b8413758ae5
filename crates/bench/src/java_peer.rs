//! A peer that is written in Java: a small program of ours against the peer's jars, which `xtask` fetches.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Far more than the peers need, and less than Java would take of a large machine by itself.
const HEAP: &str = "-Xmx512m";

/// A compiled program.
#[derive(Debug)]
pub struct JavaPeer {
    class: &'static str,
    class_path: String,
}

impl JavaPeer {
    /// Compiles a program of one class in the folder, against the jars that the variable names.
    ///
    /// # Errors
    /// If there are no jars or no compiler, or the compiler refuses it.
    pub fn compile(class: &'static str, source: &str, variable: &str, folder: &Path) -> anyhow::Result<Self> {
        let jars: PathBuf = std::env::var_os(variable)
            .with_context(|| format!("no jars: run it by `cargo xtask bench`, or set {variable}"))?
            .into();
        let classes = folder.join(class);
        std::fs::create_dir_all(&classes)?;
        let file = classes.join(class).with_extension("java");
        std::fs::write(&file, source)?;
        let jars = format!("{}/*", jars.display());
        let mut javac = Command::new("javac");
        let compiled = javac.args(["-cp", &jars, "-d"]).arg(&classes).arg(&file).output();
        let compiled = compiled.context("run javac: install a JDK, on Debian `default-jdk-headless`")?;
        ensure!(compiled.status.success(), "javac: {}", String::from_utf8_lossy(&compiled.stderr).trim());
        Ok(Self { class, class_path: format!("{jars}:{}", classes.display()) })
    }

    /// What starts it; its arguments are still to be added.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut java = Command::new("java");
        java.args([HEAP, "-cp", &self.class_path, self.class]);
        java
    }
}
