//! What can go wrong, by name, and how often it did.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use crate::scenario::Named;

/// A set of things with names, one line each: the name in code, the name in reports, and what it is.
macro_rules! named {
    ($(#[$about:meta])* $set:ident: $($kind:ident $name:literal $what:literal,)*) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $set {
            $(#[doc = $what] $kind,)*
        }

        impl $crate::scenario::Named for $set {
            const ALL: &'static [Self] = &[$(Self::$kind,)*];

            fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use named;

/// How often each fault was injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultTally<F> {
    counts: Vec<u64>,
    of: PhantomData<F>,
}

impl<F: Named> Default for FaultTally<F> {
    fn default() -> Self {
        Self { counts: vec![0; F::ALL.len()], of: PhantomData }
    }
}

impl<F: Named> FaultTally<F> {
    /// Counts one.
    pub fn count(&mut self, fault: F) {
        self.counts[fault.index()] += 1;
    }

    /// How many there were.
    #[must_use]
    pub fn of(&self, fault: F) -> u64 {
        self.counts[fault.index()]
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, more)| *sum += more);
    }

    /// The counts by name, zeros included.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
        F::ALL.iter().map(|fault| (fault.name(), self.of(*fault))).collect()
    }

    /// Those that never happened.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        F::ALL.iter().filter(|fault| self.of(**fault) == 0).map(|fault| fault.name()).collect()
    }
}
