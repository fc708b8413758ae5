//! Single writes, transactions, and what is refused before it is tried.

use super::{Subject, applied, invalid, refused};
use crate::testing::soon;
use crate::write::ITEM_BYTES_MAX;
use crate::{Condition, Item, Key, KeyAttribute, Number, StoreExt, TableSpec, Update, Value, Write};

fn row(pk: &str) -> Item {
    Item::new().with("pk", pk)
}

/// A put takes the place of all there was.
pub async fn a_put_replaces_the_whole_row(subject: Subject) {
    let table = subject.table("rows").await;
    subject.put(&table, row("a").with("old", 1)).await;
    subject.put(&table, row("a").with("new", 2)).await;
    assert_eq!(subject.get(&table, "a").await, Some(row("a").with("new", 2)));
}

/// The condition is judged by the row as it is.
pub async fn a_put_on_condition(subject: Subject) {
    let table = subject.table("rows").await;
    let put = |item: Item, when| subject.store.put(soon(), &table, item, when);
    let first = row("a").with("n", 1);
    assert_eq!(applied(put(first.clone(), Condition::absent("pk")).await), first);
    assert_eq!(refused(put(row("a").with("n", 2), Condition::absent("pk")).await), (0, Some(first)));
    applied(put(row("a").with("n", 2), Condition::eq("n", 1)).await);
    refused(put(row("a").with("n", 3), Condition::eq("n", 1)).await);
    assert_eq!(subject.get(&table, "a").await, Some(row("a").with("n", 2)));
}

/// A refusal holds the row that refused, or none.
pub async fn a_refusal_shows_the_row(subject: Subject) {
    let table = subject.table("rows").await;
    let update =
        |when| subject.store.update(soon(), &table, Key::new("pk", "a"), Update::new().set("n", 1), when);
    assert_eq!(refused(update(Condition::exists("pk")).await), (0, None));
    let found = row("a").with("n", 7).with("who", "b");
    subject.put(&table, found.clone()).await;
    assert_eq!(refused(update(Condition::eq("who", "a")).await), (0, Some(found.clone())));
    let delete = subject.store.delete(soon(), &table, Key::new("pk", "a"), Condition::lt("n", 7)).await;
    assert_eq!(refused(delete), (0, Some(found)));
}

/// Every kind of change, on a row that is not there and on one that is.
pub async fn an_update_begins_changes_and_removes(subject: Subject) {
    let table = subject.table("rows").await;
    let update =
        |change| subject.store.update(soon(), &table, Key::new("pk", "a"), change, Condition::Always);
    let begun =
        applied(update(Update::new().set("name", "x").add("n", 2).append_unique("done", "i-1")).await);
    let expected = row("a").with("name", "x").with("n", 2).with("done", Value::L(vec!["i-1".into()]));
    assert_eq!(begun, expected);
    let changed = applied(
        update(
            Update::new()
                .remove("name")
                .add("n", "0.5".parse::<Number>().expect("a number"))
                .append_unique("done", "i-1")
                .set_if_absent("epoch", 1)
                .set("owner", "b"),
        )
        .await,
    );
    let expected = row("a")
        .with("n", "2.5".parse::<Number>().expect("a number"))
        .with("done", Value::L(vec!["i-1".into()]))
        .with("epoch", 1)
        .with("owner", "b");
    assert_eq!(changed, expected);
    let again = applied(update(Update::new().set_if_absent("epoch", 9).append_unique("done", "i-2")).await);
    assert_eq!(again.integer("epoch"), Some(1));
    assert_eq!(again.get("done"), Some(&Value::L(vec!["i-1".into(), "i-2".into()])));
    assert_eq!(subject.get(&table, "a").await, Some(again));
}

