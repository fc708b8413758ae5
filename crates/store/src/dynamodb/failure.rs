//! What DynamoDB's errors mean, told by their type and code, never by their text.
//!
//! The question behind the table is always "may the write have landed?":
//!
//! ```text
//!   the connection was never made          no    Unavailable
//!   DynamoDB answered with its own code    no    Throttled, Denied, Invalid, …
//!   a 5xx, or an answer that does not read maybe Unknown
//!   sent, and no answer came               maybe Unknown
//! ```
//!
//! A read changes nothing, so where a write is `Unknown` a read is `Unavailable`.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::error::{ConditionalCheckFailedException, TransactionCanceledException};
use hyper_util::client::legacy::Error as HttpError;
use tenure_backend::{Error, Kind, Result};

use super::attribute::to_item;
use crate::{Item, no_such_table};

/// Whether a call may have changed something when no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Read,
    Write,
}

impl Intent {
    /// The kind of a call that was sent and not answered.
    pub(super) const fn unanswered(self) -> Kind {
        match self {
            Self::Read => Kind::Unavailable,
            Self::Write => Kind::Unknown,
        }
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// A condition did not hold of this row.
    Refused(Option<Item>),
    /// A transaction was cancelled: one reason for each write.
    Cancelled(Vec<Reason>),
    /// The table is not there.
    NoSuchTable,
    /// Somebody else is creating or changing the table.
    InUse(Error),
    /// A transaction is at work on the row: nothing was written, try again at once.
    Conflict(Error),
    /// A transaction with this very token is still under way.
    InProgress(Error),
    /// DynamoDB found the request itself wrong.
    Mistake(Error),
    /// Everything else.
    Other(Error),
}

impl Failure {
    /// As an error, for callers that have no better use for it.
    pub(super) fn into_error(self, table: &str) -> Error {
        match self {
            Self::NoSuchTable => no_such_table(table),
            Self::InUse(error)
            | Self::Conflict(error)
            | Self::InProgress(error)
            | Self::Mistake(error)
            | Self::Other(error) => error,
            Self::Refused(_) | Self::Cancelled(_) => {
                Error::unavailable("DynamoDB refused a condition that was not asked: try again")
            }
        }
    }

    /// Whether the same call may be made again: it did not land, and another time it might.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Other(error) if matches!(error.kind(), Kind::Throttled | Kind::Unavailable))
    }
}

/// Why a transaction's write did not happen.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) item: Option<Item>,
}

/// What a cancelled transaction comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// These writes' conditions did not hold, in the writes' order.
    Refused(Vec<(usize, Option<Item>)>),
    /// A write was found wrong.
    Mistake(String),
    /// Another transaction is at work on one of the rows.
    Conflict,
    /// Too much at once.
    Throttled,
    /// Something else, which does not say that it will stay.
    Other(String),
}

/// What a cancelled transaction comes to. A condition or a mistake will stay, so the first of them
/// decides; only without either does a conflict or a throttle matter.
pub(super) fn verdict(reasons: Vec<Reason>) -> Verdict {
    const MISTAKES: [&str; 2] = ["ValidationError", "ItemCollectionSizeLimitExceeded"];
    let is_final = |reason: &&Reason| {
        reason.code == "ConditionalCheckFailed" || MISTAKES.contains(&reason.code.as_str())
    };
    match reasons.iter().find(is_final) {
        Some(first) if MISTAKES.contains(&first.code.as_str()) => {
            return Verdict::Mistake(first.message.clone());
        }
        Some(_) => {
            let refused = reasons.into_iter().enumerate().filter(|(_, r)| r.code == "ConditionalCheckFailed");
            return Verdict::Refused(refused.map(|(index, reason)| (index, reason.item)).collect());
        }
        None => {}
    }
    let has = |code: &str| reasons.iter().any(|reason| reason.code == code);
    if has("TransactionConflict") {
        Verdict::Conflict
    } else if has("ThrottlingError") || has("ProvisionedThroughputExceeded") {
        Verdict::Throttled
    } else {
        let codes: Vec<_> = reasons.iter().map(|reason| reason.code.as_str()).collect();
        Verdict::Other(codes.join(", "))
    }
}

