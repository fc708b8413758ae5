//! Writes as data, and the one decision that memory, SQLite and Postgres share.

use tenure_backend::{Error, Result};

use crate::condition::Condition;
use crate::item::{Item, Key, Value};
use crate::table::TableSpec;
use crate::update::Update;

/// Most writes in one transaction: DynamoDB's limit.
pub const WRITES_MAX: usize = 100;
/// Most bytes of one item: DynamoDB's limit.
pub const ITEM_BYTES_MAX: usize = 400 * 1024;
/// Deepest nesting of lists and maps: DynamoDB's limit.
const DEPTH_MAX: usize = 32;

/// One conditional write of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// The row becomes `item`.
    Put {
        /// The table.
        table: String,
        /// The whole row, key included.
        item: Item,
        /// Only if this is true of the row as it is.
        when: Condition,
    },
    /// The row is changed, or begun if it is not there (but not by an update that only removes).
    Update {
        /// The table.
        table: String,
        /// The row.
        key: Key,
        /// What changes.
        change: Update,
        /// Only if this is true of the row as it is.
        when: Condition,
    },
    /// The row goes away.
    Delete {
        /// The table.
        table: String,
        /// The row.
        key: Key,
        /// Only if this is true of the row as it is.
        when: Condition,
    },
    /// Nothing changes: the condition alone must hold. Only in a transaction.
    Check {
        /// The table.
        table: String,
        /// The row.
        key: Key,
        /// What must be true of it.
        when: Condition,
    },
}

/// How a write ended, when it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It happened. Holds the row as it is now; of a delete, the row that went away; of a
    /// transaction, nothing.
    Applied(Item),
    /// It did not, because a condition did not hold.
    Refused(Refusal),
}

/// Which condition did not hold, and of what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which of a transaction's writes was refused first; 0 for a single write.
    pub index: usize,
    /// The row as it was, if there was one.
    pub current: Option<Item>,
}

impl Written {
    /// True if it happened.
    #[must_use]
    pub const fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_))
    }
}

/// What a write does to its row, once its condition is known to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The row becomes this.
    Store(Item),
    /// The row goes away.
    Erase,
    /// Nothing changes.
    Keep,
}

impl Write {
    /// The table written to.
    #[must_use]
    pub fn table(&self) -> &str {
        match self {
            Self::Put { table, .. }
            | Self::Update { table, .. }
            | Self::Delete { table, .. }
            | Self::Check { table, .. } => table,
        }
    }

    /// The condition.
    #[must_use]
    pub const fn when(&self) -> &Condition {
        match self {
            Self::Put { when, .. }
            | Self::Update { when, .. }
            | Self::Delete { when, .. }
            | Self::Check { when, .. } => when,
        }
    }

    /// The row written to.
    ///
    /// # Errors
    /// `Invalid` if the key does not fit the table.
    pub fn key(&self, spec: &TableSpec) -> Result<Key> {
        match self {
            Self::Put { item, .. } => spec.key_of(item),
            Self::Update { key, .. } | Self::Delete { key, .. } | Self::Check { key, .. } => {
                spec.check_key(key)?;
                Ok(key.clone())
            }
        }
    }

    /// Refuses what no backend could carry out, before anything is sent.
    ///
    /// # Errors
    /// `Invalid`, naming the part.
    pub fn validate(&self) -> Result<()> {
        self.when().validate()?;
        match self {
            Self::Put { item, .. } => valid_item(item),
            Self::Update { key, change, .. } => change.validate(key),
            Self::Delete { .. } | Self::Check { .. } => Ok(()),
        }
    }

    /// What happens to `current`: `None` if the condition does not hold. The one decision behind
    /// every local backend.
    ///
    /// # Errors
    /// `Invalid` if the update does not fit the row, or the row would become too large.
    pub fn decide(&self, spec: &TableSpec, current: Option<&Item>) -> Result<Option<Effect>> {
        let nothing = Item::new();
        if !self.when().holds(current.unwrap_or(&nothing)) {
            return Ok(None);
        }
        let effect = match self {
            Self::Put { item, .. } => Effect::Store(item.clone()),
            Self::Update { change, .. } if current.is_none() && change.only_removes() => Effect::Keep,
            Self::Update { key, change, .. } => {
                let mut item = current.cloned().unwrap_or_else(|| key.as_item().clone());
                change.apply(&mut item)?;
                valid_item(&item)?;
                Effect::Store(item)
            }
            Self::Delete { .. } => Effect::Erase,
            Self::Check { .. } => Effect::Keep,
        };
        if let Effect::Store(item) = &effect {
            spec.check_index_attributes(item)?;
        }
        Ok(Some(effect))
    }
}

