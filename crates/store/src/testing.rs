//! Random items, conditions and updates, for tests of this crate and of those that wrap it.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use tenure_clock::{Clock, Monotonic, SystemClock};

use crate::{Change, Comparison, Condition, Item, Number, Update, Value};

/// Few names, so that conditions meet attributes that are there.
const NAMES: [&str; 5] = ["a", "b", "c", "size", "name"];

/// Numbers at the edges of what DynamoDB holds.
const EDGES: [&str; 8] =
    ["0", "-1", "0.5", "1e125", "-1e125", "1e-130", "99999999999999999999999999999999999999", "9.5e10"];

/// Names of attributes; among them words that DynamoDB reserves.
pub fn any_name() -> impl Strategy<Value = String> {
    prop::sample::select(&NAMES[..]).prop_map(str::to_owned)
}

/// Numbers, small ones mostly, with some at the edges of the range.
pub fn any_number() -> impl Strategy<Value = Number> {
    prop_oneof![
        4 => (-5i64..15).prop_map(Number::from),
        1 => any::<i64>().prop_map(Number::from),
        1 => prop::sample::select(&EDGES[..]).prop_map(|text| text.parse().expect("edges are numbers")),
    ]
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab]{0,3}", 1 => "\\PC{0,6}", 1 => Just("nul\0ü".to_owned())]
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![3 => 0u8..3, 1 => any::<u8>()], 0..4)
}

/// Values that have an order.
pub fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => any_text().prop_map(Value::S),
        3 => any_number().prop_map(Value::N),
        1 => any_bytes().prop_map(Value::B),
    ]
}

/// Values of every type.
pub fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        6 => any_scalar(),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => Just(Value::Null),
        1 => btree_set(any_text().prop_filter("sets hold no empty text", |t| !t.is_empty()), 1..3).prop_map(Value::Ss),
        1 => btree_set(any_number(), 1..3).prop_map(Value::Ns),
        1 => btree_set(vec(any::<u8>(), 1..3), 1..3).prop_map(Value::Bs),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::L),
            btree_map("[a-c]{1,2}", inner, 0..3).prop_map(Value::M),
        ]
    })
}

/// Items without a key: set one before storing.
pub fn any_item() -> impl Strategy<Value = Item> {
    btree_map(any_name(), any_value(), 0..5).prop_map(|entries| entries.into_iter().collect())
}

/// Valid conditions on the names of [`any_item`].
pub fn any_condition() -> impl Strategy<Value = Condition> {
    let comparison = prop::sample::select(vec![
        Comparison::Eq,
        Comparison::Ne,
        Comparison::Lt,
        Comparison::Le,
        Comparison::Gt,
        Comparison::Ge,
    ]);
    let leaf = prop_oneof![
        1 => Just(Condition::Always),
        2 => any_name().prop_map(Condition::Absent),
        2 => any_name().prop_map(Condition::Exists),
        6 => (any_name(), comparison, any_value()).prop_map(|(n, c, v)| Condition::Compare(n, c, v)),
        2 => (any_name(), any_scalar(), any_scalar()).prop_map(|(n, l, h)| Condition::Between(n, l, h)),
        2 => (any_name(), vec(any_value(), 1..4)).prop_map(|(n, v)| Condition::In(n, v)),
        3 => (any_name(), any_scalar()).prop_map(|(n, v)| Condition::Contains(n, v)),
        2 => (any_name(), any_scalar()).prop_map(|(n, v)| Condition::BeginsWith(n, v)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Condition::All),
            vec(inner.clone(), 0..3).prop_map(Condition::Any),
            inner.prop_map(|condition| !condition),
        ]
    })
    .prop_filter("conditions are valid", |condition| condition.validate().is_ok())
}

/// Updates of distinct names of [`any_item`]; they may not fit a given item.
pub fn any_update() -> impl Strategy<Value = Update> {
    let change = prop_oneof![
        3 => any_value().prop_map(Change::Set),
        1 => any_value().prop_map(Change::SetIfAbsent),
        2 => any_number().prop_map(Change::Add),
        2 => any_scalar().prop_map(Change::AppendUnique),
        1 => Just(Change::Remove),
    ];
    btree_map(any_name(), change, 0..4).prop_map(|changes| {
        changes.into_iter().fold(Update::new(), |update, (name, change)| update.with(name, change))
    })
}

/// A deadline that only a stuck test reaches.
#[must_use]
pub fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}

/// The machine's clock and a seeded source of nonces.
#[must_use]
pub fn env(seed: u64) -> crate::Env {
    crate::Env { clock: Arc::new(SystemClock), entropy: tenure_clock::Entropy::seeded(seed) }
}
