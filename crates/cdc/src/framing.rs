//! How events become the data of a record.

use tenure_stream::HashKey;
use tenure_stream::kpl::Aggregator;

/// The way in which they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One event in a record, as it is: for readers that do not know aggregation.
    Single,
    /// Many events in a record, one on each line.
    Lines,
    /// Many events in a record, in the aggregated format that Amazon's readers know.
    Aggregated,
}

/// A record that grows.
#[derive(Debug)]
pub(crate) struct Frame {
    data: Vec<u8>,
    events: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Single,
    Lines,
    Aggregated(Aggregator),
}

impl Framing {
    /// Whether a record can hold more than one event.
    #[must_use]
    pub const fn holds_many(self) -> bool {
        !matches!(self, Self::Single)
    }

    /// The most that a record with nothing but this event has.
    #[must_use]
    pub(crate) fn size_alone(self, partition_key: &str, bytes: usize) -> usize {
        match self {
            Self::Single => bytes,
            Self::Lines => bytes + 1,
            // The magic, the hash key, the partition key, four lengths and indices, and the checksum.
            Self::Aggregated => bytes + partition_key.len() + 4 + 41 + 32 + 16,
        }
    }

    /// Begins a record that has room for so much.
    pub(crate) fn begin(self, hash_key: HashKey, room: usize) -> Frame {
        let mut data = Vec::with_capacity(room);
        let kind = match self {
            Self::Single => Kind::Single,
            Self::Lines => Kind::Lines,
            Self::Aggregated => Kind::Aggregated(Aggregator::begin(&mut data, Some(hash_key))),
        };
        Frame { data, events: 0, kind }
    }
}

impl Frame {
    /// How large the record is with another event; `None` if it takes no more.
    pub(crate) fn size_with(&self, partition_key: &str, bytes: usize) -> Option<usize> {
        match &self.kind {
            Kind::Single => (self.events == 0).then_some(bytes),
            Kind::Lines => Some(self.data.len() + bytes + 1),
            Kind::Aggregated(frame) => Some(frame.size_bytes_with(&self.data, partition_key, bytes)),
        }
    }

    /// Adds an event, and says where it begins.
    pub(crate) fn add(&mut self, partition_key: &str, bytes: &[u8]) -> usize {
        self.events += 1;
        match &mut self.kind {
            Kind::Single => self.data.extend_from_slice(bytes),
            Kind::Lines => {
                self.data.extend_from_slice(bytes);
                self.data.push(b'\n');
                return self.data.len() - bytes.len() - 1;
            }
            Kind::Aggregated(frame) => frame.add(&mut self.data, partition_key, bytes),
        }
        self.data.len() - bytes.len()
    }

    /// Ends the record.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if let Kind::Aggregated(frame) = self.kind {
            frame.finish(&mut self.data);
        }
        self.data
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tenure_stream::HashRange;
    use tenure_stream::kpl::deaggregate;

    use super::*;

    #[test]
    fn sizes_are_known_beforehand_and_events_are_found_where_it_says() {
        for framing in [Framing::Single, Framing::Lines, Framing::Aggregated] {
            let mut frame = framing.begin(HashKey(u128::MAX), 0);
            let mut places = Vec::new();
            for event in [&b"one"[..], &[b'x'; 300], b""] {
                let Some(size) = frame.size_with("key", event.len()) else { break };
                let start = frame.add("key", event);
                places.push((start, event));
                let finished = framing != Framing::Aggregated;
                assert!(!finished || frame.data.len() == size, "{framing:?}");
                assert!(places.len() > 1 || size <= framing.size_alone("key", event.len()), "{framing:?}");
            }
            let data = frame.finish();
            for (start, event) in &places {
                assert_eq!(&data[*start..start + event.len()], *event, "{framing:?}");
            }
            assert_eq!(places.len(), if framing == Framing::Single { 1 } else { 3 });
        }
    }

    #[test]
    fn an_aggregated_record_comes_apart_again() {
        let mut frame = Framing::Aggregated.begin(HashKey(7), 0);
        frame.add("a", b"one");
        frame.add("b", b"two");
        let size = frame.size_with("b", 5).unwrap();
        frame.add("b", b"three");
        let data = Bytes::from(frame.finish());
        assert_eq!(data.len(), size);
        let apart = deaggregate(&Arc::from("a"), &data, HashRange::uniform(1)[0]);
        let found: Vec<_> =
            apart.records.iter().map(|record| (&*record.partition_key, &record.data[..])).collect();
        assert_eq!(found, [("a", &b"one"[..]), ("b", b"two"), ("b", b"three")]);
    }
}
