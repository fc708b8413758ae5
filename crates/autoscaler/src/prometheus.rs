//! Loads of nodes, and which are ready, by the HTTP API of Prometheus.
//!
//! ```text
//!   prometheus.rs          settings and the call
//!   prometheus/query.rs    the fixed queries                       (pure)
//!   prometheus/answer.rs   what an answer says of which node       (pure)
//! ```
//!
//! Unknown is not zero. A node that has no sample, or one that is no number, is left out; if that is true of
//! all nodes, it is an error. An instant query answers with the last sample of the past five minutes as if it
//! were of this moment, so each query also asks how old that sample is.

mod answer;
mod query;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};
use tracing::warn;

use self::answer::{Series, loads, readiness, series, told};
use self::query::{MARK, load_query, readiness_query};
use crate::ports::{Measures, Metrics};

/// The longest answer that is read: four series of a few hundred bytes for each of 10,000 nodes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The shortest window in which a counter can be seen to move, and the longest that is still about now.
const WINDOW_MIN: Duration = Duration::from_secs(5);
const WINDOW_MAX: Duration = Duration::from_secs(3600);

/// Who asks.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Credentials {
    /// Anybody may.
    #[default]
    Nobody,
    /// A token.
    Bearer(String),
    /// A name and a password.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
}

/// Without the secrets.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("Nobody"),
            Self::Bearer(_) => f.write_str("Bearer(…)"),
            Self::Basic { user, .. } => write!(f, "Basic({user}, …)"),
        }
    }
}

/// What to connect to, and what the cluster's series are called there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `http://host:9090`, or `https://host/prefix`.
    pub url: String,
    /// Who asks.
    pub credentials: Credentials,
    /// Labels that all series of this cluster have, where one Prometheus watches several.
    pub selector: BTreeMap<String, String>,
    /// The label of node_exporter's series that holds the node's name. `node` by default.
    pub load_label: String,
    /// The label of kube-state-metrics' series that holds the node's name. `node` by default.
    pub ready_label: String,
    /// Over how long CPU use is averaged; several scrapes fit in it. 2 min by default.
    pub window: Duration,
    /// Readiness that was measured longer ago is unknown. 2 min by default.
    pub age_max: Duration,
}

impl Settings {
    /// The defaults, at this address.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            credentials: Credentials::default(),
            selector: BTreeMap::new(),
            load_label: "node".to_owned(),
            ready_label: "node".to_owned(),
            window: Duration::from_secs(120),
            age_max: Duration::from_secs(120),
        }
    }

    /// Refuses what could not be asked.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give.
    pub fn validate(&self) -> Result<()> {
        endpoint(&self.url)?;
        authorization(&self.credentials)?;
        let labels = [&self.load_label, &self.ready_label].into_iter().chain(self.selector.keys());
        for label in labels {
            if !query::is_label(label) || label == MARK {
                return Err(Error::invalid(format!(
                    "`{label}` is not the name of a label: it has letters, digits and underscores, no digit first, \
                     and is not `{MARK}`"
                )));
            }
        }
        for (name, duration) in [("window", self.window), ("age_max", self.age_max)] {
            if !(WINDOW_MIN..=WINDOW_MAX).contains(&duration) {
                return Err(Error::invalid(format!(
                    "{name} is {duration:?}: give {WINDOW_MIN:?} to {WINDOW_MAX:?}, and several scrapes"
                )));
            }
        }
        Ok(())
    }
}

/// Prometheus behind its HTTP API.
pub struct Prometheus {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    endpoint: Uri,
    authorization: Option<HeaderValue>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    /// Nodes whose load was not known when it was asked for last.
    unknown: Mutex<BTreeSet<String>>,
}

