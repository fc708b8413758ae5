//! Behaviour of the whole crate.
