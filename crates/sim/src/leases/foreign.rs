//! A worker of another kind, as the KCL is: it has no presence row, renews what it has, takes what nobody has or
//! what has run out, and knows nothing of plans.

use std::collections::BTreeMap;

/// What it knows. It acts on the table at once: what the network does to it is its own affair.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// It lives.
    pub(super) alive: bool,
    /// Counts its lives: ticks of others are void.
    pub(super) turn: u32,
    /// The counters that it has seen, and since when.
    pub(super) seen: BTreeMap<usize, (u64, u64)>,
    /// What it holds: how far it is, and since when.
    pub(super) holds: BTreeMap<usize, (u64, u64)>,
}
