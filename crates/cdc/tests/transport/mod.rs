//! The session, its lock and its stream, on real servers.

mod postgres;
