//! What was done to the disk, in order.
//!
//! One lock is held over each operation on the real file and its entry in the journal, so the order
//! here is the order there. A sync is entered when it ends and covers what had been entered when it
//! began: what was written meanwhile is not promised.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::ffi::{SQLITE_FULL, SQLITE_IOERR_FSYNC, SQLITE_OK};
use tenure_clock::pause_thread;

/// A file's content, whatever name leads to it: an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(usize);

/// One thing done to the disk. `upto` counts operations: those before it are meant.
#[derive(Debug)]
pub(crate) enum Op {
    Create { file: FileId, path: Arc<Path> },
    Delete { path: Arc<Path> },
    Write { file: FileId, offset: usize, bytes: Box<[u8]> },
    Truncate { file: FileId, size: usize },
    Sync { file: FileId, upto: usize },
    FailedSync { file: FileId, upto: usize },
    SyncDirectory { directory: PathBuf, upto: usize },
}

/// A file that was there before the disk first saw it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) file: FileId,
    pub(crate) path: Arc<Path>,
    pub(crate) content: Arc<[u8]>,
}

/// The disk as the VFS and the test share it.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    live: Mutex<Live>,
}

/// The journal, and what is needed to write it.
#[derive(Debug, Default)]
pub(crate) struct Live {
    ops: Vec<Arc<Op>>,
    found: Vec<Found>,
    /// Name and size of every file, by its id.
    files: Vec<(Arc<Path>, usize)>,
    names: BTreeMap<Arc<Path>, FileId>,
    space: Option<u64>,
    failing_syncs: u32,
    syncs_ignored: bool,
    sync_takes: Duration,
}

/// A file about to be opened: whether it is there decides what its opening means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Absent,
    Present,
}

/// A sync that has begun, or was over at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncBegun {
    Lasts { upto: usize, takes: Duration },
    Over(c_int),
}

impl Shared {
    /// A panic of another thread leaves a journal that is whole up to its last entry.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what there is space for. `real` writes to the real file.
    pub(crate) fn write(
        &self,
        file: FileId,
        offset: usize,
        bytes: &[u8],
        real: impl FnOnce(&[u8]) -> c_int,
    ) -> c_int {
        let mut live = self.lock();
        let fitting = live.take_space(file, offset, bytes.len());
        let stored = bytes.get(..fitting).unwrap_or(bytes);
        if !stored.is_empty() {
            let code = real(stored);
            if code != SQLITE_OK {
                return code;
            }
            live.grow(file, offset + stored.len());
            live.enter(Op::Write { file, offset, bytes: stored.into() });
        }
        if fitting < bytes.len() { SQLITE_FULL } else { SQLITE_OK }
    }

    /// Sets a file's size. `real` does it to the real file.
    pub(crate) fn truncate(&self, file: FileId, size: usize, real: impl FnOnce() -> c_int) -> c_int {
        let mut live = self.lock();
        let code = real();
        if code == SQLITE_OK {
            if let Some((_, known)) = live.files.get_mut(file.0) {
                *known = size;
            }
            live.enter(Op::Truncate { file, size });
        }
        code
    }

    /// Syncs a file and, if asked to, the directory that has it.
    pub(crate) fn sync(&self, file: FileId, directory: Option<&Path>) -> c_int {
        let begun = self.lock().begin_sync(file);
        let (upto, takes) = match begun {
            SyncBegun::Lasts { upto, takes } => (upto, takes),
            SyncBegun::Over(code) => return code,
        };
        if !takes.is_zero() {
            pause_thread(takes);
        }
        self.lock().end_sync(file, upto, directory);
        SQLITE_OK
    }

    /// Removes a name. `real` does it to the real directory.
    pub(crate) fn delete(&self, path: &Path, sync: bool, real: impl FnOnce() -> c_int) -> c_int {
        let mut live = self.lock();
        let code = real();
        if code == SQLITE_OK {
            if live.names.remove(path).is_some() {
                live.enter(Op::Delete { path: path.into() });
            }
            if let Some(directory) = path.parent().filter(|_| sync) {
                live.sync_directory(directory);
            }
        }
        code
    }
}

