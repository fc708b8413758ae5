//! Single writes and transactions: sending them, and telling how they ended.
//!
//! An append of what a list may already have is tried in one of two renderings (see
//! `expression.rs`). A refusal then has two possible reasons: the caller's condition, which is an
//! answer, or our guard, which asks for the other rendering. The row that comes with the refusal tells
//! them apart, and also where the next try begins.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::{
    ConditionCheck, Delete, Put, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
    Update as SdkUpdate,
};
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;

use super::attribute::{from_item, from_value, to_item};
use super::expression::Expression;
use super::failure::{Failure, Intent, Verdict, verdict};
use super::tables::built;
use super::{Attributes, DynamoDb};
use crate::item::{Item, Key, Value};
use crate::table::TableSpec;
use crate::update::Change;
use crate::write::{Refusal, Write, Written, refuse_same_row};

/// Most turns between the two renderings of an append. Each turn means that another writer changed the
/// very list in the moment between; sixteen in a row do not happen by chance.
const TURNS_MAX: usize = 16;
/// Most tries of a write whose row is in another's transaction, and the longest pause before the
/// second; it doubles up to the greater. Transactions take some ten milliseconds.
const CONFLICT_TRIES_MAX: u32 = 64;
const CONFLICT_PAUSE: Duration = Duration::from_millis(5);
const CONFLICT_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The lists of one row that were seen to hold what is to be appended.
type Held = BTreeSet<String>;

/// A write with what is known of its table and row.
struct Target<'a> {
    write: &'a Write,
    spec: Arc<TableSpec>,
    key: Key,
    held: Held,
    /// It only removes, and its row was seen not to be there: there is nothing to do but to check that
    /// this stays so.
    absent: bool,
}

impl DynamoDb {
    pub(super) async fn write_one(&self, by: Monotonic, write: &Write) -> Result<Written> {
        if matches!(write, Write::Check { .. }) {
            // Only a transaction checks without writing.
            return self.write_all(by, std::slice::from_ref(write), &self.entropy.nonce()).await;
        }
        let table = write.table();
        let mut target = self.target(by, write).await?;
        let during = |error: Error| error.during(format!("{} table `{table}`", verb(write)));
        if let Err(error) = target.check_indexes() {
            return self.explained(by, std::slice::from_ref(write), error).await.map_err(during);
        }
        for _ in 0..TURNS_MAX {
            match self.patiently(by, || self.send_one(by, &target)).await {
                Ok(row) => return Ok(Written::Applied(row)),
                Err(Failure::Refused(None)) if target.has_nothing_to_do() => {
                    return Ok(Written::Applied(Item::new()));
                }
                Err(Failure::Refused(current)) => match target.next_turn(current.as_ref()).map_err(during)? {
                    Some(held) => target.held = held,
                    None => return Ok(Written::Refused(Refusal { index: 0, current })),
                },
                Err(Failure::Mistake(error)) => {
                    return self.explained(by, std::slice::from_ref(write), error).await.map_err(during);
                }
                Err(failure) => return Err(during(self.failed(table, failure))),
            }
        }
        Err(during(contended()))
    }

