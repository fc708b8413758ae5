//! Answers of Kinesis that no emulator gives, from a server that recites them.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::Env;
use tenure_clock::{Clock, Entropy, ManualTime, SystemClock, WallTime};
use tenure_stream::{Kind, Kinesis, KinesisPlace, Page, Position, Read, Record, ShardId, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::soon;

const SUMMARY: &str = r#"{"StreamDescriptionSummary":{"StreamName":"s","StreamARN":"arn:aws:kinesis:us-east-1:000000000000:stream/s","StreamStatus":"ACTIVE","RetentionPeriodHours":24,"StreamCreationTimestamp":1,"EnhancedMonitoring":[],"OpenShardCount":1,"MaxRecordSizeInKiB":1024}}"#;

/// One request and its answer: what `X-Amz-Target` must end in, a text the body must hold, and the reply.
type Exchange = (&'static str, &'static str, u16, &'static str);

/// A stream at a server that answers these requests in this order.
async fn reciting(exchanges: &'static [Exchange]) -> (Kinesis, tokio::task::JoinHandle<()>) {
    reciting_to(&Env::system(), "", exchanges).await
}

/// The same for a client with these surroundings, each answer with one more line at its head.
async fn reciting_to(
    env: &Env,
    header: &'static str,
    exchanges: &'static [Exchange],
) -> (Kinesis, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut left = exchanges.iter();
        while left.len() > 0 {
            let (mut socket, _) = listener.accept().await.unwrap();
            while let Some(request) = request(&mut socket).await {
                let (target, body, status, reply) = left.next().expect("no request is left");
                let head = request.to_lowercase();
                assert!(
                    head.contains(&format!("kinesis_20131202.{}\r\n", target.to_lowercase())),
                    "{request}"
                );
                assert!(request.contains(body), "{request}");
                let head = format!(
                    "HTTP/1.1 {status} x\r\n{header}content-type: application/x-amz-json-1.1\r\ncontent-length: {}\r\n\r\n",
                    reply.len()
                );
                socket.write_all(format!("{head}{reply}").as_bytes()).await.unwrap();
                if left.len() == 0 {
                    break;
                }
            }
        }
    });
    let place = KinesisPlace { endpoint: Some(endpoint), ..KinesisPlace::default() };
    (Kinesis::open("s", place, env).await.unwrap(), server)
}

