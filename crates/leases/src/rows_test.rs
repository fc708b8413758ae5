use proptest::prelude::*;
use tenure_stream::HashKey;

use super::*;
use crate::machine::Answer;
use crate::testing::LeaseTable;

fn place() -> Place {
    Place::new("orders-app", "tenure_coordination")
}

fn lease() -> Lease {
    Lease {
        key: "shardId-000000000003".into(),
        stream: None,
        shard: ShardId::numbered(3),
        owner: Some("worker-1".into()),
        giver: None,
        counter: 7,
        owner_switches: 1,
        checkpoint: Checkpoint::At {
            sequence: "49590338271490256608559692538361571095921575989136588898".parse().unwrap(),
            sub: 2,
        },
        parents: BTreeSet::from([ShardId::numbered(1), ShardId::numbered(2)]),
        children: BTreeSet::new(),
        range: Some(HashRange { start: HashKey(0), end: HashKey::MAX }),
        throughput_kbps: Some(12.5),
        marks: Some(Bytes::from_static(b"\x01\x02")),
    }
}

#[test]
fn a_row_is_what_the_kcl_writes() {
    let shown: Vec<String> = item_of(&lease())
        .iter()
        .map(|(name, value)| format!("{name} {} {}", value.type_name(), show(value)))
        .collect();
    expect_test::expect![[r#"
        checkpoint S 49590338271490256608559692538361571095921575989136588898
        checkpointSubSequenceNumber N 2
        endingHashKey S 340282366920938463463374607431768211455
        leaseCounter N 7
        leaseKey S shardId-000000000003
        leaseOwner S worker-1
        ownerSwitchesSinceCheckpoint N 1
        parentShardId SS shardId-000000000001,shardId-000000000002
        startingHashKey S 0
        tenureMarks B [1, 2]
        throughputKBps N 12.5"#]]
    .assert_eq(&shown.join("\n"));
}

fn show(value: &Value) -> String {
    match value {
        Value::S(text) => text.clone(),
        Value::N(number) => number.to_string(),
        Value::Ss(set) => set.iter().cloned().collect::<Vec<_>>().join(","),
        Value::B(bytes) => format!("{bytes:?}"),
        other => format!("{other:?}"),
    }
}

/// As a KCL 2.x left it, with a checkpoint that it was about to make.
#[test]
fn an_old_row_is_read() {
    let item = Item::new()
        .with("leaseKey", "arn:1:stream:9:shardId-000000000004")
        .with("leaseCounter", 12)
        .with("ownerSwitchesSinceCheckpoint", 0)
        .with("checkpoint", "TRIM_HORIZON")
        .with("checkpointSubSequenceNumber", 0)
        .with("pendingCheckpoint", "123")
        .with("pendingCheckpointSubSequenceNumber", 0)
        .with("pendingCheckpointState", Value::B(vec![1]));
    let lease = place().lease(&item).unwrap().unwrap();
    assert_eq!(lease.stream.as_deref(), Some("arn:1:stream:9"));
    assert_eq!(lease.shard, ShardId::numbered(4));
    assert_eq!((lease.owner, lease.giver, lease.counter), (None, None, 12));
    assert_eq!(lease.checkpoint, Checkpoint::TrimHorizon);
    assert!(lease.parents.is_empty() && lease.range.is_none() && lease.marks.is_none());
    // Some versions keep it as a number.
    let mut other = item;
    other.set("pendingCheckpointState", 3);
    assert!(place().lease(&other).unwrap().is_some());
}

#[test]
fn rows_of_other_kinds_are_passed_over() {
    let row = |kind: &str| Item::new().with("leaseKey", "x").with("entityType", kind);
    assert_eq!(place().lease(&row("WORKER_METRICS")).unwrap(), None);
    let mut item = item_of(&lease());
    item.set("entityType", "LEASE");
    assert_eq!(place().lease(&item).unwrap(), Some(lease()));
}

#[test]
fn what_cannot_be_understood_is_named_and_left_alone() {
    let refused = |name: &str, value: Value, says: &str| {
        let mut item = item_of(&lease());
        item.set(name, value);
        let error = place().lease(&item).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        let text = error.chain();
        assert!(
            text.contains("lease `shardId-000000000003` of table `orders-app`") && text.contains(says),
            "{text}"
        );
    };
    refused("leaseCounter", Value::from(-1), "`leaseCounter` -1, below zero");
    refused("leaseCounter", Value::from("7"), "`leaseCounter` of type S, not N");
    refused("leaseCounter", Value::N("1.5".parse().unwrap()), "not a whole number");
    refused("leaseCounter", Value::from(i64::MAX), "above");
    refused("checkpoint", Value::from("12x"), "bad `checkpoint`");
    refused("checkpointSubSequenceNumber", Value::from(-2), "below zero");
    refused("parentShardId", Value::L(vec![]), "`parentShardId` of type L, not SS");
    refused("endingHashKey", Value::from("abc"), "bad `endingHashKey`");
    refused("throughputKBps", Value::from(-3), "below zero");
    refused("leaseOwner", Value::from(3), "of type N, not S");
    let mut item = item_of(&lease());
    item.remove("leaseCounter");
    assert!(place().lease(&item).unwrap_err().chain().contains("has no `leaseCounter`"));
}

#[test]
fn own_rows_are_read_back() {
    let me = Presence {
        worker: "w/1".into(),
        incarnation: "abc".into(),
        cap: 9,
        holding: true,
        counter: 4,
        expires: 1_763_553_900,
    };
    let put = |note: &Note| match place().note(note) {
        Write::Put { item, .. } => place().own(&item).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(put(&Note::Presence { me: me.clone(), over: None }), Some(OwnRow::Worker(me)));
    let lease = Duration::from_secs(10);
    assert_eq!(put(&Note::Settings { lease }), Some(OwnRow::Settings(lease)));
    let key = place().own_key("something new").as_item().clone();
    assert_eq!(place().own(&key).unwrap(), None);
    let bad = place().settings_key().as_item().clone().with("leaseMs", "ten");
    assert!(place().own(&bad).unwrap_err().chain().contains("row `LEASES#orders-app` / `settings`"));
}

#[test]
fn a_presence_that_comes_late_does_not_replace_a_newer_one() {
    let presence = |counter| Presence {
        worker: "w/1".into(),
        incarnation: "abc".into(),
        cap: counter,
        holding: true,
        counter,
        expires: 1_763_553_900,
    };
    let Write::Put { item: newer, .. } = place().note(&Note::Presence { me: presence(5), over: None }) else {
        panic!("it is put")
    };
    for (counter, applies) in [(4, false), (5, false), (6, true)] {
        let Write::Put { when, .. } = place().note(&Note::Presence { me: presence(counter), over: None })
        else {
            panic!("it is put")
        };
        assert_eq!(when.holds(&newer), applies, "{counter}");
        assert!(when.holds(&Item::new()));
    }
}

#[test]
fn a_new_table_has_the_index_and_an_old_one_needs_none() {
    let new = lease_table_spec("orders-app");
    new.validate().unwrap();
    assert_eq!(new.indexes[0].name, OWNER_INDEX);
    let old = bare_lease_table_spec("orders-app");
    bare_lease_table_spec("orders-app").check_same_key(&new).unwrap();
    old.check_same_key(&old).unwrap();
}

// === properties ===

fn worker() -> impl Strategy<Value = WorkerId> {
    prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(WorkerId::from)
}

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    prop_oneof![
        Just(Checkpoint::TrimHorizon),
        Just(Checkpoint::Latest),
        Just(Checkpoint::AtTimestamp),
        (any::<u64>(), 0..9_u64).prop_map(|(number, sub)| Checkpoint::At { sequence: number.into(), sub }),
        Just(Checkpoint::ShardEnd),
    ]
}

fn marks() -> impl Strategy<Value = Option<Bytes>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..4).prop_map(Bytes::from))
}

