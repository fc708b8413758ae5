//! An event as this world writes it: small, binary, with all that a header says.

use tenure_stream::identity::{Era, Floor, Lane, Lsn, Position};

/// The smallest size of an event.
pub const EVENT_BYTES_MIN: usize = 82;

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which change of this world it is: its content.
    pub change: u32,
    /// Which change it says it is.
    pub id: Position,
    /// Its lane.
    pub lane: Lane,
    /// The event before it on its lane.
    pub prev: Option<Position>,
    /// What was settled.
    pub floor: Floor,
    /// Whose it is.
    pub leader: u64,
    /// In which run it was written.
    pub run: u32,
    /// Whether its content is in quarantine.
    pub pointer: bool,
}

impl Event {
    /// Appends it, padded to this size.
    pub fn write(&self, size: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let size = size.max(EVENT_BYTES_MIN);
        out.extend_from_slice(&u16::try_from(size).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(&self.change.to_le_bytes());
        write_position(&self.id, out);
        out.extend_from_slice(&self.lane.0.to_le_bytes());
        out.push(u8::from(self.prev.is_some()));
        write_position(&self.prev.unwrap_or_default(), out);
        out.extend_from_slice(&self.floor.era.0.to_le_bytes());
        out.extend_from_slice(&self.floor.below.0.to_le_bytes());
        out.extend_from_slice(&self.leader.to_le_bytes());
        out.extend_from_slice(&self.run.to_le_bytes());
        out.push(u8::from(self.pointer));
        out.resize(start + size, b'.');
    }

    /// Reads the event at the beginning, and says how long it is.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut reader = Reader { bytes };
        let size = usize::from(u16::from_le_bytes(reader.take()?));
        let event = Self {
            change: u32::from_le_bytes(reader.take()?),
            id: reader.position()?,
            lane: Lane(u16::from_le_bytes(reader.take()?)),
            prev: {
                let there = reader.take::<1>()? == [1];
                reader.position().filter(|_| there)
            },
            floor: Floor {
                era: Era(u32::from_le_bytes(reader.take()?)),
                below: Lsn(u64::from_le_bytes(reader.take()?)),
            },
            leader: u64::from_le_bytes(reader.take()?),
            run: u32::from_le_bytes(reader.take()?),
            pointer: reader.take::<1>()? == [1],
        };
        (size >= EVENT_BYTES_MIN && size <= bytes.len()).then_some((event, size))
    }

    /// All events of a record; each is followed by `between` bytes.
    pub fn read_all(mut data: &[u8], between: usize) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (event, size) = Self::read(data)?;
            data = data.get(size + between..).unwrap_or_default();
            Some(event)
        })
    }
}

fn write_position(position: &Position, out: &mut Vec<u8>) {
    out.extend_from_slice(&position.era.0.to_le_bytes());
    out.extend_from_slice(&position.commit.0.to_le_bytes());
    out.extend_from_slice(&position.change.0.to_le_bytes());
    out.extend_from_slice(&position.k.to_le_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }

    fn position(&mut self) -> Option<Position> {
        Some(Position {
            era: Era(u32::from_le_bytes(self.take()?)),
            commit: Lsn(u64::from_le_bytes(self.take()?)),
            change: Lsn(u64::from_le_bytes(self.take()?)),
            k: u32::from_le_bytes(self.take()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_from_a_record() {
        let position = |n| Position { era: Era(2), commit: Lsn(n), change: Lsn(n - 1), k: 1 };
        let event = |n, prev, pointer| Event {
            change: 7,
            id: position(n),
            lane: Lane(3),
            prev,
            floor: Floor { era: Era(2), below: Lsn(4) },
            leader: 9,
            run: 5,
            pointer,
        };
        let events = [event(10, None, false), event(20, Some(position(10)), true)];
        let mut data = Vec::new();
        for (one, size) in events.iter().zip([0, 266]) {
            one.write(size, &mut data);
            data.push(b'\n');
        }
        assert_eq!(data.len(), EVENT_BYTES_MIN + 1 + 266 + 1);
        assert_eq!(Event::read_all(&data, 1).collect::<Vec<_>>(), events);
        assert_eq!(Event::read_all(&data[..40], 1).count(), 0);
    }
}
