//! What EC2's errors mean, told by their type and code, never by their text.
//!
//! ```text
//!   the connection was never made        no effect   Unavailable
//!   EC2 answered with a code below       no effect   NoCapacity, Denied, Throttled, Invalid, …
//!   a 5xx of another code                maybe       Unknown
//!   sent, and no answer came             maybe       Unknown
//! ```
//!
//! Codes come before the status: want of capacity is a 500, and yet nothing was launched. A read has no effect, so
//! where a change is `Unknown` a read is `Unavailable`.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use hyper_util::client::legacy::Error as HttpError;
use tenure_backend::{Error, Kind};

use crate::intent::{Intent, find};

/// Of EC2's own words, this much is shown: a denial carries kilobytes for its auditors.
const SAID_CHARS_MAX: usize = 300;

/// What EC2 says with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Not here, not now, or not in this market: nothing was launched, and another place may have some.
    NoCapacity,
    /// The token of a launch was used by a request that was another.
    TokenUsed,
    /// There is no such instance.
    NoSuchInstance,
    /// A dry run: it would have been done.
    WouldDo,
    /// It may not be ended: somebody protected it.
    Protected,
    Throttled,
    Denied,
    /// The request itself is wrong.
    Mistake,
    /// It may have had its effect.
    Unclear,
}

