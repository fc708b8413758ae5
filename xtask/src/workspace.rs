//! The checkout this run works on, and the cargo that started it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The root folder of the checkout.
///
/// Read at run time first: checkouts may share one target directory, and then the folder that was
/// compiled in can be another checkout's.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or(manifest.clone(), Path::to_path_buf)
}

/// Cargo at the root of the checkout; it inherits `CARGO_TARGET_DIR`.
///
/// Not what cargo told us of ourselves: some build scripts ask to be run again when it changes, and then the same
/// command would build half of the workspace anew, by hand and by a chore in turn.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let of_ourselves = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_ourselves) {
            command.env_remove(name);
        }
    }
    command.args(arguments).current_dir(root());
    command
}

/// What `cargo metadata` says of our own packages.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) features: std::collections::BTreeMap<String, Vec<String>>,
}

pub(crate) fn metadata() -> Result<Metadata> {
    let output =
        cargo(["metadata", "--no-deps", "--format-version", "1"]).output().context("run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("read cargo metadata")
}
