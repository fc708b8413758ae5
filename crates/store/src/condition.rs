//! When a write may happen: conditions as data, with one meaning.
//!
//! [`Condition::holds`] is the definition. Backends that evaluate it inside their own transaction
//! call it; the DynamoDB backend renders the same tree to an expression, and a property test shows
//! that the emulators agree with `holds`.
//!
//! A comparison with a missing attribute is false, whatever the operator (DynamoDB's own `<>` is
//! true of a missing attribute; the rendering asks for existence too, so that a reader need not
//! remember the exception). A comparison of two types is false, except that they are unequal.

use std::cmp::Ordering;
use std::ops::Not;

use tenure_backend::{Error, Result};

use crate::item::{Item, Value};

/// Most operands of one `in`, and most conditions in one tree: DynamoDB's limits.
pub(crate) const OPERANDS_MAX: usize = 100;
/// Most nodes of one condition.
pub(crate) const NODES_MAX: usize = 150;

/// How two values of one type are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// What must be true of a row for a write to happen. A row that is not there has no attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// True of every row, and of none.
    Always,
    /// The attribute is not there.
    Absent(String),
    /// The attribute is there.
    Exists(String),
    /// The attribute compares so with the value.
    Compare(String, Comparison, Value),
    /// The attribute is at least the first and at most the second value.
    Between(String, Value, Value),
    /// The attribute equals one of the values.
    In(String, Vec<Value>),
    /// A text contains the text, bytes the bytes; a set or list has the element.
    Contains(String, Value),
    /// A text begins with the text, bytes with the bytes.
    BeginsWith(String, Value),
    /// All of them; true if empty.
    All(Vec<Condition>),
    /// One of them; false if empty.
    Any(Vec<Condition>),
    /// The opposite.
    Not(Box<Condition>),
}

impl Condition {
    /// The attribute is not there. Asked of a key attribute: the row is not there.
    pub fn absent(name: impl Into<String>) -> Self {
        Self::Absent(name.into())
    }

    /// The attribute is there.
    pub fn exists(name: impl Into<String>) -> Self {
        Self::Exists(name.into())
    }

    /// The attribute equals the value.
    pub fn eq(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Compare(name.into(), Comparison::Eq, value.into())
    }

    /// The attribute is there and does not equal the value.
    pub fn ne(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Compare(name.into(), Comparison::Ne, value.into())
    }

    /// The attribute is less than the value.
    pub fn lt(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Compare(name.into(), Comparison::Lt, value.into())
    }

    /// The attribute is at most the value.
    pub fn le(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Compare(name.into(), Comparison::Le, value.into())
    }

    /// The attribute is greater than the value.
    pub fn gt(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Compare(name.into(), Comparison::Gt, value.into())
    }

    /// The attribute is at least the value.
    pub fn ge(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Compare(name.into(), Comparison::Ge, value.into())
    }

