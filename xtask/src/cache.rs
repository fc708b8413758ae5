//! Where set-up is kept, outside the checkout, so that it is done once per machine.
//!
//! `TENURE_CACHE` moves it; the default is `~/.cache/tenure`.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn locate() -> Result<Cache> {
        let root = match env::var_os("TENURE_CACHE").filter(|value| !value.is_empty()) {
            Some(root) => std::path::absolute(root).context("resolve TENURE_CACHE")?,
            None => env::home_dir().context("no home directory: set TENURE_CACHE")?.join(".cache/tenure"),
        };
        Ok(Cache { root })
    }

    /// The folder of one npm package at one version; it exists only once fully installed.
    pub(crate) fn npm(&self, package: &str, version: &str) -> PathBuf {
        let folder = package.trim_start_matches('@').replace('/', "-");
        self.root.join("npm").join(format!("{folder}-{version}"))
    }

    pub(crate) fn loopback(&self) -> PathBuf {
        self.root.join("loopback")
    }

    /// An environment of Python's with a Java program's jars in it; it exists only once fully installed.
    pub(crate) fn java_peer(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}-venv"))
    }

    /// The API server of Kubernetes and its etcd; it exists only once both are there.
    pub(crate) fn kubernetes(&self, version: &str) -> PathBuf {
        self.root.join("kubernetes").join(version)
    }

    /// Debian's Prometheus; it exists only once the program is in it.
    pub(crate) fn prometheus(&self) -> PathBuf {
        self.root.join("prometheus")
    }

    /// An environment of Python's with one program at one version; it exists only once fully installed.
    pub(crate) fn python(&self, program: &str, version: &str) -> PathBuf {
        self.root.join("python").join(format!("{program}-{version}"))
    }

    /// Where `--cfg planted` builds: never mixed with what is run in earnest.
    pub(crate) fn planted_target(&self) -> PathBuf {
        self.root.join("planted-target")
    }

    pub(crate) fn services(&self) -> PathBuf {
        self.root.join("services")
    }

    /// Waits for the set-up of another run to end; released on drop.
    pub(crate) fn lock_setup(&self) -> Result<File> {
        lock(&self.root.join("setup.lock"))
    }
}

/// Takes an advisory lock that ends with this process, however it ends.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let folder = path.parent().context("a lock lives in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another run that holds {}", path.display());
        file.lock().with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scoped_packages_get_one_folder_each() {
        let cache = Cache { root: PathBuf::from("/c") };
        assert_eq!(cache.npm("@dynoxide/linux-x64", "1.2.1"), Path::new("/c/npm/dynoxide-linux-x64-1.2.1"));
    }
}
