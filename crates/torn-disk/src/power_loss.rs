//! Runs a test's check over what a disk could hold after losing power.
//!
//! ```no_run
//! # use tenure_torn_disk::{TornDisk, power_loss::{self, Plan}};
//! let disk = TornDisk::register();
//! let directory = tempfile::tempdir().unwrap();
//! let db = directory.path().join("a.db");
//! let mut acks = Vec::new();
//! // … open `db` with the VFS disk.vfs_name(), and after each acknowledged write:
//! acks.push((disk.mark(), 7));
//! power_loss::check(&disk, &db, acks, Plan::default(), |image, acked| {
//!     // … open `image` without the disk and look for all of `acked`.
//!     Ok(())
//! });
//! ```
//!
//! A check that awaits walks over [`images`] itself and names the image in its assertions.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tenure_clock::Entropy;

use crate::image::Replay;
use crate::{Mark, Survival, TornDisk};

/// How much to try.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Which moments and which survivals; the same over the same journal gives the same images.
    pub seed: u64,
    /// How many moments to lose power at. See [`TornDisk::moments`].
    pub moments_max: usize,
    /// How many seeded survivals per moment, besides "only what was synced" and "all".
    pub seeded_per_moment: usize,
}

impl Default for Plan {
    /// Three hundred moments, four images of each: some seconds for a small file.
    fn default() -> Self {
        Self { seed: 42, moments_max: 300, seeded_per_moment: 2 }
    }
}

/// What a disk could hold after losing power, as files in a directory of its own.
#[derive(Debug)]
pub struct Image<T> {
    directory: TempDir,
    db: PathBuf,
    acks: Arc<Acks<T>>,
    acked_count: usize,
    moment: Mark,
    survival: Survival,
    told: String,
}

#[derive(Debug)]
struct Acks<T> {
    marks: Vec<Mark>,
    values: Vec<T>,
}

impl<T> Image<T> {
    /// The database. It may be missing, if power failed before it was ever durable.
    #[must_use]
    pub fn db(&self) -> &Path {
        &self.db
    }

    /// What had been acknowledged when power failed, in order.
    #[must_use]
    pub fn acked(&self) -> &[T] {
        self.acks.values.get(..self.acked_count).unwrap_or_default()
    }

    /// When power failed.
    #[must_use]
    pub fn moment(&self) -> Mark {
        self.moment
    }

    /// What became of that which was not synced.
    #[must_use]
    pub fn survival(&self) -> Survival {
        self.survival
    }

    /// Keeps the files for a person to look at.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        let _ = self.directory.keep();
        self.db
    }
}

/// Names the moment, the survival and the seed: enough to find the image again.
impl<T> fmt::Display for Image<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told)
    }
}

/// An image that did not hold what it should.
#[derive(Debug)]
pub struct Loss {
    /// When power failed.
    pub moment: Mark,
    /// What became of that which was not synced.
    pub survival: Survival,
    /// The image and what the check said, in words.
    pub told: String,
}

/// All images of a plan, one after another, in the order of their moments.
///
/// # Panics
/// If an image cannot be written.
pub fn images<T>(
    disk: &TornDisk,
    db: &Path,
    mut acks: Vec<(Mark, T)>,
    plan: Plan,
) -> impl Iterator<Item = Image<T>> + use<T> {
    // Tasks that run at once may have noted their acknowledgements out of order.
    acks.sort_by_key(|(mark, _)| *mark);
    let (marks, values) = acks.into_iter().unzip();
    let acks: Arc<Acks<T>> = Arc::new(Acks { marks, values });
    let moments = disk.moments(&acks.marks, plan.seed, plan.moments_max);
    let entropy = Entropy::seeded(plan.seed);
    let mut cases = Vec::new();
    for moment in moments {
        cases.extend([(moment, Survival::Synced), (moment, Survival::All)]);
        cases.extend((0..plan.seeded_per_moment).map(|_| (moment, Survival::Seeded(entropy.u64()))));
    }
    let mut replay = Replay::of(&disk.shared);
    let file_name = db.file_name().unwrap_or_default().to_owned();
    let (disk, seed) = (disk.clone(), plan.seed);
    cases.into_iter().map(move |(moment, survival)| {
        replay.advance_to(moment.0);
        let directory = fresh_directory();
        replay.write_image(survival, directory.path()).expect("an image is small and its directory is new");
        let acked_count = acks.marks.partition_point(|mark| *mark <= moment);
        let told = format!(
            "power lost at {} with {acked_count} acknowledged; {survival:?} survives (seed {seed})",
            disk.describe(moment)
        );
        let db = directory.path().join(&file_name);
        Image { directory, db, acks: acks.clone(), acked_count, moment, survival, told }
    })
}

/// Runs a check over all images and says where it failed, by its answer or by a panic.
///
/// # Panics
/// If an image cannot be written.
pub fn survey<T>(
    disk: &TornDisk,
    db: &Path,
    acks: Vec<(Mark, T)>,
    plan: Plan,
    mut verify: impl FnMut(&Path, &[T]) -> Result<(), String>,
) -> Vec<Loss> {
    let mut losses = Vec::new();
    for image in images(disk, db, acks, plan) {
        let verified = catch_unwind(AssertUnwindSafe(|| verify(image.db(), image.acked())));
        if let Err(why) = verified.unwrap_or_else(|panic| Err(panic_message(&*panic))) {
            let told = format!("{image}: {why}");
            losses.push(Loss { moment: image.moment, survival: image.survival, told });
        }
    }
    losses
}

/// Runs a check over all images; all must pass. Answers how many there were.
///
/// `verify` gets the database of an image, to be opened without the disk, and what had been
/// acknowledged by then. It may find more than that: what was under way may have landed.
///
/// # Panics
/// If one does not pass, with its moment, survival and seed; the first few are told.
pub fn check<T>(
    disk: &TornDisk,
    db: &Path,
    acks: Vec<(Mark, T)>,
    plan: Plan,
    mut verify: impl FnMut(&Path, &[T]) -> Result<(), String>,
) -> usize {
    let mut checked = 0;
    let losses = survey(disk, db, acks, plan, |image, acked| {
        checked += 1;
        verify(image, acked)
    });
    let first: Vec<&str> = losses.iter().take(5).map(|loss| loss.told.as_str()).collect();
    assert!(losses.is_empty(), "{} of {checked} images failed:\n{}", losses.len(), first.join("\n"));
    checked
}

/// In memory where the system offers that: an image need not last, and recovering one syncs.
fn fresh_directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a test can make a directory")
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}
