//! Programs of Debian's packages that are unpacked and not installed: installed, some of them would start a
//! server of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::child;
use crate::progress::Step;

/// Downloads a Debian package and unpacks it below `work`; nothing is installed.
pub(super) fn unpack_package(name: &str, work: &Path, step: &Step) -> Result<PathBuf> {
    let folder = work.join(name);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let is_root = rustix::process::geteuid().is_root();
    let mut download = Command::new("apt-get");
    if is_root {
        // Otherwise a helper user is tried first, who may not enter a home directory.
        download.args(["-o", "APT::Sandbox::User=root"]);
    }
    download.args(["-q", "download", name]).current_dir(&folder);
    if child::run_quietly(&mut download, step).is_err() && is_root {
        // Fresh machines have no lists yet, and old ones name versions that are gone.
        child::run_quietly(&mut super::apt_get(&["update"]), step)?;
    }
    let mut found = package_in(&folder)?;
    if found.is_none() {
        child::run_quietly(&mut download, step).with_context(|| {
            format!("fetch the package `{name}`: run `apt-get update` as root, and this again")
        })?;
        found = package_in(&folder)?;
    }
    let package = found.context("apt-get downloaded no package")?;
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(&package).arg(&folder);
    child::run_quietly(&mut unpack, step)?;
    Ok(folder)
}

fn package_in(folder: &Path) -> Result<Option<PathBuf>> {
    let files = fs::read_dir(folder).context("list the packages")?.flatten();
    Ok(files.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|it| it == "deb")))
}
