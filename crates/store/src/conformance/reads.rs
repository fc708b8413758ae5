//! What comes back: values as they were, rows in order, pages that cover everything.

use super::{Subject, invalid};
use crate::testing::soon;
use crate::{
    Condition, IndexSpec, Item, Key, KeyAttribute, Number, Page, Projection, Query, StoreExt, TableSpec,
    Update, Value,
};

/// A row that was never written.
pub async fn a_missing_row_reads_as_none(subject: Subject) {
    let table = subject.table("rows").await;
    assert_eq!(subject.get(&table, "a").await, None);
}

/// All types, nested too, come back as they were.
pub async fn every_type_round_trips(subject: Subject) {
    let table = subject.table("rows").await;
    let number = |text: &str| Value::N(text.parse().expect("a number"));
    let nested = Value::M([("list".to_owned(), Value::L(vec![Value::Null, 1.into(), "x".into()]))].into());
    let item = Item::new()
        .with("pk", "a")
        .with("s", "text")
        .with("n", number("-12.50"))
        .with("large", number("99999999999999999999999999999999999999"))
        .with("huge", number("1e125"))
        .with("tiny", number("-1e-130"))
        .with("precise", 9_007_199_254_740_993_i64)
        .with("b", Value::B(vec![0, 255, 128]))
        .with("bool", true)
        .with("null", Value::Null)
        .with("l", Value::L(vec![]))
        .with("m", nested)
        .with("ss", Value::Ss(["x".to_owned(), "y".to_owned()].into()))
        .with("ns", Value::Ns([Number::from(1), Number::from(-2)].into()))
        .with("bs", Value::Bs([vec![1], vec![2, 3]].into()));
    subject.put(&table, item.clone()).await;
    assert_eq!(subject.get(&table, "a").await, Some(item));
}

/// Empty, long, exotic and awkward texts, as values, keys and names.
pub async fn texts_of_all_kinds_round_trip(subject: Subject) {
    let table = subject.table("rows").await;
    for (number, text) in
        ["", "nul\0inside", "\u{1F980} käse \u{FEFF}", "quote ' \" \\ `", "a\nb\tc"].iter().enumerate()
    {
        let pk = format!("{number} {text}");
        let item = Item::new().with("pk", pk.clone()).with("v", *text).with(format!("name {text}"), 1);
        subject.put(&table, item.clone()).await;
        assert_eq!(subject.get(&table, &pk).await, Some(item));
    }
}

/// Close to the limit.
pub async fn a_large_item_round_trips(subject: Subject) {
    let table = subject.table("rows").await;
    let item = Item::new().with("pk", "a").with("v", "x".repeat(399 * 1024));
    subject.put(&table, item.clone()).await;
    assert_eq!(subject.get(&table, "a").await, Some(item));
}

fn sk_of(items: &[Item]) -> Vec<&str> {
    items.iter().filter_map(|item| item.text("sk")).collect()
}