impl fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prometheus").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Prometheus {
    /// Checks the settings. Nothing is sent yet.
    ///
    /// # Errors
    /// `Invalid` if a setting is wrong, or this machine has no certificate authorities and TLS is wanted.
    pub fn connect(settings: &Settings, env: &Env) -> Result<Self> {
        settings.validate()?;
        let endpoint = endpoint(&settings.url)?;
        let provider = rustls::crypto::ring::default_provider();
        let connector = if endpoint.scheme_str() == Some("https") {
            let no_roots = |error| {
                Error::invalid("this machine has no certificate authorities: install `ca-certificates`")
                    .because(error)
            };
            let builder = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
            builder.map_err(no_roots)?.https_only().enable_http1().build()
        } else {
            let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
                .with_safe_default_protocol_versions()
                .map_err(|error| Error::invalid("TLS cannot be set up").because(error))?
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build()
        };
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            authorization: authorization(&settings.credentials)?,
            endpoint,
            settings: settings.clone(),
            clock: env.clock.clone(),
            unknown: Mutex::default(),
        })
    }

    /// One query, until `by`. It is asked once more where a connection was found closed, by the client: a query
    /// changes nothing.
    async fn ask(&self, by: Monotonic, query: &str) -> Result<Vec<Series>> {
        let left = by.since(self.clock.monotonic());
        if left.is_zero() {
            return Err(Error::unavailable("the deadline passed before anything was sent"));
        }
        // So that the server does not go on with what nobody waits for.
        let timeout = format!("{}ms", left.as_millis().clamp(1, 600_000));
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", query)
            .append_pair("timeout", &timeout)
            .finish();
        let mut request = Request::post(self.endpoint.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(Bytes::from(form)))
            .map_err(|error| Error::invalid("the query could not be sent as it is").because(error))?;
        match within(&*self.clock, by, Box::pin(self.exchange(request))).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable(format!(
                "no answer from Prometheus at {} by the deadline: is it busy?",
                self.settings.url
            ))),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Vec<Series>> {
        let url = &self.settings.url;
        let response = self.client.request(request).await.map_err(|error| {
            let message = if error.is_connect() {
                format!("cannot reach Prometheus at {url}: check its address and the network")
            } else {
                format!("no answer from Prometheus at {url}")
            };
            Error::unavailable(message).because(error)
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return Error::invalid(format!(
                    "the answer of Prometheus is longer than {ANSWER_BYTES_MAX} bytes: narrow the selector to this \
                     cluster's series"
                ));
            }
            Error::unavailable(format!("the answer of Prometheus at {url} broke off")).because(error)
        })?;
        let body = body.to_bytes();
        if status == StatusCode::OK {
            return series(&body).map_err(|error| error.during(format!("read what {url} answers")));
        }
        Err(refusal(status, &body, url))
    }
}

impl Prometheus {
    /// Each is told once: a node that is gone leaves a rate behind for a whole window, tick after tick.
    fn tell_unknown(&self, unknown: BTreeSet<String>) {
        let mut before = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        for node in unknown.difference(&before) {
            warn!(node, "a node's load is not known; it is not taken away");
        }
        *before = unknown;
    }
}

#[async_trait]
impl Metrics for Prometheus {
    async fn measures(&self, by: Monotonic) -> Result<Measures> {
        let series = self.ask(by, &load_query(&self.settings)).await?;
        let now_epoch = self.clock.wall().as_millis().div_euclid(1000);
        let asked_epoch = series.first().map(Series::asked_epoch);
        let (loads, unknown) = loads(&series, &self.settings, now_epoch)?;
        self.tell_unknown(unknown);
        Ok(Measures { loads, asked_epoch })
    }

    async fn readiness(&self, by: Monotonic) -> Result<BTreeMap<String, bool>> {
        let series = self.ask(by, &readiness_query(&self.settings)).await?;
        readiness(&series, &self.settings)
    }
}

/// What an answer other than 200 means.
fn refusal(status: StatusCode, body: &[u8], url: &str) -> Error {
    let error = match status.as_u16() {
        401 | 403 => Error::new(
            Kind::Denied,
            format!(
                "Prometheus at {url} does not accept our credentials: set a token, or a user and a password"
            ),
        ),
        300..400 => {
            Error::invalid(format!("{url} leads elsewhere: give the address where Prometheus itself is"))
        }
        404 | 405 => Error::invalid(format!(
            "there is no Prometheus at {url}: give its address, with the prefix that it is served under"
        )),
        429 => {
            Error::new(Kind::Throttled, format!("Prometheus at {url} has too much to do: try again later"))
        }
        400..500 => Error::invalid("Prometheus refuses the query: is it older than 2.0, or something else?"),
        _ => Error::unavailable(format!("Prometheus at {url} gave no clear answer")),
    };
    error.because(format!("status {}{}", status.as_u16(), told(body)))
}

