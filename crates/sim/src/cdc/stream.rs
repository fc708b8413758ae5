//! The stream: shards that divide the hash keys, and a consumer that reads along.
//!
//! A shard that was split or merged takes nothing any more, so whoever reads it has read all of it before
//! the first record of its children. What a consumer makes of a record depends on nothing else, so it can
//! be asked as the record lands.

use tenure_cdc::shard_budget::OpenShard;
use tenure_stream::identity::Lanes;
use tenure_stream::{HashKey, HashRange, SequenceNumber, ShardId};

use super::consumer::Consumer;

/// Most open shards.
const SHARDS_MAX: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Stream {
    open: Vec<Shard>,
    next: u64,
    sequence: u64,
    /// Largest record that it takes.
    pub record_bytes_max: usize,
}

/// An open shard.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    range: HashRange,
    /// Who reads it.
    pub consumer: Consumer,
}

impl Stream {
    /// A stream with so many shards.
    #[must_use]
    pub fn new(shards: usize, lanes: Lanes, record_bytes_max: usize) -> Self {
        let whole = Shard { id: ShardId::numbered(0), range: HashRange::ALL, consumer: Consumer::new(lanes) };
        let mut stream = Self { open: vec![whole], next: 1, sequence: 0, record_bytes_max };
        for number in 1..shards {
            stream.split(number as u64);
        }
        stream
    }

    /// Where a record with this hash key goes, and its number there.
    pub fn place(&mut self, key: HashKey) -> (&mut Shard, ShardId, SequenceNumber) {
        self.sequence += 1;
        let index = self.open.partition_point(|shard| shard.range.end < key);
        let shard = &mut self.open[index];
        let id = shard.id.clone();
        (shard, id, SequenceNumber::from(self.sequence))
    }

    /// The shards that take records.
    #[must_use]
    pub fn open_shards(&self) -> Vec<OpenShard> {
        self.open.iter().map(|shard| OpenShard { id: shard.id.clone(), range: shard.range }).collect()
    }

    /// Splits a shard in the middle; false if there are enough.
    pub fn split(&mut self, pick: u64) -> bool {
        let index = pick as usize % self.open.len();
        let HashRange { start, end } = self.open[index].range;
        let Some((low, high)) = self.open[index].range.split(HashKey(start.0 + (end.0 - start.0) / 2 + 1))
        else {
            return false;
        };
        if self.open.len() >= SHARDS_MAX {
            return false;
        }
        let parent = self.open.remove(index);
        for range in [high, low] {
            let consumer = Consumer::after(&[&parent.consumer]);
            let child = Shard { id: self.number(), range, consumer };
            self.open.insert(index, child);
        }
        true
    }

    /// Merges two neighbours; false if there is only one.
    pub fn merge(&mut self, pick: u64) -> bool {
        if self.open.len() < 2 {
            return false;
        }
        let index = pick as usize % (self.open.len() - 1);
        let (low, high) = (self.open.remove(index), self.open.remove(index));
        let range = HashRange { start: low.range.start, end: high.range.end };
        let consumer = Consumer::after(&[&low.consumer, &high.consumer]);
        let child = Shard { id: self.number(), range, consumer };
        self.open.insert(index, child);
        true
    }

    fn number(&mut self) -> ShardId {
        self.next += 1;
        ShardId::numbered(self.next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_shard_however_it_is_cut() {
        let lanes = Lanes::new(5).unwrap();
        let mut stream = Stream::new(3, lanes, 100);
        for pick in 0..200 {
            if pick % 3 == 0 {
                stream.merge(pick)
            } else {
                stream.split(pick)
            };
            for key in lanes.all().map(|lane| lanes.hash_key(lane)).chain([HashKey::MIN, HashKey::MAX]) {
                let (shard, ..) = stream.place(key);
                assert!(shard.range.contains(key));
            }
        }
    }
}
