//! What a disk holds after a power failure: the journal replayed, with chance where nothing was synced.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tenure_clock::Entropy;

use crate::journal::{FileId, Op, Shared};

/// The most that a disk writes in one piece.
const SECTOR_BYTES: usize = 512;

/// What becomes of what was not synced when power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// None of it survives: the cache was never written back.
    Synced,
    /// All of it survives, as after a crash of the process alone.
    All,
    /// Chance decides, the same way each time for the same seed.
    Seeded(u64),
}

/// The state of the disk at some moment: what is durable, and what is not yet.
#[derive(Debug)]
pub(crate) struct Replay {
    ops: Vec<Arc<Op>>,
    position: usize,
    files: BTreeMap<FileId, FileState>,
    names: BTreeMap<Arc<Path>, NameState>,
}

#[derive(Debug, Default)]
struct FileState {
    durable: Vec<u8>,
    /// Writes and truncations since, by their place in the journal.
    pending: Vec<(usize, Arc<Op>)>,
}

#[derive(Debug, Default)]
struct NameState {
    durable: Option<FileId>,
    /// What the name led to after each change since.
    pending: Vec<(usize, Option<FileId>)>,
}

impl Replay {
    pub(crate) fn of(shared: &Shared) -> Self {
        let live = shared.lock();
        let mut replay =
            Self { ops: live.ops().to_vec(), position: 0, files: BTreeMap::new(), names: BTreeMap::new() };
        for found in live.found() {
            let state = FileState { durable: found.content.to_vec(), pending: Vec::new() };
            replay.files.insert(found.file, state);
            let name = NameState { durable: Some(found.file), pending: Vec::new() };
            replay.names.insert(found.path.clone(), name);
        }
        replay
    }

    /// Goes on to a later moment; an earlier one is not gone back to.
    pub(crate) fn advance_to(&mut self, position: usize) {
        while self.position < position {
            let Some(op) = self.ops.get(self.position).cloned() else { break };
            self.apply(&op);
            self.position += 1;
        }
    }

    fn apply(&mut self, op: &Arc<Op>) {
        let at = self.position;
        match &**op {
            Op::Create { file, path } => {
                self.files.insert(*file, FileState::default());
                self.names.entry(path.clone()).or_default().pending.push((at, Some(*file)));
            }
            Op::Delete { path } => {
                self.names.entry(path.clone()).or_default().pending.push((at, None));
            }
            Op::Write { file, .. } | Op::Truncate { file, .. } => {
                self.files.entry(*file).or_default().pending.push((at, op.clone()));
            }
            Op::Sync { file, upto } => {
                let state = self.files.entry(*file).or_default();
                let covered = split_before(&mut state.pending, *upto);
                settle(&mut state.durable, &covered, &mut Fate::All);
            }
            Op::FailedSync { file, upto } => {
                let state = self.files.entry(*file).or_default();
                let covered = split_before(&mut state.pending, *upto);
                // Its place in the journal is the seed: every image then tells the same story.
                settle(&mut state.durable, &covered, &mut Fate::draw(&Entropy::seeded(at as u64)));
            }
            Op::SyncDirectory { directory, upto } => {
                for (path, name) in &mut self.names {
                    if path.parent() == Some(directory)
                        && let Some((_, last)) = split_before(&mut name.pending, *upto).last()
                    {
                        name.durable = *last;
                    }
                }
            }
        }
    }

    pub(crate) fn write_image(&self, survival: Survival, into: &Path) -> io::Result<()> {
        let entropy = match survival {
            Survival::Seeded(seed) => Some(Entropy::seeded(seed)),
            Survival::Synced | Survival::All => None,
        };
        for (path, name) in &self.names {
            let survived = match (survival, &entropy) {
                (_, Some(entropy)) => drawn_len(entropy, name.pending.len()),
                (Survival::All, None) => name.pending.len(),
                (_, None) => 0,
            };
            let led_to = match survived.checked_sub(1).and_then(|last| name.pending.get(last)) {
                Some((_, file)) => *file,
                None => name.durable,
            };
            let Some(state) = led_to.and_then(|file| self.files.get(&file)) else { continue };
            let mut content = state.durable.clone();
            let mut fate = match (survival, &entropy) {
                (_, Some(entropy)) => Fate::draw(&entropy.fork()),
                (Survival::All, None) => Fate::All,
                (_, None) => Fate::Nothing,
            };
            settle(&mut content, &state.pending, &mut fate);
            let file_name = path.file_name().unwrap_or_default();
            io::Write::write_all(&mut std::fs::File::create_new(into.join(file_name))?, &content)?;
        }
        Ok(())
    }
}

