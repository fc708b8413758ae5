//! The rendered expression means what the condition and the update mean.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tenure_clock::Entropy;
use tenure_store::testing::{any_condition, any_item, any_update, soon};
use tenure_store::{
    Condition, Item, Key, KeyAttribute, Kind, Store, StoreExt, TableSpec, Update, Write, Written,
};

use super::opened;
use super::tidy::Tidy;

/// Cases per run, and per run with `TENURE_LONG=1`.
const CASES: usize = 300;
const CASES_LONG: usize = 10_000;

/// Random rows, conditions and updates: DynamoDB's answer is that of `Condition::holds` and
/// `Update::apply`, in a single write and in a transaction.
pub(super) async fn rendered_conditions_and_updates_agree_with_their_meaning(endpoint: &str) {
    let store = Tidy::new(opened(endpoint).await, endpoint);
    let table = format!("agreement-{}", Entropy::system().nonce());
    store.ensure_table(soon(), &TableSpec::new(&table, KeyAttribute::text("pk"))).await.unwrap();
    let long = std::env::var_os("TENURE_LONG").is_some();
    let mut runner = TestRunner::deterministic();
    let strategy = (any::<bool>(), any_item(), any_condition(), any_update());
    let mut differences = Vec::new();
    for case in 0..if long { CASES_LONG } else { CASES } {
        let (exists, item, when, change) = strategy.new_tree(&mut runner).unwrap().current();
        // Mostly rows that are there.
        let exists = exists || case % 4 != 0;
        let item = exists.then(|| item.with("pk", format!("case-{case}")));
        let story = Story { store: &store, table: &table, key: Key::new("pk", format!("case-{case}")) };
        if let Some(item) = &item {
            store.put(soon(), &table, item.clone(), Condition::Always).await.unwrap();
        }
        for difference in story.told(item, &when, &change).await {
            differences.push(format!("case {case}: {difference}"));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

struct Story<'a, S> {
    store: &'a S,
    table: &'a str,
    key: Key,
}

impl<S: Store> Story<'_, S> {
    async fn told(&self, item: Option<Item>, when: &Condition, change: &Update) -> Vec<String> {
        let mut differences = Vec::new();
        let before = item.clone().unwrap_or_default();
        let table = self.table.to_owned();

        let check = Write::Check { table: table.clone(), key: self.key.clone(), when: when.clone() };
        let expected = if when.holds(&before) { "applied {}".into() } else { format!("refused {item:?}") };
        let found = shown(self.store.write(soon(), &check).await);
        if found != expected {
            differences
                .push(format!("check {when:?} of {item:?}\n  expected {expected}\n  found    {found}"));
        }

        // The row afterwards; none if an update that only removes found none.
        let changed = |from: &Item| {
            if from.is_empty() && change.only_removes() {
                return Ok(None);
            }
            let mut row = if from.is_empty() { self.key.as_item().clone() } else { from.clone() };
            change.apply(&mut row).map(|()| Some(row))
        };
        let (expected, after) = if when.holds(&before) {
            match changed(&before) {
                Ok(row) => (format!("applied {:?}", row.clone().unwrap_or_default()), row),
                Err(_) => ("invalid".to_owned(), item.clone()),
            }
        } else {
            (format!("refused {item:?}"), item.clone())
        };
        let update =
            Write::Update { table, key: self.key.clone(), change: change.clone(), when: when.clone() };
        let found = shown(self.store.write(soon(), &update).await);
        if found != expected {
            differences.push(format!(
                "{change:?} if {when:?} on {item:?}\n  expected {expected}\n  found    {found}"
            ));
        }
        let row = self.store.get(soon(), self.table, &self.key).await.unwrap();
        if row != after {
            differences.push(format!(
                "{change:?} if {when:?} on {item:?}\n  should leave {after:?}\n  and left    {row:?}"
            ));
        }

        // Once more, in a transaction and without a condition, on what is there now.
        let before = row.clone().unwrap_or_default();
        let (expected, after) = match changed(&before) {
            // A transaction takes no update without changes.
            Ok(row) if !change.changes().is_empty() => ("applied {}", row),
            _ => ("invalid", row.clone()),
        };
        let Write::Update { table, key, change, .. } = update else { unreachable!("made above") };
        let again = Write::Update { table, key, change, when: Condition::Always };
        let found = shown(
            self.store.transact(soon(), std::slice::from_ref(&again), &Entropy::system().nonce()).await,
        );
        let left = self.store.get(soon(), self.table, &self.key).await.unwrap();
        if found != expected || left != after {
            differences.push(format!(
                "transaction {again:?} on {row:?}\n  expected {expected} {after:?}\n  found    {found} {left:?}"
            ));
        }
        differences
    }
}

fn shown(written: tenure_store::Result<Written>) -> String {
    match written {
        Ok(Written::Applied(item)) => format!("applied {item:?}"),
        Ok(Written::Refused(refusal)) => format!("refused {:?}", refusal.current),
        Err(error) if error.kind() == Kind::Invalid => "invalid".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}
