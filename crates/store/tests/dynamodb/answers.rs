//! Answers that no emulator gives: conflicts, denials, tables that take their time, global tables.

use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_store::testing::{env, soon};
use tenure_store::{
    Address, Condition, DynamoDb, Item, Key, KeyAttribute, Kind, Page, Store, TableSpec, Write, Written,
};

use super::responder::{Answer, Responder, error};
use super::{opened, opened_with};

fn described(status: &str, more: &str) -> Answer {
    let table = format!(
        r#""TableName":"rows","TableStatus":"{status}",
           "KeySchema":[{{"AttributeName":"pk","KeyType":"HASH"}}],
           "AttributeDefinitions":[{{"AttributeName":"pk","AttributeType":"S"}}]{more}"#
    );
    (200, format!(r#"{{"Table":{{{table}}}}}"#))
}

fn fine() -> Answer {
    (200, "{}".to_owned())
}

fn key() -> Key {
    Key::new("pk", "a")
}

fn put() -> Write {
    Write::Put { table: "rows".into(), item: Item::new().with("pk", "a"), when: Condition::absent("pk") }
}

/// A store that knows its table already, so that short deadlines are spent on the call under test.
async fn answering(answers: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> (Responder, DynamoDb) {
    let responder = Responder::start(move |operation, earlier| match operation {
        "DescribeTable" => described("ACTIVE", ""),
        "Scan" => fine(),
        _ => answers(operation, earlier),
    })
    .await;
    let store = opened(responder.url()).await;
    store.scan(soon(), "rows", &Page::default()).await.unwrap();
    (responder, store)
}

fn cancelled(codes: &[&str]) -> Answer {
    let reasons: Vec<_> = codes.iter().map(|code| format!(r#"{{"Code":"{code}","Message":"so"}}"#)).collect();
    let body = format!(
        r#"{{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled",
            "CancellationReasons":[{}]}}"#,
        reasons.join(",")
    );
    (400, body)
}

#[tokio::test]
async fn a_conflict_with_a_transaction_is_tried_again_at_once() {
    let conflicts =
        |_: &str, earlier| if earlier < 3 { error("TransactionConflictException") } else { fine() };
    let (responder, store) = answering(conflicts).await;
    assert!(store.write(soon(), &put()).await.unwrap().is_applied());
    assert_eq!(responder.calls("PutItem"), 4);

    let conflicts = |_: &str, earlier| if earlier < 3 { cancelled(&["TransactionConflict"]) } else { fine() };
    let (responder, store) = answering(conflicts).await;
    assert!(store.transact(soon(), &[put()], "n-1").await.unwrap().is_applied());
    assert_eq!(responder.calls("TransactWriteItems"), 4);
}

#[tokio::test]
async fn a_conflict_that_stays_is_unavailable_by_the_deadline() {
    let shortly = || SystemClock.deadline(Duration::from_millis(200));
    let (_responder, store) = answering(|_, _| error("TransactionConflictException")).await;
    assert_eq!(store.write(shortly(), &put()).await.unwrap_err().kind(), Kind::Unavailable);
    let (_responder, store) = answering(|_, _| cancelled(&["TransactionConflict"])).await;
    assert_eq!(store.transact(shortly(), &[put()], "n-1").await.unwrap_err().kind(), Kind::Unavailable);
    // One's own earlier send may still land.
    let (_responder, store) = answering(|_, _| error("TransactionInProgressException")).await;
    assert_eq!(store.transact(shortly(), &[put()], "n-1").await.unwrap_err().kind(), Kind::Unknown);
}

#[tokio::test]
async fn a_cancelled_transaction_is_told_by_its_first_lasting_reason() {
    let second =
        Write::Put { table: "rows".into(), item: Item::new().with("pk", "b"), when: Condition::Always };
    let writes = [put(), second];
    let check = async |codes: &'static [&'static str], expected: Result<usize, Kind>| {
        let (_responder, store) = answering(move |operation, _| match operation {
            "TransactWriteItems" => cancelled(codes),
            _ => fine(),
        })
        .await;
        let found = match store.transact(soon(), &writes, "n-1").await {
            Ok(Written::Refused(refusal)) => Ok(refusal.index),
            Ok(Written::Applied(_)) => panic!("{codes:?} was applied"),
            Err(error) => Err(error.kind()),
        };
        assert_eq!(found, expected, "{codes:?}");
    };
    check(&["None", "ConditionalCheckFailed"], Ok(1)).await;
    check(&["TransactionConflict", "ConditionalCheckFailed"], Ok(1)).await;
    check(&["None", "ThrottlingError"], Err(Kind::Throttled)).await;
    check(&["ProvisionedThroughputExceeded", "None"], Err(Kind::Throttled)).await;
    check(&["None", "ValidationError"], Err(Kind::Invalid)).await;
    check(&["ItemCollectionSizeLimitExceeded", "None"], Err(Kind::Invalid)).await;
}

#[tokio::test]
async fn a_denial_says_what_to_check() {
    for code in ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"] {
        let (responder, store) = answering(move |_, _| error(code)).await;
        let denied = store.write(soon(), &put()).await.unwrap_err();
        assert_eq!(denied.kind(), Kind::Denied, "{denied:?}");
        assert!(denied.chain().contains("check the credentials"), "{denied:?}");
        let denied = store.get(soon(), "rows", &key()).await.unwrap_err();
        assert_eq!(denied.kind(), Kind::Denied, "{denied:?}");
        assert_eq!(
            (responder.calls("PutItem"), responder.calls("GetItem")),
            (1, 1),
            "{code} is not tried again"
        );
    }
}

#[tokio::test]
async fn missing_credentials_are_denied_before_anything_is_sent() {
    let responder = Responder::start(|_, _| fine()).await;
    let address =
        format!("dynamodb:?region=eu-west-1&profile=tenure-has-no-such&endpoint={}", responder.url());
    let store = DynamoDb::from_address(&mut Address::parse(&address).unwrap(), &env(1)).await.unwrap();
    let denied = store.get(soon(), "rows", &key()).await.unwrap_err();
    assert_eq!(denied.kind(), Kind::Denied, "{denied:?}");
    assert!(denied.chain().contains("no AWS credentials: set AWS_PROFILE"), "{denied:?}");
    assert_eq!(responder.calls("DescribeTable"), 0);
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_reached_is_named() {
    let responder = Responder::start(|_, _| fine()).await;
    let url = responder.url().to_owned();
    responder.stop().await;
    let store = opened(&url).await;
    let unreachable = store.get(soon(), "rows", &key()).await.unwrap_err();
    assert_eq!(unreachable.kind(), Kind::Unavailable, "{unreachable:?}");
    assert!(unreachable.chain().contains(&format!("cannot reach DynamoDB at {url}")), "{unreachable:?}");
}

#[tokio::test]
async fn an_answer_that_does_not_read_is_unknown() {
    for status in [200, 404, 502] {
        for body in ["{", "", "<html>gateway</html>"] {
            let (_responder, store) = answering(move |_, _| (status, body.to_owned())).await;
            // An empty body is what a put's success looks like to the SDK.
            if status == 200 && body.is_empty() {
                continue;
            }
            let torn = store.write(soon(), &put()).await.unwrap_err();
            assert_eq!(torn.kind(), Kind::Unknown, "{status} {body}: {torn:?}");
            let torn =
                store.get(SystemClock.deadline(Duration::from_millis(50)), "rows", &key()).await.unwrap_err();
            assert_eq!(torn.kind(), Kind::Unavailable, "{status} {body}: {torn:?}");
        }
    }
}

#[tokio::test]
async fn a_write_that_never_left_is_unavailable_not_unknown() {
    let (responder, store) = answering(|_, _| fine()).await;
    let late = store.write(SystemClock.monotonic(), &put()).await.unwrap_err();
    assert_eq!(late.kind(), Kind::Unavailable, "{late:?}");
    assert_eq!(responder.calls("PutItem"), 0);
    assert!(store.write(soon(), &put()).await.unwrap().is_applied());
    // The table is known; the server goes away, and with it, once noticed, the connection.
    responder.stop().await;
    let mut gone = store.write(soon(), &put()).await.unwrap_err();
    if gone.kind() == Kind::Unknown {
        gone = store.write(soon(), &put()).await.unwrap_err();
    }
    assert_eq!(gone.kind(), Kind::Unavailable, "{gone:?}");
    assert!(gone.chain().contains("cannot reach DynamoDB at http://127.0.0.1:"), "{gone:?}");
}

#[tokio::test]
async fn a_table_that_takes_its_time_is_waited_for() {
    let responder = Responder::start(|operation, earlier| match (operation, earlier) {
        ("DescribeTable", 0) => error("ResourceNotFoundException"),
        ("DescribeTable", 1..4) => described("CREATING", ""),
        ("DescribeTable", _) => described("ACTIVE", ""),
        // A racing creator was first.
        ("CreateTable", _) => error("ResourceInUseException"),
        ("DescribeTimeToLive", 0) => {
            (200, r#"{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}}"#.to_owned())
        }
        ("DescribeTimeToLive", _) => (
            200,
            r#"{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLING","AttributeName":"ttl"}}"#.to_owned(),
        ),
        // And a racing enabler.
        ("UpdateTimeToLive", _) => error("ValidationException"),
        _ => fine(),
    })
    .await;
    let store = opened(responder.url()).await;
    let spec = TableSpec::new("rows", KeyAttribute::text("pk")).with_ttl("ttl");
    store.ensure_table(soon(), &spec).await.unwrap();
    assert_eq!(responder.calls("DescribeTable"), 5);
    assert_eq!(responder.calls("CreateTable"), 1);
    assert_eq!(responder.calls("UpdateTimeToLive"), 1);
    // Its TTL is on `ttl` now, and stays there.
    let other = TableSpec::new("rows", KeyAttribute::text("pk")).with_ttl("expires");
    let refused = store.ensure_table(soon(), &other).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(refused.chain().contains("has its TTL on `ttl`, not `expires`"), "{refused:?}");
}

#[tokio::test]
async fn a_table_that_takes_too_long_is_unavailable() {
    let responder = Responder::start(|operation, _| match operation {
        "DescribeTable" => described("CREATING", ""),
        _ => fine(),
    })
    .await;
    let store = opened(responder.url()).await;
    let by = SystemClock.deadline(Duration::from_millis(200));
    let spec = TableSpec::new("rows", KeyAttribute::text("pk"));
    let slow = store.ensure_table(by, &spec).await.unwrap_err();
    assert_eq!(slow.kind(), Kind::Unavailable, "{slow:?}");
    assert!(slow.chain().contains("by the deadline"), "{slow:?}");
}

#[tokio::test]
async fn a_global_table_is_refused_unless_it_is_pinned() {
    let responder = Responder::start(|operation, _| match operation {
        "DescribeTable" => described("ACTIVE", r#","Replicas":[{"RegionName":"us-west-2"}]"#),
        _ => fine(),
    })
    .await;
    let store = opened(responder.url()).await;
    let refused = store.write(soon(), &put()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(refused.chain().contains("is a global table (also in us-west-2)"), "{refused:?}");
    let spec = TableSpec::new("rows", KeyAttribute::text("pk"));
    assert_eq!(store.ensure_table(soon(), &spec).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(responder.calls("PutItem"), 0);

    let pinned = format!("dynamodb:?region=eu-west-1&pinned_region=eu-west-1&endpoint={}", responder.url());
    let store = DynamoDb::from_address(&mut Address::parse(&pinned).unwrap(), &env(1)).await.unwrap();
    assert!(store.write(soon(), &put()).await.unwrap().is_applied());
}

#[tokio::test]
async fn a_table_is_described_once_and_again_when_it_is_gone() {
    let responder = Responder::start(|operation, earlier| match (operation, earlier) {
        ("DescribeTable", 0 | 2) => described("ACTIVE", ""),
        ("DescribeTable", _) => error("ResourceNotFoundException"),
        ("GetItem", 3) => error("ResourceNotFoundException"),
        _ => fine(),
    })
    .await;
    let store = opened_with(responder.url(), &env(1)).await;
    for _ in 0..3 {
        assert_eq!(store.get(soon(), "rows", &key()).await.unwrap(), None);
    }
    assert_eq!(responder.calls("DescribeTable"), 1);
    for _ in 0..2 {
        let gone = store.get(soon(), "rows", &key()).await.unwrap_err();
        assert!(gone.chain().contains("table `rows` does not exist"), "{gone:?}");
    }
    assert_eq!(store.get(soon(), "rows", &key()).await.unwrap(), None);
    assert_eq!(responder.calls("DescribeTable"), 3);
}
