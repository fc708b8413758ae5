//! The stream that is read: shards that are written to, split and merged.

use tenure_leases::lineage::StreamShards;
use tenure_leases::{Checkpoint, LeaseKey};
use tenure_stream::{HashKey, HashRange, Shard, ShardId};

/// One shard. Its records are numbered from 1.
#[derive(Debug, Clone)]
pub struct SimShard {
    /// Its name.
    pub id: ShardId,
    /// The name of its lease.
    pub key: LeaseKey,
    /// The shards that it was made from.
    pub parents: Vec<usize>,
    /// How many records it has.
    pub count: u64,
    /// Nothing more is written to it.
    pub closed: bool,
    /// When it was made.
    pub born: u64,
    range: HashRange,
}

/// All shards, in the order in which they were made.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The shards.
    pub shards: Vec<SimShard>,
    shards_max: usize,
}

impl Stream {
    /// A stream of so many open shards, which may become `shards_max` in all.
    #[must_use]
    pub fn new(shards: u32, shards_max: usize) -> Self {
        let mut stream = Self { shards: Vec::new(), shards_max };
        for range in HashRange::uniform(shards) {
            stream.add(0, Vec::new(), range);
        }
        stream
    }

    fn add(&mut self, now: u64, parents: Vec<usize>, range: HashRange) -> usize {
        let id = ShardId::numbered(self.shards.len() as u64);
        let key = LeaseKey::of_shard(&id);
        self.shards.push(SimShard { id, key, parents, count: 0, closed: false, born: now, range });
        self.shards.len() - 1
    }

    /// The open shards.
    #[must_use]
    pub fn open(&self) -> Vec<usize> {
        (0..self.shards.len()).filter(|shard| !self.shards[*shard].closed).collect()
    }

    /// Which shard this lease is of.
    #[must_use]
    pub fn of(&self, key: &LeaseKey) -> Option<usize> {
        let number = ShardId::from(key.as_str()).number()?;
        usize::try_from(number).ok().filter(|number| *number < self.shards.len())
    }

    /// How many shards lie above this one, at most.
    #[must_use]
    pub fn depth(&self, shard: usize) -> usize {
        self.shards[shard].parents.iter().map(|parent| 1 + self.depth(*parent)).max().unwrap_or(0)
    }

    /// Splits an open shard; false if there are enough, or it is as deep as it may be.
    pub fn split(&mut self, now: u64, shard: usize, depth_max: usize) -> bool {
        let range = self.shards[shard].range;
        let middle = range.start.0 + (range.end.0 - range.start.0) / 2 + 1;
        let parts = range.split(HashKey(middle));
        let (Some((lower, upper)), true) = (parts, self.shards.len() + 2 <= self.shards_max) else {
            return false;
        };
        if self.shards[shard].closed || self.depth(shard) >= depth_max {
            return false;
        }
        self.shards[shard].closed = true;
        self.add(now, vec![shard], lower);
        self.add(now, vec![shard], upper);
        true
    }

    /// Merges an open shard with the next; false as above.
    pub fn merge(&mut self, now: u64, shard: usize, depth_max: usize) -> bool {
        let next = self
            .open()
            .into_iter()
            .find(|other| self.shards[shard].range.touches(&self.shards[*other].range));
        let (Some(next), true) = (next, self.shards.len() < self.shards_max) else { return false };
        if self.shards[shard].closed || self.depth(shard).max(self.depth(next)) >= depth_max {
            return false;
        }
        let range = HashRange { start: self.shards[shard].range.start, end: self.shards[next].range.end };
        (self.shards[shard].closed, self.shards[next].closed) = (true, true);
        self.add(now, vec![shard, next], range);
        true
    }

    /// The shards, as they are listed.
    #[must_use]
    pub fn listed(&self) -> Vec<StreamShards> {
        let name = |parent: &usize| self.shards[*parent].id.clone();
        let shards = self.shards.iter().map(|shard| Shard {
            id: shard.id.clone(),
            parent: shard.parents.first().map(name),
            adjacent_parent: shard.parents.get(1).map(name),
            hash_range: shard.range,
            first_sequence: 1.into(),
            last_sequence: shard.closed.then(|| shard.count.into()),
        });
        vec![StreamShards { stream: None, shards: shards.collect() }]
    }
}

/// How many records a checkpoint has behind it; of a place to begin, none.
#[must_use]
pub fn behind(checkpoint: &Checkpoint, shard: &SimShard) -> u64 {
    match checkpoint {
        Checkpoint::TrimHorizon | Checkpoint::AtTimestamp | Checkpoint::Latest => 0,
        Checkpoint::At { sequence, .. } => sequence.as_u64().unwrap_or(u64::MAX),
        Checkpoint::ShardEnd => shard.count,
    }
}

/// The checkpoint that has so many records behind it.
#[must_use]
pub fn checkpoint_at(count: u64) -> Checkpoint {
    Checkpoint::At { sequence: count.into(), sub: 0 }
}
