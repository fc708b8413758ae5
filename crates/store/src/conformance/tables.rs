//! Creating tables, and rows whose time is over.

use super::{Subject, invalid};
use crate::testing::soon;
use crate::{IndexSpec, Item, KeyAttribute, Projection, Query, StoreExt, TableSpec};

fn spec(name: String) -> TableSpec {
    TableSpec::new(name, KeyAttribute::text("pk"))
        .with_range(KeyAttribute::number("sk"))
        .with_ttl("ttl")
        .with_index(IndexSpec {
            name: "by-owner".into(),
            hash: KeyAttribute::text("owner"),
            range: None,
            projection: Projection::KeysOnly,
        })
}

/// What was asked for is what is described.
pub async fn tables_describe_themselves(subject: Subject) {
    let spec = spec(subject.named("rows"));
    subject.create(spec.clone()).await;
    assert_eq!(subject.store.describe_table(soon(), &spec.name).await.expect("describe"), Some(spec));
}

/// Sixteen create one table at once; all may use it when their call returns.
pub async fn a_table_is_created_once_by_many(subject: Subject) {
    let spec = spec(subject.named("rows"));
    let mut creators = Vec::new();
    for number in 0..16 {
        let (store, spec) = (subject.store.clone(), spec.clone());
        creators.push(tokio::spawn(async move {
            store.ensure_table(soon(), &spec).await?;
            let item = Item::new().with("pk", "a").with("sk", number);
            store.put(soon(), &spec.name, item, crate::Condition::Always).await
        }));
    }
    for creator in creators {
        super::applied(creator.await.expect("no creator panics"));
    }
    assert_eq!(subject.store.scan_all(soon(), &spec.name, 100).await.expect("scan").len(), 16);
}

/// `Locks` and `locks` are two tables, and so are their indexes.
///
/// Not one of the cases that the macro makes: both DynamoDB emulators take them for one, though DynamoDB
/// does not. The other backends' tests call it by name.
pub async fn tables_whose_names_differ_in_case_are_two(subject: Subject) {
    let (upper, lower) = (subject.named("Rows"), subject.named("rows"));
    subject.create(spec(upper.clone())).await;
    subject.create(spec(lower.clone())).await;
    subject.put(&upper, Item::new().with("pk", "a").with("sk", 1).with("owner", "ann")).await;
    assert_eq!(subject.store.scan_all(soon(), &lower, 10).await.expect("scan"), []);
    let query = Query::index("by-owner", "owner", "ann");
    assert_eq!(subject.store.query_all(soon(), &lower, query.clone(), 10).await.expect("query"), []);
    assert_eq!(subject.store.query_all(soon(), &upper, query, 10).await.expect("query").len(), 1);
}

/// Two indexes cannot ask for two types of one attribute: no row could then have it.
pub async fn an_index_that_contradicts_another_is_refused(subject: Subject) {
    let first = spec(subject.named("rows"));
    subject.create(first.clone()).await;
    let mut second = first.clone();
    second.indexes[0].name = "by-number".into();
    second.indexes[0].hash = KeyAttribute::number("owner");
    invalid(subject.store.ensure_table(soon(), &second).await);
    second.indexes = vec![first.indexes[0].clone(), first.indexes[0].clone()];
    invalid(subject.store.ensure_table(soon(), &second).await);
    assert_eq!(subject.store.describe_table(soon(), &first.name).await.expect("describe"), Some(first));
}

/// A table that is there with another key or TTL is not taken for the one asked for.
pub async fn a_table_of_another_shape_is_refused(subject: Subject) {
    let spec = spec(subject.named("rows"));
    subject.create(spec.clone()).await;
    subject.create(spec.clone()).await;
    let ensure = async |other: TableSpec| invalid(subject.store.ensure_table(soon(), &other).await);
    let message = ensure(TableSpec { hash: KeyAttribute::number("pk"), ..spec.clone() }).await;
    assert!(message.contains("exists with the key pk S + sk N"), "{message}");
    ensure(TableSpec { range: None, ..spec.clone() }).await;
    ensure(TableSpec { ttl: Some("other".into()), ..spec.clone() }).await;
    let mut other_index = spec.clone();
    other_index.indexes[0].hash = KeyAttribute::text("somebody");
    ensure(other_index).await;
}

/// An index that is added later finds the rows that were there before.
pub async fn an_index_may_come_later(subject: Subject) {
    let with_index = spec(subject.named("rows"));
    let without = TableSpec { indexes: Vec::new(), ttl: None, ..with_index.clone() };
    let table = subject.create(without).await;
    subject.put(&table, Item::new().with("pk", "a").with("sk", 1).with("owner", "me")).await;
    subject.create(with_index.clone()).await;
    let query = Query::index("by-owner", "owner", "me");
    let rows = subject.store.query_all(soon(), &table, query.clone(), 10).await.expect("query");
    assert_eq!(rows.len(), 1);
    subject.put(&table, Item::new().with("pk", "a").with("sk", 2).with("owner", "me")).await;
    assert_eq!(subject.store.query_all(soon(), &table, query, 10).await.expect("query").len(), 2);
    let described = subject.store.describe_table(soon(), &table).await.expect("describe");
    assert_eq!(described, Some(with_index));
}

/// No meaning rests on a row being gone: an expired one reads and writes like any other.
pub async fn an_expired_row_is_still_a_row(subject: Subject) {
    let spec = TableSpec::new(subject.named("locks"), KeyAttribute::text("pk")).with_ttl("ttl");
    let table = subject.create(spec).await;
    // A released lock: `ttl` 0 is further back than any backend sweeps.
    let released = Item::new().with("pk", "s").with("ttl", 0);
    subject.put(&table, released.clone()).await;
    assert_eq!(subject.get(&table, "s").await, Some(released.clone()));
    let again = subject.store.put(soon(), &table, released.clone(), crate::Condition::absent("pk")).await;
    assert_eq!(super::refused(again), (0, Some(released)));
    // A `ttl` that is no number is an attribute like any other.
    subject.put(&table, Item::new().with("pk", "t").with("ttl", "never")).await;
}