/// An append of what is there already does not hide whether the condition held.
pub async fn an_update_on_condition(subject: Subject) {
    let table = subject.table("rows").await;
    subject.put(&table, row("a").with("n", 1).with("done", Value::L(vec!["x".into()]))).await;
    let change = || Update::new().append_unique("done", "x").add("n", 1);
    let update = |when| subject.store.update(soon(), &table, Key::new("pk", "a"), change(), when);
    let now = applied(update(Condition::eq("n", 1)).await);
    assert_eq!(now, row("a").with("n", 2).with("done", Value::L(vec!["x".into()])));
    assert_eq!(refused(update(Condition::eq("n", 1)).await), (0, Some(now)));
}

/// Adding to a text is refused, and nothing of that update stays.
pub async fn an_update_that_does_not_fit_changes_nothing(subject: Subject) {
    let table = subject.table("rows").await;
    let before = row("a").with("text", "x").with("n", "9e125".parse::<Number>().expect("a number"));
    subject.put(&table, before.clone()).await;
    let update =
        |change| subject.store.update(soon(), &table, Key::new("pk", "a"), change, Condition::Always);
    invalid(update(Update::new().set("other", 1).add("text", 1)).await);
    invalid(update(Update::new().set("other", 1).append_unique("text", "y")).await);
    invalid(
        update(Update::new().set("other", 1).add("n", "9e125".parse::<Number>().expect("a number"))).await,
    );
    invalid(update(Update::new().set("pk", "b")).await);
    invalid(update(Update::new().set("other", 1).remove("other")).await);
    assert_eq!(subject.get(&table, "a").await, Some(before));
}

/// An update that changes nothing still makes sure that the row is there.
pub async fn an_update_without_changes_begins_the_row(subject: Subject) {
    let table = subject.table("rows").await;
    let update =
        || subject.store.update(soon(), &table, Key::new("pk", "a"), Update::new(), Condition::Always);
    assert_eq!(applied(update().await), row("a"));
    assert_eq!(applied(update().await), row("a"));
}

/// An update that only removes takes from a row that is there and begins none, in a transaction too.
pub async fn an_update_that_only_removes_begins_no_row(subject: Subject) {
    let table = subject.table("rows").await;
    let change = || Update::new().remove("n").remove("m");
    let update = |when| subject.store.update(soon(), &table, Key::new("pk", "a"), change(), when);
    assert_eq!(applied(update(Condition::Always).await), Item::new());
    assert_eq!(applied(update(Condition::absent("n")).await), Item::new());
    assert_eq!(refused(update(Condition::exists("pk")).await), (0, None));
    let write =
        |when| Write::Update { table: table.clone(), key: Key::new("pk", "a"), change: change(), when };
    let both = |when| [write(when), put(&table, row("b"), Condition::Always)];
    applied(subject.store.transact(soon(), &both(Condition::Always), "n-1").await);
    assert_eq!(
        refused(subject.store.transact(soon(), &both(Condition::exists("n")), "n-2").await),
        (0, None)
    );
    assert_eq!((subject.get(&table, "a").await, subject.get(&table, "b").await), (None, Some(row("b"))));
    subject.put(&table, row("a").with("n", 1).with("kept", 2)).await;
    applied(subject.store.transact(soon(), &both(Condition::eq("n", 1)), "n-3").await);
    assert_eq!(subject.get(&table, "a").await, Some(row("a").with("kept", 2)));
    assert_eq!(applied(update(Condition::Always).await), row("a").with("kept", 2));
}

/// A delete answers with the row that went, if there was one.
pub async fn a_delete_shows_what_went(subject: Subject) {
    let table = subject.table("rows").await;
    let delete = |when| subject.store.delete(soon(), &table, Key::new("pk", "a"), when);
    assert_eq!(applied(delete(Condition::Always).await), Item::new());
    assert_eq!(refused(delete(Condition::exists("pk")).await), (0, None));
    subject.put(&table, row("a").with("n", 1)).await;
    refused(delete(Condition::eq("n", 2)).await);
    assert_eq!(applied(delete(Condition::eq("n", 1)).await), row("a").with("n", 1));
    assert_eq!(subject.get(&table, "a").await, None);
}

fn put(table: &str, item: Item, when: Condition) -> Write {
    Write::Put { table: table.into(), item, when }
}

