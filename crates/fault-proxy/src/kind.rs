//! What a request asks for, read from its head alone.
//!
//! The AWS JSON protocols name the operation in `X-Amz-Target` (`DynamoDB_20120810.PutItem`); Smithy's
//! RPC v2 names it in the path (`/service/Kinesis_20131202/operation/PutRecords`). The Rust SDK sends
//! JSON to both services; the path form is understood so that rules keep working should it change.

use std::fmt;

use hyper::HeaderMap;

/// The longest operation name kept. The longest of DynamoDB and Kinesis has 44 characters, and a
/// bound keeps a confused client from filling the counters' keys.
const NAME_CHARS_MAX: usize = 64;

/// The name of an operation, such as `PutItem`: ASCII letters and digits, a letter first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(String);

impl Kind {
    /// The kind called `name`, or `None` if no operation can be called that.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let valid = name.len() <= NAME_CHARS_MAX
            && name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric());
        valid.then(|| Self(name.to_owned()))
    }

    /// The operation's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_put_records(&self) -> bool {
        self.0 == "PutRecords"
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose dialect an invented error has to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    DynamoDb,
    Kinesis,
    Other,
}

/// The service and operation a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) service: Service,
    /// `None` for a request that names no operation, such as a health check.
    pub(crate) kind: Option<Kind>,
}

impl Target {
    pub(crate) fn of(headers: &HeaderMap, path: &str) -> Self {
        let header = headers.get("x-amz-target").and_then(|value| value.to_str().ok());
        let (service, operation) = header
            .and_then(|target| target.rsplit_once('.'))
            .or_else(|| path.strip_prefix("/service/")?.split_once("/operation/"))
            .unwrap_or_default();
        let service = if service.starts_with("DynamoDB") {
            Service::DynamoDb
        } else if service.starts_with("Kinesis_") {
            Service::Kinesis
        } else {
            Service::Other
        };
        Self { service, kind: Kind::new(operation) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: &str, path: &str, service: Service, kind: Option<&str>) {
        let mut headers = HeaderMap::new();
        if !target.is_empty() {
            headers.insert("x-amz-target", target.parse().unwrap());
        }
        let found = Target::of(&headers, path);
        assert_eq!((found.service, found.kind.as_ref().map(Kind::as_str)), (service, kind));
    }

    #[test]
    fn the_kind_is_what_follows_the_dot() {
        check("DynamoDB_20120810.PutItem", "/", Service::DynamoDb, Some("PutItem"));
        check("Kinesis_20131202.PutRecords", "/", Service::Kinesis, Some("PutRecords"));
        check("DynamoDBStreams_20120810.GetRecords", "/", Service::DynamoDb, Some("GetRecords"));
    }

    #[test]
    fn the_kind_may_stand_in_the_path() {
        check("", "/service/Kinesis_20131202/operation/PutRecords", Service::Kinesis, Some("PutRecords"));
    }

    #[test]
    fn other_requests_have_no_kind() {
        check("", "/shell/", Service::Other, None);
        check("nonsense", "/", Service::Other, None);
        check("DynamoDB_20120810.Put Item", "/", Service::DynamoDb, None);
        check(&format!("Kinesis_20131202.{}", "A".repeat(65)), "/", Service::Kinesis, None);
    }
}
