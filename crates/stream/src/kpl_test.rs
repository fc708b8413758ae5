//! Both ways against a protobuf library, against bytes that Amazon's own code wrote, and against nonsense.

use proptest::prelude::*;
use prost::Message as _;

use super::*;

/// The message as a library knows it.
#[derive(Clone, PartialEq, prost::Message)]
struct Reference {
    #[prost(string, repeated, tag = "1")]
    partition_key_table: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    explicit_hash_key_table: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    records: Vec<ReferenceRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReferenceRecord {
    #[prost(uint64, required, tag = "1")]
    partition_key_index: u64,
    #[prost(uint64, optional, tag = "2")]
    explicit_hash_key_index: Option<u64>,
    #[prost(bytes = "vec", required, tag = "3")]
    data: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    tags: Vec<ReferenceTag>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReferenceTag {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

fn seal(body: &[u8]) -> Bytes {
    [&MAGIC[..], body, &Md5::digest(body)[..]].concat().into()
}

fn read(data: &Bytes) -> Deaggregated {
    deaggregate(&"outer".into(), data, HashRange::ALL)
}

fn aggregate(hash_key: Option<HashKey>, records: &[(String, Vec<u8>)]) -> Bytes {
    let mut out = Vec::new();
    let mut aggregator = Aggregator::begin(&mut out, hash_key);
    for (key, data) in records {
        aggregator.add(&mut out, key, data);
    }
    aggregator.finish(&mut out);
    out.into()
}

/// The record as it is, with why.
fn check_whole(data: Bytes, found: Found) {
    let read = read(&data);
    let whole = UserRecord { partition_key: "outer".into(), explicit_hash_key: None, data, sub_sequence: 0 };
    assert_eq!(read, Deaggregated { found, records: vec![whole] });
}

fn two() -> Reference {
    let record = |key, data: &[u8]| ReferenceRecord {
        partition_key_index: key,
        explicit_hash_key_index: None,
        data: data.to_vec(),
        tags: Vec::new(),
    };
    Reference {
        partition_key_table: vec!["a".into(), "b".into()],
        explicit_hash_key_table: Vec::new(),
        records: vec![record(1, b"one"), record(0, b"two")],
    }
}

fn unhex(text: &str) -> Bytes {
    let nibble = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}

#[test]
fn what_amazons_code_wrote_is_read() {
    // Written once by aws_kinesis_agg 1.2.3.
    let plain = unhex(
        "f3899ac20a086f72646572732f370a086f72646572732f381a0b08001a077b226e223a317d1a0608011a0200ff1a0408001a00\
         2edcb309ef12f2bf7410cf454099ddeb",
    );
    let got = read(&plain);
    assert_eq!(got.found, Found::Aggregated);
    let got: Vec<_> = got.records.iter().map(|r| (&*r.partition_key, &r.data[..], r.sub_sequence)).collect();
    assert_eq!(got, [("orders/7", &b"{\"n\":1}"[..], 0), ("orders/8", b"\x00\xff", 1), ("orders/7", b"", 2)]);

    let hashed = unhex(&format!(
        "f3899ac20a086f72646572732f370a02c3a9120234321227333430323832333636393230393338343633343633333734363037\
         3433313736383231313435351a0d080010001a077b226e223a317d1acf01080110001ac801{}1a07080010011a0179\
         204c4d65e0564837c12ccdb8cd08c68c",
        "78".repeat(200)
    ));
    let got = read(&hashed);
    assert_eq!(got.found, Found::Aggregated);
    let got: Vec<_> =
        got.records.iter().map(|r| (&*r.partition_key, r.explicit_hash_key.unwrap(), r.data.len())).collect();
    assert_eq!(got, [("orders/7", HashKey(42), 7), ("é", HashKey(42), 200), ("orders/7", HashKey::MAX, 1)]);
}

/// `aws_kinesis_agg` 1.2.3 and its protobuf library read these very bytes as the four records.
#[test]
fn what_we_write_stays_as_amazons_code_reads_it() {
    let records = [("a", "one"), ("a", "two"), ("b", ""), ("a", "three")];
    let records = records.map(|(key, data)| (key.to_owned(), data.as_bytes().to_vec()));
    let ours = aggregate(Some(HashKey(42)), &records);
    let hex: String = ours.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "f3899ac2120234320a01611a8d808080000800\
         10001a83808080006f6e651a8d80808000080010001a838080800074776f0a01621a8a80808000080110001a80808080000a01\
         611a8f80808000080210001a858080800074687265654be8d86e1ad3a1cac8539102e396f771"
    );
}

#[test]
fn what_is_not_aggregated_is_handed_on() {
    let good = seal(&two().encode_to_vec());
    assert_eq!(read(&good).found, Found::Aggregated);
    check_whole(Bytes::new(), Found::Plain);
    check_whole(Bytes::from_static(b"{}"), Found::Plain);
    check_whole(good.slice(1..), Found::Plain);
    check_whole(good.slice(..3), Found::Plain);
    check_whole(MAGIC.to_vec().into(), Found::Damaged(Damage::TooShort));
    check_whole(seal(b""), Found::Damaged(Damage::TooShort));
    check_whole(good.slice(..good.len() - 1), Found::Damaged(Damage::Digest));
    let mut flipped = good.to_vec();
    flipped[6] ^= 1;
    check_whole(flipped.into(), Found::Damaged(Damage::Digest));
}

#[test]
fn a_message_that_cannot_be_read_is_handed_on() {
    let record = |content: &[u8]| [&[RECORD, content.len() as u8], content].concat();
    for body in [
        &b"\x0a"[..],                                        // A key without its length.
        b"\x0a\x05abc",                                      // A length beyond the end.
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",     // One that no memory holds.
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // A number of eleven bytes.
        b"\x02\x00",                                         // Field 0.
        b"\x0c",                                             // The end of a group that is not open.
        b"\x2b\x08\x01\x34",                                 // A group that ends as another.
        &[0x2b; 200],                                        // Groups without end.
        &record(b"\x08\x00"),                                // A record without data,
        &record(b"\x1a\x00"),                                // without a key,
        &record(b"\x08\x00\x1a\x00\x22\x00"),                // with a tag without a key.
    ] {
        check_whole(seal(body), Found::Damaged(Damage::Message));
    }
}

#[test]
fn a_key_that_is_not_there_loses_nothing() {
    let mut message = two();
    message.records[1].partition_key_index = 2;
    check_whole(seal(&message.encode_to_vec()), Found::Damaged(Damage::Key));
    message.records[1].partition_key_index = u64::MAX;
    check_whole(seal(&message.encode_to_vec()), Found::Damaged(Damage::Key));
    message = two();
    message.records[0].explicit_hash_key_index = Some(0);
    check_whole(seal(&message.encode_to_vec()), Found::Damaged(Damage::Key));
    for bad in ["", "-1", "+1", "x", "340282366920938463463374607431768211456"] {
        message.explicit_hash_key_table = vec![bad.into()];
        check_whole(seal(&message.encode_to_vec()), Found::Damaged(Damage::Key));
    }
    message.explicit_hash_key_table = vec!["7".into()];
    assert_eq!(read(&seal(&message.encode_to_vec())).found, Found::Aggregated);
}

#[test]
fn fields_of_a_later_version_are_passed_over() {
    let mut message = two();
    message.records[0].tags = vec![ReferenceTag { key: "k".into(), value: Some("v".into()) }];
    let mut body = message.encode_to_vec();
    // A number, eight bytes, four bytes, a text, a group with a group in it.
    body.extend_from_slice(b"\x28\x96\x01\x31abcdefgh\x35abcd\x2a\x02hi\x2b\x28\x01\x33\x34\x2c");
    let got = read(&seal(&body));
    assert_eq!(got.found, Found::Aggregated);
    assert_eq!(got.records.len(), 2);
    assert_eq!((&*got.records[0].partition_key, &got.records[0].data[..]), ("b", &b"one"[..]));
}

#[test]
fn one_record_of_another_shard_means_that_none_counts() {
    let mut message = two();
    let (low, high) = HashRange::ALL.split(HashKey(1 << 127)).unwrap();
    let within = |message: &Reference, range| {
        deaggregate(&"outer".into(), &seal(&message.encode_to_vec()), range).found
    };
    message.explicit_hash_key_table = vec!["5".into(), HashKey::MAX.to_string()];
    message.records[0].explicit_hash_key_index = Some(0);
    message.records[1].explicit_hash_key_index = Some(0);
    assert_eq!(within(&message, low), Found::Aggregated);
    assert_eq!(within(&message, high), Found::Elsewhere);
    message.records[1].explicit_hash_key_index = Some(1);
    assert_eq!(within(&message, low), Found::Elsewhere);
    assert_eq!(within(&message, HashRange::ALL), Found::Aggregated);
    // Without a hash key, the partition key decides: both are high or low by their MD5.
    let [a, b] = ["a", "b"].map(HashKey::of);
    let point = |key| HashRange { start: key, end: key };
    assert_eq!(within(&two(), point(a)), Found::Elsewhere);
    assert_eq!(within(&two(), HashRange { start: a.min(b), end: a.max(b) }), Found::Aggregated);
    // An ordinary record is never judged: the stream itself put it where it is.
    let plain = deaggregate(&"a".into(), &Bytes::from_static(b"x"), point(b));
    assert_eq!((plain.found, plain.records.len()), (Found::Plain, 1));
}

#[test]
fn a_payload_that_fails_leaves_no_trace() {
    let mut out = b"before".to_vec();
    let mut aggregator = Aggregator::begin(&mut out, None);
    aggregator.add(&mut out, "a", b"1");
    let kept = out.clone();
    let failed = aggregator.add_with(&mut out, "b", |out| {
        out.extend_from_slice(b"half");
        Err("no")
    });
    assert_eq!((failed, &out), (Err("no"), &kept));
    aggregator.add(&mut out, "a", b"2");
    assert_eq!(aggregator.records(), 2);
    aggregator.finish(&mut out);
    let got = read(&Bytes::from(out).slice(6..));
    let keys: Vec<_> = got.records.iter().map(|record| &*record.partition_key).collect();
    assert_eq!((got.found, &keys[..]), (Found::Aggregated, &["a", "a"][..]));
}

fn some_records() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let key = prop_oneof!["[ab]", ".{0,200}"];
    prop::collection::vec((key, prop::collection::vec(any::<u8>(), 0..300)), 1..30)
}

proptest! {
    #[test]
    fn what_is_written_comes_back(records in some_records(), hash_key in any::<Option<u128>>()) {
        let hash_key = hash_key.map(HashKey);
        let sealed = aggregate(hash_key, &records);
        let got = read(&sealed);
        prop_assert_eq!(got.found, Found::Aggregated);
        prop_assert_eq!(got.records.len(), records.len());
        for (index, (record, (key, data))) in got.records.iter().zip(&records).enumerate() {
            prop_assert_eq!(&*record.partition_key, key.as_str());
            prop_assert_eq!(&record.data, data);
            prop_assert_eq!((record.explicit_hash_key, record.sub_sequence), (hash_key, index));
        }
        // The library reads the same.
        let body = &sealed[MAGIC.len()..sealed.len() - DIGEST_BYTES];
        let reference = Reference::decode(body).unwrap();
        for (record, (key, data)) in reference.records.iter().zip(&records) {
            prop_assert_eq!(&reference.partition_key_table[record.partition_key_index as usize], key);
            prop_assert_eq!(&record.data, data);
            prop_assert_eq!(record.explicit_hash_key_index, hash_key.map(|_| 0));
        }
        let hash_keys: Vec<String> = hash_key.iter().map(HashKey::to_string).collect();
        prop_assert_eq!(reference.explicit_hash_key_table, hash_keys);
        // And we read what it writes.
        let got_again = read(&seal(&Reference::decode(body).unwrap().encode_to_vec()));
        prop_assert_eq!(got_again, got);
    }

    #[test]
    fn sizes_are_known_before(records in some_records(), hash_key in any::<Option<u128>>()) {
        let mut out = vec![0; 7];
        let mut aggregator = Aggregator::begin(&mut out, hash_key.map(HashKey));
        for (key, data) in &records {
            let expected = aggregator.size_bytes_with(&out, key, data.len());
            aggregator.add(&mut out, key, data);
            prop_assert_eq!(aggregator.size_bytes(&out), expected);
        }
        let expected = aggregator.size_bytes(&out);
        aggregator.finish(&mut out);
        prop_assert_eq!(out.len() - 7, expected);
    }

    #[test]
    fn nonsense_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert_eq!(read(&bytes.clone().into()).records.len(), 1);
        // With the right digest, the message itself is read.
        let got = read(&seal(&bytes));
        prop_assert!(got.found == Found::Aggregated || got.records.len() == 1);
    }

    #[test]
    fn nearly_right_messages_never_panic(
        records in some_records(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let sealed = aggregate(Some(HashKey(7)), &records);
        let mut body = sealed[MAGIC.len()..sealed.len() - DIGEST_BYTES].to_vec();
        for (index, byte) in flips {
            let index = index.index(body.len());
            body[index] = byte;
        }
        let _ = read(&seal(&body));
    }
}