    /// The attribute contains the value.
    pub fn contains(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::Contains(name.into(), value.into())
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, condition) | (condition, Self::Always) => condition,
            (Self::All(mut conditions), other) => {
                conditions.push(other);
                Self::All(conditions)
            }
            (one, other) => Self::All(vec![one, other]),
        }
    }

    /// One of the two, or both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, _) | (_, Self::Always) => Self::Always,
            (Self::Any(mut conditions), other) => {
                conditions.push(other);
                Self::Any(conditions)
            }
            (one, other) => Self::Any(vec![one, other]),
        }
    }

    /// Whether the condition is true of `item`. The one definition of what a condition means.
    #[must_use]
    pub fn holds(&self, item: &Item) -> bool {
        match self {
            Self::Always => true,
            Self::Absent(name) => item.get(name).is_none(),
            Self::Exists(name) => item.get(name).is_some(),
            Self::Compare(name, comparison, value) => {
                item.get(name).is_some_and(|found| comparison.holds(found, value))
            }
            Self::Between(name, low, high) => item
                .get(name)
                .is_some_and(|found| Comparison::Ge.holds(found, low) && Comparison::Le.holds(found, high)),
            Self::In(name, values) => item.get(name).is_some_and(|found| values.contains(found)),
            Self::Contains(name, value) => item.get(name).is_some_and(|found| contains(found, value)),
            Self::BeginsWith(name, prefix) => match (item.get(name), prefix) {
                (Some(Value::S(text)), Value::S(prefix)) => text.starts_with(prefix.as_str()),
                (Some(Value::B(bytes)), Value::B(prefix)) => bytes.starts_with(prefix),
                _ => false,
            },
            Self::All(conditions) => conditions.iter().all(|condition| condition.holds(item)),
            Self::Any(conditions) => conditions.iter().any(|condition| condition.holds(item)),
            Self::Not(condition) => !condition.holds(item),
        }
    }

    /// Refuses what DynamoDB would refuse, so that a mistake shows on every backend.
    ///
    /// # Errors
    /// `Invalid`, naming the part.
    pub fn validate(&self) -> Result<()> {
        let nodes = self.nodes();
        if nodes > NODES_MAX {
            return Err(Error::invalid(format!(
                "condition has {nodes} parts: at most {NODES_MAX} are allowed"
            )));
        }
        self.validate_parts()
    }

    fn nodes(&self) -> usize {
        match self {
            Self::All(parts) | Self::Any(parts) => 1 + parts.iter().map(Self::nodes).sum::<usize>(),
            Self::Not(part) => 1 + part.nodes(),
            Self::In(_, values) => 1 + values.len(),
            _ => 1,
        }
    }

    fn validate_parts(&self) -> Result<()> {
        match self {
            Self::Always => Ok(()),
            Self::Absent(name) | Self::Exists(name) => valid_name(name),
            Self::Compare(name, comparison, value) => {
                valid_name(name)?;
                let ordered = !matches!(comparison, Comparison::Eq | Comparison::Ne);
                if ordered && !is_ordered(value) {
                    return Err(no_order(name, value));
                }
                Ok(())
            }
            Self::Between(name, low, high) => {
                valid_name(name)?;
                for bound in [low, high] {
                    if !is_ordered(bound) {
                        return Err(no_order(name, bound));
                    }
                }
                match order(low, high) {
                    None => Err(Error::invalid(format!("between on `{name}`: its bounds have two types"))),
                    Some(Ordering::Greater) => Err(Error::invalid(format!(
                        "between on `{name}`: the low bound is above the high one"
                    ))),
                    Some(_) => Ok(()),
                }
            }
            Self::In(name, values) => {
                valid_name(name)?;
                if values.is_empty() || values.len() > OPERANDS_MAX {
                    return Err(Error::invalid(format!(
                        "in on `{name}` has {} values: give 1 to {OPERANDS_MAX}",
                        values.len()
                    )));
                }
                Ok(())
            }
            Self::Contains(name, value) => {
                valid_name(name)?;
                if !matches!(value, Value::S(_) | Value::N(_) | Value::B(_)) {
                    return Err(Error::invalid(format!(
                        "contains on `{name}` takes S, N or B, not {}",
                        value.type_name()
                    )));
                }
                Ok(())
            }
            Self::BeginsWith(name, prefix) => {
                valid_name(name)?;
                if !matches!(prefix, Value::S(_) | Value::B(_)) {
                    return Err(Error::invalid(format!(
                        "begins-with on `{name}` takes S or B, not {}",
                        prefix.type_name()
                    )));
                }
                Ok(())
            }
            Self::All(parts) | Self::Any(parts) => parts.iter().try_for_each(Self::validate_parts),
            Self::Not(part) => part.validate_parts(),
        }
    }
}

impl Not for Condition {
    type Output = Self;
    fn not(self) -> Self {
        Self::Not(Box::new(self))
    }
}

