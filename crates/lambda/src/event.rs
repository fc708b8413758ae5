//! Which events there are, and what they say.
//!
//! ```text
//!   EventBridge   Scheduled Event                           -> Tick
//!                 EC2 Spot Instance Interruption Warning    -> Interruption
//!                 EC2 Instance Rebalance Recommendation     -> Interruption
//!   SQS           messages whose bodies are any of these    -> Batch
//! ```

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use tenure_autoscaler::state::{InstanceId, InterruptKind};

const SCHEDULED: &str = "Scheduled Event";
const SPOT: &str = "EC2 Spot Instance Interruption Warning";
const REBALANCE: &str = "EC2 Instance Rebalance Recommendation";

/// What an invocation is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is time to look.
    Tick,
    /// An instance will be taken away.
    Interruption(Interruption),
    /// Messages of a queue.
    Batch(Vec<Message>),
}

/// An instance will be taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interruption {
    /// Which: of this cluster or of any other of the account.
    pub instance: InstanceId,
    /// Why.
    pub kind: InterruptKind,
}

/// A message of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// By which the queue is told that it could not be handled.
    pub id: String,
    /// What it says.
    pub body: Result<Single, Unexpected>,
}

/// What a message can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Single {
    /// It is time to look.
    Tick,
    /// An instance will be taken away.
    Interruption(Interruption),
}

/// An event that is none of ours. Contents are not repeated, because they may be anything: only what names the kind of
/// an event, and shortened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexpected(String);

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected an event of EventBridge whose detail-type is `{SCHEDULED}`, `{SPOT}` or `{REBALANCE}`, or \
             messages of an SQS queue that wrap them; correct the rule, or the queue that this function reads",
            self.0
        )
    }
}

impl std::error::Error for Unexpected {}

#[derive(Deserialize)]
struct Bridge {
    #[serde(rename = "detail-type")]
    detail_type: String,
    /// Of any form: EventBridge Scheduler's is a text.
    #[serde(default)]
    detail: Value,
}

#[derive(Deserialize)]
struct Queue {
    #[serde(rename = "Records")]
    records: Vec<Record>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    message_id: String,
    body: String,
    event_source: String,
}

impl Event {
    /// Reads it.
    ///
    /// # Errors
    /// What it is instead, and what was expected.
    pub fn read(event: Value) -> Result<Self, Unexpected> {
        if event.get("Records").is_none() {
            return Ok(match Single::read(event)? {
                Single::Tick => Self::Tick,
                Single::Interruption(interruption) => Self::Interruption(interruption),
            });
        }
        let queue: Queue = serde_json::from_value(event)
            .map_err(|error| Unexpected(format!("`Records` are no messages of SQS ({})", mistake(&error))))?;
        let foreign = queue.records.iter().find(|record| record.event_source != "aws:sqs");
        if let Some(record) = foreign {
            return Err(Unexpected(format!("`Records` are of `{}`", shortened(&record.event_source))));
        }
        let message = |record: Record| Message {
            id: record.message_id,
            body: serde_json::from_str(&record.body)
                .map_err(|error| {
                    Unexpected(format!("the body of a message is not JSON ({})", mistake(&error)))
                })
                .and_then(Single::read),
        };
        Ok(Self::Batch(queue.records.into_iter().map(message).collect()))
    }
}

impl Single {
    fn read(event: Value) -> Result<Self, Unexpected> {
        let bridge: Bridge = serde_json::from_value(event)
            .map_err(|error| Unexpected(format!("this is no event of EventBridge ({})", mistake(&error))))?;
        let kind = match bridge.detail_type.as_str() {
            SCHEDULED => return Ok(Self::Tick),
            SPOT => InterruptKind::Spot,
            REBALANCE => InterruptKind::Rebalance,
            other => return Err(Unexpected(format!("detail-type is `{}`", shortened(other)))),
        };
        let id = bridge.detail.get("instance-id");
        let id = id.ok_or_else(|| Unexpected("`detail` has no `instance-id`".to_owned()))?;
        match id.as_str().filter(|id| is_instance(id)) {
            Some(id) => Ok(Self::Interruption(Interruption { instance: id.into(), kind })),
            None => Err(Unexpected("`instance-id` is not the id of an instance".to_owned())),
        }
    }
}

fn is_instance(id: &str) -> bool {
    /// EC2's have 19 characters; an emulator's may differ.
    const ID_BYTES_MAX: usize = 64;
    let hex = id.strip_prefix("i-").unwrap_or_default();
    !hex.is_empty() && id.len() <= ID_BYTES_MAX && hex.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// What is wrong, and where. The words of `error` would repeat what stands there.
fn mistake(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Data => "a field is missing or of another type",
        Category::Syntax => "a mistake of syntax",
        Category::Eof => "it ends too early",
        Category::Io => "it cannot be read",
    };
    match error.line() {
        // A value that was read already has no lines.
        0 => what.to_owned(),
        line => format!("{what}, line {line}, column {}", error.column()),
    }
}

