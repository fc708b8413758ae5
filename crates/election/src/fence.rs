//! The number that keeps an old leader's late write out.
//!
//! A leader knows when its own time is over, but not what it sent before that is still under way. So
//! every guarded write carries its epoch, and whatever is guarded refuses an epoch below the highest
//! it has seen.

use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_planted as planted;
use tenure_store::{Condition, Store, Write, Written};

use crate::identity::{Epoch, ShardId};
use crate::rows::Place;

/// One term of one shard, as a proof to carry along. Work that takes a `Fence` cannot be called by
/// somebody who was never elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    place: Place,
    epoch: Epoch,
}

impl Fence {
    /// The fence of a term.
    #[must_use]
    pub const fn new(place: Place, epoch: Epoch) -> Self {
        Self { place, epoch }
    }

    /// The shard that is led.
    #[must_use]
    pub const fn shard(&self) -> &ShardId {
        &self.place.shard
    }

    /// The term.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The rule of every guarded resource: it takes a write of this term if it has seen no later one.
    #[must_use]
    pub fn admits(&self, highest_seen: Option<Epoch>) -> bool {
        planted::is("guard_admits_lower") || highest_seen.is_none_or(|highest| self.epoch >= highest)
    }

    /// For rows in the election's own store: a check to put into the same transaction, which holds while
    /// nobody has claimed the shard since.
    #[must_use]
    pub fn check(&self) -> Write {
        Write::Check {
            table: self.place.table.clone(),
            key: self.place.fence_key(),
            when: Condition::eq("epoch", self.epoch.0),
        }
    }

    /// For rows that carry an epoch of their own in `attribute`: holds while they have seen no later
    /// term. Set the attribute to [`Fence::epoch`] in the same write.
    #[must_use]
    pub fn not_after(&self, attribute: &str) -> Condition {
        Condition::absent(attribute).or(Condition::le(attribute, self.epoch.0))
    }

    /// Writes to the election's own store, all or nothing, and only while nobody has claimed the shard
    /// since.
    ///
    /// # Errors
    /// `Fenced` if somebody has; otherwise as [`Store::transact`].
    ///
    /// # Cancel safety
    /// As [`Store::transact`].
    pub async fn transact(
        &self,
        store: &dyn Store,
        by: Monotonic,
        writes: &[Write],
        nonce: &str,
    ) -> Result<Written> {
        let guarded = [writes, &[self.check()]].concat();
        match store.transact(by, &guarded, nonce).await? {
            Written::Refused(refusal) if refusal.index == writes.len() => Err(Error::new(
                Kind::Fenced,
                format!("epoch {} of shard `{}` is over: somebody newer leads it", self.epoch, self.shard()),
            )),
            written => Ok(written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(epoch: u64) -> Fence {
        Fence::new(Place { table: "t".into(), shard: ShardId::new("s").unwrap() }, Epoch(epoch))
    }

    #[test]
    fn a_resource_takes_no_epoch_below_the_highest_it_saw() {
        assert!(fence(1).admits(None));
        assert!(fence(2).admits(Some(Epoch(1))) && fence(2).admits(Some(Epoch(2))));
        assert!(!fence(2).admits(Some(Epoch(3))));
    }

    #[test]
    fn a_row_with_an_epoch_of_its_own_is_guarded_by_it() {
        use tenure_store::Item;
        let when = fence(2).not_after("epoch");
        assert!(when.holds(&Item::new()));
        assert!(when.holds(&Item::new().with("epoch", 2)));
        assert!(!when.holds(&Item::new().with("epoch", 3)));
    }
}
