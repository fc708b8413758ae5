//! Which leases there should be, and which of them may be read: shards descend from each other.
//!
//! ```text
//!   shard 0 ──split──► shard 1 ──┐
//!           └────────► shard 2 ──┴─merge──► shard 3        3 is read after both 1 and 2
//! ```
//!
//! - LI-1 A lease may be read once every parent that has a lease is at its end.
//! - LI-2 A shard with a leased ancestor begins at its oldest record: its ancestor's reader comes down to it.
//!   Only a shard without one begins at the initial position.
//! - LI-3 A lease is made after the leases of its parents, so that nobody takes it for ready too soon.
//! - LI-4 A finished lease goes away only after all its children have checkpointed (a child begins with the
//!   marks of its parents), and after its own parents' leases (otherwise it would be made anew, from its
//!   beginning).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tenure_planted as planted;
use tenure_stream::{Shard, ShardId};

use crate::settings::InitialPosition;
use crate::{Checkpoint, Lease, LeaseKey};

/// All shards of one stream, as they were listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamShards {
    /// The stream, where the application reads several.
    pub stream: Option<Arc<str>>,
    /// Its shards, open and closed.
    pub shards: Vec<Shard>,
}

impl Hash for StreamShards {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.stream.hash(state);
        for Shard { id, parent, adjacent_parent, hash_range, first_sequence, last_sequence } in &self.shards {
            (id, parent, adjacent_parent, hash_range, first_sequence, last_sequence).hash(state);
        }
    }
}

/// What is to be done so that there is a lease for every shard that is to be read, and no other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chores {
    /// Leases to make now: their parents' leases are there.
    pub create: Vec<Lease>,
    /// How many more follow, once these are there.
    pub later: usize,
    /// Leases that are done with, or whose shard is gone.
    pub delete: Vec<Deletion>,
}

/// A lease to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Which.
    pub key: LeaseKey,
    /// Whether it was read to its end; otherwise its shard is gone.
    pub finished: bool,
}

/// The name of the lease of a shard.
#[must_use]
pub fn key_of(stream: Option<&str>, shard: &ShardId) -> LeaseKey {
    stream.map_or_else(|| LeaseKey::of_shard(shard), |stream| LeaseKey::of_stream(stream, shard))
}

/// The names of the leases of a lease's parents.
pub fn parents_of(lease: &Lease) -> impl Iterator<Item = LeaseKey> {
    lease.parents.iter().map(|shard| key_of(lease.stream.as_deref(), shard))
}

/// LI-1: whether every parent that has a lease is at its end.
pub fn is_ready<'a>(lease: &Lease, lookup: impl Fn(&LeaseKey) -> Option<&'a Lease>) -> bool {
    if planted::is("child_before_parents") {
        return true;
    }
    let mut parents = parents_of(lease);
    if planted::is("child_after_one_parent") && lease.parents.len() > 1 {
        return parents.any(|key| lookup(&key).is_none_or(|parent| parent.checkpoint.is_end()));
    }
    parents.all(|key| lookup(&key).is_none_or(|parent| parent.checkpoint.is_end()))
}

/// What is to be done for one stream. `leases` are all leases of the application, `remembered` the last that
/// was seen of rows that are not there any more.
#[must_use]
pub fn chores(
    listed: &StreamShards,
    leases: &BTreeMap<LeaseKey, Arc<Lease>>,
    remembered: &BTreeMap<LeaseKey, Arc<Lease>>,
    initial: InitialPosition,
) -> Chores {
    let stream = Stream::new(listed, leases);
    let mut chores = Chores::default();
    stream.creations(initial, remembered, &mut chores);
    stream.deletions(&mut chores);
    chores
}

struct Stream<'a> {
    name: Option<&'a Arc<str>>,
    shards: BTreeMap<&'a ShardId, &'a Shard>,
    children: BTreeMap<&'a ShardId, BTreeSet<&'a ShardId>>,
    leases: &'a BTreeMap<LeaseKey, Arc<Lease>>,
}

impl<'a> Stream<'a> {
    fn new(listed: &'a StreamShards, leases: &'a BTreeMap<LeaseKey, Arc<Lease>>) -> Self {
        let shards = listed.shards.iter().map(|shard| (&shard.id, shard)).collect();
        let mut children: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for shard in &listed.shards {
            for parent in shard.parents() {
                children.entry(parent).or_default().insert(&shard.id);
            }
        }
        Self { name: listed.stream.as_ref(), shards, children, leases }
    }

    fn key(&self, shard: &ShardId) -> LeaseKey {
        key_of(self.name.map(|name| &**name), shard)
    }