impl Live {
    pub(crate) fn ops(&self) -> &[Arc<Op>] {
        &self.ops
    }

    pub(crate) fn found(&self) -> &[Found] {
        &self.found
    }

    pub(crate) fn set_space(&mut self, bytes: Option<u64>) {
        self.space = bytes;
    }

    pub(crate) fn set_failing_syncs(&mut self, n: u32) {
        self.failing_syncs = n;
    }

    pub(crate) fn set_syncs_ignored(&mut self, ignored: bool) {
        self.syncs_ignored = ignored;
    }

    pub(crate) fn set_sync_takes(&mut self, duration: Duration) {
        self.sync_takes = duration;
    }

    /// Enters the opening of a file that was there or not before; `content` reads one that was.
    pub(crate) fn opened<E>(
        &mut self,
        path: &Path,
        before: Before,
        content: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<FileId, E> {
        if before == Before::Present
            && let Some(file) = self.names.get(path)
        {
            return Ok(*file);
        }
        let path: Arc<Path> = path.into();
        let file = FileId(self.files.len());
        if before == Before::Present {
            let content: Arc<[u8]> = content()?.into();
            self.files.push((path.clone(), content.len()));
            self.found.push(Found { file, path: path.clone(), content });
        } else {
            self.files.push((path.clone(), 0));
            self.enter(Op::Create { file, path: path.clone() });
        }
        self.names.insert(path, file);
        Ok(file)
    }

    pub(crate) fn begin_sync(&mut self, file: FileId) -> SyncBegun {
        let upto = self.ops.len();
        if self.failing_syncs > 0 {
            self.failing_syncs -= 1;
            self.enter(Op::FailedSync { file, upto });
            return SyncBegun::Over(SQLITE_IOERR_FSYNC);
        }
        if self.syncs_ignored {
            return SyncBegun::Over(SQLITE_OK);
        }
        SyncBegun::Lasts { upto, takes: self.sync_takes }
    }

    pub(crate) fn end_sync(&mut self, file: FileId, upto: usize, directory: Option<&Path>) {
        self.enter(Op::Sync { file, upto });
        if let Some(directory) = directory {
            self.sync_directory(directory);
        }
    }

    fn sync_directory(&mut self, directory: &Path) {
        let upto = self.ops.len();
        self.enter(Op::SyncDirectory { directory: directory.to_owned(), upto });
    }

    pub(crate) fn describe(&self, op: &Op) -> String {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let of = |file: &FileId| self.files.get(file.0).map(|(path, _)| name(path)).unwrap_or_default();
        match op {
            Op::Create { path, .. } => format!("creating {}", name(path)),
            Op::Delete { path } => format!("deleting {}", name(path)),
            Op::Write { file, offset, bytes } => {
                format!("writing {} bytes at {offset} of {}", bytes.len(), of(file))
            }
            Op::Truncate { file, size } => format!("truncating {} to {size} bytes", of(file)),
            Op::Sync { file, .. } => format!("the end of a sync of {}", of(file)),
            Op::FailedSync { file, .. } => format!("a failing sync of {}", of(file)),
            Op::SyncDirectory { .. } => "the end of a sync of the directory".into(),
        }
    }

    fn enter(&mut self, op: Op) {
        self.ops.push(Arc::new(op));
    }

    fn grow(&mut self, file: FileId, end: usize) {
        if let Some((_, size)) = self.files.get_mut(file.0) {
            *size = (*size).max(end);
        }
    }

    /// How much of a write fits, having taken that space.
    fn take_space(&mut self, file: FileId, offset: usize, len: usize) -> usize {
        let Some(space) = self.space.as_mut() else { return len };
        let size = self.files.get(file.0).map_or(0, |(_, size)| *size);
        let growth = (offset + len).saturating_sub(size);
        let granted = growth.min(usize::try_from(*space).unwrap_or(usize::MAX));
        *space -= granted as u64;
        len.saturating_sub(growth - granted)
    }
}
