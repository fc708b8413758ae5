//! A server with advisory locks, in memory, and sessions that go wrong when they are told to.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, Result};
use tenure_clock::Clock;
use tokio::sync::watch;

use crate::advisory::{LockKey, LockSession, Pulse, Tried};

/// The lock table of one Postgres server.
#[derive(Debug, Clone, Default)]
pub struct FakeLocks {
    server: Arc<Mutex<Server>>,
}

#[derive(Debug, Default)]
struct Server {
    sessions: u64,
    /// Which session holds a lock.
    holders: BTreeMap<LockKey, u64>,
}

/// How calls on a session fare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Link {
    /// They are answered.
    #[default]
    Works,
    /// They never reach the server.
    Hangs,
    /// They reach the server, and the answers never come.
    LosesReplies,
    /// The server refuses each; the session lives.
    Fails,
}

impl FakeLocks {
    /// A new session.
    #[must_use]
    pub fn session(&self, clock: Arc<dyn Clock>) -> Arc<FakeSession> {
        let mut server = self.lock();
        server.sessions += 1;
        let id = server.sessions;
        let knobs =
            Knobs { link: Link::Works, backend: i32::try_from(id).unwrap_or(0), delay: Duration::ZERO };
        Arc::new(FakeSession {
            id,
            locks: self.clone(),
            clock,
            knobs: Mutex::new(knobs),
            ended: watch::Sender::new(None),
        })
    }

    /// Which session holds the lock.
    #[must_use]
    pub fn holder(&self, key: LockKey) -> Option<u64> {
        self.lock().holders.get(&key).copied()
    }

    /// The server notices that a session is gone, and frees its locks.
    pub fn notice_end_of(&self, session: &FakeSession) {
        self.lock().holders.retain(|_, holder| *holder != session.id);
    }

    /// Somebody runs `pg_advisory_unlock_all` on the session that holds the lock.
    pub fn take_away(&self, key: LockKey) {
        self.lock().holders.remove(&key);
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One session of a [`FakeLocks`].
pub struct FakeSession {
    id: u64,
    locks: FakeLocks,
    clock: Arc<dyn Clock>,
    knobs: Mutex<Knobs>,
    ended: watch::Sender<Option<String>>,
}

#[derive(Debug, Clone, Copy)]
struct Knobs {
    link: Link,
    backend: i32,
    delay: Duration,
}

impl FakeSession {
    /// Its number, from 1.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// How calls fare from now on.
    pub fn set_link(&self, link: Link) {
        self.knobs().link = link;
    }

    /// How long answers take from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.knobs().delay = delay;
    }

    /// Another process of the server answers from now on, as through a pooler.
    pub fn set_backend(&self, backend: i32) {
        self.knobs().backend = backend;
    }

    /// The server ends the session, and both sides know.
    pub fn terminate(&self) {
        self.locks.notice_end_of(self);
        self.ended.send_replace(Some("terminated".to_owned()));
    }

    /// Whether this side knows that the session is over.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    fn knobs(&self) -> MutexGuard<'_, Knobs> {
        self.knobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` at the server, if the call gets there, and brings the answer, if it gets back.
    async fn call<T>(&self, work: impl FnOnce(&mut Server) -> Result<T> + Send) -> Result<T>
    where
        T: Send,
    {
        if self.is_ended() {
            return Err(Error::unavailable("the session is over"));
        }
        let Knobs { link, delay, .. } = *self.knobs();
        match link {
            Link::Hangs => pending().await,
            Link::Fails => return Err(Error::unavailable("canceling statement due to user request")),
            Link::Works | Link::LosesReplies => {}
        }
        let answer = work(&mut self.locks.lock());
        if link == Link::LosesReplies {
            pending::<()>().await;
        }
        if !delay.is_zero() {
            self.clock.sleep(delay).await;
        }
        answer
    }
}

#[async_trait]
impl LockSession for FakeSession {
    async fn try_lock(&self, key: LockKey) -> Result<Tried> {
        let (id, backend) = (self.id, Some(self.knobs().backend));
        self.call(move |server| {
            if server.holders.get(&key) == Some(&id) {
                return Err(Error::invalid("this session holds the lock already"));
            }
            let granted = *server.holders.entry(key).or_insert(id) == id;
            Ok(Tried { granted, backend })
        })
        .await
    }

    async fn ping(&self, key: LockKey) -> Result<Pulse> {
        let (id, backend) = (self.id, Some(self.knobs().backend));
        self.call(move |server| Ok(Pulse { backend, holds: Some(server.holders.get(&key) == Some(&id)) }))
            .await
    }

    async fn unlock(&self, key: LockKey) -> Result<bool> {
        let id = self.id;
        self.call(move |server| {
            server.holders.retain(|held, holder| !(*held == key && *holder == id));
            Ok(true)
        })
        .await
    }

    async fn ended(&self) -> Error {
        let mut ended = self.ended.subscribe();
        // It cannot fail: the sender lives as long as this.
        let why = ended.wait_for(Option::is_some).await.map_or(None, |why| why.clone());
        Error::unavailable(why.unwrap_or_default())
    }

    fn end(&self) {
        // A server that cannot be reached learns of it later, by `notice_end_of`.
        if self.knobs().link != Link::Hangs {
            self.locks.notice_end_of(self);
        }
        self.ended.send_if_modified(|why| {
            let first = why.is_none();
            why.get_or_insert("ended by us".to_owned());
            first
        });
    }
}

impl fmt::Debug for FakeSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeSession({})", self.id)
    }
}