    pub(super) async fn write_all(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        let mut targets = Vec::with_capacity(writes.len());
        for write in writes {
            targets.push(self.target(by, write).await?);
        }
        let during = |error: Error| error.during(format!("transaction of {} writes", writes.len()));
        let rows: Vec<_> = targets.iter().map(|target| (target.write.table(), &target.key)).collect();
        let fits = targets.iter().try_for_each(Target::check_indexes);
        if let Err(error) = fits.and_then(|()| refuse_same_row(&rows)) {
            return self.explained(by, writes, error).await.map_err(during);
        }
        for _ in 0..TURNS_MAX {
            let refused = match self.patiently(by, || self.send_all(by, &targets, nonce)).await {
                Ok(()) => return Ok(Written::Applied(Item::new())),
                Err(Failure::Cancelled(reasons)) => match verdict(reasons) {
                    Verdict::Refused(refused) => refused,
                    Verdict::Mistake(message) => {
                        let error = Error::invalid("DynamoDB refuses a write").because(message);
                        return self.explained(by, writes, error).await.map_err(during);
                    }
                    Verdict::Conflict => return Err(during(contended())),
                    Verdict::Throttled => {
                        return Err(during(Error::new(
                            Kind::Throttled,
                            "DynamoDB throttles: try again later",
                        )));
                    }
                    Verdict::Other(codes) => {
                        return Err(during(Error::unavailable("DynamoDB cancelled it").because(codes)));
                    }
                },
                Err(Failure::Mistake(error)) => {
                    return self.explained(by, writes, error).await.map_err(during);
                }
                // It does not say which.
                Err(Failure::NoSuchTable) => {
                    for write in writes {
                        self.forget(write.table());
                        self.fresh_spec(by, write.table()).await?;
                    }
                    return Err(during(Error::unavailable("a table was just being replaced: try again")));
                }
                Err(failure) => return Err(during(failure.into_error(writes[0].table()))),
            };
            for (index, current) in refused {
                let target = &mut targets[index];
                let absent = current.is_none() && target.has_nothing_to_do();
                let was_absent = std::mem::replace(&mut target.absent, absent);
                if absent != was_absent && target.condition_holds(current.as_ref()) {
                    continue;
                }
                match targets[index].next_turn(current.as_ref()).map_err(during)? {
                    Some(held) => targets[index].held = held,
                    None => return Ok(Written::Refused(Refusal { index, current })),
                }
            }
        }
        Err(during(contended()))
    }

    async fn target<'a>(&self, by: Monotonic, write: &'a Write) -> Result<Target<'a>> {
        let (spec, key) = self.checked(by, write.table(), |spec| write.key(spec)).await?;
        let mut target = Target { write, spec, key, held: Held::new(), absent: false };
        if target.check_indexes().is_err() {
            // Perhaps the index is another by now.
            target.spec = self.fresh_spec(by, write.table()).await?;
        }
        Ok(target)
    }

    /// Tries again while a transaction is at work on the row. Such a try wrote nothing.
    async fn patiently<T, F>(&self, by: Monotonic, call: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut pause = CONFLICT_PAUSE;
        for _ in 1..CONFLICT_TRIES_MAX {
            let answer = call().await;
            let again = match &answer {
                Err(Failure::Conflict(_) | Failure::InProgress(_)) => true,
                Err(Failure::Cancelled(reasons)) => {
                    // A reason that will stay is an answer.
                    reasons.iter().any(|reason| reason.code == "TransactionConflict")
                        && reasons
                            .iter()
                            .all(|reason| matches!(&*reason.code, "None" | "TransactionConflict"))
                }
                _ => false,
            };
            if !again || !self.pause(by, pause).await {
                return answer;
            }
            pause = (pause * 2).min(CONFLICT_PAUSE_MAX);
        }
        call().await
    }

    async fn send_one(&self, by: Monotonic, target: &Target<'_>) -> Result<Item, Failure> {
        let Expression { condition, update, names, values } = target.expression().map_err(Failure::Other)?;
        let names = some_if_any(names.into_iter().collect());
        let values = some_if_any(values.iter().map(|(p, v)| (p.clone(), from_value(v))).collect());
        let on_refusal = ReturnValuesOnConditionCheckFailure::AllOld;
        let key = from_item(target.key.as_item());
        let table = target.write.table();
        let returned = match target.write {
            Write::Put { item, .. } => {
                let request = self
                    .client
                    .put_item()
                    .table_name(table)
                    .set_item(Some(from_item(item)))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(on_refusal);
                self.send(by, Intent::Write, request.send()).await?;
                return Ok(item.clone());
            }
            Write::Update { .. } => {
                let request = self
                    .client
                    .update_item()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_update_expression(update)
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values(ReturnValue::AllNew)
                    .return_values_on_condition_check_failure(on_refusal);
                self.send(by, Intent::Write, request.send()).await?.attributes
            }
            Write::Delete { .. } => {
                let request = self
                    .client
                    .delete_item()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values(ReturnValue::AllOld)
                    .return_values_on_condition_check_failure(on_refusal);
                self.send(by, Intent::Write, request.send()).await?.attributes
            }
            Write::Check { .. } => None,
        };
        // The write has landed, whether its row reads or not.
        to_item(returned.unwrap_or_default()).map_err(|error| {
            Failure::Other(Error::new(Kind::Unknown, "written, but the row does not read").because(error))
        })
    }

    async fn send_all(&self, by: Monotonic, targets: &[Target<'_>], nonce: &str) -> Result<(), Failure> {
        let items =
            targets.iter().map(Target::transacted).collect::<Result<Vec<_>>>().map_err(Failure::Other)?;
        let request = self
            .client
            .transact_write_items()
            .set_transact_items(Some(items))
            .client_request_token(token(nonce, targets));
        self.send(by, Intent::Write, request.send()).await.map(drop)
    }

    /// What is wrong with writes that DynamoDB called a mistake, in the words of every backend. Nothing
    /// was written, so the rows are read to find out; if they show nothing, DynamoDB's words stand.
    async fn explained(&self, by: Monotonic, writes: &[Write], error: Error) -> Result<Written> {
        for (index, write) in writes.iter().enumerate() {
            let Ok(spec) = self.fresh_spec(by, write.table()).await else { return Err(error) };
            let key = write.key(&spec)?;
            let Ok(current) = self.row(by, write.table(), &key).await else { return Err(error) };
            if write.decide(&spec, current.as_ref())?.is_none() {
                return Ok(Written::Refused(Refusal { index, current }));
            }
        }
        Err(error)
    }
}