/// Enough to recognise it.
fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As AWS's documentation shows it.
    fn spot(id: &str) -> Value {
        json!({
            "version": "0", "id": "12345678-1234-1234-1234-123456789012", "detail-type": SPOT, "source": "aws.ec2",
            "account": "123456789012", "time": "2026-11-17T00:00:00Z", "region": "us-east-2",
            "resources": [format!("arn:aws:ec2:us-east-2a:instance/{id}")],
            "detail": { "instance-id": id, "instance-action": "terminate" }
        })
    }

    fn record(id: &str, body: &str) -> Value {
        json!({
            "messageId": id, "receiptHandle": "r", "body": body, "eventSource": "aws:sqs",
            "attributes": { "ApproximateReceiveCount": "1" }, "awsRegion": "us-east-2"
        })
    }

    #[test]
    fn what_event_bridge_sends_is_understood() {
        let tick = json!({
            "version": "0", "id": "53dc4d37", "detail-type": "Scheduled Event", "source": "aws.events",
            "account": "123456789012", "time": "2026-11-17T00:00:00Z", "region": "us-east-1",
            "resources": ["arn:aws:events:us-east-1:123456789012:rule/tick"], "detail": {}
        });
        assert_eq!(Event::read(tick), Ok(Event::Tick));
        // EventBridge Scheduler's, as it is without an input of one's own.
        let tick = json!({ "detail-type": SCHEDULED, "source": "aws.scheduler", "detail": "{}" });
        assert_eq!(Event::read(tick), Ok(Event::Tick));
        let told = |kind| Event::Interruption(Interruption { instance: "i-0abc".into(), kind });
        assert_eq!(Event::read(spot("i-0abc")), Ok(told(InterruptKind::Spot)));
        let mut rebalance = spot("i-0abc");
        rebalance["detail-type"] = REBALANCE.into();
        rebalance["detail"] = json!({ "instance-id": "i-0abc" });
        assert_eq!(Event::read(rebalance), Ok(told(InterruptKind::Rebalance)));
    }

    #[test]
    fn of_a_batch_the_bad_messages_are_known_by_their_ids() {
        let records = [
            record("a", &spot("i-0abc").to_string()),
            record("b", "no json"),
            record("c", "{\"detail-type\":\"EC2 Instance State-change Notification\"}"),
            record("d", "{\"detail-type\":\"Scheduled Event\"}"),
        ];
        let Ok(Event::Batch(messages)) = Event::read(json!({ "Records": records })) else { panic!() };
        let good: Vec<_> =
            messages.iter().map(|message| (message.id.as_str(), message.body.is_ok())).collect();
        assert_eq!(good, [("a", true), ("b", false), ("c", false), ("d", true)]);
    }

    #[test]
    fn what_is_not_expected_says_what_is() {
        let says = |event: Value, what: &str| {
            let message = Event::read(event).unwrap_err().to_string();
            assert!(message.starts_with(what) && message.contains("`Scheduled Event`"), "{message}");
        };
        says(json!({}), "this is no event of EventBridge");
        says(json!("hello"), "this is no event of EventBridge");
        says(json!({ "detail-type": "AWS API Call via CloudTrail" }), "detail-type is `AWS API Call");
        for detail in [json!({}), json!("{}"), json!(null)] {
            says(json!({ "detail-type": SPOT, "detail": detail }), "`detail` has no `instance-id`");
        }
        says(json!({ "detail-type": SPOT, "detail": { "instance-id": 7 } }), "`instance-id` is not the id");
        for id in ["", "i-", "i-0abc*", "../x", &format!("i-{}", "0".repeat(70))] {
            says(
                json!({ "detail-type": SPOT, "detail": { "instance-id": id } }),
                "`instance-id` is not the id",
            );
        }
        says(json!({ "Records": [{ "eventSource": "aws:s3" }] }), "`Records` are no messages");
        let sns = json!({ "messageId": "a", "body": "{}", "eventSource": "aws:sns" });
        says(json!({ "Records": [sns] }), "`Records` are of `aws:sns`");
    }

    #[test]
    fn what_stands_in_an_event_is_not_repeated() {
        const SECRET: &str = "hunter7";
        let long = SECRET.repeat(1000);
        for event in [
            json!(SECRET),
            json!({ "detail-type": [SECRET] }),
            json!({ "detail-type": { SECRET: long } }),
            json!({ "detail-type": SPOT, "detail": SECRET }),
            json!({ "detail-type": SPOT, "detail": { "instance-id": SECRET } }),
            json!({ "Records": SECRET }),
            json!({ "Records": [{ "messageId": "a", "body": { SECRET: long }, "eventSource": "aws:sqs" }] }),
        ] {
            let message = Event::read(event).unwrap_err().to_string();
            assert!(!message.contains(SECRET), "{message}");
        }
        let said = |body: &str| {
            let Ok(Event::Batch(messages)) = Event::read(json!({ "Records": [record("a", body)] })) else {
                panic!()
            };
            let message = messages[0].body.clone().unwrap_err().to_string();
            assert!(!message.contains(SECRET), "{message}");
            message
        };
        assert!(said("{\n \"hunter7\": hunter7 }").contains("a mistake of syntax, line 2, column"));
        assert!(said("{ \"hunter7\": \"hunter7").contains("it ends too early, line 1"));
        assert!(said("\"hunter7\"").contains("a field is missing or of another type"));
    }
}
