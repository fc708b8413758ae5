//! The FENCE row of a shard, raised without a LOCK row beside it.
//!
//! The epoch goes from what was read to the next, in one conditional write. `claim` holds the nonce of
//! that write, so that whoever lost the answer can tell its own. Everybody else who raises the epoch
//! leaves an old nonce there or writes its own, so only epoch and nonce together mean anything.
//!
//! `leaseMs` stays as the last leader by rows left it: followers of the LOCK row go by it.

use tenure_backend::Result;
use tenure_store::{Condition, Item, Update, Write};

use crate::identity::{Epoch, Nonce};
use crate::rows::Place;

/// What the FENCE row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FenceRow {
    /// The highest epoch.
    pub(super) epoch: Epoch,
    /// The nonce of the last raise by an advisory leader.
    pub(super) claim: Option<Nonce>,
}

/// The write that raises the epoch by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Raise {
    /// What the row must say; no row if absent.
    pub(super) was: Option<Epoch>,
    /// Drawn for this write.
    pub(super) nonce: Nonce,
}

impl Raise {
    /// The new term.
    #[must_use]
    pub(super) fn epoch(&self) -> Epoch {
        self.was.unwrap_or(Epoch(0)).next()
    }

    /// Whether the row is as this write left it.
    #[must_use]
    pub(super) fn is_what(&self, row: Option<FenceRow>) -> bool {
        row == Some(FenceRow { epoch: self.epoch(), claim: Some(self.nonce) })
    }

    /// As a conditional write.
    #[must_use]
    pub(super) fn write(&self, place: &Place) -> Write {
        Write::Update {
            table: place.table.clone(),
            key: place.fence_key(),
            change: Update::new().set("epoch", self.epoch().0).set("claim", self.nonce.to_string()),
            when: match self.was {
                Some(epoch) => Condition::eq("epoch", epoch.0),
                None => Condition::absent("pk"),
            },
        }
    }
}

/// The row that an item holds.
///
/// # Errors
/// `Corrupt` if it has no epoch: the row is not ours to overwrite.
pub(super) fn read(place: &Place, item: &Item) -> Result<FenceRow> {
    let epoch = place.fence(item)?.epoch;
    // A nonce that cannot be read is not mine, and that is all that is asked of it.
    Ok(FenceRow { epoch, claim: item.text("claim").and_then(|text| text.parse().ok()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ShardId;

    #[test]
    fn a_raise_is_known_by_epoch_and_nonce_together() {
        let raise = Raise { was: Some(Epoch(4)), nonce: Nonce(7) };
        let row =
            |epoch, nonce: Option<u128>| Some(FenceRow { epoch: Epoch(epoch), claim: nonce.map(Nonce) });
        assert!(raise.is_what(row(5, Some(7))));
        assert!(!raise.is_what(row(5, Some(8))) && !raise.is_what(row(5, None)), "somebody else raised it");
        assert!(!raise.is_what(row(6, Some(7))), "raised once more by a leader by rows");
        assert!(!raise.is_what(row(4, Some(7))) && !raise.is_what(None));
    }

    #[test]
    fn what_is_written_reads_back_and_what_is_not_ours_is_left_alone() {
        let place = Place { table: "t".into(), shard: ShardId::new("s").unwrap() };
        let raise = Raise { was: None, nonce: Nonce(7) };
        let key = place.fence_key();
        let item = key.as_item().clone().with("epoch", 1).with("claim", raise.nonce.to_string());
        assert!(raise.is_what(Some(read(&place, &item).unwrap())));
        let by_rows = key.as_item().clone().with("epoch", 3).with("leaseMs", 15_000);
        assert_eq!(read(&place, &by_rows).unwrap(), FenceRow { epoch: Epoch(3), claim: None });
        let foreign = key.as_item().clone().with("epoch", "three");
        assert_eq!(read(&place, &foreign).unwrap_err().kind(), tenure_backend::Kind::Corrupt);
    }
}