fn check(table: &str, pk: &str, when: Condition) -> Write {
    Write::Check { table: table.into(), key: Key::new("pk", pk), when }
}

/// All of a transaction's writes happen, in several tables, or none.
pub async fn a_transaction_is_all_or_nothing(subject: Subject) {
    let (locks, fences) = (subject.table("locks").await, subject.table("fences").await);
    let writes = |epoch: i64| {
        vec![
            put(&locks, row("s").with("owner", "a"), Condition::absent("pk")),
            Write::Update {
                table: fences.clone(),
                key: Key::new("pk", "s"),
                change: Update::new().set("epoch", epoch + 1),
                when: if epoch == 0 { Condition::absent("pk") } else { Condition::eq("epoch", epoch) },
            },
        ]
    };
    let nonce = "0123456789abcdef0123456789abcde";
    applied(subject.store.transact(soon(), &writes(0), &format!("{nonce}1")).await);
    assert_eq!(subject.get(&fences, "s").await, Some(row("s").with("epoch", 1)));
    // The second write would hold, the first does not: neither happens.
    let (index, current) = refused(subject.store.transact(soon(), &writes(1), &format!("{nonce}2")).await);
    assert_eq!((index, current), (0, Some(row("s").with("owner", "a"))));
    assert_eq!(subject.get(&fences, "s").await, Some(row("s").with("epoch", 1)));
    let delete =
        Write::Delete { table: locks.clone(), key: Key::new("pk", "s"), when: Condition::eq("owner", "a") };
    applied(subject.store.transact(soon(), &[delete], &format!("{nonce}3")).await);
    assert_eq!(subject.get(&locks, "s").await, None);
}

/// A check guards rows that the transaction leaves alone.
pub async fn a_transaction_checks_rows_it_does_not_write(subject: Subject) {
    let table = subject.table("rows").await;
    subject.put(&table, row("fence").with("epoch", 5)).await;
    let guarded = |epoch: i64| {
        [check(&table, "fence", Condition::eq("epoch", epoch)), put(&table, row("work"), Condition::Always)]
    };
    let (index, current) = refused(subject.store.transact(soon(), &guarded(4), "n-1").await);
    assert_eq!((index, current.and_then(|row| row.integer("epoch"))), (0, Some(5)));
    assert_eq!(subject.get(&table, "work").await, None);
    applied(subject.store.transact(soon(), &guarded(5), "n-2").await);
    assert_eq!(subject.get(&table, "fence").await, Some(row("fence").with("epoch", 5)));
    assert_eq!(subject.get(&table, "work").await, Some(row("work")));
}

/// The first refusal in the order given is the one that is told.
pub async fn a_transaction_says_which_write_was_refused(subject: Subject) {
    let table = subject.table("rows").await;
    subject.put(&table, row("b").with("n", 1)).await;
    let writes = [
        put(&table, row("a"), Condition::absent("pk")),
        put(&table, row("b"), Condition::absent("pk")),
        put(&table, row("c"), Condition::exists("pk")),
    ];
    assert_eq!(
        refused(subject.store.transact(soon(), &writes, "n-1").await),
        (1, Some(row("b").with("n", 1)))
    );
    assert_eq!(subject.get(&table, "a").await, None);
}

/// Appending what is there is no refusal, in a transaction either.
pub async fn a_transaction_appends_once(subject: Subject) {
    let table = subject.table("rows").await;
    let append = |element: &str| {
        let change = Update::new().append_unique("done", element).add("n", 1);
        let key = Key::new("pk", "a");
        [
            Write::Update { table: table.clone(), key, change, when: Condition::Always },
            check(&table, "never", Condition::absent("pk")),
        ]
    };
    for (turn, element) in ["x", "x", "y"].iter().enumerate() {
        applied(subject.store.transact(soon(), &append(element), &format!("n-{turn}")).await);
    }
    let expected = row("a").with("n", 3).with("done", Value::L(vec!["x".into(), "y".into()]));
    assert_eq!(subject.get(&table, "a").await, Some(expected));
}

