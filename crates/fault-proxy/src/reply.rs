//! Replies that the proxy makes up, in the dialect of the service it stands in for.
//!
//! SDKs decide whether to retry by the code in `__type` before they look at the status, so an
//! invented error carries the code, the namespace and the content type of the real service. Each
//! also carries `x-fault-proxy`, so that a person reading a trace is not fooled.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::fault::{ServerStatus, ThrottleCode};
use crate::kind::Service;

/// A body of our own, or the emulator's, passed on as it comes.
pub(crate) type Body = Either<Full<Bytes>, Incoming>;

/// Says which fault made this reply up, or that the proxy itself failed.
pub(crate) const MARK: &str = "x-fault-proxy";

/// Who is being stood in for, and the number of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    pub(crate) service: Service,
    pub(crate) request: u64,
}

impl Dialect {
    pub(crate) fn throttle(self, code: ThrottleCode) -> Response<Body> {
        let namespace = match code {
            ThrottleCode::ThrottlingException => "com.amazon.coral.availability#",
            _ => "com.amazonaws.dynamodb.v20120810#",
        };
        let message =
            "The level of configured provisioned throughput was exceeded (injected by fault-proxy).";
        self.error(StatusCode::BAD_REQUEST, namespace, code.as_str(), message, "throttle")
    }

    pub(crate) fn server_error(self, status: ServerStatus, fault: &'static str) -> Response<Body> {
        let (status, code) = match (status, self.service) {
            (ServerStatus::Unavailable, _) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            (ServerStatus::Internal, Service::DynamoDb) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError")
            }
            (ServerStatus::Internal, _) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure"),
        };
        let message = "The request could not be processed (injected by fault-proxy).";
        self.error(status, "com.amazonaws.dynamodb.v20120810#", code, message, fault)
    }

    /// The proxy's own failure: never scripted, and marked as such.
    pub(crate) fn own_failure(self, status: StatusCode, message: &str) -> Response<Body> {
        self.error(status, "", "FaultProxyFailure", message, "own-failure")
    }

    /// A successful reply of our own.
    pub(crate) fn success(self, body: Vec<u8>, fault: &'static str) -> Response<Body> {
        self.json(StatusCode::OK, body.into(), fault)
    }

    fn error(
        self,
        status: StatusCode,
        namespace: &str,
        code: &str,
        message: &str,
        mark: &'static str,
    ) -> Response<Body> {
        // Kinesis names its errors bare; only DynamoDB puts a namespace before them.
        let namespace = if self.service == Service::DynamoDb { namespace } else { "" };
        let body = json!({ "__type": format!("{namespace}{code}"), "message": message });
        self.json(status, body.to_string().into(), mark)
    }

    fn json(self, status: StatusCode, body: Bytes, mark: &'static str) -> Response<Body> {
        let content_type = match self.service {
            Service::DynamoDb => "application/x-amz-json-1.0",
            Service::Kinesis | Service::Other => "application/x-amz-json-1.1",
        };
        let mut response = respond(status, content_type, body);
        let request_id = format!("fault-proxy-{:08}", self.request);
        if let Ok(request_id) = HeaderValue::try_from(request_id) {
            response.headers_mut().insert("x-amzn-requestid", request_id);
        }
        response.headers_mut().insert(MARK, HeaderValue::from_static(mark));
        response
    }
}

/// A reply with a body of our own.
pub(crate) fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