impl Meaning {
    fn of(code: &str, status: u16) -> Self {
        match code {
            // Of the instance type in that zone and market; of addresses in that subnet; and what an account
            // may have of one market.
            "InsufficientInstanceCapacity"
            | "InsufficientCapacity"
            | "InsufficientCapacityOnHost"
            | "InsufficientHostCapacity"
            | "InsufficientReservedInstanceCapacity"
            | "ReservationCapacityExceeded"
            | "UnfulfillableCapacity"
            | "InsufficientFreeAddressesInSubnet"
            | "InsufficientAddressCapacity"
            | "SpotMaxPriceTooLow"
            | "MaxSpotInstanceCountExceeded"
            | "InstanceLimitExceeded"
            | "VcpuLimitExceeded"
            // That zone has no such instance type.
            | "Unsupported" => Self::NoCapacity,
            "IdempotentParameterMismatch" | "IdempotentInstanceTerminated" => Self::TokenUsed,
            // A malformed id is nobody's, and what is stored may be an old writer's.
            "InvalidInstanceID.NotFound" | "InvalidInstanceID.Malformed" | "InvalidInstanceId" => {
                Self::NoSuchInstance
            }
            "DryRunOperation" => Self::WouldDo,
            "OperationNotPermitted" => Self::Protected,
            "RequestLimitExceeded"
            | "Throttling"
            | "ThrottlingException"
            | "RequestThrottled"
            | "EC2ThrottledException"
            | "BandwidthLimitExceeded"
            | "RequestResourceCountExceeded"
            | "ConcurrentTagAccess"
            | "ResourceCountExceeded" => Self::Throttled,
            "UnauthorizedOperation"
            | "AuthFailure"
            | "Blocked"
            | "OptInRequired"
            | "PendingVerification"
            | "AccessDenied"
            | "AccessDeniedException"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "SignatureDoesNotMatch"
            | "InvalidSignatureException"
            | "IncompleteSignature"
            | "MissingAuthenticationToken"
            | "RequestExpired"
            | "ExpiredToken"
            | "ExpiredTokenException" => Self::Denied,
            _ if matches!(status, 401 | 403) => Self::Denied,
            _ if status == 429 => Self::Throttled,
            // Not one of EC2's answers, or one that does not say that nothing happened.
            _ if !(400..500).contains(&status) || code.is_empty() => Self::Unclear,
            _ => Self::Mistake,
        }
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// EC2 answered.
    Answer {
        meaning: Meaning,
        /// Its code and its words.
        said: String,
    },
    /// Everything else.
    Other(Error),
}

impl Failure {
    pub(super) fn of<E>(error: SdkError<E, HttpResponse>, intent: Intent, endpoint: &str) -> Self
    where
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        if let SdkError::ServiceError(answer) = &error {
            let status = answer.raw().status().as_u16();
            let code = answer.err().code().unwrap_or_default();
            return Self::answer(code, answer.err().message().unwrap_or_default(), status);
        }
        if let Some(credentials) = find::<CredentialsError>(&error) {
            // Whoever hands them out may be back soon; one that has none will have none.
            let missing = matches!(
                credentials,
                CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_)
            );
            let kind = if missing { Kind::Denied } else { Kind::Unavailable };
            return Self::Other(
                Error::new(
                    kind,
                    "no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give \
                     this machine a role",
                )
                .because(error),
            );
        }
        if find::<HttpError>(&error).is_some_and(HttpError::is_connect) {
            let message =
                format!("cannot reach EC2 at {endpoint}: check the endpoint, the region and the network");
            return Self::Other(Error::unavailable(message).because(error));
        }
        Self::Other(match &error {
            SdkError::ConstructionFailure(_) => {
                Error::invalid("the request could not be made").because(error)
            }
            SdkError::DispatchFailure(failure) if failure.is_user() => {
                Error::invalid("the request could not be sent as it is").because(error)
            }
            _ => Error::new(intent.unanswered(), format!("no answer from EC2 at {endpoint}")).because(error),
        })
    }

    fn answer(code: &str, message: &str, status: u16) -> Self {
        let code_shown = if code.is_empty() { format!("status {status}") } else { code.to_owned() };
        let said = if message.is_empty() { code_shown } else { format!("{code_shown}: {message}") };
        let said = said.chars().take(SAID_CHARS_MAX).collect();
        Self::Answer { meaning: Meaning::of(code, status), said }
    }

    pub(super) fn meaning(&self) -> Option<Meaning> {
        match self {
            Self::Answer { meaning, .. } => Some(*meaning),
            Self::Other(_) => None,
        }
    }

    /// EC2's own words.
    pub(super) fn said(&self) -> String {
        match self {
            Self::Answer { said, .. } => said.clone(),
            Self::Other(error) => error.chain(),
        }
    }

    /// As an error, for callers that have no better use for it. `action` is what IAM calls the call.
    pub(super) fn into_error(self, intent: Intent, action: &str) -> Error {
        let (meaning, said) = match self {
            Self::Answer { meaning, said } => (meaning, said),
            Self::Other(error) => return error,
        };
        let error = match meaning {
            Meaning::Denied => Error::new(
                Kind::Denied,
                format!(
                    "EC2 denies {action}: grant it to these credentials (a launch also needs ec2:CreateTags, and \
                     iam:PassRole for the role of its template), and check this machine's clock"
                ),
            ),
            Meaning::Protected if action == super::TERMINATE_INSTANCES => {
                Error::new(Kind::Denied, super::PROTECTED)
            }
            Meaning::Protected => {
                Error::new(Kind::Denied, format!("EC2 does not permit {action} on what it was called for"))
            }
            Meaning::Throttled => {
                Error::new(Kind::Throttled, format!("EC2 throttles {action}: try again later"))
            }
            // Seen a moment ago: EC2 tells of a new instance late, and of an ended one no more.
            Meaning::NoSuchInstance => {
                Error::unavailable("EC2 does not know the instance, not yet or not any more: look again")
            }
            Meaning::NoCapacity | Meaning::TokenUsed | Meaning::WouldDo | Meaning::Mistake => {
                Error::invalid(format!("EC2 refuses the request of {action}"))
            }
            Meaning::Unclear => Error::new(intent.unanswered(), "EC2 gave no clear answer"),
        };
        error.because(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_before_the_status() {
        assert_eq!(Meaning::of("InsufficientInstanceCapacity", 500), Meaning::NoCapacity);
        assert_eq!(Meaning::of("SpotMaxPriceTooLow", 400), Meaning::NoCapacity);
        assert_eq!(Meaning::of("RequestLimitExceeded", 503), Meaning::Throttled);
        assert_eq!(Meaning::of("InternalError", 500), Meaning::Unclear);
        assert_eq!(Meaning::of("Unavailable", 503), Meaning::Unclear);
        assert_eq!(Meaning::of("", 200), Meaning::Unclear, "a success that does not read");
        assert_eq!(Meaning::of("", 408), Meaning::Unclear, "not EC2's own answer");
        assert_eq!(Meaning::of("InvalidParameterValue", 400), Meaning::Mistake);
        assert_eq!(Meaning::of("SomethingNew", 403), Meaning::Denied);
        assert_eq!(Meaning::of("InvalidInstanceID.Malformed", 400), Meaning::NoSuchInstance);
        // Another id that is not found is a mistake of the settings.
        assert_eq!(Meaning::of("InvalidSubnetID.NotFound", 400), Meaning::Mistake);
    }

    #[test]
    fn only_an_unclear_change_may_have_had_its_effect() {
        let kind = |code: &str, status: u16, intent: Intent| {
            Failure::answer(code, "words", status).into_error(intent, "ec2:RunInstances").kind()
        };
        assert_eq!(kind("InternalError", 500, Intent::Write), Kind::Unknown);
        assert_eq!(kind("InternalError", 500, Intent::Read), Kind::Unavailable);
        assert_eq!(kind("InsufficientInstanceCapacity", 500, Intent::Write), Kind::Invalid);
        assert_eq!(kind("UnauthorizedOperation", 403, Intent::Write), Kind::Denied);
        assert_eq!(kind("OperationNotPermitted", 400, Intent::Write), Kind::Denied);
        assert_eq!(kind("InvalidInstanceID.NotFound", 400, Intent::Write), Kind::Unavailable);
    }

    #[test]
    fn a_denial_names_the_action_and_is_short() {
        let failure = Failure::answer("UnauthorizedOperation", &"x".repeat(5000), 403);
        let error = failure.into_error(Intent::Write, "ec2:TerminateInstances");
        assert!(error.chain().contains("EC2 denies ec2:TerminateInstances"), "{error:?}");
        assert!(error.chain().len() < 700, "{error:?}");
    }
}