impl Comparison {
    fn holds(self, found: &Value, value: &Value) -> bool {
        match self {
            Self::Eq => found == value,
            Self::Ne => found != value,
            Self::Lt => order(found, value) == Some(Ordering::Less),
            Self::Gt => order(found, value) == Some(Ordering::Greater),
            Self::Le => matches!(order(found, value), Some(Ordering::Less | Ordering::Equal)),
            Self::Ge => matches!(order(found, value), Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

/// The order of two values, if they are of one type that has an order.
fn order(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::S(one), Value::S(other)) => Some(one.as_bytes().cmp(other.as_bytes())),
        (Value::N(one), Value::N(other)) => Some(one.cmp(other)),
        (Value::B(one), Value::B(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

const fn is_ordered(value: &Value) -> bool {
    matches!(value, Value::S(_) | Value::N(_) | Value::B(_))
}

fn contains(found: &Value, value: &Value) -> bool {
    match (found, value) {
        (Value::S(text), Value::S(part)) => text.contains(part.as_str()),
        (Value::B(bytes), Value::B(part)) => {
            part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
        }
        (Value::Ss(set), Value::S(element)) => set.contains(element),
        (Value::Ns(set), Value::N(element)) => set.contains(element),
        (Value::Bs(set), Value::B(element)) => set.contains(element),
        (Value::L(list), element) => list.contains(element),
        _ => false,
    }
}

pub(crate) fn valid_name(name: &str) -> Result<()> {
    /// DynamoDB's limit for a name that is not a key.
    const NAME_BYTES_MAX: usize = 65_535;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "attribute name has {} bytes: give 1 to {NAME_BYTES_MAX}",
            name.len()
        )));
    }
    Ok(())
}

fn no_order(name: &str, value: &Value) -> Error {
    Error::invalid(format!(
        "`{name}` is compared by order with a {}: only S, N and B have an order",
        value.type_name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Item {
        Item::new()
            .with("name", "worker-1")
            .with("count", 10)
            .with("tags", Value::L(vec!["a".into(), 2.into()]))
            .with("set", Value::Ss(["x".to_owned()].into()))
            .with("raw", Value::B(vec![1, 2, 3]))
    }

    #[track_caller]
    fn check(condition: Condition, expected: bool) {
        condition.validate().unwrap();
        assert_eq!(condition.holds(&row()), expected, "{condition:?}");
    }

    #[test]
    fn comparisons() {
        check(Condition::eq("name", "worker-1"), true);
        check(Condition::lt("count", 9), false);
        check(Condition::gt("count", 9), true); // as numbers: "10" < "9" as text
        check(Condition::Between("count".into(), 10.into(), 11.into()), true);
        check(Condition::In("name".into(), vec!["a".into(), "worker-1".into()]), true);
    }

    #[test]
    fn a_missing_attribute_compares_false_with_everything() {
        for condition in [
            Condition::eq("no", 1),
            Condition::ne("no", 1),
            Condition::lt("no", 1),
            Condition::ge("no", 1),
            Condition::contains("no", "x"),
            Condition::In("no".into(), vec![1.into()]),
        ] {
            check(condition.clone(), false);
            check(!condition, true);
        }
        check(Condition::absent("no"), true);
        check(Condition::exists("no"), false);
    }

    #[test]
    fn two_types_are_only_unequal() {
        check(Condition::eq("count", "10"), false);
        check(Condition::ne("count", "10"), true);
        check(Condition::lt("count", "9"), false);
        check(Condition::ge("count", "9"), false);
    }

    #[test]
    fn containing() {
        check(Condition::contains("name", "ker"), true);
        check(Condition::contains("tags", 2), true);
        check(Condition::contains("tags", "2"), false);
        check(Condition::contains("set", "x"), true);
        check(Condition::contains("raw", Value::B(vec![2, 3])), true);
        check(Condition::BeginsWith("name".into(), "work".into()), true);
        check(Condition::BeginsWith("count".into(), "1".into()), false);
    }

    #[test]
    fn connectives() {
        let (yes, no) = (Condition::exists("name"), Condition::absent("name"));
        check(yes.clone().and(no.clone()), false);
        check(yes.clone().or(no.clone()), true);
        check(Condition::All(vec![]), true);
        check(Condition::Any(vec![]), false);
        check(Condition::Always.and(no.clone()), false);
        check(Condition::Always.or(no), true);
    }

    #[test]
    fn mistakes_are_refused_before_anything_is_sent() {
        let refused = |condition: Condition| condition.validate().unwrap_err().chain();
        assert!(refused(Condition::lt("a", true)).contains("only S, N and B have an order"));
        assert!(refused(Condition::Between("a".into(), 2.into(), 1.into())).contains("above"));
        assert!(refused(Condition::Between("a".into(), 2.into(), "x".into())).contains("two types"));
        assert!(refused(Condition::In("a".into(), vec![])).contains("give 1 to 100"));
        assert!(refused(Condition::contains("a", true)).contains("not BOOL"));
        assert!(refused(Condition::eq("", 1)).contains("0 bytes"));
        assert!(refused(Condition::All(vec![Condition::Always; 200])).contains("at most 150"));
    }
}
