//! Whether a driver's call may have had its effect when no clear answer came.

use std::error::Error;

use tenure_backend::Kind;

/// What a call is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// It changes nothing.
    Read,
    /// It changes something.
    Write,
}

impl Intent {
    /// The kind of a call that was sent and not answered.
    pub(crate) const fn unanswered(self) -> Kind {
        match self {
            Self::Read => Kind::Unavailable,
            Self::Write => Kind::Unknown,
        }
    }
}

/// The first error of that type among `error` and its causes.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