/// Takes what happened before `upto` out of a list in order.
fn split_before<T>(pending: &mut Vec<(usize, T)>, upto: usize) -> Vec<(usize, T)> {
    let later = pending.split_off(pending.partition_point(|(at, _)| *at < upto));
    std::mem::replace(pending, later)
}

/// How many of `len` changes survive, in order. None and all are likelier than in between.
fn drawn_len(entropy: &Entropy, len: usize) -> usize {
    match entropy.below(4) {
        0 => 0,
        1 => len,
        _ => usize::try_from(entropy.below(len as u64 + 1)).unwrap_or(0),
    }
}

/// What chance has in store for the changes to one file.
enum Fate {
    Nothing,
    All,
    Drawn(Draws),
}

struct Draws {
    entropy: Entropy,
    /// How likely each piece is to survive. Drawn per file, because with the same even odds
    /// everywhere a commit that lacks just one sector would hardly ever come up.
    odds: f64,
    /// Whether bytes that the size includes and nothing wrote are garbage rather than zeros.
    garbage: bool,
}

impl Fate {
    fn draw(entropy: &Entropy) -> Self {
        let odds = [0.0, 0.1, 0.5, 0.9, 1.0];
        let drawn = usize::try_from(entropy.below(odds.len() as u64)).unwrap_or(0);
        let odds = odds.get(drawn).copied().unwrap_or(0.5);
        Self::Drawn(Draws { entropy: entropy.fork(), odds, garbage: entropy.chance(0.5) })
    }
}

/// Applies to a file's content those changes that survive.
fn settle(content: &mut Vec<u8>, changes: &[(usize, Arc<Op>)], fate: &mut Fate) {
    match fate {
        Fate::Nothing => {}
        Fate::All => {
            for (_, op) in changes {
                match &**op {
                    Op::Write { offset, bytes, .. } => put(content, *offset, bytes, |gap| vec![0; gap]),
                    Op::Truncate { size, .. } => content.resize(*size, 0),
                    _ => {}
                }
            }
        }
        Fate::Drawn(draws) => draws.settle(content, changes),
    }
}

impl Draws {
    fn settle(&self, content: &mut Vec<u8>, changes: &[(usize, Arc<Op>)]) {
        let sizes = sizes_after(content.len(), changes);
        let mut resized: Vec<usize> = sizes.clone();
        resized.dedup();
        // The first is the durable size itself.
        let survived = drawn_len(&self.entropy, resized.len() - 1);
        let mut final_size = resized.get(survived).copied().unwrap_or(content.len());
        let before = survived.checked_sub(1).and_then(|last| resized.get(last)).copied();
        if let Some(growth) = before.and_then(|before| final_size.checked_sub(before))
            && self.entropy.chance(0.25)
        {
            // A write that lengthens a file may be caught half way.
            final_size -= usize::try_from(self.entropy.below(growth as u64)).unwrap_or(0);
        }

        let mut resizes = 0;
        for (index, (_, op)) in changes.iter().enumerate() {
            resizes += usize::from(sizes.get(index) != sizes.get(index + 1));
            match &**op {
                Op::Write { offset, bytes, .. } => {
                    let whole = self.entropy.chance(0.5).then(|| self.entropy.chance(self.odds));
                    for (start, piece) in sectors(*offset, bytes) {
                        if whole.unwrap_or_else(|| self.entropy.chance(self.odds)) {
                            put(content, start, piece, |gap| self.unwritten(gap));
                        }
                    }
                }
                // What was cut off is gone only if the size change itself survived.
                Op::Truncate { size, .. } if resizes <= survived => content.truncate(*size),
                _ => {}
            }
        }
        if let Some(gap) = final_size.checked_sub(content.len()) {
            content.extend(self.unwritten(gap));
        }
        content.truncate(final_size);
    }

