//! What is put, what is read back, and where reading begins.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_clock::WallTime;

use crate::{HashKey, SequenceNumber, ShardId};

/// A record on its way into the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Records of one key keep their order. Its MD5 chooses the shard.
    pub partition_key: Arc<str>,
    /// Chooses the shard in place of the partition key.
    pub explicit_hash_key: Option<HashKey>,
    /// The content.
    pub data: Bytes,
}

impl Record {
    /// A record whose key chooses its shard.
    pub fn new(partition_key: impl Into<Arc<str>>, data: impl Into<Bytes>) -> Self {
        Self { partition_key: partition_key.into(), explicit_hash_key: None, data: data.into() }
    }

    /// Chooses the shard by `key` in place of the partition key.
    #[must_use]
    pub fn at_hash_key(mut self, key: HashKey) -> Self {
        self.explicit_hash_key = Some(key);
        self
    }

    /// The point of the hash space that decides the shard.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        self.explicit_hash_key.unwrap_or_else(|| HashKey::of(&self.partition_key))
    }

    /// What counts against the limits: the content and the key.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.data.len() + self.partition_key.len()
    }
}

/// A record as it stands in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The shard it went to.
    pub shard: ShardId,
    /// Its place there.
    pub sequence: SequenceNumber,
    /// When the stream took it, by the stream's clock; never before that of an earlier record.
    pub arrived: WallTime,
    /// Its partition key.
    pub partition_key: Arc<str>,
    /// Its content.
    pub data: Bytes,
}

/// What became of one record of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// It is durable.
    Stored {
        /// The shard it went to.
        shard: ShardId,
        /// Its place there.
        sequence: SequenceNumber,
    },
    /// It did not land; the shard asks for less: try this record again after a backoff.
    Throttled,
    /// It did not land and never will as it is.
    Refused {
        /// What is wrong with it.
        reason: String,
    },
}

impl Put {
    /// The place of a record that was stored.
    #[must_use]
    pub const fn stored(&self) -> Option<(&ShardId, &SequenceNumber)> {
        match self {
            Self::Stored { shard, sequence } => Some((shard, sequence)),
            Self::Throttled | Self::Refused { .. } => None,
        }
    }
}

/// Where reading a shard begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// The oldest record that is kept.
    TrimHorizon,
    /// After the newest record there is at the time of the call.
    Latest,
    /// At the record with this number.
    At(SequenceNumber),
    /// Right after the record with this number.
    After(SequenceNumber),
    /// At the first record that is kept and arrived then or later. A moment to come means [`Position::Latest`].
    AtTimestamp(WallTime),
}

/// A place in a shard from which to read on. Opaque: made by `cursor` and by `read`.
///
/// It is no durable position (a token of Kinesis's may be part of it): store the sequence number of
/// the last record and come back with [`Position::After`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The shard it is in.
    pub(crate) shard: ShardId,
    /// Where it stands; also where to begin again should the token have expired.
    pub(crate) position: Position,
    /// What the service itself calls the place, if it has such a name.
    pub(crate) token: Option<Arc<str>>,
}

impl Cursor {
    /// A cursor of a stream that wraps another, and has its own idea of where one stands.
    #[must_use]
    pub const fn new(shard: ShardId, position: Position) -> Self {
        Self { shard, position, token: None }
    }

    /// The shard it is in.
    #[must_use]
    pub const fn shard(&self) -> &ShardId {
        &self.shard
    }

    /// Where it stands, in terms that stay. A cursor that was asked for at [`Position::Latest`] knows by now where
    /// that was; if even the service does not say, this still is `Latest`.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.position
    }
}

/// What a read found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// Records in order, maybe none.
    Records(Batch),
    /// Records between the cursor and the oldest that is kept are gone: they were trimmed before they
    /// were read. Whoever accepts the loss goes on with [`Position::At`] `to`.
    Trimmed {
        /// Where the cursor stood.
        from: SequenceNumber,
        /// The first number that may still be there.
        to: SequenceNumber,
    },
}

/// Some records of a shard, and where to read on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The records, in their order.
    pub records: Vec<Stored>,
    /// Where to read on. `None`: the shard is closed and this was its end.
    pub next: Option<Cursor>,
    /// How far the end of this batch is behind the shard's newest record; zero if it is that.
    pub behind: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_hash_key_goes_before_the_partition_key() {
        let record = Record::new("abc", "data");
        assert_eq!(record.hash_key(), HashKey::of("abc"));
        assert_eq!(record.size_bytes(), 7);
        assert_eq!(record.at_hash_key(HashKey(7)).hash_key(), HashKey(7));
    }
}
