//! The session that holds the lock: whoever connects brings it.

use std::fmt::Debug;

use async_trait::async_trait;
use tenure_backend::{Error, Result};

use super::key::LockKey;

/// One session of a Postgres server, on which advisory locks are taken. It is one connection from its
/// beginning to its end: a lock lives and dies with it, so it is never reconnected behind this trait,
/// and there is never a pooler in between.
///
/// A session that goes on to stream (START_REPLICATION) takes no more SQL. Its `ping` may then be
/// anything that makes the server answer on this very session, such as a status update that asks for
/// a reply.
///
/// At most one call is under way at a time, apart from [`LockSession::ended`] and [`LockSession::end`].
#[async_trait]
pub trait LockSession: Debug + Send + Sync {
    /// Asks for the lock without waiting for it (`pg_try_advisory_lock`): a session that waits for a lock
    /// keeps the whole server from cleaning up dead rows.
    ///
    /// # Errors
    /// `Invalid` if this session holds the lock already: Postgres would grant it again, so two candidates
    /// on one session would both lead. `Unavailable` if the server is a standby, whose locks exclude
    /// nobody on the primary.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the lock may or may not be held.
    async fn try_lock(&self, key: LockKey) -> Result<Tried>;

    /// Asks the server for a sign of life.
    ///
    /// # Cancel safety
    /// May be dropped.
    async fn ping(&self, key: LockKey) -> Result<Pulse>;

    /// Gives the lock back (`pg_advisory_unlock`), and says whether the session is without it now.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the lock may or may not be held.
    async fn unlock(&self, key: LockKey) -> Result<bool>;

    /// Completes as soon as the session is known to be over, and says why. May be asked again and again.
    ///
    /// # Cancel safety
    /// May be dropped.
    async fn ended(&self) -> Error;

    /// Ends the session, without waiting: the server frees its locks when it notices.
    fn end(&self);

    /// The process id that the server announced when the session began, if the driver tells. A pooler
    /// announces one of its own, so it is found out at the first poll.
    fn announced_backend(&self) -> Option<i32> {
        None
    }
}

/// The answer to [`LockSession::try_lock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tried {
    /// Whether the session has the lock now.
    pub granted: bool,
    /// The server's process (`pg_backend_pid`), if it was asked.
    pub backend: Option<i32>,
}

/// The answer to [`LockSession::ping`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pulse {
    /// The server's process (`pg_backend_pid`), if it could be asked.
    pub backend: Option<i32>,
    /// Whether `pg_locks` shows the lock as held by this session, if it could be asked.
    pub holds: Option<bool>,
}