    fn unwritten(&self, len: usize) -> Vec<u8> {
        if !self.garbage {
            return vec![0; len];
        }
        let words = std::iter::repeat_with(|| self.entropy.u64().to_le_bytes());
        words.flatten().take(len).collect()
    }
}

/// The size before the first change and after each, if all survived.
fn sizes_after(durable: usize, changes: &[(usize, Arc<Op>)]) -> Vec<usize> {
    let mut sizes = vec![durable];
    let mut size = durable;
    for (_, op) in changes {
        size = match &**op {
            Op::Write { offset, bytes, .. } => size.max(offset + bytes.len()),
            Op::Truncate { size, .. } => *size,
            _ => size,
        };
        sizes.push(size);
    }
    sizes
}

/// A write, cut where sectors end.
fn sectors(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = offset;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let room = SECTOR_BYTES - start % SECTOR_BYTES;
        let (piece, after) = rest.split_at(room.min(rest.len()));
        let at = start;
        start += piece.len();
        rest = after;
        Some((at, piece))
    })
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8], unwritten: impl FnOnce(usize) -> Vec<u8>) {
    if let Some(gap) = offset.checked_sub(content.len()) {
        content.extend(unwritten(gap));
    }
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    if let Some(target) = content.get_mut(offset..end) {
        target.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rusqlite::ffi::SQLITE_OK;

    use super::*;
    use crate::journal::{Before, SyncBegun};

    const PATH: &str = "/d/a.db";

    /// What the file holds in an image of the whole journal, if it is there.
    fn content(shared: &Shared, survival: Survival) -> Option<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        let mut replay = Replay::of(shared);
        replay.advance_to(usize::MAX);
        replay.write_image(survival, directory.path()).unwrap();
        std::fs::read(directory.path().join("a.db")).ok()
    }

    fn opened(shared: &Shared, before: Before, found: &[u8]) -> FileId {
        shared.lock().opened::<()>(Path::new(PATH), before, || Ok(found.to_vec())).unwrap()
    }

    #[test]
    fn what_was_not_synced_survives_sector_by_sector() {
        let shared = Shared::default();
        let file = opened(&shared, Before::Present, &[b'a'; 4 * SECTOR_BYTES]);
        shared.write(file, SECTOR_BYTES, &[b'b'; 5 * SECTOR_BYTES], |_| SQLITE_OK);
        assert_eq!(content(&shared, Survival::Synced).unwrap(), [b'a'; 4 * SECTOR_BYTES]);
        let all = content(&shared, Survival::All).unwrap();
        assert_eq!((all.len(), all[0], all[SECTOR_BYTES]), (6 * SECTOR_BYTES, b'a', b'b'));

        let (mut patterns, mut sizes) = (BTreeSet::new(), BTreeSet::new());
        let (mut zeros, mut garbage) = (0, 0);
        for seed in 0..400 {
            let image = content(&shared, Survival::Seeded(seed)).unwrap();
            assert!((4 * SECTOR_BYTES..=6 * SECTOR_BYTES).contains(&image.len()), "seed {seed}");
            let (old, new) = image.split_at(4 * SECTOR_BYTES);
            let (mut pattern, mut tail) = (String::new(), String::new());
            for sector in old.chunks(SECTOR_BYTES) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn, seed {seed}");
                pattern.push(char::from(sector[0]));
            }
            for sector in new.chunks(SECTOR_BYTES) {
                let same = sector.iter().all(|byte| *byte == sector[0]);
                zeros += usize::from(same && sector[0] == 0);
                garbage += usize::from(!same);
                tail.push(if same { char::from(sector[0]) } else { '?' });
            }
            assert!(pattern.starts_with('a') && tail.chars().all(|sector| "b\0?".contains(sector)));
            patterns.insert(pattern);
            sizes.insert(image.len());
        }
        assert_eq!(patterns.len(), 8, "{patterns:?}");
        assert!(sizes.contains(&(4 * SECTOR_BYTES)) && sizes.contains(&(6 * SECTOR_BYTES)), "{sizes:?}");
        assert!(zeros > 0 && garbage > 0, "{zeros} zero sectors, {garbage} of garbage");

        assert_eq!(shared.sync(file, None), SQLITE_OK);
        assert!((0..50).all(|seed| content(&shared, Survival::Seeded(seed)).unwrap() == all));
    }

    #[test]
    fn what_is_written_while_a_sync_lasts_is_not_part_of_it() {
        let shared = Shared::default();
        let file = opened(&shared, Before::Present, b"");
        shared.write(file, 0, b"one", |_| SQLITE_OK);
        let SyncBegun::Lasts { upto, .. } = shared.lock().begin_sync(file) else {
            panic!("no fault is set");
        };
        shared.write(file, 0, b"two", |_| SQLITE_OK);
        shared.lock().end_sync(file, upto, None);
        assert_eq!(content(&shared, Survival::Synced).unwrap(), b"one");
        assert_eq!(content(&shared, Survival::All).unwrap(), b"two");
    }

    #[test]
    fn a_name_is_durable_once_its_directory_is_synced() {
        let shared = Shared::default();
        let file = opened(&shared, Before::Absent, b"");
        shared.write(file, 0, b"new", |_| SQLITE_OK);
        shared.sync(file, None);
        assert_eq!(content(&shared, Survival::Synced), None);
        let seen: BTreeSet<_> = (0..50).map(|seed| content(&shared, Survival::Seeded(seed))).collect();
        assert_eq!(seen, BTreeSet::from([None, Some(b"new".to_vec())]));

        shared.sync(file, Some(Path::new("/d")));
        assert_eq!(content(&shared, Survival::Synced).unwrap(), b"new");

        shared.delete(Path::new(PATH), false, || SQLITE_OK);
        assert_eq!(content(&shared, Survival::Synced).unwrap(), b"new");
        assert_eq!(content(&shared, Survival::All), None);

        let again = opened(&shared, Before::Absent, b"");
        shared.sync(again, Some(Path::new("/d")));
        assert_eq!(content(&shared, Survival::Synced).unwrap(), b"");
        shared.delete(Path::new(PATH), true, || SQLITE_OK);
        assert_eq!(content(&shared, Survival::Synced), None);
    }

    #[test]
    fn what_a_failed_sync_lost_stays_lost() {
        let shared = Shared::default();
        let file = opened(&shared, Before::Present, &[b'a'; 64 * SECTOR_BYTES]);
        let mut lost = 0;
        for _ in 0..20 {
            shared.write(file, 0, &[b'b'; 64 * SECTOR_BYTES], |_| SQLITE_OK);
            shared.lock().set_failing_syncs(1);
            assert_ne!(shared.sync(file, None), SQLITE_OK);
            assert_eq!(shared.sync(file, None), SQLITE_OK);
            let held = content(&shared, Survival::All).unwrap();
            lost += usize::from(held.contains(&b'a'));
            shared.write(file, 0, &[b'a'; 64 * SECTOR_BYTES], |_| SQLITE_OK);
            shared.sync(file, None);
        }
        assert!((1..20).contains(&lost), "{lost} of 20 failed syncs lost something");
    }

    #[test]
    fn a_truncation_may_be_undone_and_its_bytes_come_back() {
        let shared = Shared::default();
        let file = opened(&shared, Before::Present, b"content");
        shared.truncate(file, 0, || SQLITE_OK);
        let seen: BTreeSet<_> =
            (0..50).map(|seed| content(&shared, Survival::Seeded(seed)).unwrap()).collect();
        assert_eq!(seen, BTreeSet::from([b"".to_vec(), b"content".to_vec()]));
    }
}
