//! A part of a world that many worlds share: hashed once, when it is made.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Shared<T> {
    value: Arc<T>,
    print: u64,
}

impl<T: Hash + Clone> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self { value: Arc::new(value), print: hasher.finish() }
    }

    /// It becomes another; whoever else shares it keeps it as it was.
    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = T::clone(&self.value);
        let result = change(&mut value);
        *self = Self::new(value);
        result
    }
}

impl<T> Shared<T> {
    pub(super) fn print(&self) -> u64 {
        self.print
    }

    /// Whether the two are one: not only alike.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.value, &other.value)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), print: self.print }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print && (self.is(other) || self.value == other.value)
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.print);
    }
}
