//! How events become the data of a record.

use tenure_stream::HashKey;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One event in a record, as it is: for readers that do not know aggregation.
    Single,
    /// Many events in a record, one on each line.
    Lines,
}

impl Framing {
    /// Whether a record can hold more than one event.
    #[must_use]
    pub const fn holds_many(self) -> bool {
        !matches!(self, Self::Single)
    }

    /// The size of a record with nothing but this event.
    #[must_use]
    pub fn size_alone(self, partition_key: &str, bytes: usize) -> usize {
        self.size_added(partition_key, bytes)
    }

    /// How much a record grows at most with this event.
    #[must_use]
    pub fn size_added(self, _partition_key: &str, bytes: usize) -> usize {
        match self {
            Self::Single => bytes,
            Self::Lines => bytes + 1,
        }
    }

    /// Begins a record.
    pub fn begin(self, _data: &mut Vec<u8>, _hash_key: HashKey) {}

    /// Adds an event, and says where it begins.
    pub fn add(self, data: &mut Vec<u8>, _partition_key: &str, bytes: &[u8]) -> usize {
        let start = data.len();
        data.extend_from_slice(bytes);
        if self == Self::Lines {
            data.push(b'\n');
        }
        start
    }

    /// Ends a record.
    pub fn finish(self, _data: &mut Vec<u8>) {}
}