prop_compose! {
    fn leases()(
        stream in proptest::option::of(Just("s:1")),
        owner in proptest::option::of(worker()),
        giver in proptest::option::of(worker()),
        counter in 0..4_u64,
        owner_switches in 0..3_u64,
        checkpoint in checkpoint(),
        parents in proptest::collection::btree_set(0..3_u64, 0..3),
        children in proptest::collection::btree_set(5..8_u64, 0..3),
        range in proptest::option::of((any::<u128>(), any::<u128>())),
        rate in proptest::option::of(0..1000_u32),
        marks in marks(),
    ) -> Lease {
        let shard = ShardId::numbered(4);
        Lease {
            key: stream.map_or_else(|| LeaseKey::of_shard(&shard), |stream| LeaseKey::of_stream(stream, &shard)),
            stream: stream.map(Arc::from),
            shard,
            owner,
            giver,
            counter,
            owner_switches,
            checkpoint,
            parents: parents.into_iter().map(ShardId::numbered).collect(),
            children: children.into_iter().map(ShardId::numbered).collect(),
            range: range.map(|(start, end)| HashRange { start: HashKey(start), end: HashKey(end) }),
            throughput_kbps: rate.map(|rate| f64::from(rate) / 8.0),
            marks,
        }
    }
}

fn attempts(lease: Lease) -> impl Strategy<Value = Attempt> {
    let key = lease.key.clone();
    (worker(), worker(), 0..4_u64, checkpoint(), marks(), any::<bool>(), 0..8_u8).prop_map(
        move |(one, two, counter, at, marks, finished, which)| {
            let key = key.clone();
            match which {
                0 => Attempt::Create(Box::new(lease.clone())),
                1 => Attempt::Renew { key, counter, me: one, kbps: finished.then_some(2.5) },
                2 => Attempt::Take { key, counter, me: one, from: lease.owner.clone() },
                3 => Attempt::Checkpoint { key, counter, me: one, at, marks },
                4 => Attempt::BeginHandoff { key, from: one, to: two },
                5 => Attempt::FinishHandoff { key, counter, from: one, to: two },
                6 => Attempt::Evict { key, counter, me: one },
                _ => Attempt::Delete { key, counter, finished },
            }
        },
    )
}

