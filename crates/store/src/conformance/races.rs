//! What must hold when many write at once: the finale.

use super::Subject;
use crate::testing::soon;
use crate::{Condition, Item, Key, Store, StoreExt, Update, Value, Write, Written};

/// Thirty-two put one row on condition that it is not there. One wins, and all agree on who.
pub async fn one_of_many_wins_the_race(subject: Subject) {
    let table = subject.table("race").await;
    let mut racers = Vec::new();
    for racer in 0..32 {
        let (store, table) = (subject.store.clone(), table.clone());
        racers.push(tokio::spawn(async move {
            let item = Item::new().with("pk", "lock").with("owner", racer);
            store.put(soon(), &table, item, Condition::absent("pk")).await
        }));
    }
    let (mut winners, mut told) = (Vec::new(), Vec::new());
    for racer in racers {
        match racer.await.expect("no racer panics").expect("every racer gets an answer") {
            Written::Applied(item) => winners.push(item),
            Written::Refused(refusal) => told.push(refusal.current.expect("the loser sees the winner's row")),
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert!(told.iter().all(|row| *row == winners[0]));
    assert_eq!(subject.get(&table, "lock").await.as_ref(), Some(&winners[0]));
}

/// Five workers add ten each by compare-and-swap, and the counter says fifty.
pub async fn counters_lose_no_increment(subject: Subject) {
    let table = subject.table("race").await;
    subject.put(&table, Item::new().with("pk", "counter").with("n", 0)).await;
    let mut workers = Vec::new();
    for _ in 0..5 {
        let (store, table) = (subject.store.clone(), table.clone());
        workers.push(tokio::spawn(async move {
            for _ in 0..10 {
                increment(&*store, &table).await;
            }
        }));
    }
    for worker in workers {
        worker.await.expect("no worker panics");
    }
    let counter = subject.get(&table, "counter").await.expect("the counter is there");
    assert_eq!(counter.integer("n"), Some(50));
}

async fn increment(store: &dyn Store, table: &str) {
    let key = Key::new("pk", "counter");
    let mut seen = store.get(soon(), table, &key).await.expect("get").expect("the counter is there");
    // Some other increment succeeded whenever this one is refused, so fifty tries are enough.
    for _ in 0..51 {
        let n = seen.integer("n").expect("a number");
        let change = Update::new().set("n", n + 1);
        match store.update(soon(), table, key.clone(), change, Condition::eq("n", n)).await.expect("update") {
            Written::Applied(_) => return,
            Written::Refused(refusal) => seen = refusal.current.expect("the counter is there"),
        }
    }
    panic!("refused more often than others can have succeeded");
}

/// Eight append to one list, half of them the same element: each element is there once.
pub async fn appends_lose_no_element(subject: Subject) {
    let table = subject.table("race").await;
    let mut writers = Vec::new();
    for writer in 0..8 {
        let (store, table) = (subject.store.clone(), table.clone());
        writers.push(tokio::spawn(async move {
            let element = format!("i-{}", writer / 2);
            let change = Update::new().append_unique("done", element).add("n", 1);
            store.update(soon(), &table, Key::new("pk", "action"), change, Condition::Always).await
        }));
    }
    for writer in writers {
        super::applied(writer.await.expect("no writer panics"));
    }
    let row = subject.get(&table, "action").await.expect("the row is there");
    assert_eq!(row.integer("n"), Some(8));
    let Some(Value::L(mut done)) = row.get("done").cloned() else { panic!("a list") };
    done.sort_by_key(|element| element.as_text().map(str::to_owned));
    assert_eq!(done, ["i-0", "i-1", "i-2", "i-3"].map(Value::from));
}

/// One checks that A is not there and puts B, another checks B and puts A: never both.
pub async fn crossing_transactions_do_not_skew(subject: Subject) {
    let table = subject.table("race").await;
    for round in 0..10 {
        let names = [format!("a{round}"), format!("b{round}")];
        let mut crossing = Vec::new();
        for turn in 0..2 {
            let (store, table) = (subject.store.clone(), table.clone());
            let (mine, other) = (names[turn].clone(), names[1 - turn].clone());
            crossing.push(tokio::spawn(async move {
                let writes = [
                    Write::Check {
                        table: table.clone(),
                        key: Key::new("pk", other),
                        when: Condition::absent("pk"),
                    },
                    Write::Put { table, item: Item::new().with("pk", mine), when: Condition::Always },
                ];
                store.transact(soon(), &writes, &format!("cross-{round}-{turn}")).await
            }));
        }
        let mut applied = 0;
        for one in crossing {
            applied += usize::from(one.await.expect("no panic").expect("an answer").is_applied());
        }
        assert_eq!(applied, 1, "round {round}");
    }
}