/// Refuses an empty, too long, or self-contradicting transaction.
///
/// # Errors
/// `Invalid`, naming the part. Two writes of one row are refused by [`refuse_same_row`].
pub(crate) fn validate_transaction(writes: &[Write], nonce: &str) -> Result<()> {
    if nonce.is_empty() {
        return Err(Error::invalid("transaction has an empty nonce: draw one, it names this attempt"));
    }
    if writes.is_empty() || writes.len() > WRITES_MAX {
        return Err(Error::invalid(format!(
            "transaction has {} writes: give 1 to {WRITES_MAX}",
            writes.len()
        )));
    }
    let says_nothing =
        |write: &Write| matches!(write, Write::Update { change, .. } if change.changes().is_empty());
    if writes.iter().any(says_nothing) {
        return Err(Error::invalid("transaction has an update without changes: check the row instead"));
    }
    writes.iter().try_for_each(Write::validate)
}

/// Refuses two writes of one row in one transaction, as DynamoDB does.
///
/// # Errors
/// `Invalid`, naming the row.
pub(crate) fn refuse_same_row(rows: &[(&str, &Key)]) -> Result<()> {
    for (index, row) in rows.iter().enumerate() {
        if rows[..index].contains(row) {
            let (table, key) = row;
            return Err(Error::invalid(format!(
                "transaction writes row ({key}) of table `{table}` twice: join the two writes"
            )));
        }
    }
    Ok(())
}

fn valid_item(item: &Item) -> Result<()> {
    let bytes = item.size_bytes();
    if bytes > ITEM_BYTES_MAX {
        return Err(Error::invalid(format!(
            "item has {bytes} bytes: at most {ITEM_BYTES_MAX} fit; keep large data elsewhere and store where"
        )));
    }
    for (name, value) in item {
        crate::condition::valid_name(name)?;
        valid_value(name, value)?;
        if value.depth() > DEPTH_MAX {
            return Err(Error::invalid(format!(
                "attribute `{name}` is nested deeper than {DEPTH_MAX} levels"
            )));
        }
    }
    Ok(())
}

fn valid_value(name: &str, value: &Value) -> Result<()> {
    let empty_set = match value {
        Value::Ss(set) => set.is_empty(),
        Value::Ns(set) => set.is_empty(),
        Value::Bs(set) => set.is_empty(),
        Value::L(values) => return values.iter().try_for_each(|value| valid_value(name, value)),
        Value::M(entries) => return entries.values().try_for_each(|value| valid_value(name, value)),
        _ => false,
    };
    if empty_set {
        return Err(Error::invalid(format!(
            "attribute `{name}` has an empty set: remove the attribute instead"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::KeyAttribute;

    fn spec() -> TableSpec {
        TableSpec::new("rows", KeyAttribute::text("pk"))
    }

    fn update(change: Update, when: Condition) -> Write {
        Write::Update { table: "rows".into(), key: Key::new("pk", "a"), change, when }
    }

    #[test]
    fn an_update_of_no_row_begins_with_the_key() {
        let write = update(Update::new().add("n", 1), Condition::absent("pk"));
        let begun = Item::new().with("pk", "a").with("n", 1);
        assert_eq!(write.decide(&spec(), None).unwrap(), Some(Effect::Store(begun.clone())));
        assert_eq!(write.decide(&spec(), Some(&begun)).unwrap(), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let put = |item: Item| Write::Put { table: "rows".into(), item, when: Condition::Always };
        let large = put(Item::new().with("pk", "a").with("v", "x".repeat(ITEM_BYTES_MAX)));
        assert!(large.validate().unwrap_err().chain().contains("at most 409600 fit"));
        let empty = put(Item::new().with("pk", "a").with("v", Value::Ss([].into())));
        assert!(empty.validate().unwrap_err().chain().contains("empty set"));
        let nested = (0..40).fold(Value::Null, |inner, _| Value::L(vec![inner]));
        assert!(put(Item::new().with("v", nested)).validate().is_err());
        assert!(validate_transaction(&[], "n").is_err());
        let grown = Item::new().with("pk", "a").with("v", "x".repeat(ITEM_BYTES_MAX - 10));
        let growing = update(Update::new().set("w", "y".repeat(100)), Condition::Always);
        assert!(growing.decide(&spec(), Some(&grown)).is_err());
        let key = Key::new("pk", "a");
        assert!(refuse_same_row(&[("rows", &key), ("rows", &key)]).is_err());
        refuse_same_row(&[("rows", &key), ("others", &key)]).unwrap();
    }
}