    fn lease(&self, shard: &ShardId) -> Option<&'a Lease> {
        self.leases.get(&self.key(shard)).map(|lease| &**lease)
    }

    /// The shards above `shard` (and itself) that have no lease, parents first, up to the first that have one,
    /// or that had one which was begun: what is above that has been read (LI-4).
    fn bare_line(
        &self,
        shard: &'a ShardId,
        remembered: &BTreeMap<LeaseKey, Arc<Lease>>,
        seen: &mut BTreeSet<&'a ShardId>,
        line: &mut Vec<&'a Shard>,
    ) {
        // By hand and not by recursion: a stream that was resharded often has long lines.
        let mut path = vec![(shard, false)];
        while let Some((id, is_done)) = path.pop() {
            let Some(shard) = self.shards.get(id).copied() else { continue };
            if is_done {
                line.push(shard);
            } else if self.lease(id).is_none() && seen.insert(id) {
                let last = remembered.get(&self.key(id)).map(|lease| &lease.checkpoint);
                match last.filter(|_| !planted::is("lost_row_loses_its_line")) {
                    Some(Checkpoint::ShardEnd) => {}
                    Some(Checkpoint::At { .. }) => line.push(shard),
                    _ => {
                        path.push((id, true));
                        path.extend(shard.parents().map(|parent| (parent, false)));
                    }
                }
            }
        }
    }

    /// LI-2 and LI-3.
    fn creations(
        &self,
        initial: InitialPosition,
        remembered: &BTreeMap<LeaseKey, Arc<Lease>>,
        chores: &mut Chores,
    ) {
        let mut seen = BTreeSet::new();
        let mut line = Vec::new();
        for (id, shard) in &self.shards {
            if shard.is_open() || !self.children.contains_key(id) || self.is_waited_for(id) {
                self.bare_line(id, remembered, &mut seen, &mut line);
            }
        }
        // Parents come before their children, so what is said of a parent is known by then.
        let (mut descends, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        for shard in line {
            let has_leased_ancestor = shard.parents().any(|parent| {
                self.lease(parent).is_some()
                    || descends.contains(parent)
                    || remembered.contains_key(&self.key(parent))
            });
            if has_leased_ancestor {
                descends.insert(&shard.id);
            }
            let checkpoint = match initial {
                _ if has_leased_ancestor && !planted::is("child_at_initial") => Checkpoint::TrimHorizon,
                InitialPosition::TrimHorizon => Checkpoint::TrimHorizon,
                InitialPosition::AtTimestamp => Checkpoint::AtTimestamp,
                // What was written before is not asked for: a closed shard has nothing else.
                InitialPosition::Latest if !shard.is_open() => continue,
                InitialPosition::Latest => Checkpoint::Latest,
            };
            let waits = shard.parents().any(|parent| wanted.contains(parent));
            wanted.insert(&shard.id);
            if waits && !planted::is("children_made_first") {
                chores.later += 1;
                continue;
            }
            let key = self.key(&shard.id);
            let lease = match remembered.get(&key) {
                Some(lease) => revived(lease),
                None => self.fresh(shard, checkpoint),
            };
            chores.create.push(lease);
        }
        chores.create.sort_by(|one, two| one.key.cmp(&two.key));
    }

    /// Whether children have leases and none has begun: then this shard's own was not cleaned away (LI-4) but lost.
    fn is_waited_for(&self, shard: &ShardId) -> bool {
        let children = self.children.get(shard).into_iter().flatten();
        let mut leases = children.filter_map(|child| self.lease(child)).peekable();
        let begun = |lease: &Lease| matches!(lease.checkpoint, Checkpoint::At { .. } | Checkpoint::ShardEnd);
        leases.peek().is_some() && !leases.any(begun) && !planted::is("lost_parent_stays_lost")
    }

    fn fresh(&self, shard: &Shard, checkpoint: Checkpoint) -> Lease {
        Lease {
            key: self.key(&shard.id),
            stream: self.name.cloned(),
            shard: shard.id.clone(),
            owner: None,
            giver: None,
            counter: 0,
            owner_switches: 0,
            checkpoint,
            parents: shard.parents().cloned().collect(),
            children: BTreeSet::new(),
            range: Some(shard.hash_range),
            throughput_kbps: None,
            marks: None,
        }
    }

    /// LI-4; and leases whose shard is gone from the stream, if nobody has them.
    fn deletions(&self, chores: &mut Chores) {
        if self.shards.is_empty() {
            // A stream without shards is a stream that was not listed.
            return;
        }
        let mine = |lease: &&Arc<Lease>| lease.stream.as_ref() == self.name;
        for lease in self.leases.values().filter(mine) {
            let is_gone = !self.shards.contains_key(&lease.shard);
            let finished = lease.checkpoint.is_end();
            let has_parent = parents_of(lease).any(|key| self.leases.contains_key(&key));
            if finished && !has_parent && self.children_have_begun(lease, is_gone) {
                chores.delete.push(Deletion { key: lease.key.clone(), finished: true });
            } else if is_gone && !finished && lease.owner.is_none() && !self.is_known_child(lease) {
                chores.delete.push(Deletion { key: lease.key.clone(), finished: false });
            }
        }
    }

    /// Whether the lease is of a shard that its parent's row names: then it is newer than the list.
    fn is_known_child(&self, lease: &Lease) -> bool {
        parents_of(lease).any(|key| self.leases.contains_key(&key))
    }

    fn children_have_begun(&self, lease: &Lease, is_gone: bool) -> bool {
        let listed = self.children.get(&lease.shard).into_iter().flatten().copied();
        let children: BTreeSet<_> = listed.chain(&lease.children).collect();
        if children.is_empty() {
            return is_gone;
        }
        children.iter().all(|child| match self.lease(child) {
            Some(child) => {
                planted::is("parent_deleted_early")
                    || matches!(child.checkpoint, Checkpoint::At { .. } | Checkpoint::ShardEnd)
            }
            // Listed and without a lease: it is still to be made. Not listed: gone, and nothing is to be read.
            None => !self.shards.contains_key(child),
        })
    }
}

/// By how much the counter of a row that was lost is raised: above whatever its holder may have counted since
/// it was last seen, because the counter only rises.
pub(crate) const REVIVAL_STEP: u64 = 1_000;

/// A row that was lost, as it is made again: nobody's, and where it was.
pub(crate) fn revived(lease: &Lease) -> Lease {
    let checkpoint =
        if planted::is("deleted_row_forgets") { Checkpoint::TrimHorizon } else { lease.checkpoint.clone() };
    Lease { owner: None, giver: None, counter: lease.counter + REVIVAL_STEP, checkpoint, ..lease.clone() }
}

#[cfg(test)]
#[path = "lineage_test.rs"]
mod tests;