/// One request, head and body, or `None` at the end of the connection.
async fn request(socket: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

const EXPIRED: &str = r#"{"__type":"ExpiredIteratorException","message":"Iterator expired."}"#;
const RECORD: &str = r#"{"Records":[{"SequenceNumber":"49590338271490256608559692538361571095921575989136588898","ApproximateArrivalTimestamp":1700000000.123,"Data":"eA==","PartitionKey":"k"}],"NextShardIterator":"second","MillisBehindLatest":0}"#;
const NOTHING: &str = r#"{"Records":[],"NextShardIterator":"fourth","MillisBehindLatest":1500}"#;

/// An expired iterator is replaced at the last record, and the reader does not notice.
#[tokio::test]
async fn an_expired_iterator_is_renewed_after_the_last_record() {
    let (stream, server) = reciting(&[
        ("GetShardIterator", r#""ShardIteratorType":"TRIM_HORIZON""#, 200, r#"{"ShardIterator":"first"}"#),
        ("GetRecords", r#""ShardIterator":"first""#, 200, RECORD),
        ("GetRecords", r#""ShardIterator":"second""#, 400, EXPIRED),
        (
            "GetShardIterator",
            r#""StartingSequenceNumber":"49590338271490256608559692538361571095921575989136588898""#,
            200,
            r#"{"ShardIterator":"third"}"#,
        ),
        ("GetRecords", r#""ShardIterator":"third""#, 200, NOTHING),
    ])
    .await;
    let cursor = stream.cursor(soon(), &ShardId::numbered(0), &Position::TrimHorizon).await.unwrap();
    let Read::Records(first) = stream.read(soon(), &cursor, 10).await.unwrap() else { panic!("trimmed") };
    assert_eq!(first.records[0].arrived.as_millis(), 1_700_000_000_123);
    let Read::Records(second) = stream.read(soon(), &first.next.unwrap(), 10).await.unwrap() else {
        panic!("trimmed")
    };
    assert_eq!((second.records.len(), second.behind), (0, Duration::from_millis(1500)));
    server.await.unwrap();
}

/// One at LATEST that has seen no record yet is renewed at the moment it was made: by Kinesis's clock,
/// a second early for safety, whatever the client takes the time to be.
#[tokio::test]
async fn an_expired_iterator_at_latest_is_renewed_at_its_time() {
    for skew_hours in [-1, 0, 1] {
        let time = ManualTime::starting_at(WallTime::from_millis(1_700_000_000_000));
        let clock: Arc<dyn Clock> = Arc::new(time.node(skew_hours * 3_600_000, 0));
        let env = Env { clock: clock.clone(), entropy: Entropy::seeded(1) };
        let (stream, server) = reciting_to(
            &env,
            "date: Tue, 14 Nov 2023 22:13:20 GMT\r\n",
            &[
                ("GetShardIterator", r#""ShardIteratorType":"LATEST""#, 200, r#"{"ShardIterator":"first"}"#),
                ("GetRecords", r#""ShardIterator":"first""#, 200, NOTHING),
                ("GetRecords", r#""ShardIterator":"fourth""#, 400, EXPIRED),
                ("GetShardIterator", r#""Timestamp":1699999999}"#, 200, r#"{"ShardIterator":"second"}"#),
                ("GetRecords", r#""ShardIterator":"second""#, 200, NOTHING),
            ],
        )
        .await;
        let by = clock.deadline(Duration::from_secs(60));
        let cursor = stream.cursor(by, &ShardId::numbered(0), &Position::Latest).await.unwrap();
        let Read::Records(batch) = stream.read(by, &cursor, 10).await.unwrap() else { panic!("trimmed") };
        time.advance(Duration::from_secs(1));
        let again = stream.read(by, &batch.next.unwrap(), 10).await;
        assert!(matches!(again.unwrap(), Read::Records(_)), "skew of {skew_hours} h");
        server.await.unwrap();
    }
}

/// Without a date there is no such moment. To go on anywhere could pass over records, so it is refused.
#[tokio::test]
async fn an_expired_iterator_at_latest_without_a_date_is_refused() {
    let (stream, server) = reciting(&[
        ("GetShardIterator", r#""ShardIteratorType":"LATEST""#, 200, r#"{"ShardIterator":"first"}"#),
        ("GetRecords", r#""ShardIterator":"first""#, 400, EXPIRED),
    ])
    .await;
    let cursor = stream.cursor(soon(), &ShardId::numbered(0), &Position::Latest).await.unwrap();
    let refused = stream.read(soon(), &cursor, 10).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
    assert!(refused.chain().contains("take a new one"), "{refused:?}");
    server.await.unwrap();
}

/// A page is asked for by its token alone: with the stream's name beside it, Kinesis refuses.
#[tokio::test]
async fn the_next_page_is_asked_for_by_token_alone() {
    const PAGE: &str = r#"{"Shards":[],"NextToken":"more"}"#;
    let (stream, server) = reciting(&[
        ("ListShards", r#""StreamName":"s""#, 200, PAGE),
        ("ListShards", r#"{"NextToken":"more","MaxResults":1000}"#, 200, r#"{"Shards":[]}"#),
    ])
    .await;
    let page = stream.shards(soon(), &Page::default()).await.unwrap();
    let last = stream.shards(soon(), &Page::after(page.next.unwrap())).await;
    assert_eq!(last.map(|page| page.next.is_none()).map_err(|error| error.chain()), Ok(true));
    server.await.unwrap();
}

/// What each refusal of the service asks the caller to do.
#[tokio::test]
async fn refusals_are_told_by_what_to_do() {
    let (stream, server) = reciting(&[
        ("DescribeStreamSummary", "", 200, SUMMARY),
        ("PutRecords", "", 400, r#"{"__type":"AccessDeniedException","message":"no"}"#),
        ("PutRecords", "", 400, r#"{"__type":"ExpiredTokenException","message":"old"}"#),
        ("PutRecords", "", 400, r#"{"__type":"com.amazonaws#UnrecognizedClientException","message":"who"}"#),
        ("PutRecords", "", 400, r#"{"__type":"ProvisionedThroughputExceededException","message":"slow"}"#),
        ("PutRecords", "", 400, r#"{"__type":"ResourceNotFoundException","message":"none"}"#),
        ("PutRecords", "", 500, r#"{"__type":"InternalFailure","message":"oops"}"#),
        ("PutRecords", "", 400, r#"{"__type":"SomethingNew","message":"?"}"#),
        (
            "PutRecords",
            "",
            200,
            r#"{"FailedRecordCount":1,"Records":[{"ErrorCode":"InternalFailure","ErrorMessage":"oops"}]}"#,
        ),
        ("PutRecords", "", 200, r#"{"FailedRecordCount":0,"Records":[]}"#),
    ])
    .await;
    let records = [Record::new("k", "x")];
    let mut kinds = Vec::new();
    for _ in 0..9 {
        kinds.push(stream.put(soon(), &records).await.map_err(|error| error.kind()));
    }
    assert_eq!(
        kinds,
        [
            Err(Kind::Denied),
            Err(Kind::Denied),
            Err(Kind::Denied),
            Err(Kind::Throttled),
            Err(Kind::Invalid),
            Err(Kind::Unknown),
            Err(Kind::Invalid),
            Ok(vec![tenure_stream::Put::Throttled]),
            Err(Kind::Unknown),
        ]
    );
    server.await.unwrap();
}

/// Nobody listens: nothing was sent, and the message says what to check.
#[tokio::test]
async fn an_unreachable_endpoint_is_unavailable() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let env = Env::system();
    let stream: Arc<dyn Stream> =
        tenure_stream::open(&format!("kinesis:s?endpoint=http://{free}"), &env).await.unwrap();
    let by = SystemClock.deadline(Duration::from_secs(10));
    for error in [
        stream.describe(by).await.map(drop).unwrap_err(),
        stream.delete(SystemClock.deadline(Duration::from_millis(1))).await.unwrap_err(),
        stream.put(by, &[Record::new("k", "x")]).await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), Kind::Unavailable | Kind::Unknown), "{error:?}");
    }
    let refused = stream.describe(by).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable, "{refused:?}");
    assert!(refused.chain().contains("check region, endpoint and network"), "{refused:?}");
}