impl Target<'_> {
    /// Checks what is put or set against the table's indexes. DynamoDB would refuse it too; not every
    /// emulator does (dynoxide 1.2.1 takes index keys that are too long).
    fn check_indexes(&self) -> Result<()> {
        match self.write {
            Write::Put { item, .. } => self.spec.check_index_attributes(item),
            Write::Update { change, .. } => {
                let set = change.changes().iter().filter_map(|(name, change)| match change {
                    Change::Set(value) => Some((name.clone(), value.clone())),
                    _ => None,
                });
                self.spec.check_index_attributes(&set.collect())
            }
            Write::Delete { .. } | Write::Check { .. } => Ok(()),
        }
    }

    fn expression(&self) -> Result<Expression> {
        let hash = &self.spec.hash.name;
        match self.write {
            Write::Update { when, .. } if self.absent => Expression::still_absent(when, hash),
            Write::Put { when, .. } | Write::Delete { when, .. } => Expression::condition(when, hash),
            Write::Check { when, .. } => Expression::check(when, hash),
            Write::Update { change, when, .. } => Expression::update(change, when, hash, &self.held),
        }
    }

    fn transacted(&self) -> Result<TransactWriteItem> {
        let Expression { condition, update, names, values } = self.expression()?;
        let names = some_if_any(names.into_iter().collect());
        let values: Option<Attributes> =
            some_if_any(values.iter().map(|(p, v)| (p.clone(), from_value(v))).collect());
        let on_refusal = ReturnValuesOnConditionCheckFailure::AllOld;
        let key = from_item(self.key.as_item());
        let item = TransactWriteItem::builder();
        let item = match self.write {
            Write::Put { table, item: row, .. } => item.put(built(
                Put::builder()
                    .table_name(table)
                    .set_item(Some(from_item(row)))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(on_refusal)
                    .build(),
            )?),
            Write::Update { table, .. } if !self.absent => item.update(built(
                SdkUpdate::builder()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_update_expression(update)
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(on_refusal)
                    .build(),
            )?),
            Write::Delete { table, .. } => item.delete(built(
                Delete::builder()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(on_refusal)
                    .build(),
            )?),
            Write::Update { table, .. } | Write::Check { table, .. } => item.condition_check(built(
                ConditionCheck::builder()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(on_refusal)
                    .build(),
            )?),
        };
        Ok(item.build())
    }

    /// Whether this write would leave a row that is not there as it is, and be applied by that.
    fn has_nothing_to_do(&self) -> bool {
        matches!(self.write, Write::Update { change, .. } if change.only_removes())
            && self.condition_holds(None)
    }

    fn condition_holds(&self, current: Option<&Item>) -> bool {
        self.write.when().holds(current.unwrap_or(&Item::new()))
    }

    /// What to try after a refusal that shows `current`: the lists that now hold what is to be
    /// appended, or nothing if the caller's own condition did not hold.
    ///
    /// # Errors
    /// `Invalid` if the condition holds and the change does not fit the row.
    fn next_turn(&self, current: Option<&Item>) -> Result<Option<Held>> {
        let Write::Update { change, .. } = self.write else { return Ok(None) };
        let appended = |(name, change): &(String, Change)| match change {
            Change::AppendUnique(value) => Some((name.clone(), value.clone())),
            _ => None,
        };
        let appended: Vec<(String, Value)> = change.changes().iter().filter_map(appended).collect();
        if appended.is_empty() || self.write.decide(&self.spec, current)?.is_none() {
            return Ok(None);
        }
        let holds = |name: &str, value: &Value| match current.and_then(|row| row.get(name)) {
            Some(Value::L(list)) => list.contains(value),
            _ => false,
        };
        let held = appended.into_iter().filter(|(name, value)| holds(name, value)).map(|(name, _)| name);
        Ok(Some(held.collect()))
    }
}