proptest! {
    #[test]
    fn a_row_comes_back_as_it_was(lease in leases()) {
        prop_assert_eq!(place().lease(&item_of(&lease)).unwrap(), Some(lease));
    }

    /// The conditions that a store evaluates, and the plain comparisons of `testing.rs`.
    #[test]
    fn both_tellings_of_a_write_agree(
        (lease, attempt) in leases().prop_flat_map(|lease| (Just(lease.clone()), attempts(lease))),
        is_there in any::<bool>(),
    ) {
        let mut table = LeaseTable::default();
        if is_there {
            table.leases.insert(lease.key.clone(), lease.clone().into());
        }
        let spec = lease_table_spec("orders-app");
        let current = is_there.then(|| item_of(&lease));
        let write = place().write(&attempt);
        write.validate().unwrap();
        let effect = write.decide(&spec, current.as_ref()).unwrap();
        let answer = table.write(&attempt);
        match effect {
            None => prop_assert!(matches!(answer, Answer::Refused(_)), "{answer:?}"),
            Some(tenure_store::Effect::Erase) => {
                prop_assert!(matches!(answer, Answer::Applied(_)));
                prop_assert!(table.leases.is_empty());
            }
            Some(tenure_store::Effect::Store(item)) => {
                prop_assert!(matches!(answer, Answer::Applied(_)), "{answer:?}");
                let stored = place().lease(&item).unwrap();
                prop_assert_eq!(stored.as_ref(), table.leases.get(&lease.key).map(|lease| &**lease));
            }
            Some(other) => prop_assert!(false, "{other:?}"),
        }
    }
}
