//! Cuts what arrives into messages, where it lies.
//!
//! One buffer, large reads into it, and positions into it for what is complete: a message is neither copied
//! nor allocated. Only the unfinished last one is moved, to the front, when the room behind it runs out.
//!
//! ```text
//!   buffer  ······[ w ][ w ][ k ][ w ··
//!                 start              end           room
//! ```

use std::ops::Range;

/// Room for one read. Large enough that a busy stream needs few system calls.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// A buffer that grew beyond this for one message is given back when that is done.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Less room than this is not worth a read.
const ROOM_BYTES_MIN: usize = 16 * 1024;
/// A tag, and a length that counts itself.
const HEADER_BYTES: usize = 5;

#[derive(Debug)]
pub(super) struct Framer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    message_bytes_max: usize,
}

/// One complete message in the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) tag: u8,
    pub(super) body: Range<usize>,
}

/// Why what arrived cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unframed {
    /// A length that does not even count itself.
    BadLength,
    /// Longer than we take.
    TooLong { bytes: usize },
}

impl Framer {
    pub(super) fn new(message_bytes_max: usize) -> Self {
        Self { buffer: vec![0; CHUNK_BYTES], start: 0, end: 0, message_bytes_max }
    }

    pub(super) const fn set_max(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    /// Takes the next message, if all of it is there.
    #[inline]
    pub(super) fn find(&mut self) -> Result<Option<Found>, Unframed> {
        let Some(bytes) = self.next_bytes()? else { return Ok(None) };
        if self.end - self.start < bytes {
            return Ok(None);
        }
        let found =
            Found { tag: self.buffer[self.start], body: self.start + HEADER_BYTES..self.start + bytes };
        self.start += bytes;
        Ok(Some(found))
    }

    /// What a message says. It stays until the next call of [`Framer::room`].
    #[inline]
    pub(super) fn body(&self, found: &Found) -> &[u8] {
        &self.buffer[found.body.clone()]
    }

    /// The message with its header.
    pub(super) fn whole(&self, found: &Found) -> &[u8] {
        &self.buffer[found.body.start - HEADER_BYTES..found.body.end]
    }

    /// Where to read to; never empty. What was found before is gone.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let left = self.end - self.start;
        // The length was checked when it was looked for; a bad one is found again there.
        let wanted = self.next_bytes().ok().flatten().unwrap_or(HEADER_BYTES).max(left + 1);
        if self.buffer.len() > KEPT_BYTES_MAX && wanted <= CHUNK_BYTES / 2 {
            let mut buffer = vec![0; CHUNK_BYTES];
            buffer[..left].copy_from_slice(&self.buffer[self.start..self.end]);
            self.buffer = buffer;
            (self.start, self.end) = (0, left);
        } else if self.start > 0
            && (left == 0 || self.start + wanted > self.buffer.len() || self.is_cramped())
        {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, left);
        }
        if self.end == self.buffer.len() {
            // Twice as much, not as much as the length claims: it is believed as it arrives.
            let grown = wanted.min(self.buffer.len() * 2);
            self.buffer.resize(grown.max(left + ROOM_BYTES_MIN), 0);
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were read to the room.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    const fn is_cramped(&self) -> bool {
        self.buffer.len() - self.end < ROOM_BYTES_MIN
    }

    /// How long the next message is, header and all, if its header is there.
    #[inline]
    fn next_bytes(&self) -> Result<Option<usize>, Unframed> {
        let Some([_, length @ ..]) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length < 4 {
            return Err(Unframed::BadLength);
        }
        if length - 4 > self.message_bytes_max {
            return Err(Unframed::TooLong { bytes: length });
        }
        Ok(Some(length + 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    /// Feeds `bytes` in pieces and gives all messages.
    fn cut(
        framer: &mut Framer,
        bytes: &[u8],
        mut piece: impl FnMut() -> usize,
    ) -> Result<Vec<(u8, Vec<u8>)>, Unframed> {
        let (mut messages, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let room = framer.room();
            assert!(!room.is_empty());
            let taken = piece().clamp(1, rest.len()).min(room.len());
            room[..taken].copy_from_slice(&rest[..taken]);
            rest = &rest[taken..];
            framer.filled(taken);
            while let Some(found) = framer.find()? {
                messages.push((found.tag, framer.body(&found).to_vec()));
            }
        }
        Ok(messages)
    }

    proptest! {
        // Each moves megabytes.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn however_the_bytes_arrive_the_messages_are_the_same(
            bodies in prop::collection::vec((any::<u8>(), prop_oneof![
                8 => prop::collection::vec(any::<u8>(), 0..60),
                1 => (0usize..600_000).prop_map(|length| vec![7; length]),
            ]), 0..40),
            pieces in prop::collection::vec(prop_oneof![1usize..20, 1usize..300_000], 1..20),
        ) {
            let bytes: Vec<u8> = bodies.iter().flat_map(|(tag, body)| message(*tag, body)).collect();
            let mut framer = Framer::new(1 << 20);
            let mut pieces = pieces.into_iter().cycle();
            let messages = cut(&mut framer, &bytes, || pieces.next().unwrap_or(1)).unwrap();
            prop_assert_eq!(messages, bodies);
            prop_assert_eq!(framer.start, framer.end);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_are_nothing_panics_and_little_is_kept(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            piece in 1usize..100,
        ) {
            let mut framer = Framer::new(1 << 30);
            let _ = cut(&mut framer, &bytes, || piece);
            prop_assert!(framer.buffer.len() <= CHUNK_BYTES);
        }
    }

    #[test]
    fn a_huge_message_is_believed_as_it_arrives_and_forgotten_when_it_is_done() {
        let mut framer = Framer::new(1 << 30);
        let huge = message(b'd', &vec![1; 20 << 20]);
        let messages = cut(&mut framer, &huge[..CHUNK_BYTES], || 60_000).unwrap();
        assert!(messages.is_empty());
        assert!(framer.buffer.len() <= 2 * CHUNK_BYTES, "{}", framer.buffer.len());
        let messages = cut(&mut framer, &huge[CHUNK_BYTES..], || 100_000).unwrap();
        assert_eq!(messages[0].1.len(), 20 << 20);
        assert!(framer.buffer.len() > KEPT_BYTES_MAX);
        cut(&mut framer, &message(b'd', b"small")[..7], || 7).unwrap();
        assert_eq!(framer.buffer.len(), CHUNK_BYTES);
        // "sm" came with the header.
        assert_eq!(cut(&mut framer, b"all", || 3).unwrap(), [(b'd', b"small".to_vec())]);
    }

    #[test]
    fn a_length_that_cannot_be_is_refused_before_anything_is_kept() {
        let refused = |length: u32, max: usize| {
            let mut framer = Framer::new(max);
            let mut bytes = vec![b'd'];
            bytes.extend(length.to_be_bytes());
            cut(&mut framer, &bytes, || 5).err()
        };
        assert_eq!(refused(3, 100), Some(Unframed::BadLength));
        assert_eq!(refused(105, 100), Some(Unframed::TooLong { bytes: 105 }));
        assert_eq!(refused(u32::MAX, 1 << 30), Some(Unframed::TooLong { bytes: u32::MAX as usize }));
        assert_eq!(refused(104, 100), None);
    }
}