fn verb(write: &Write) -> &'static str {
    match write {
        Write::Put { .. } => "put to",
        Write::Update { .. } => "update",
        Write::Delete { .. } => "delete from",
        Write::Check { .. } => "check",
    }
}

fn contended() -> Error {
    Error::unavailable("other writers kept the row busy until the deadline; nothing was written: try again")
}

fn some_if_any<K, V>(map: std::collections::HashMap<K, V>) -> Option<std::collections::HashMap<K, V>> {
    // DynamoDB refuses empty maps of placeholders.
    if map.is_empty() { None } else { Some(map) }
}

/// The request token of a transaction, drawn from the writer's nonce and what is sent: a resend of the
/// very same writes has the same. (DynamoDB calls it a mistake if a token comes back with other writes,
/// as it does with the other rendering of an append; and it allows no more than 36 bytes.)
fn token(nonce: &str, targets: &[Target<'_>]) -> String {
    /// FNV-1a of 128 bits: the same on every machine.
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let sent: Vec<_> = targets.iter().map(|target| (target.write, &target.held, target.absent)).collect();
    let text = format!("{nonce} {sent:?}");
    let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condition, KeyAttribute, Update};

    fn held(names: &[&str]) -> Held {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn target(write: &Write) -> Target<'_> {
        let spec = Arc::new(TableSpec::new("rows", KeyAttribute::text("pk")));
        Target { write, spec, key: Key::new("pk", "a"), held: Held::new(), absent: false }
    }

    #[test]
    fn a_resend_has_the_same_token_and_nothing_else_has() {
        let put = |pk: &str| Write::Put {
            table: "rows".into(),
            item: Item::new().with("pk", pk),
            when: Condition::absent("pk"),
        };
        let (one, other) = (put("a"), put("b"));
        let first = token("n-1", &[target(&one)]);
        assert_eq!(first.len(), 32);
        assert_eq!(first, token("n-1", &[target(&one)]));
        assert_ne!(first, token("n-2", &[target(&one)]));
        assert_ne!(first, token("n-1", &[target(&other)]));
        assert_ne!(first, token("n-1", &[Target { held: held(&["done"]), ..target(&one) }]));
    }

    #[test]
    fn a_refusal_is_the_callers_or_asks_for_another_turn() {
        let write = Write::Update {
            table: "rows".into(),
            key: Key::new("pk", "a"),
            change: Update::new().append_unique("done", "x").append_unique("more", "y"),
            when: Condition::eq("n", 1),
        };
        let target = target(&write);
        let row = Item::new().with("pk", "a").with("n", 1);
        let list = |element: &str| Value::L(vec![element.into()]);
        assert_eq!(target.next_turn(None).unwrap(), None);
        assert_eq!(target.next_turn(Some(&row.clone().with("n", 2).with("done", list("x")))).unwrap(), None);
        assert_eq!(
            target.next_turn(Some(&row.clone().with("done", list("x")))).unwrap(),
            Some(held(&["done"]))
        );
        assert_eq!(target.next_turn(Some(&row.clone().with("done", list("z")))).unwrap(), Some(held(&[])));
        let misfit = target.next_turn(Some(&row.with("done", "an x"))).unwrap_err();
        assert_eq!(misfit.kind(), Kind::Invalid);
    }
}
