use super::*;
use crate::pgoutput::{self, Decoder, Message};

/// A row as the server sends it, to be read by [`read`].
pub(crate) fn row(values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = b"I\0\0\0\x01N".to_vec();
    bytes.extend_from_slice(&(values.len() as u16).to_be_bytes());
    for value in values {
        let (mark, content) = match value {
            Value::Null => (b'n', None),
            Value::Unchanged => (b'u', None),
            Value::Text(text) => (b't', Some(text)),
            Value::Binary(content) => (b'b', Some(content)),
        };
        bytes.push(mark);
        if let Some(content) = content {
            bytes.extend_from_slice(&(content.len() as u32).to_be_bytes());
            bytes.extend_from_slice(content);
        }
    }
    bytes
}

pub(crate) fn read(row: &[u8]) -> Tuple<'_> {
    match Decoder::default().decode(row).unwrap() {
        Message::Insert { new, .. } => new,
        other => panic!("{other:?}"),
    }
}

/// Texts; `None` is null.
pub(crate) fn texts(values: &[Option<&str>]) -> Vec<u8> {
    let values: Vec<Value<'_>> =
        values.iter().map(|value| value.map_or(Value::Null, |text| Value::Text(text.as_bytes()))).collect();
    row(&values)
}

/// A column whose name begins with `*` belongs to the identity.
pub(crate) fn table(identity: ReplicaIdentity, columns: &[(&str, Type)]) -> Table {
    let columns = columns
        .iter()
        .map(|(name, built_in)| pgoutput::Column {
            in_identity: name.starts_with('*') || identity == ReplicaIdentity::Full,
            name: name.trim_start_matches('*'),
            type_oid: built_in.oid(),
            type_modifier: -1,
        })
        .collect();
    let relation = Relation { xid: None, oid: 1, schema: "public", name: "orders", identity, columns };
    Table::new(&relation, &TypeNames::default())
}

fn orders() -> Table {
    table(ReplicaIdentity::Default, &[("*id", Type::INT8), ("*region", Type::TEXT), ("doc", Type::TEXT)])
}

fn placed(table: &Table, row: &[u8]) -> (u64, String) {
    let mut place = Place::default();
    let hash = table.place(&mut place, &read(row), None).unwrap();
    (hash, place.partition_key)
}

#[test]
fn a_row_belongs_where_its_key_says() {
    let table = orders();
    let (hash, key) = placed(&table, &texts(&[Some("42"), Some("eu"), Some("x")]));
    assert_eq!(key, "public.orders/42/eu");
    let mut expected = KeyHash::of_table("public", "orders");
    expected.add(Some(b"42"));
    expected.add(Some(b"eu"));
    assert_eq!(hash, expected.digest());
    assert_eq!(placed(&table, &texts(&[Some("42"), Some("eu"), None])), (hash, key.clone()));
    let (other, _) = placed(&table, &texts(&[Some("42"), Some("us"), Some("x")]));
    assert_ne!(other, hash);
    // The same place serves again, also for another table.
    let mut place = Place { partition_key: "rest".into(), ..Place::default() };
    place.hash.add(Some(b"rest"));
    let bytes = texts(&[Some("42"), Some("eu"), None]);
    assert_eq!(table.place(&mut place, &read(&bytes), None), Ok(hash));
    assert_eq!(place.partition_key, key);
}

#[test]
fn rows_without_a_key_share_the_tables_lane() {
    let columns = [("id", Type::INT8), ("doc", Type::TEXT)];
    for identity in [ReplicaIdentity::Default, ReplicaIdentity::Full, ReplicaIdentity::Nothing] {
        let table = table(identity, &columns);
        assert!(!table.is_keyed());
        let (hash, key) = placed(&table, &texts(&[Some("1"), None]));
        assert_eq!(placed(&table, &texts(&[Some("2"), None])).0, hash);
        assert_eq!(key, "public.orders");
        let mut place = Place::default();
        assert_eq!((table.place_whole(&mut place), place.partition_key), (hash, key));
    }
}

