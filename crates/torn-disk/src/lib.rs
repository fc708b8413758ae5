//! A disk under SQLite that loses power, fills up and fails to sync.
//!
//! [`TornDisk`] registers a SQLite VFS that hands everything on to the unix one and remembers each
//! write, truncation, sync, creation and deletion, in order. From that [`TornDisk::image_at`] makes
//! what a disk could hold if power had failed at any moment, and [`power_loss`] runs a test over
//! many such images: what was acknowledged must be in every one of them.
//!
//! ```text
//!   SQLite ──► TornDisk ──► unix VFS ──► the real file (what running programs see)
//!                 │
//!                 └► journal:  write  write  sync  write │ write  sync
//!                                                  moment ┘
//!                    image:   └─── certain ───┘  └ maybe ┘  └─ never ─┘
//! ```
//!
//! # The model
//!
//! What survives a power failure for certain:
//! - Of a file's content and size: what was done before its last successful `xSync` began.
//!   The unix VFS calls `fdatasync` there, which writes the size too if it changed.
//! - Of a directory's entries: what was done before its last sync. As in `os_unix.c`, a directory is
//!   synced by the first `xSync` through a handle of a log or rollback journal that was opened with
//!   leave to create it (`UNIXFILE_DIRSYNC`), after the file itself, and by an `xDelete` that asks for
//!   it. Nothing else does: syncing the database does not make its own name durable, and deleting the
//!   log, or a rollback journal below `synchronous=EXTRA`, may be undone.
//!
//! What is up to chance ([`Survival::Seeded`]):
//! - Each part of a later write that falls into one sector of 512 bytes survives or not, by itself, so
//!   a write may be torn, and a later write may survive where an earlier one was lost. Bytes
//!   that were not written keep their value (SQLite's `POWERSAFE_OVERWRITE`, which the unix VFS claims).
//! - The size is the one after any number of the changes since the sync, in order. Where it includes
//!   bytes that did not survive they are zeros or garbage.
//! - Each name in a directory is in the state after any number of the changes to it since the sync, in
//!   order; names are independent of each other. A new file may be absent, a deleted one present.
//! - After a failed sync (see [`TornDisk::fail_sync`]) chance decides at once about what was to be
//!   synced, and what is lost then stays lost even if a later sync succeeds, as on Linux, where the
//!   failing pages are marked clean.
//!
//! What is left out:
//! - The `-shm` file and temporary files: SQLite rebuilds the one and forgets the others.
//! - Memory-mapped access is not offered, so that every write is seen. Size hints are dropped.
//! - Other processes, and changes made past the disk, are not seen; a file that was there before it was
//!   first opened is taken to be durable as found.
//! - Nothing is really synced: the tests' machine is not expected to fail. [`TornDisk::slow_sync`]
//!   gives syncs a duration where that matters.
//! - Data that was synced and decays. A disk that lies about syncing is there for tests of tests:
//!   [`TornDisk::ignore_syncs`].

mod image;
mod journal;
pub mod power_loss;
mod vfs;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Entropy;

use self::image::Replay;
pub use self::image::Survival;
use self::journal::Shared;
use self::vfs::Registration;

/// A SQLite VFS with a memory. Clones are the same disk; the last one dropped unregisters it.
///
/// Files are kept apart by their name alone: put those of one disk into one directory.
#[derive(Debug, Clone)]
pub struct TornDisk {
    shared: Arc<Shared>,
    registration: Arc<Registration>,
}

/// A moment in a disk's history: after so many operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(usize);

impl TornDisk {
    /// Registers a new, empty disk under a name that no other has.
    ///
    /// # Panics
    /// If SQLite has no unix VFS or refuses another one: there is no test without it.
    #[must_use]
    pub fn register() -> Self {
        let shared = Arc::new(Shared::default());
        let registration = Arc::new(Registration::new(&shared));
        Self { shared, registration }
    }

    /// What to open files with: `FileSpec::vfs`, or `Connection::open_with_flags_and_vfs`.
    #[must_use]
    pub fn vfs_name(&self) -> &str {
        self.registration.name()
    }

    /// The present moment. Taken right after an acknowledgement, it is one at which that must be durable.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.shared.lock().ops().len())
    }

    /// Writes into a directory what a disk would hold if power had failed at `mark`.
    ///
    /// The same journal, mark and survival give the same image.
    ///
    /// # Errors
    /// If it cannot be written, or if files of two directories share a name.
    pub fn image_at(&self, mark: Mark, survival: Survival, into: &Path) -> io::Result<()> {
        let mut replay = Replay::of(&self.shared);
        replay.advance_to(mark.0);
        replay.write_image(survival, into)
    }

    /// Chooses up to `n` moments to lose power at, in order and without repetition.
    ///
    /// Some are right at an acknowledgement (where the promise is tightest), some a few operations
    /// around one (in the middle of a commit or of the checkpoint that follows), some among the first
    /// operations (when files come into being), the rest anywhere.
    #[must_use]
    pub fn moments(&self, acked: &[Mark], seed: u64, n: usize) -> Vec<Mark> {
        let end = self.mark().0;
        if end < n {
            return (0..=end).map(Mark).collect();
        }
        let entropy = Entropy::seeded(seed);
        let below = |bound: usize| usize::try_from(entropy.below(bound as u64)).unwrap_or(0);
        let mut chosen = BTreeSet::new();
        // Repetitions are drawn again; the bound only keeps a run of bad luck from going on for ever.
        for _ in 0..n.saturating_mul(64) {
            if chosen.len() >= n {
                break;
            }
            let near = match acked {
                [] => None,
                _ => acked.get(below(acked.len())).map(|mark| mark.0),
            };
            let position = match (below(8), near) {
                (0 | 1, Some(ack)) => ack,
                (2..=4, Some(ack)) => (ack + below(13)).saturating_sub(6),
                (5, _) => below(64),
                _ => below(end + 1),
            };
            chosen.insert(Mark(position.min(end)));
        }
        chosen.into_iter().collect()
    }

    /// The operation that power failed just before, in words: for messages.
    #[must_use]
    pub fn describe(&self, mark: Mark) -> String {
        let live = self.shared.lock();
        let next = live.ops().get(mark.0).map_or_else(|| "the end".into(), |op| live.describe(op));
        format!("operation {} of {}, before {next}", mark.0, live.ops().len())
    }
}

/// Faults while running.
impl TornDisk {
    /// Lets files grow by so many more bytes; a write beyond that stores what fits and then answers
    /// `SQLITE_FULL`, until [`free`](Self::free). Overwriting needs no space.
    pub fn fill_after(&self, bytes: u64) {
        self.shared.lock().set_space(Some(bytes));
    }

    /// Gives the disk space without end again.
    pub fn free(&self) {
        self.shared.lock().set_space(None);
    }

    /// Lets the next `n` syncs fail with `SQLITE_IOERR_FSYNC`.
    pub fn fail_sync(&self, n: u32) {
        self.shared.lock().set_failing_syncs(n);
    }

    /// Lets syncs answer success and make nothing durable. Nobody can keep a promise on such a disk:
    /// a test that passes on it does not look where it should.
    pub fn ignore_syncs(&self, ignored: bool) {
        self.shared.lock().set_syncs_ignored(ignored);
    }

    /// Lets each sync take so long. Zero at first. Writers that commit together do so while one lasts.
    pub fn slow_sync(&self, duration: Duration) {
        self.shared.lock().set_sync_takes(duration);
    }
}