/// What an error of the SDK means for the call. `endpoint` is named where it was not reached.
pub(super) fn classify<E>(error: SdkError<E, HttpResponse>, intent: Intent, endpoint: &str) -> Failure
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
{
    if let SdkError::ServiceError(answer) = &error {
        let status = answer.raw().status().as_u16();
        let meaning = Meaning::of(answer.err().code().unwrap_or_default(), status);
        return meaning.of_answer(&error, intent);
    }
    if let Some(credentials) = find::<CredentialsError>(&error) {
        let slow = matches!(credentials, CredentialsError::ProviderTimedOut(_));
        let kind = if slow { Kind::Unavailable } else { Kind::Denied };
        return Failure::Other(
            Error::new(
                kind,
                "no AWS credentials: set AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                 `?profile=`, or give this machine a role",
            )
            .because(error),
        );
    }
    if find::<HttpError>(&error).is_some_and(HttpError::is_connect) {
        let message =
            format!("cannot reach DynamoDB at {endpoint}: check the endpoint, the region and the network");
        return Failure::Other(Error::unavailable(message).because(error));
    }
    Failure::Other(match &error {
        SdkError::ConstructionFailure(_) => Error::invalid("the request could not be made").because(error),
        SdkError::DispatchFailure(failure) if failure.is_user() => {
            Error::invalid("the request could not be sent as it is").because(error)
        }
        _ => Error::new(intent.unanswered(), format!("no answer from DynamoDB at {endpoint}")).because(error),
    })
}

/// What DynamoDB says with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Refused,
    Cancelled,
    NoSuchTable,
    InUse,
    Conflict,
    InProgress,
    Throttled,
    Denied,
    Mistake,
    /// The server's own fault, or no answer that could be read: it may have landed.
    Unclear,
}

impl Meaning {
    fn of(code: &str, status: u16) -> Self {
        match code {
            "ConditionalCheckFailedException" => Self::Refused,
            "TransactionCanceledException" => Self::Cancelled,
            "ResourceNotFoundException" | "TableNotFoundException" => Self::NoSuchTable,
            "ResourceInUseException" | "TableInUseException" | "TableAlreadyExistsException" => Self::InUse,
            "TransactionConflictException" | "ReplicatedWriteConflictException" => Self::Conflict,
            "TransactionInProgressException" => Self::InProgress,
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "Throttling"
            | "RequestLimitExceeded"
            // Of calls on tables: too many of them are being changed at once.
            | "LimitExceededException" => Self::Throttled,
            "AccessDeniedException"
            | "AccessDenied"
            | "UnrecognizedClientException"
            | "InvalidClientTokenId"
            | "InvalidSignatureException"
            | "SignatureDoesNotMatch"
            | "ExpiredTokenException"
            | "ExpiredToken"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "IncompleteSignature"
            | "IncompleteSignatureException"
            | "OptInRequired" => Self::Denied,
            _ if matches!(status, 401 | 403) => Self::Denied,
            _ if status == 429 => Self::Throttled,
            // Not one of DynamoDB's answers: somebody in between, or a success that does not read.
            _ if !(400..500).contains(&status) || code.is_empty() => Self::Unclear,
            // ValidationException, SerializationException, ItemCollectionSizeLimitExceededException,
            // IdempotentParameterMismatchException and whatever else a 4xx blames on the request.
            _ => Self::Mistake,
        }
    }

