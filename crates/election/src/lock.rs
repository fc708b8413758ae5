//! The two rows of an election, and the writes that change them, as data.
//!
//! The machine reads and writes these; `rows.rs` turns them into items and conditions. Every write is
//! tied to what its writer saw, so a write that comes late finds its condition gone:
//!
//! ```text
//!   Acquire   LOCK is the version seen, and FENCE says e     ->  LOCK is mine, FENCE says e + 1
//!   Renew     LOCK is mine, of my epoch, with my last rvn    ->  later ttl, fresh rvn
//!   Release   LOCK is mine, of my epoch, with my last rvn    ->  ttl 0, fresh rvn
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::WallTime;

use crate::identity::{Epoch, Nonce, OwnerId};

/// The LOCK row: who leads, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lock {
    /// Who wrote it.
    pub owner: OwnerId,
    /// Epoch second at which it expires by its writer's wall clock; 0 if it was released.
    pub ttl: i64,
    /// The nonce of its last write; absent if a Go process wrote it.
    pub rvn: Option<Nonce>,
    /// For how long it is meant; absent if a Go process wrote it.
    pub lease: Option<Duration>,
    /// The term; absent if a Go process wrote it.
    pub epoch: Option<Epoch>,
    /// Of a released row: the name of the candidate that should have it next.
    pub reserved_for: Option<Arc<str>>,
    /// Somebody asks the leader to hand over.
    pub resign: Option<ResignRequest>,
    /// What the leader tells the world about itself.
    pub card: Option<Arc<Card>>,
}

impl Lock {
    /// What tells this state of the row from any other: a Go process's write erases our own attributes,
    /// so all three count.
    #[must_use]
    pub fn version(&self) -> Version {
        Version { owner: self.owner.clone(), ttl: self.ttl, rvn: self.rvn }
    }

    /// Whether two reads show one state: what [`Lock::version`] would say, without building it.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        self.rvn == other.rvn && self.ttl == other.ttl && self.owner == other.owner
    }

    /// Whether its leader gave it up.
    #[must_use]
    pub const fn is_released(&self) -> bool {
        self.ttl == 0
    }
}

/// One state of a LOCK row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// Who wrote it.
    pub owner: OwnerId,
    /// When it expires.
    pub ttl: i64,
    /// The nonce of the write.
    pub rvn: Option<Nonce>,
}

/// What a leader tells the world about itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Card {
    /// The candidate's name, by which another leader can hand over to it.
    pub name: Arc<str>,
    /// When its term began, by its own wall clock.
    pub since: WallTime,
    /// Whatever else it wants known: an address, a version.
    pub about: Arc<BTreeMap<String, String>>,
}

/// An operator's request that the leader hand over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResignRequest {
    /// Tells one request from the next.
    pub nonce: Nonce,
    /// To whom, if anyone in particular.
    pub to: Option<Arc<str>>,
}

/// The FENCE row: the highest epoch there ever was. It has no `ttl`, so it survives release, deletion
/// and reaping of the LOCK row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FenceMark {
    /// The highest epoch.
    pub epoch: Epoch,
    /// The lease of the leader of that epoch: how long an absent LOCK row must be watched.
    pub lease: Option<Duration>,
    /// The skew bound that this leader took off its own time, if it had one.
    pub skew: Option<Duration>,
}

/// What a read showed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Rows {
    /// The LOCK row.
    pub lock: Option<Lock>,
    /// The FENCE row; looked at only if there is no LOCK row.
    pub fence: Option<FenceMark>,
}

/// A conditional write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Attempt {
    /// Become the leader.
    Acquire(Box<Acquire>),
    /// Stay the leader.
    Renew(Renew),
    /// Stop being the leader.
    Release(Release),
}

/// See [`Attempt::Acquire`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acquire {
    /// The state of the LOCK row that may be replaced; no row if absent.
    pub over: Option<Version>,
    /// What the FENCE row must say; no row if absent.
    pub fence_was: Option<Epoch>,
    /// The nonce of this claim.
    pub rvn: Nonce,
    /// The new term.
    pub epoch: Epoch,
    /// Who claims.
    pub owner: OwnerId,
    /// When it expires.
    pub ttl: i64,
    /// For how long it is meant.
    pub lease: Duration,
    /// The skew bound that the leader takes off its own time.
    pub skew: Option<Duration>,
    /// What the leader tells the world.
    pub card: Arc<Card>,
}

impl Acquire {
    /// The LOCK row to be.
    #[must_use]
    pub fn lock(&self) -> Lock {
        Lock {
            owner: self.owner.clone(),
            ttl: self.ttl,
            rvn: Some(self.rvn),
            lease: Some(self.lease),
            epoch: Some(self.epoch),
            reserved_for: None,
            resign: None,
            card: Some(self.card.clone()),
        }
    }

    /// The FENCE row to be.
    #[must_use]
    pub const fn fence(&self) -> FenceMark {
        FenceMark { epoch: self.epoch, lease: Some(self.lease), skew: self.skew }
    }
}

/// See [`Attempt::Renew`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Renew {
    /// Who must own the row.
    pub owner: OwnerId,
    /// The term it must say.
    pub epoch: Epoch,
    /// The nonce it must have, unless it has the fresh one already.
    pub current: Nonce,
    /// The nonce of this renewal, kept when it is sent again.
    pub fresh: Nonce,
    /// The new expiry.
    pub ttl: i64,
}

/// See [`Attempt::Release`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Release {
    /// Who must own the row.
    pub owner: OwnerId,
    /// The term it must say.
    pub epoch: Epoch,
    /// The nonce it must have.
    pub current: Nonce,
    /// Or this one, of a renewal whose outcome is unknown.
    pub pending: Option<Nonce>,
    /// The nonce of this release: no renewal that is still under way can revive the row.
    pub fresh: Nonce,
    /// Who should have it next.
    pub reserved_for: Option<Arc<str>>,
}

impl Attempt {
    /// The nonce that the row will have.
    #[must_use]
    pub const fn nonce(&self) -> Nonce {
        match self {
            Self::Acquire(acquire) => acquire.rvn,
            Self::Renew(renew) => renew.fresh,
            Self::Release(release) => release.fresh,
        }
    }
}
