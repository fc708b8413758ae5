//! What a failed call of the Kubernetes API means, told by type, code and reason, never by text.
//!
//! ```text
//!   the connection was never made           no effect    Unavailable
//!   the API server answered with a reason   no effect    Denied, Throttled, Invalid
//!   a 5xx, or an answer that does not read  maybe        Unknown
//!   sent, and no answer came                maybe        Unknown
//! ```
//!
//! A read has no effect, so where a change is `Unknown` a read is `Unavailable`.

use hyper_util::client::legacy::Error as HttpError;
use kube::core::Status;
use tenure_backend::{Error, Kind};

use crate::intent::{Intent, find};

/// What a call must be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permission {
    pub(super) verb: &'static str,
    pub(super) resource: &'static str,
}

impl Permission {
    pub(super) const fn as_pair(self) -> (&'static str, &'static str) {
        (self.verb, self.resource)
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answered, and this is what it said.
    Answer(Box<Status>),
    /// Everything else.
    Other(Error),
}

impl Failure {
    pub(super) fn of(error: kube::Error, intent: Intent, server: &str) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::Answer(status);
        }
        if find::<HttpError>(&error).is_some_and(HttpError::is_connect) {
            let message =
                format!("cannot reach the Kubernetes API at {server}: check its address and the network");
            return Self::Other(Error::unavailable(message).because(error));
        }
        Self::Other(match &error {
            kube::Error::Auth(_) => Error::new(
                Kind::Denied,
                "no credentials for the Kubernetes API: check the user in the kubeconfig",
            )
            .because(error),
            kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
                Error::invalid("the request could not be made").because(error)
            }
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
                let message =
                    format!("what answers at {server} does not speak the Kubernetes API: check the address");
                Error::new(intent.unanswered(), message).because(error)
            }
            _ => Error::new(intent.unanswered(), no_answer(server)).because(error),
        })
    }

    /// Nothing came by the deadline.
    pub(super) fn unanswered(intent: Intent, server: &str) -> Self {
        Self::Other(Error::new(intent.unanswered(), format!("{} by the deadline", no_answer(server))))
    }

    /// As an error, for callers that have no better use for it.
    pub(super) fn into_error(self, intent: Intent, permission: Permission, server: &str) -> Error {
        let status = match self {
            Self::Answer(status) => status,
            Self::Other(error) => return error,
        };
        let said = if status.message.is_empty() { status.reason.clone() } else { status.message.clone() };
        let Permission { verb, resource } = permission;
        let error = match status.code {
            401 => Error::new(
                Kind::Denied,
                format!(
                    "the Kubernetes API at {server} does not accept our credentials: renew those of the kubeconfig or the service account"
                ),
            ),
            403 => Error::new(
                Kind::Denied,
                format!(
                    "the Kubernetes API does not let us {verb} {resource}: grant `{verb}` on `{resource}` of the core API group by a ClusterRole"
                ),
            ),
            404 => Error::invalid(format!(
                "the Kubernetes API at {server} has no such {resource}: check the address"
            )),
            429 => Error::new(Kind::Throttled, "the API server has too much to do: try again later"),
            400..500 => Error::invalid("the API server refuses the request"),
            _ => Error::new(intent.unanswered(), format!("the API server at {server} gave no clear answer")),
        };
        error.because(if said.is_empty() { format!("status {}", status.code) } else { said })
    }
}

fn no_answer(server: &str) -> String {
    format!("no answer from the Kubernetes API at {server}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICT: Permission = Permission { verb: "create", resource: "pods/eviction" };

    fn kind(code: u16, intent: Intent) -> Kind {
        let status = Status::failure("said", "").with_code(code);
        Failure::Answer(status.boxed()).into_error(intent, EVICT, "https://k").kind()
    }

    #[test]
    fn only_a_change_without_a_clear_answer_may_have_had_its_effect() {
        assert_eq!(kind(500, Intent::Write), Kind::Unknown);
        assert_eq!(kind(504, Intent::Write), Kind::Unknown);
        assert_eq!(kind(0, Intent::Write), Kind::Unknown);
        assert_eq!(kind(500, Intent::Read), Kind::Unavailable);
        assert_eq!(kind(422, Intent::Write), Kind::Invalid);
        assert_eq!(kind(429, Intent::Write), Kind::Throttled);
        assert_eq!(kind(401, Intent::Read), Kind::Denied);
        let late = |intent| match Failure::unanswered(intent, "https://k") {
            Failure::Other(error) => error.kind(),
            Failure::Answer(_) => panic!("nobody answered"),
        };
        assert_eq!((late(Intent::Read), late(Intent::Write)), (Kind::Unavailable, Kind::Unknown));
    }

    #[test]
    fn a_denial_says_what_to_grant() {
        let status = Status::failure("pods \"x\" is forbidden", "Forbidden").with_code(403);
        let error = Failure::Answer(status.boxed()).into_error(Intent::Write, EVICT, "https://k");
        assert!(error.chain().contains("grant `create` on `pods/eviction`"), "{error:?}");
        assert!(error.chain().ends_with("pods \"x\" is forbidden"), "{error:?}");
    }
}
