//! The log: one event per write of the state item, under its `rev`, put if absent.
//!
//! | Attribute | Type | |
//! |---|---|---|
//! | `pk` | S | `cluster` |
//! | `sk` | S | the `rev` after the write, twenty digits |
//! | `rev`, `epoch` | N | the same as a number; when |
//! | `event` | S | the write's name in the transition table |
//! | `owner` | S | the executor |
//! | `actionId`, `fence` | S, N | the action and its fence, if one was under way |
//! | `reasons` | L(S) | why |
//! | `expiresEpoch` | N | when the event may be swept away |
//!
//! A gap in `rev` says that an executor died between the write and its event.

use tenure_backend::{Error, Kind, Result};
use tenure_store::{Condition, Item, Value, Write};

use crate::rows::CLUSTER;
use crate::state::{ActionId, State};

/// Most reasons that an event keeps, and most bytes of each.
const REASONS_MAX: usize = 20;
const REASON_BYTES_MAX: usize = 500;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The `rev` after the write.
    pub rev: i64,
    /// When, in epoch seconds.
    pub epoch: i64,
    /// The write's title in the transition table.
    pub event: String,
    /// The executor.
    pub owner: String,
    /// The action, if one was under way before or after.
    pub action: Option<ActionId>,
    /// The fence.
    pub fence: i64,
    /// Why.
    pub reasons: Vec<String>,
}

impl Event {
    /// The event of a write from one state to another.
    #[must_use]
    pub fn of(
        before: &State,
        after: &State,
        event: &str,
        owner: &str,
        epoch: i64,
        reasons: &[String],
    ) -> Self {
        let shortened = |reason: &String| {
            let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
            reason[..end.unwrap_or(0)].to_owned()
        };
        Self {
            rev: after.rev.unwrap_or(0),
            epoch,
            event: event.to_owned(),
            owner: owner.to_owned(),
            action: after.action_id().or_else(|| before.action_id()).cloned(),
            fence: after.fence(),
            reasons: reasons.iter().take(REASONS_MAX).map(shortened).collect(),
        }
    }

    /// The write that stores it, unless it is stored already.
    #[must_use]
    pub fn write(&self, table: &str, expires_epoch: i64) -> Write {
        let mut item = Item::new()
            .with("pk", CLUSTER)
            .with("sk", format!("{:020}", self.rev))
            .with("rev", self.rev)
            .with("epoch", self.epoch)
            .with("event", self.event.as_str())
            .with("owner", self.owner.as_str())
            .with("fence", self.fence)
            .with("reasons", Value::L(self.reasons.iter().map(|reason| reason.as_str().into()).collect()))
            .with("expiresEpoch", expires_epoch);
        if let Some(action) = &self.action {
            item.set("actionId", action.as_str());
        }
        Write::Put { table: table.to_owned(), item, when: Condition::absent("pk") }
    }

    /// The event that an item holds.
    ///
    /// # Errors
    /// `Corrupt` if an attribute is missing or of another type.
    pub fn read(item: &Item) -> Result<Self> {
        let damaged = |name: &str| {
            Error::new(
                Kind::Corrupt,
                format!("an event of the log has no usable `{name}`: it is not one of ours"),
            )
        };
        let number = |name: &str| item.integer(name).ok_or_else(|| damaged(name));
        let text = |name: &str| item.text(name).map(str::to_owned).ok_or_else(|| damaged(name));
        let reasons = match item.get("reasons") {
            Some(Value::L(list)) => list.iter().filter_map(Value::as_text).map(str::to_owned).collect(),
            _ => return Err(damaged("reasons")),
        };
        Ok(Self {
            rev: number("rev")?,
            epoch: number("epoch")?,
            event: text("event")?,
            owner: text("owner")?,
            action: item.text("actionId").map(ActionId::from),
            fence: number("fence")?,
            reasons,
        })
    }
}
