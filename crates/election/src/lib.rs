//! Fenced leader election on any store.
//!
//! One row says who leads a shard. Its leader renews it; the others watch it. Each judges by its own
//! clock only: the leader stops counting itself as such a little before its lease could be over, and a
//! follower claims the row only after it has seen it unchanged for a little longer than that. Every
//! claim raises an epoch, which guarded writes carry, so that what an old leader still had under way is
//! refused.
//!
//! `machine.rs` decides, `rows.rs` translates, `elector.rs` and `calls.rs` carry out.

mod advisory;
mod builder;
mod calls;
mod elector;
mod fence;
mod identity;
mod leadership;
mod lock;
mod machine;
#[cfg(test)]
mod pace;
mod rows;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;

pub use tenure_backend::{Error, Kind, Result};

pub use self::advisory::{
    AdvisoryElector, AdvisoryLeadership, AdvisorySettings, LockEnd, LockKey, LockSession, Pulse, Tried,
};
#[cfg(feature = "postgres")]
pub use self::advisory::{PostgresSession, prepare_config};
pub use self::builder::Builder;
pub use self::elector::{Elector, Health, Leader, LeaderView};
pub use self::fence::Fence;
pub use self::identity::{Epoch, Nonce, OWNER_BYTES_MAX, OwnerId, SHARD_BYTES_MAX, ShardId};
pub use self::leadership::{Leadership, Term};
pub use self::lock::{Acquire, Attempt, Card, FenceMark, Lock, Release, Renew, ResignRequest, Rows, Version};
pub use self::machine::{Answer, Call, CallId, Effect, Event, LossReason, Machine, Me, News, Now, Trouble};
pub use self::rows::{Place, Refused, shard_of, table_spec};
pub use self::settings::{OnRenewalError, Settings, Skew, TABLE, Timing};
