//! Random histories: the backend and memory answer alike.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::Subject;
use crate::testing::{any_condition, any_item, any_update, env, soon};
use crate::{
    Condition, Item, Key, KeyAttribute, Kind, Memory, Store, StoreExt, TableSpec, Update, Write, Written,
};

/// Histories per run, and per run with `TENURE_LONG=1`.
const HISTORIES: usize = 12;
const HISTORIES_LONG: usize = 500;
/// Steps of shrinking a history that disagrees.
const SHRINK_MAX: usize = 200;

#[derive(Debug, Clone)]
enum Step {
    Put(u8, Item, Condition),
    Update(u8, Update, Condition),
    Delete(u8, Condition),
    Get(u8),
    Transact(Vec<(u8, Item, Condition)>),
    Scan,
}

fn any_step() -> impl Strategy<Value = Step> {
    // Few rows, so that steps meet.
    let row = 0u8..3;
    prop_oneof![
        3 => (row.clone(), any_item(), any_condition()).prop_map(|(row, item, when)| Step::Put(row, item, when)),
        4 => (row.clone(), any_update(), any_condition()).prop_map(|(row, change, when)| Step::Update(row, change, when)),
        1 => (row.clone(), any_condition()).prop_map(|(row, when)| Step::Delete(row, when)),
        2 => row.clone().prop_map(Step::Get),
        2 => vec((row, any_item(), any_condition()), 1..4).prop_map(Step::Transact),
        1 => Just(Step::Scan),
    ]
}

/// Replays random histories on the backend and on memory, and compares every answer.
pub async fn random_histories_agree_with_memory(subject: Subject) {
    let histories = if std::env::var_os("TENURE_LONG").is_some() { HISTORIES_LONG } else { HISTORIES };
    let reference = Arc::new(Memory::new(&env(0)));
    let mut runner = TestRunner::deterministic();
    for number in 0..histories {
        let mut tree = vec(any_step(), 1..25).new_tree(&mut runner).expect("histories can be drawn");
        let Some(mut difference) = disagreement(&subject, &*reference, &tree.current(), number, 0).await
        else {
            continue;
        };
        let mut smallest = tree.current();
        for attempt in 1..SHRINK_MAX {
            let more =
                if tree.current().len() == smallest.len() { tree.simplify() } else { tree.complicate() };
            if !more {
                break;
            }
            if let Some(found) = disagreement(&subject, &*reference, &tree.current(), number, attempt).await {
                (smallest, difference) = (tree.current(), found);
            }
        }
        panic!("history {number} disagrees: {difference}\nsmallest history found: {smallest:#?}");
    }
}

async fn disagreement(
    subject: &Subject,
    reference: &dyn Store,
    history: &[Step],
    number: usize,
    attempt: usize,
) -> Option<String> {
    let spec = TableSpec::new(subject.named(&format!("h{number}-{attempt}")), KeyAttribute::text("pk"));
    subject.store.ensure_table(soon(), &spec).await.expect("the table is created");
    reference.ensure_table(soon(), &spec).await.expect("the table is created");
    for (index, step) in history.iter().enumerate() {
        let nonce = format!("{number}-{attempt}-{index}");
        let ours = take(&*subject.store, &spec.name, step, &nonce).await;
        let expected = take(reference, &spec.name, step, &nonce).await;
        if ours != expected {
            return Some(format!("step {index} {step:?}\n  backend: {ours}\n  memory:  {expected}"));
        }
    }
    None
}

/// The answer to one step, as text to compare.
async fn take(store: &dyn Store, table: &str, step: &Step, nonce: &str) -> String {
    let pk = |row: &u8| format!("row-{row}");
    let with_key = |row: &u8, item: &Item| item.clone().with("pk", pk(row));
    let written = match step {
        Step::Put(row, item, when) => store.put(soon(), table, with_key(row, item), when.clone()).await,
        Step::Update(row, change, when) => {
            store.update(soon(), table, Key::new("pk", pk(row)), change.clone(), when.clone()).await
        }
        Step::Delete(row, when) => store.delete(soon(), table, Key::new("pk", pk(row)), when.clone()).await,
        Step::Transact(puts) => {
            let writes: Vec<_> = puts
                .iter()
                .map(|(row, item, when)| Write::Put {
                    table: table.to_owned(),
                    item: with_key(row, item),
                    when: when.clone(),
                })
                .collect();
            store.transact(soon(), &writes, nonce).await
        }
        Step::Get(row) => return format!("{:?}", store.get(soon(), table, &Key::new("pk", pk(row))).await),
        Step::Scan => {
            let mut rows = store.scan_all(soon(), table, 100).await.expect("scan");
            rows.sort_by_key(|row| row.text("pk").map(str::to_owned));
            return format!("{rows:?}");
        }
    };
    match written {
        Ok(Written::Applied(item)) => format!("applied {item:?}"),
        Ok(Written::Refused(refusal)) => format!("refused {} {:?}", refusal.index, refusal.current),
        // Messages may differ in detail; what the caller is told to do may not.
        Err(error) if error.kind() == Kind::Invalid => "invalid".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}