/// Empty, too long and self-contradicting transactions.
pub async fn bad_transactions_are_invalid(subject: Subject) {
    let table = subject.table("rows").await;
    let transact = async |writes: Vec<Write>| invalid(subject.store.transact(soon(), &writes, "n-1").await);
    transact(vec![]).await;
    invalid(subject.store.transact(soon(), &[put(&table, row("a"), Condition::Always)], "").await);
    transact((0..101).map(|n| put(&table, row(&format!("r{n}")), Condition::Always)).collect()).await;
    let twice = vec![put(&table, row("a"), Condition::Always), check(&table, "a", Condition::Always)];
    assert!(transact(twice).await.contains("twice"));
    let (key, change) = (Key::new("pk", "a"), Update::new());
    transact(vec![Write::Update { table: table.clone(), key, change, when: Condition::Always }]).await;
    assert_eq!(subject.get(&table, "a").await, None);
}

/// An item over the limit is refused by every backend in the same words, and nothing is written.
pub async fn oversize_items_are_invalid(subject: Subject) {
    let table = subject.table("rows").await;
    let large = row("a").with("v", "x".repeat(ITEM_BYTES_MAX));
    let message = invalid(subject.store.put(soon(), &table, large, Condition::Always).await);
    assert!(message.contains("at most 409600 fit"), "{message}");
    let empty_set = row("a").with("v", Value::Ns([].into()));
    invalid(subject.store.put(soon(), &table, empty_set, Condition::Always).await);
    invalid(subject.store.put(soon(), &table, row("a"), Condition::lt("n", true)).await);
    assert_eq!(subject.get(&table, "a").await, None);
}

/// A key of the wrong type, shape or size is named.
pub async fn wrong_keys_are_invalid(subject: Subject) {
    let table = subject.table("rows").await;
    let message = invalid(subject.store.get(soon(), &table, &Key::new("pk", 1)).await);
    assert!(message.contains("`pk`") && message.contains("is a S, not a N"), "{message}");
    for key in [Key::new("id", "a"), Key::new("pk", "a").and("sk", "b"), Key::new("pk", "")] {
        invalid(subject.store.get(soon(), &table, &key).await);
        invalid(subject.store.delete(soon(), &table, key, Condition::Always).await);
    }
    invalid(subject.store.put(soon(), &table, Item::new().with("other", 1), Condition::Always).await);
    invalid(subject.store.put(soon(), &table, row(&"k".repeat(3000)), Condition::Always).await);
}

/// Every call on a table that is not there says so.
pub async fn a_missing_table_is_invalid(subject: Subject) {
    let (store, table) = (&subject.store, subject.named("nowhere"));
    let key = Key::new("pk", "a");
    let says_so = |message: String| {
        assert!(message.contains(&format!("table `{table}` does not exist")), "{message}");
    };
    says_so(invalid(store.get(soon(), &table, &key).await));
    says_so(invalid(store.put(soon(), &table, row("a"), Condition::Always).await));
    says_so(invalid(store.update(soon(), &table, key.clone(), Update::new(), Condition::Always).await));
    says_so(invalid(store.delete(soon(), &table, key, Condition::Always).await));
    says_so(invalid(store.transact(soon(), &[put(&table, row("a"), Condition::Always)], "n").await));
    says_so(invalid(store.scan(soon(), &table, &crate::Page::default()).await));
    says_so(invalid(store.query(soon(), &table, &crate::Query::partition("pk", "a")).await));
    assert_eq!(store.describe_table(soon(), &table).await.expect("describe"), None);
}

/// Names that DynamoDB would refuse are refused everywhere.
pub async fn bad_names_are_invalid(subject: Subject) {
    for name in ["ab", "has space", "semi;colon", "quote\"d"] {
        invalid(subject.store.ensure_table(soon(), &TableSpec::new(name, KeyAttribute::text("pk"))).await);
    }
    let unnamed_key = TableSpec::new(subject.named("rows"), KeyAttribute::text(""));
    invalid(subject.store.ensure_table(soon(), &unnamed_key).await);
}