#[test]
fn long_and_unreadable_keys_become_their_hash() {
    let table = orders();
    // 256 characters fit, whatever their bytes.
    let room = KEY_CHARACTERS_MAX - "public.orders/1/".len();
    let fits = "é".repeat(room);
    let (_, key) = placed(&table, &texts(&[Some("1"), Some(&fits), None]));
    assert_eq!(key, format!("public.orders/1/{fits}"));
    for long in [format!("{fits}é"), "x".repeat(100_000)] {
        let (hash, key) = placed(&table, &texts(&[Some("1"), Some(&long), None]));
        assert_eq!(key, format!("public.orders#{hash:016x}"));
    }
    let (hash, key) = placed(&table, &row(&[Value::Text(b"1"), Value::Text(b"\xff"), Value::Null]));
    assert_eq!(key, format!("public.orders#{hash:016x}"));
    let name = "n".repeat(1000);
    let relation = Relation {
        xid: None,
        oid: 1,
        schema: &name,
        name: &name,
        identity: ReplicaIdentity::Default,
        columns: vec![pgoutput::Column { in_identity: true, name: "id", type_oid: 25, type_modifier: -1 }],
    };
    let (_, key) = placed(&Table::new(&relation, &TypeNames::default()), &texts(&[Some(&fits)]));
    assert!(key.chars().count() <= KEY_CHARACTERS_MAX, "{key}");
}

#[test]
fn a_large_key_that_did_not_change_is_taken_from_the_old_row() {
    let table = orders();
    let new = row(&[Value::Text(b"1"), Value::Unchanged, Value::Unchanged]);
    let old = texts(&[Some("1"), Some("eu"), None]);
    let old = Old::Key(read(&old));
    let mut place = Place::default();
    assert_eq!(
        table.place(&mut place, &read(&new), Some(&old)),
        Ok(placed(&table, &texts(&[Some("1"), Some("eu"), None])).0)
    );
    assert!(!table.key_changed(&old, &read(&new)));
    let unknown = table.place(&mut place, &read(&new), None).unwrap_err();
    assert_eq!((unknown.column.as_deref(), unknown.why), (Some("region"), Why::KeyNotTold));
}

#[test]
fn a_key_changes_only_with_its_own_columns() {
    let table = orders();
    let changed = |old: &[Option<&str>], new: &[Option<&str>]| {
        let (old, new) = (texts(old), texts(new));
        table.key_changed(&Old::Key(read(&old)), &read(&new))
    };
    assert!(changed(&[Some("1"), Some("eu"), None], &[Some("2"), Some("eu"), None]));
    assert!(changed(&[Some("1"), Some("eu"), None], &[Some("1"), Some("us"), None]));
    assert!(!changed(&[Some("1"), Some("eu"), None], &[Some("1"), Some("eu"), Some("doc")]));
}

#[test]
fn another_shape_is_told() {
    let same = orders();
    let other = [
        table(ReplicaIdentity::Index, &[("*id", Type::INT8), ("*region", Type::TEXT), ("doc", Type::TEXT)]),
        table(ReplicaIdentity::Default, &[("*id", Type::INT8), ("region", Type::TEXT), ("doc", Type::TEXT)]),
        table(ReplicaIdentity::Default, &[("*id", Type::INT4), ("*region", Type::TEXT), ("doc", Type::TEXT)]),
        table(ReplicaIdentity::Default, &[("*id", Type::INT8), ("*area", Type::TEXT), ("doc", Type::TEXT)]),
        table(ReplicaIdentity::Default, &[("*id", Type::INT8), ("*region", Type::TEXT)]),
    ];
    assert!(same.is_same_shape(&orders()) && same.digest() == orders().digest());
    for other in other {
        assert!(!same.is_same_shape(&other) && same.digest() != other.digest(), "{other:?}");
    }
    // Stored digests depend on it.
    assert_eq!(same.digest(), 2_243_278_889_406_072_678);
}
