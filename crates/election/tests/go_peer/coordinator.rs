//! A process with the Go library: the requests that it sends, to the letter.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tenure_clock::{Clock, ManualClock};

use crate::emulator::{Emulator, Exception};

/// What its versions ask of the row that they renew.
pub(crate) const RENEWALS: [&str; 2] = ["ownerId = :me AND #t > :now", "ownerId = :me AND #t >= :now"];

const ACQUISITION: &str = "attribute_not_exists(pk) OR (attribute_exists(pk) AND #t < :now)";

#[derive(Debug)]
pub(crate) struct GoPeer {
    pub(crate) emulator: Emulator,
    pub(crate) table: String,
    pub(crate) shard: &'static str,
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    /// It judges leases by its wall.
    pub(crate) clock: ManualClock,
    pub(crate) renewal: &'static str,
}

impl GoPeer {
    /// Its `tryAcquire`.
    pub(crate) async fn try_acquire(&self) -> bool {
        let mut item = self.key();
        item["ownerId"] = json!({ "S": self.owner });
        item["ttl"] = json!({ "N": self.ttl().to_string() });
        let request = json!({
            "TableName": self.table,
            "Item": item,
            "ConditionExpression": ACQUISITION,
            "ExpressionAttributeNames": { "#t": "ttl" },
            "ExpressionAttributeValues": { ":now": { "N": self.now().to_string() } },
        });
        self.sent("PutItem", request).await
    }

    /// Its `renew`.
    pub(crate) async fn renew(&self) -> bool {
        let request = json!({
            "TableName": self.table,
            "Key": self.key(),
            "UpdateExpression": "SET #t = :n",
            "ConditionExpression": self.renewal,
            "ExpressionAttributeNames": { "#t": "ttl" },
            "ExpressionAttributeValues": {
                ":n": { "N": self.ttl().to_string() },
                ":me": { "S": self.owner },
                ":now": { "N": self.now().to_string() },
            },
            "ReturnValues": "NONE",
        });
        self.sent("UpdateItem", request).await
    }

    /// What its `Stop` does if it leads.
    pub(crate) async fn release(&self) -> bool {
        let request = json!({
            "TableName": self.table,
            "Key": self.key(),
            "ConditionExpression": "ownerId = :me",
            "ExpressionAttributeValues": { ":me": { "S": self.owner } },
        });
        self.sent("DeleteItem", request).await
    }

    async fn sent(&self, operation: &'static str, request: Json) -> bool {
        match self.emulator.call(operation, request).await {
            Ok(_) => true,
            Err(Exception(name)) if name == "ConditionalCheckFailedException" => false,
            Err(other) => panic!("{operation}: {other:?}"),
        }
    }

    fn key(&self) -> Json {
        json!({ "pk": { "S": format!("SHARD#{}", self.shard) }, "sk": { "S": "LOCK" } })
    }

    fn ttl(&self) -> i64 {
        (self.clock.wall() + self.lease).as_seconds()
    }

    fn now(&self) -> i64 {
        self.clock.wall().as_seconds()
    }
}
