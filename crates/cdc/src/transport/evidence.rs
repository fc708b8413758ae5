//! Tells an answer of the server from something that had been lying around.
//!
//! The lock on a session is held while the server is alive. Bytes that are read after the server was asked
//! show that only if they came after the question, and a reader that was held up finds bytes that are
//! minutes old. They are new if the socket was seen empty after the question, or if more was read since
//! than the socket can keep.
//!
//! What was on the way in the network when the question was asked cannot be told apart; the end of the
//! connection follows right behind it.

/// The reader's side of it: which question was last noticed, and what was seen since.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    asked: u64,
    seen_empty: bool,
    bytes: u64,
}

impl Evidence {
    /// There was nothing to read when `asked` was the last question.
    pub(super) const fn empty(&mut self, asked: u64) {
        self.notice(asked);
        self.seen_empty = true;
    }

    /// Bytes were read when `asked` was the last question, from a socket that keeps at most `kept_bytes_max`.
    /// Gives the question that is answered by it.
    pub(super) const fn read(&mut self, asked: u64, bytes: usize, kept_bytes_max: u64) -> Option<u64> {
        self.notice(asked);
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.seen_empty || self.bytes > kept_bytes_max { Some(self.asked) } else { None }
    }

    const fn notice(&mut self, asked: u64) {
        if asked != self.asked {
            *self = Self { asked, seen_empty: false, bytes: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lay_in_the_socket_answers_nothing() {
        let mut evidence = Evidence::default();
        assert_eq!(evidence.read(1, 100, 250), None);
        assert_eq!(evidence.read(1, 100, 250), None);
        // More than the socket keeps: some of it must be new.
        assert_eq!(evidence.read(1, 100, 250), Some(1));
        // The next question begins anew.
        assert_eq!(evidence.read(2, 100, 250), None);
    }

    #[test]
    fn what_comes_to_an_empty_socket_is_an_answer() {
        let mut evidence = Evidence::default();
        evidence.empty(0);
        // Seen empty before the question, not after it.
        assert_eq!(evidence.read(1, 1, 250), None);
        evidence.empty(1);
        assert_eq!(evidence.read(1, 1, 250), Some(1));
    }
}
