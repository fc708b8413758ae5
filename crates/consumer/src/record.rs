//! A record as it is handed to your code.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use tenure_clock::WallTime;
use tenure_leases::Checkpoint;
use tenure_stream::SequenceNumber;

/// A record of a shard. Its content is shared, not copied.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Its place in the shard.
    pub sequence: SequenceNumber,
    /// Its place among the records that were put in one, from 0.
    pub sub: u64,
    /// When the stream took it, by the stream's clock.
    pub arrived: WallTime,
    /// Its partition key.
    pub partition_key: Arc<str>,
    /// Its content. Of an event that was too large for the stream, the whole event, if it could be fetched.
    pub data: Bytes,
    /// Set if `data` is not the event itself but says where it is.
    pub pointer: Option<Box<Pointer>>,
    /// Counts what was read of the shard since reading began.
    pub(crate) number: u64,
    /// Whether no other record that was put in one with it comes after it.
    pub(crate) is_last: bool,
}

impl Delivered {
    pub(crate) fn place(&self) -> Place {
        Place { sequence: self.sequence.clone(), sub: self.sub, whole: self.is_last }
    }

    /// Whether it was put in one with others.
    #[must_use]
    pub const fn is_part(&self) -> bool {
        self.sub > 0 || !self.is_last
    }

    /// Whether a checkpoint covers it.
    #[must_use]
    pub fn is_at_or_before(&self, checkpoint: &Checkpoint) -> bool {
        match checkpoint {
            Checkpoint::TrimHorizon | Checkpoint::Latest | Checkpoint::AtTimestamp => false,
            Checkpoint::At { sequence, sub } => (&self.sequence, self.sub) <= (sequence, *sub),
            Checkpoint::ShardEnd => true,
        }
    }
}

/// How far a shard was read or processed: to this record, included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The record as the stream numbers it.
    pub sequence: SequenceNumber,
    /// Which of those that were put in one.
    pub sub: u64,
    /// Whether it was the last of them.
    pub whole: bool,
}

impl Place {
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint::At { sequence: self.sequence.clone(), sub: self.sub }
    }
}

/// Where an event is that is not in the stream; see `docs/events.md`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pointer {
    /// Why it is not.
    pub kind: PointerKind,
    /// What happened: `insert`, `update` and so on.
    pub op: String,
    /// Where it is.
    pub place: String,
    /// How many bytes it has there.
    pub bytes: u64,
    /// Their SHA-256, in hex.
    pub sha256: String,
    /// What a person should know.
    pub reason: Option<String>,
}

/// Why a pointer stands where an event should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointerKind {
    /// The event is too large for the stream. Its bytes are elsewhere, whole.
    ClaimCheck,
    /// The event could not be encoded, or was refused. What there is of it waits for a person.
    Quarantined,
}

impl Pointer {
    /// The pointer in an event that is one.
    #[must_use]
    pub fn of(event: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Event {
            pointer: Pointer,
        }
        serde_json::from_slice::<Event>(event).ok().map(|event| event.pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_read_from_its_event() {
        let event = br#"{"op":"pointer","schema":"public","pointer":{"kind":"claim_check","op":"insert","place":"p","bytes":20,"sha256":"ab"}}"#;
        let pointer = Pointer::of(event).unwrap();
        assert_eq!((pointer.kind, pointer.bytes, pointer.reason), (PointerKind::ClaimCheck, 20, None));
        assert_eq!(Pointer::of(br#"{"op":"insert"}"#), None);
    }
}