/// A partition lists by its range key, page by page, and shows nothing of its neighbours.
pub async fn partitions_list_in_order_and_in_pages(subject: Subject) {
    let table = subject.sorted_table("rows", KeyAttribute::text("sk")).await;
    for sk in ["b", "a", "e", "d", "c", "é", "B"] {
        for pk in ["one", "two"] {
            subject.put(&table, Item::new().with("pk", pk).with("sk", sk).with("v", 1)).await;
        }
    }
    let whole =
        subject.store.query_all(soon(), &table, Query::partition("pk", "one"), 100).await.expect("query");
    assert_eq!(sk_of(&whole), ["B", "a", "b", "c", "d", "e", "é"]);
    let mut page = Page { limit: 3, after: None };
    let mut pages = Vec::new();
    loop {
        let query = Query::partition("pk", "two").page(page.clone());
        let listing = subject.store.query(soon(), &table, &query).await.expect("query");
        assert!(listing.items.len() <= 3);
        pages.extend(listing.items);
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(sk_of(&pages), ["B", "a", "b", "c", "d", "e", "é"]);
    let none =
        subject.store.query_all(soon(), &table, Query::partition("pk", "three"), 100).await.expect("query");
    assert_eq!(none, []);
    let cut = subject.store.query_all(soon(), &table, Query::partition("pk", "one"), 3).await;
    assert!(invalid(cut).contains("more than 3 rows"));
}

/// −10 < −9 < 0.5 < 9 < 10, not as texts.
pub async fn numbers_sort_as_numbers(subject: Subject) {
    let table = subject.sorted_table("rows", KeyAttribute::number("at")).await;
    for at in ["10", "9", "-10", "0.5", "-9", "100", "1e20", "0"] {
        let at: Number = at.parse().expect("a number");
        subject.put(&table, Item::new().with("pk", "a").with("at", at)).await;
    }
    let rows =
        subject.store.query_all(soon(), &table, Query::partition("pk", "a"), 100).await.expect("query");
    let shown: Vec<_> =
        rows.iter().filter_map(|row| row.get("at")?.as_number()).map(|n| n.to_string()).collect();
    assert_eq!(shown, ["-10", "-9", "0", "0.5", "9", "10", "100", "100000000000000000000"]);
    // Equal numbers are one row, however they are written.
    let key = Key::new("pk", "a").and("at", "10.0".parse::<Number>().expect("a number"));
    assert!(subject.store.get(soon(), &table, &key).await.expect("get").is_some());
}

/// Byte keys sort without sign.
pub async fn bytes_sort_as_bytes(subject: Subject) {
    let table = subject.sorted_table("rows", KeyAttribute::bytes("sk")).await;
    for bytes in [vec![200u8], vec![1], vec![1, 0], vec![127]] {
        subject.put(&table, Item::new().with("pk", "a").with("sk", Value::B(bytes))).await;
    }
    let rows =
        subject.store.query_all(soon(), &table, Query::partition("pk", "a"), 100).await.expect("query");
    let shown: Vec<_> = rows.iter().filter_map(|row| row.get("sk")).cloned().collect();
    let expected = [vec![1u8], vec![1, 0], vec![127], vec![200]].map(Value::B);
    assert_eq!(shown, expected);
}

fn owner_index(projection: Projection) -> IndexSpec {
    IndexSpec {
        name: "by-owner".into(),
        hash: KeyAttribute::text("owner"),
        range: Some(KeyAttribute::number("since")),
        projection,
    }
}

fn lease(pk: &str, owner: &str, since: i64) -> Item {
    Item::new().with("pk", pk).with("owner", owner).with("since", since).with("more", "x")
}

/// Rows are found by an attribute that is not their key, follow it when it changes, and are not
/// found without it.
pub async fn an_index_finds_rows_by_another_attribute(subject: Subject) {
    let spec = TableSpec::new(subject.named("leases"), KeyAttribute::text("pk"))
        .with_index(owner_index(Projection::KeysOnly));
    let table = subject.create(spec).await;
    for (pk, owner, since) in [("s1", "a", 3), ("s2", "a", -1), ("s3", "b", 2)] {
        subject.put(&table, lease(pk, owner, since)).await;
    }
    subject.put(&table, Item::new().with("pk", "s4").with("since", 1)).await;
    let owned = async |owner: &str| {
        let query = Query::index("by-owner", "owner", owner);
        // DynamoDB's indexes may lag; ours and the emulators' do not, but the promise is only "soon".
        let rows = subject.store.query_all(soon(), &table, query, 100).await.expect("query");
        rows.iter().filter_map(|row| row.text("pk").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(owned("a").await, ["s2", "s1"], "sorted by `since`");
    let first =
        subject.store.query(soon(), &table, &Query::index("by-owner", "owner", "b")).await.expect("query");
    assert_eq!(first.items, [Item::new().with("pk", "s3").with("owner", "b").with("since", 2)], "keys only");
    let moved = Update::new().set("owner", "b");
    let written = subject.store.update(soon(), &table, Key::new("pk", "s1"), moved, Condition::Always).await;
    super::applied(written);
    subject.store.delete(soon(), &table, Key::new("pk", "s2"), Condition::Always).await.expect("delete");
    assert_eq!((owned("a").await, owned("b").await), (vec![], vec!["s3".to_owned(), "s1".to_owned()]));
    let released = Update::new().remove("owner");
    subject
        .store
        .update(soon(), &table, Key::new("pk", "s1"), released, Condition::Always)
        .await
        .expect("update");
    assert_eq!(owned("b").await, ["s3"]);
    // A row whose indexed attribute has a type or size that no index takes is refused.
    for owner in [Value::from(7), Value::from(""), Value::from("x".repeat(3000))] {
        let wrong = lease("s5", "a", 1).with("owner", owner);
        invalid(subject.store.put(soon(), &table, wrong, Condition::Always).await);
    }
    invalid(subject.store.query(soon(), &table, &Query::index("nowhere", "owner", "a")).await);
}

/// Rows with equal index keys are paged through without loss or repetition.
pub async fn an_index_pages_among_equal_rows(subject: Subject) {
    let spec = TableSpec::new(subject.named("leases"), KeyAttribute::text("pk"))
        .with_index(owner_index(Projection::All));
    let table = subject.create(spec).await;
    for number in 0..7 {
        subject.put(&table, lease(&format!("s{number}"), "a", 5)).await;
    }
    let mut query = Query::index("by-owner", "owner", "a").page(Page { limit: 2, after: None });
    let mut seen = Vec::new();
    loop {
        let listing = subject.store.query(soon(), &table, &query).await.expect("query");
        assert!(
            listing.items.iter().all(|row| row.text("more") == Some("x")),
            "all attributes are projected"
        );
        seen.extend(listing.items.iter().filter_map(|row| row.text("pk").map(str::to_owned)));
        query.page.after = listing.next;
        if query.page.after.is_none() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, ["s0", "s1", "s2", "s3", "s4", "s5", "s6"]);
}

/// Page by page, each row once.
pub async fn a_scan_shows_every_row_once(subject: Subject) {
    let table = subject.sorted_table("rows", KeyAttribute::text("sk")).await;
    for number in 0..25 {
        let item = Item::new().with("pk", format!("p{}", number % 4)).with("sk", format!("{number:02}"));
        subject.put(&table, item).await;
    }
    let mut page = Page { limit: 4, after: None };
    let mut seen = Vec::new();
    for _ in 0..100 {
        let listing = subject.store.scan(soon(), &table, &page).await.expect("scan");
        seen.extend(listing.items.iter().filter_map(|row| row.text("sk").map(str::to_owned)));
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, (0..25).map(|number| format!("{number:02}")).collect::<Vec<_>>());
    assert_eq!(subject.store.scan_all(soon(), &table, 25).await.expect("scan").len(), 25);
    invalid(subject.store.scan_all(soon(), &table, 24).await);
}

/// Limits and partitions that make no sense.
pub async fn bad_pages_are_invalid(subject: Subject) {
    let table = subject.table("rows").await;
    for limit in [0, Page::LIMIT_MAX + 1] {
        let page = Page { limit, after: None };
        invalid(subject.store.scan(soon(), &table, &page).await);
        invalid(subject.store.query(soon(), &table, &Query::partition("pk", "a").page(page)).await);
    }
    invalid(subject.store.query(soon(), &table, &Query::partition("other", "a")).await);
    invalid(subject.store.query(soon(), &table, &Query::partition("pk", 1)).await);
}
