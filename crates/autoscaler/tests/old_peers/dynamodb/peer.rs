//! Writers of the old documents: the requests that they send, by the real SDK.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue as Attribute;

/// One invocation of an old writer, on one table.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    client: Client,
    table: String,
    request: String,
}

impl Peer {
    pub(super) fn new(client: &Client, table: &str, request: &str) -> Self {
        Self { client: client.clone(), table: table.to_owned(), request: request.to_owned() }
    }

    /// Sends an update; whether its condition held.
    async fn update(&self, update: &str, when: &str, values: &[(&str, Attribute)]) -> bool {
        let named = |name: &&str| update.contains(*name) || when.contains(*name);
        let values: HashMap<String, Attribute> = values
            .iter()
            .filter(|(name, _)| named(name))
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .key("pk", text("cluster"))
            .update_expression(update)
            .condition_expression(when)
            .set_expression_attribute_values(Some(values))
            .send()
            .await;
        match sent.map_err(aws_sdk_dynamodb::error::SdkError::into_service_error) {
            Ok(_) => true,
            Err(error) if error.is_conditional_check_failed_exception() => false,
            Err(error) => panic!("{update}: {error:?}"),
        }
    }

    // === the first document: a lock that expires ===

    /// Takes the lock until that epoch second.
    pub(super) async fn lock(&self, now: i64, until: i64) -> bool {
        self.update(
            "SET scalingInProgress = :true, lockOwner = :me, lockUntilEpoch = :until",
            "attribute_not_exists(scalingInProgress) OR scalingInProgress = :false OR lockUntilEpoch < :now",
            &[
                (":true", Attribute::Bool(true)),
                (":false", Attribute::Bool(false)),
                (":me", text(&self.request)),
                (":until", number(until)),
                (":now", number(now)),
            ],
        )
        .await
    }

    /// Under its lock, says what it launches.
    pub(super) async fn plan_up(&self, action: &str, now: i64) -> bool {
        self.update(
            "SET scaleUpActionId = :action, scaleUpStartedEpoch = :now, scaleUpInstanceIds = :none",
            "lockOwner = :me",
            &[
                (":action", text(action)),
                (":now", number(now)),
                (":none", list(&[])),
                (":me", text(&self.request)),
            ],
        )
        .await
    }

    // === the second document: begin, record, complete, fail ===

    /// `beginScaleUp()`.
    pub(super) async fn begin_up(&self, action: &str, now: i64, requested: i64) -> bool {
        self.update(
            "SET scalingInProgress = :true, scaleUpActionId = :action, scaleUpStartedEpoch = :now, \
             scaleUpRequested = :requested REMOVE scaleUpInstanceIds",
            FREE,
            &[
                (":true", Attribute::Bool(true)),
                (":false", Attribute::Bool(false)),
                (":action", text(action)),
                (":now", number(now)),
                (":requested", number(requested)),
            ],
        )
        .await
    }

    /// `recordScaleUpInstances()`.
    pub(super) async fn record(&self, action: &str, instances: &[&str]) -> bool {
        let values = [(":action", text(action)), (":ids", list(instances))];
        self.update("SET scaleUpInstanceIds = :ids", "scaleUpActionId = :action", &values).await
    }

    /// `completeScaleUp()`.
    pub(super) async fn complete_up(&self, action: &str, now: i64) -> bool {
        let update = format!("SET scalingInProgress = :false, lastScaleEpoch = :now REMOVE {UP}");
        self.end(&update, "scaleUpActionId = :action", action, now).await
    }

    /// `failScaleUp()`.
    pub(super) async fn fail_up(&self, action: &str) -> bool {
        let update = format!("SET scalingInProgress = :false REMOVE {UP}");
        self.end(&update, "scaleUpActionId = :action", action, 0).await
    }

    /// `beginScaleDown()`.
    pub(super) async fn begin_down(&self, action: &str, now: i64, targets: &[&str]) -> bool {
        self.update(
            "SET scalingInProgress = :true, scaleDownActionId = :action, scaleDownStartedEpoch = :now, \
             scaleDownPhase = :draining, scaleDownTargetInstanceIds = :targets, \
             scaleDownCompletedInstanceIds = :none",
            FREE,
            &[
                (":true", Attribute::Bool(true)),
                (":false", Attribute::Bool(false)),
                (":action", text(action)),
                (":now", number(now)),
                (":draining", text("DRAINING")),
                (":targets", list(targets)),
                (":none", list(&[])),
            ],
        )
        .await
    }

    /// `markScaleDownInstanceDone()`.
    pub(super) async fn mark_done(&self, action: &str, instance: &str) -> bool {
        self.update(
            "SET scaleDownCompletedInstanceIds = \
             list_append(if_not_exists(scaleDownCompletedInstanceIds, :none), :one)",
            "scaleDownActionId = :action AND NOT contains(scaleDownCompletedInstanceIds, :id)",
            &[
                (":action", text(action)),
                (":none", list(&[])),
                (":one", list(&[instance])),
                (":id", text(instance)),
            ],
        )
        .await
    }

    /// `completeScaleDown()`.
    pub(super) async fn complete_down(&self, action: &str, now: i64) -> bool {
        let update = format!("SET scalingInProgress = :false, lastScaleEpoch = :now REMOVE {DOWN}");
        self.end(&update, "scaleDownActionId = :action", action, now).await
    }

    /// `failScaleDown()`.
    pub(super) async fn fail_down(&self, action: &str) -> bool {
        let update = format!("SET scalingInProgress = :false REMOVE {DOWN}");
        self.end(&update, "scaleDownActionId = :action", action, 0).await
    }

    async fn end(&self, update: &str, when: &str, action: &str, now: i64) -> bool {
        let values = [(":false", Attribute::Bool(false)), (":now", number(now)), (":action", text(action))];
        self.update(update, when, &values).await
    }
}

const FREE: &str = "attribute_not_exists(scalingInProgress) OR scalingInProgress = :false";
const UP: &str = "scaleUpActionId, scaleUpStartedEpoch, scaleUpRequested, scaleUpInstanceIds";
const DOWN: &str = "scaleDownActionId, scaleDownStartedEpoch, scaleDownPhase, scaleDownTargetInstanceIds, \
                    scaleDownCompletedInstanceIds";

pub(super) fn text(text: &str) -> Attribute {
    Attribute::S(text.to_owned())
}

pub(super) fn number(number: i64) -> Attribute {
    Attribute::N(number.to_string())
}

pub(super) fn list(texts: &[&str]) -> Attribute {
    Attribute::L(texts.iter().map(|item| text(item)).collect())
}
