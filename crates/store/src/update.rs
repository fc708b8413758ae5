//! How a row changes: updates as data, with one meaning.
//!
//! [`Update::apply`] is the definition, as [`Condition::holds`](crate::Condition::holds) is for
//! conditions. An update of a row that is not there begins with its key attributes alone, except one
//! that only removes: it leaves a missing row missing, as DynamoDB does.

use tenure_backend::{Error, Result};

use crate::condition::valid_name;
use crate::item::{Item, Key, Value};
use crate::number::Number;

/// Most changes in one update; DynamoDB's expression limit allows about this many.
pub(crate) const CHANGES_MAX: usize = 100;

/// What happens to one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It becomes the value.
    Set(Value),
    /// It becomes the value if it is not there.
    SetIfAbsent(Value),
    /// The number is added to it; missing counts as zero.
    Add(Number),
    /// The value is put at the end of the list unless the list has it already; missing counts as empty.
    AppendUnique(Value),
    /// It goes away.
    Remove,
}

/// Changes of distinct attributes of one row, all made at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Update {
    changes: Vec<(String, Change)>,
}

impl Update {
    /// An update that changes nothing (but creates the row if it is not there).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more change.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, change: Change) -> Self {
        self.changes.push((name.into(), change));
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn set(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(name, Change::Set(value.into()))
    }

    /// Sets an attribute that is not there.
    #[must_use]
    pub fn set_if_absent(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(name, Change::SetIfAbsent(value.into()))
    }

    /// Adds to a number.
    #[must_use]
    pub fn add(self, name: impl Into<String>, number: impl Into<Number>) -> Self {
        self.with(name, Change::Add(number.into()))
    }

    /// Appends to a list what it does not have yet.
    #[must_use]
    pub fn append_unique(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(name, Change::AppendUnique(value.into()))
    }

    /// Removes an attribute.
    #[must_use]
    pub fn remove(self, name: impl Into<String>) -> Self {
        self.with(name, Change::Remove)
    }

    /// The changes, by attribute, in the order they were given.
    #[must_use]
    pub fn changes(&self) -> &[(String, Change)] {
        &self.changes
    }

    /// Whether it takes attributes away and does nothing else: then it begins no row.
    #[must_use]
    pub fn only_removes(&self) -> bool {
        !self.changes.is_empty() && self.changes.iter().all(|(_, change)| *change == Change::Remove)
    }

    /// Carries the changes out. The one definition of what an update means.
    ///
    /// # Errors
    /// `Invalid` if a number is added to something else, a value appended to something that is no
    /// list, or a sum leaves DynamoDB's range. `item` is then half changed: give it a copy.
    pub fn apply(&self, item: &mut Item) -> Result<()> {
        for (name, change) in &self.changes {
            match change {
                Change::Set(value) => item.set(name, value.clone()),
                Change::SetIfAbsent(value) => {
                    if item.get(name).is_none() {
                        item.set(name, value.clone());
                    }
                }
                Change::Add(number) => {
                    let sum = match item.get(name) {
                        None => *number,
                        Some(Value::N(found)) => found.plus(*number)?,
                        Some(other) => return Err(not_a("number", "add to", name, other)),
                    };
                    item.set(name, sum);
                }
                Change::AppendUnique(value) => match item.get_mut(name) {
                    None => item.set(name, Value::L(vec![value.clone()])),
                    Some(Value::L(list)) if list.contains(value) => {}
                    Some(Value::L(list)) => list.push(value.clone()),
                    Some(other) => return Err(not_a("list", "append to", name, other)),
                },
                Change::Remove => drop(item.remove(name)),
            }
        }
        Ok(())
    }

    /// Refuses what DynamoDB would refuse, so that a mistake shows on every backend.
    ///
    /// # Errors
    /// `Invalid` if an attribute is changed twice, is part of the key, or there are too many changes.
    pub fn validate(&self, key: &Key) -> Result<()> {
        if self.changes.len() > CHANGES_MAX {
            return Err(Error::invalid(format!(
                "update has {} changes: at most {CHANGES_MAX} are allowed",
                self.changes.len()
            )));
        }
        for (index, (name, change)) in self.changes.iter().enumerate() {
            valid_name(name)?;
            if key.as_item().get(name).is_some() {
                return Err(Error::invalid(format!(
                    "update changes `{name}`, which is part of the key: delete the row and put another"
                )));
            }
            if self.changes[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(Error::invalid(format!("update changes `{name}` twice: keep one change")));
            }
            if let Change::AppendUnique(value) = change
                && !matches!(value, Value::S(_) | Value::N(_) | Value::B(_))
            {
                return Err(Error::invalid(format!(
                    "append to `{name}` takes S, N or B, not {}",
                    value.type_name()
                )));
            }
        }
        Ok(())
    }
}

fn not_a(expected: &str, action: &str, name: &str, found: &Value) -> Error {
    Error::invalid(format!("cannot {action} `{name}`: it is a {}, not a {expected}", found.type_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_once() {
        let mut item = Item::new().with("n", 1).with("old", "x").with("there", "kept");
        Update::new()
            .set("name", "a")
            .set_if_absent("there", "lost")
            .set_if_absent("missing", "taken")
            .add("n", 2)
            .add("m", -1)
            .append_unique("list", "e")
            .remove("old")
            .remove("never was")
            .apply(&mut item)
            .unwrap();
        let expected = Item::new()
            .with("name", "a")
            .with("there", "kept")
            .with("missing", "taken")
            .with("n", 3)
            .with("m", -1)
            .with("list", Value::L(vec!["e".into()]));
        assert_eq!(item, expected);
    }

    #[test]
    fn appending_twice_appends_once() {
        let mut item = Item::new();
        let update = Update::new().append_unique("done", "i-1");
        update.apply(&mut item).unwrap();
        update.apply(&mut item).unwrap();
        Update::new().append_unique("done", "i-2").apply(&mut item).unwrap();
        assert_eq!(item.get("done"), Some(&Value::L(vec!["i-1".into(), "i-2".into()])));
    }

    #[test]
    fn mistakes_are_refused() {
        let key = Key::new("pk", "a");
        let refused = |update: Update| update.validate(&key).unwrap_err().chain();
        assert!(refused(Update::new().set("pk", "b")).contains("part of the key"));
        assert!(refused(Update::new().set("a", 1).remove("a")).contains("twice"));
        assert!(refused(Update::new().append_unique("a", true)).contains("not BOOL"));
        let mut item = Item::new().with("text", "x");
        let wrong = Update::new().add("text", 1).apply(&mut item).unwrap_err();
        assert_eq!(wrong.chain(), "cannot add to `text`: it is a S, not a number");
        assert!(Update::new().append_unique("text", "y").apply(&mut item).is_err());
    }
}
