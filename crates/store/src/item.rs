//! Items: what a row holds, in DynamoDB's terms.

use std::collections::BTreeSet;
use std::collections::btree_map::{self, BTreeMap};
use std::fmt;

use crate::number::Number;

/// One attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    S(String),
    /// A decimal number.
    N(Number),
    /// Bytes.
    B(Vec<u8>),
    /// True or false.
    Bool(bool),
    /// Present, and nothing.
    Null,
    /// A list.
    L(Vec<Value>),
    /// A map.
    M(BTreeMap<String, Value>),
    /// A set of texts, not empty.
    Ss(BTreeSet<String>),
    /// A set of numbers, not empty.
    Ns(BTreeSet<Number>),
    /// A set of byte strings, not empty.
    Bs(BTreeSet<Vec<u8>>),
}

impl Value {
    /// DynamoDB's name of the type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::S(_) => "S",
            Self::N(_) => "N",
            Self::B(_) => "B",
            Self::Bool(_) => "BOOL",
            Self::Null => "NULL",
            Self::L(_) => "L",
            Self::M(_) => "M",
            Self::Ss(_) => "SS",
            Self::Ns(_) => "NS",
            Self::Bs(_) => "BS",
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::S(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn as_number(&self) -> Option<Number> {
        match self {
            Self::N(number) => Some(*number),
            _ => None,
        }
    }

    /// The number as an integer, if it is a whole one in range.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number().and_then(Number::as_i64)
    }

    /// Bytes as DynamoDB counts them towards the item's limit (numbers rounded up).
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        /// What a list or map weighs by itself, and what each element adds.
        const CONTAINER: usize = 3;
        const ELEMENT: usize = 1;
        match self {
            Self::S(text) => text.len(),
            // At most 38 digits, two to a byte, plus exponent and sign.
            Self::N(_) => 21,
            Self::B(bytes) => bytes.len(),
            Self::Bool(_) | Self::Null => 1,
            Self::L(values) => CONTAINER + values.iter().map(|v| ELEMENT + v.size_bytes()).sum::<usize>(),
            Self::M(entries) => {
                CONTAINER + entries.iter().map(|(k, v)| ELEMENT + k.len() + v.size_bytes()).sum::<usize>()
            }
            Self::Ss(texts) => texts.iter().map(String::len).sum(),
            Self::Ns(numbers) => numbers.len() * 21,
            Self::Bs(all) => all.iter().map(Vec::len).sum(),
        }
    }

    /// How deeply lists and maps are nested: 1 for a scalar.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::L(values) => 1 + values.iter().map(Self::depth).max().unwrap_or(0),
            Self::M(entries) => 1 + entries.values().map(Self::depth).max().unwrap_or(0),
            _ => 1,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::S(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::S(text)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(value: $number) -> Self {
                Self::N(value.into())
            }
        }
    )*};
}
from_number!(Number, i32, u32, i64, u64);

/// A row: attribute names and their values.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Item(BTreeMap<String, Value>);

impl Item {
    /// An item without attributes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more attribute: `Item::new().with("pk", "a").with("count", 1)`.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// Takes an attribute out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// An attribute, if it is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// An attribute to change in place.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.0.get_mut(name)
    }

    /// A text attribute.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_text)
    }

    /// A whole-number attribute.
    #[must_use]
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(Value::as_i64)
    }

    /// All attributes, by name.
    pub fn iter(&self) -> btree_map::Iter<'_, String, Value> {
        self.0.iter()
    }

    /// How many attributes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes as DynamoDB counts them towards the limit of an item.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.size_bytes()).sum()
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0).finish()
    }
}

impl IntoIterator for Item {
    type Item = (String, Value);
    type IntoIter = btree_map::IntoIter<String, Value>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Item {
    type Item = (&'a String, &'a Value);
    type IntoIter = btree_map::Iter<'a, String, Value>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<(String, Value)> for Item {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

/// Which row: the key attributes by name, one or two of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Item);

impl Key {
    /// A key of one attribute.
    pub fn new(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(Item::new().with(name, value))
    }

    /// With the range attribute: `Key::new("pk", "a").and("sk", "b")`.
    #[must_use]
    pub fn and(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with(name, value))
    }

    /// The key attributes as an item.
    #[must_use]
    pub const fn as_item(&self) -> &Item {
        &self.0
    }

    /// A key made of all attributes of `item`.
    #[must_use]
    pub const fn from_item(item: Item) -> Self {
        Self(item)
    }
}

/// `pk=a, sk=b`, for messages.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match value {
                Value::S(text) => write!(f, "{separator}{name}={text}")?,
                Value::N(number) => write!(f, "{separator}{name}={number}")?,
                other => write!(f, "{separator}{name}={other:?}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}
