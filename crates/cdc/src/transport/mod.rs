//! The way to the server and back: one session that takes SQL, holds the advisory lock, and streams.
//!
//! ```text
//!   Endpoint ── connect ──► Session ── start_replication ──► Receiver + Sender
//!                             │ ▲                               │
//!                   query ◄───┘ └──────────── rejoin ◄──────────┘   (once; then SQL only)
//!                             └─ lock ──► ReplicationLock (a LockSession for the election)
//! ```
//!
//! - `endpoint.rs`: what an address says.
//! - `login.rs`, `session.rs`: getting in, and SQL.
//! - `stream.rs`: the stream and its feedback.
//! - `lock.rs`, `evidence.rs`: the lock, and how a stream proves that it is still held.
//! - `wire.rs`, `framer.rs`: the socket, and messages cut where they lie.
//! - `failure.rs`: what the server says, as what to do about it.
//!
//! Nothing is retried or reconnected here. A lock or a slot is bound to its session, so whoever lost one
//! begins anew.

mod endpoint;
mod evidence;
mod failure;
mod framer;
mod lock;
mod login;
mod name;
mod session;
mod shared;
mod stream;
mod wire;

pub use self::endpoint::{Endpoint, Password};
pub use self::failure::ServerError;
pub use self::lock::ReplicationLock;
pub use self::name::{PublicationName, SlotName};
pub use self::session::{Row, ServerVersion, Session};
pub use self::stream::{Frame, Origin, PluginOptions, Receiver, Sender};
