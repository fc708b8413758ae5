//! The temporary directory of a demo, and those that killed demos left.
//!
//! A demo that is killed cannot remove its files, so the next one does. Whose demo still runs is told
//! by a lock, which ends with its process however that ends and, unlike a process id, is never given
//! to somebody else.
//!
//! Expected flow: make the directory, lock a file in it, and only then give that file its name. To
//! sweep: try to lock the file of that name, and remove the directory while holding the lock.
//!
//! Guarantees: only a real directory of our own user, with our prefix and an unlocked file of that
//! name, is removed; of two sweepers one removes.
//!
//! Caveats: a demo killed between the first two steps leaves an empty directory for good. Where files
//! cannot be locked nothing is swept.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "tenure-demo-";

/// The locked file. Whoever sees it by this name sees it locked, unless its demo is gone.
const LOCK: &str = "in-use.lock";
const LOCK_UNFINISHED: &str = "in-use.unfinished";

/// Directories that one demo removes at most: it has a show to run.
const SWEPT_MAX: usize = 100;

/// A directory that is removed at the end, by this demo or, if it is killed, by a later one.
pub(super) struct Scratch {
    dir: TempDir,
    /// Held to the end of the process.
    _lock: File,
}

impl Scratch {
    /// Makes one among the machine's temporary files.
    pub(super) fn create() -> Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(parent)
            .context("make a temporary directory")?;
        let unfinished = dir.path().join(LOCK_UNFINISHED);
        let lock = File::create(&unfinished).context("make a lock file")?;
        match lock.try_lock() {
            Ok(()) => fs::rename(&unfinished, dir.path().join(LOCK)).context("name a lock file")?,
            // Without the name nobody takes an unlocked file for one whose demo is gone.
            Err(error) => tracing::debug!(%error, "no locks here: leftovers will stay"),
        }
        Ok(Self { dir, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Removes it with all that is in it.
    pub(super) fn close(self) -> Result<()> {
        self.dir.close().context("remove the temporary directory")
    }
}

/// Removes what killed demos left among the machine's temporary files, and says so.
pub(super) fn sweep() {
    for dir in sweep_in(&std::env::temp_dir()) {
        eprintln!("removed {}: left by a demo that was killed", dir.display());
    }
}

/// What cannot be looked at or removed is left to its owner: the demo runs without.
fn sweep_in(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let removed = ours.map(|entry| entry.path()).filter(|dir| remove_if_left(dir).unwrap_or(false));
    removed.take(SWEPT_MAX).collect()
}

fn remove_if_left(dir: &Path) -> io::Result<bool> {
    // Not of what a link leads to.
    let metadata = fs::symlink_metadata(dir)?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let lock = File::options().write(true).open(dir.join(LOCK))?;
    if lock.try_lock().is_err() {
        return Ok(false);
    }
    fs::remove_dir_all(dir)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a killed process leaves it: the files stay, the lock does not.
    fn abandon(scratch: Scratch) -> PathBuf {
        fs::write(scratch.path().join("demo.db"), "x").unwrap();
        let Scratch { dir, _lock } = scratch;
        dir.keep()
    }

    #[test]
    fn what_is_left_is_removed_and_what_is_in_use_stays() {
        let parent = tempfile::tempdir().unwrap();
        let in_use = Scratch::create_in(parent.path()).unwrap();
        let left = abandon(Scratch::create_in(parent.path()).unwrap());
        assert_eq!(sweep_in(parent.path()), std::slice::from_ref(&left));
        assert!(!left.exists() && in_use.path().exists());
        assert_eq!(sweep_in(parent.path()), [] as [PathBuf; 0]);
        in_use.close().unwrap();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_certainly_a_left_demo_stays() {
        let parent = tempfile::tempdir().unwrap();
        // Somebody's own directory, a file, one of another name, a link, one being born.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join(LOCK), "").unwrap();
        let at = |name: &str| parent.path().join(name);
        fs::create_dir(at("tenure-demo-notes")).unwrap();
        fs::write(at("tenure-demo-notes").join("mine.txt"), "x").unwrap();
        fs::write(at("tenure-demo-file"), "x").unwrap();
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other").join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), at("tenure-demo-link")).unwrap();
        fs::create_dir(at("tenure-demo-young")).unwrap();
        fs::write(at("tenure-demo-young").join(LOCK_UNFINISHED), "").unwrap();
        assert_eq!(sweep_in(parent.path()), [] as [PathBuf; 0]);
        assert!(elsewhere.path().join(LOCK).exists());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 5);
    }

    #[test]
    fn one_start_removes_so_many_and_no_more() {
        let parent = tempfile::tempdir().unwrap();
        for _ in 0..=SWEPT_MAX {
            abandon(Scratch::create_in(parent.path()).unwrap());
        }
        assert_eq!(sweep_in(parent.path()).len(), SWEPT_MAX);
        assert_eq!(sweep_in(parent.path()).len(), 1);
    }
}