    fn of_answer<E>(self, error: &SdkError<E, HttpResponse>, intent: Intent) -> Failure
    where
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let code = error.code().unwrap_or("no code");
        let said = error.message().map_or_else(|| code.to_owned(), |message| format!("{code}: {message}"));
        let told = |kind, message: &str| Error::new(kind, message).because(said.clone());
        match self {
            Self::Refused => {
                let item =
                    find::<ConditionalCheckFailedException>(error).and_then(|refused| refused.item.clone());
                match shown(item) {
                    Ok(item) => Failure::Refused(item),
                    Err(error) => Failure::Other(error),
                }
            }
            Self::Cancelled => {
                let reasons = find::<TransactionCanceledException>(error)
                    .map(TransactionCanceledException::cancellation_reasons)
                    .unwrap_or_default();
                let reasons = reasons.iter().map(|reason| {
                    Ok(Reason {
                        code: reason.code().unwrap_or("None").to_owned(),
                        message: reason.message().unwrap_or_default().to_owned(),
                        item: shown(reason.item().cloned())?,
                    })
                });
                match reasons.collect::<Result<_>>() {
                    Ok(reasons) => Failure::Cancelled(reasons),
                    Err(error) => Failure::Other(error),
                }
            }
            Self::NoSuchTable => Failure::NoSuchTable,
            Self::InUse => Failure::InUse(told(Kind::Unavailable, "the table is being changed: try again")),
            Self::Conflict => {
                Failure::Conflict(told(Kind::Unavailable, "the row is in a transaction: try again"))
            }
            Self::InProgress => {
                Failure::InProgress(told(Kind::Unknown, "the transaction of this nonce is still under way"))
            }
            Self::Throttled => Failure::Other(told(
                Kind::Throttled,
                "DynamoDB throttles: try again later, or raise the limit",
            )),
            Self::Denied => Failure::Other(told(
                Kind::Denied,
                "DynamoDB denies access: check the credentials, their policy (dynamodb:DescribeTable included) \
                 and this machine's clock",
            )),
            Self::Mistake => Failure::Mistake(told(Kind::Invalid, "DynamoDB refuses the request")),
            Self::Unclear => Failure::Other(told(intent.unanswered(), "DynamoDB gave no clear answer")),
        }
    }
}

fn shown(
    item: Option<std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>>,
) -> Result<Option<Item>> {
    item.filter(|attributes| !attributes.is_empty()).map(to_item).transpose()
}

/// The first error of that type among `error` and its causes.
fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(codes: &[&str]) -> Vec<Reason> {
        let reason = |code: &&str| Reason { code: (*code).to_owned(), message: String::new(), item: None };
        codes.iter().map(reason).collect()
    }

    #[test]
    fn codes_come_before_the_status() {
        assert_eq!(Meaning::of("ThrottlingException", 400), Meaning::Throttled);
        assert_eq!(Meaning::of("ThrottlingException", 503), Meaning::Throttled);
        assert_eq!(Meaning::of("InternalServerError", 500), Meaning::Unclear);
        assert_eq!(Meaning::of("", 503), Meaning::Unclear);
        assert_eq!(Meaning::of("", 200), Meaning::Unclear, "a success that does not read");
        assert_eq!(Meaning::of("", 408), Meaning::Unclear, "not DynamoDB's own answer");
        assert_eq!(Meaning::of("SomethingNew", 400), Meaning::Mistake);
        assert_eq!(Meaning::of("SomethingNew", 403), Meaning::Denied);
        assert_eq!(Meaning::of("ExpiredTokenException", 400), Meaning::Denied);
    }

    #[test]
    fn only_a_write_may_have_landed() {
        assert_eq!(Intent::Write.unanswered(), Kind::Unknown);
        assert_eq!(Intent::Read.unanswered(), Kind::Unavailable);
    }

    #[test]
    fn the_first_lasting_reason_decides() {
        let check =
            |codes: &[&str], expected: Verdict| assert_eq!(verdict(reasons(codes)), expected, "{codes:?}");
        check(&["None", "ConditionalCheckFailed"], Verdict::Refused(vec![(1, None)]));
        check(&["TransactionConflict", "ConditionalCheckFailed"], Verdict::Refused(vec![(1, None)]));
        check(
            &["ConditionalCheckFailed", "ValidationError", "ConditionalCheckFailed"],
            Verdict::Refused(vec![(0, None), (2, None)]),
        );
        check(&["ValidationError", "ConditionalCheckFailed"], Verdict::Mistake(String::new()));
        check(&["ThrottlingError", "TransactionConflict"], Verdict::Conflict);
        check(&["None", "ProvisionedThroughputExceeded"], Verdict::Throttled);
        check(&["None", "Mystery"], Verdict::Other("None, Mystery".to_owned()));
    }
}