/// Where queries are sent to.
fn endpoint(url: &str) -> Result<Uri> {
    let refuse = |why: &str| {
        // What stands before an @ may be a secret.
        let shown = url.rsplit('@').next().unwrap_or_default();
        Error::invalid(format!("Prometheus' address `{shown}` {why}: write http://host:9090"))
    };
    let base: Uri = url.parse().map_err(|_| refuse("is not a URL"))?;
    if !matches!(base.scheme_str(), Some("http" | "https")) {
        return Err(refuse("begins neither with http:// nor with https://"));
    }
    if base.authority().is_none_or(|it| it.as_str().contains('@')) {
        return Err(refuse("has no place for a user: set credentials beside it"));
    }
    if base.query().is_some() || base.path().contains("/api/v1") {
        return Err(refuse("goes on where queries begin: leave off what is asked"));
    }
    let whole = format!("{}/api/v1/query", url.trim_end_matches('/'));
    whole.parse().map_err(|_| refuse("is not a URL"))
}

fn authorization(credentials: &Credentials) -> Result<Option<HeaderValue>> {
    let text = match credentials {
        Credentials::Nobody => return Ok(None),
        Credentials::Bearer(token) => format!("Bearer {token}"),
        Credentials::Basic { user, password } => {
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        }
    };
    let mut value = HeaderValue::from_str(&text).map_err(|_| {
        Error::invalid(
            "the token of Prometheus has characters that no header takes: is there a line break in it?",
        )
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl Fn(&mut Settings)) -> String {
        let mut settings = Settings::new("http://127.0.0.1:9090");
        change(&mut settings);
        let error = Prometheus::connect(&settings, &Env::system()).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        error.chain()
    }

    #[test]
    fn wrong_settings_say_what_to_give() {
        let url = |url: &'static str| refused(move |settings| settings.url = url.to_owned());
        assert!(url("127.0.0.1:9090").contains("begins neither"));
        assert!(url("ftp://host").contains("begins neither"));
        assert!(url("http://host:9090/graph?x=y").contains("leave off"));
        assert!(url("http://host/api/v1/query").contains("leave off"));
        assert!(url("not a url").contains("is not a URL"));
        let with_user = url("http://me:hunter2@host");
        assert!(
            with_user.contains("set credentials beside it") && !with_user.contains("hunter2"),
            "{with_user}"
        );
        assert!(refused(|settings| settings.load_label = "a-b".into()).contains("not the name of a label"));
        assert!(refused(|settings| settings.ready_label = MARK.into()).contains("not the name of a label"));
        assert!(refused(|settings| drop(settings.selector.insert("1".into(), "x".into()))).contains("label"));
        assert!(refused(|settings| settings.window = Duration::from_secs(1)).contains("several scrapes"));
        let broken = refused(|settings| settings.credentials = Credentials::Bearer("a\nb".into()));
        assert!(broken.contains("line break"), "{broken}");
    }

    #[test]
    fn queries_go_below_the_prefix() {
        assert_eq!(endpoint("http://h:1/").unwrap(), "http://h:1/api/v1/query");
        assert_eq!(endpoint("https://h/prefix").unwrap(), "https://h/prefix/api/v1/query");
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut settings = Settings::new("http://127.0.0.1:9090");
        settings.credentials = Credentials::Basic { user: "me".into(), password: "hunter2".into() };
        let basic = format!("{:?}", Prometheus::connect(&settings, &Env::system()).unwrap());
        settings.credentials = Credentials::Bearer("hunter2".into());
        let bearer = format!("{:?}", Prometheus::connect(&settings, &Env::system()).unwrap());
        assert!(basic.contains("Basic(me, …)"), "{basic}");
        assert!(!basic.contains("hunter2") && !bearer.contains("hunter2"));
        let value = authorization(&settings.credentials).unwrap().unwrap();
        assert_eq!(value, "Bearer hunter2");
        assert!(!format!("{value:?}").contains("hunter2"));
    }

    #[test]
    fn other_answers_than_a_result_say_what_to_do() {
        let kind = |status: u16| refusal(StatusCode::from_u16(status).unwrap(), b"", "http://p").kind();
        assert_eq!(kind(401), Kind::Denied);
        assert_eq!(kind(302), Kind::Invalid);
        assert_eq!(kind(404), Kind::Invalid);
        assert_eq!(kind(422), Kind::Invalid);
        assert_eq!(kind(429), Kind::Throttled);
        assert_eq!(kind(503), Kind::Unavailable);
        let body = br#"{"status":"error","errorType":"execution","error":"many-to-many"}"#;
        let error = refusal(StatusCode::UNPROCESSABLE_ENTITY, body, "http://p");
        assert!(error.chain().ends_with("status 422: many-to-many"), "{error:?}");
    }
}
