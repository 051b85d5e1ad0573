//! A server at an address: the client for streamable HTTP, its headers, and what its failures say.

use std::{
    collections::HashMap, error::Error, fmt, fs::File, io::Read as _, path::PathBuf, str::FromStr,
    sync::Arc, time::Duration,
};

use planck_host::environment;
use reqwest::{
    Client, StatusCode, Url,
    header::{HeaderName, HeaderValue},
    redirect::{Attempt, Policy},
};
use rmcp::transport::{
    common::client_side_sse::SseRetryPolicy,
    streamable_http_client::{
        StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
    },
};

use crate::lines::LONGEST_LINE;

/// How long a connection to a server may take.
const CONNECTING: Duration = Duration::from_secs(10);

/// The maximum number of requests whose answer has not begun.
const AT_ONCE: usize = 64;

/// The maximum number of redirects of one request.
const REDIRECTS: usize = 10;

/// The pauses before the attempts to continue a stream that broke. `rmcp` would try for ever, and the
/// calls of a server that is gone would never be answered.
const RECONNECTS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// The maximum size of the value of a header in bytes.
const LONGEST_VALUE: u64 = 64 << 10;

/// An address that serves MCP over HTTP.
#[derive(Debug, Clone)]
pub struct ServerUrl {
    pub url: Url,
    /// The headers of every request, by name.
    pub headers: Vec<(String, HeaderSource)>,
}

/// The value of a header. It is read again for each connection, because keys are replaced.
#[derive(Clone)]
pub enum HeaderSource {
    Text(String),
    Variable(String),
    File(PathBuf),
}

impl HeaderSource {
    /// Reads a text such as `env:NAME` or `file:PATH`. Other texts are the value itself.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some(("env", name)) => Self::Variable(name.to_owned()),
            Some(("file", path)) => Self::File(path.into()),
            _ => Self::Text(text.to_owned()),
        }
    }

    fn value(&self) -> Result<HeaderValue, String> {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::Variable(name) => {
                let value = environment::variable(name);
                let value = value.ok_or_else(|| format!("the variable `{name}` is not set"))?;
                value
                    .into_string()
                    .map_err(|_| format!("the variable `{name}` is not a text"))?
            }
            Self::File(path) => read(path).map_err(|why| format!("{}: {why}", path.display()))?,
        };
        let mut value = HeaderValue::from_str(text.trim())
            .map_err(|_| "it has characters that no header may have".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Does not show the value, which may be a key.
impl fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => write!(f, "***"),
            Self::Variable(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

fn read(path: &PathBuf) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(LONGEST_VALUE)
        .read_to_string(&mut text)?;
    Ok(text)
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|why| format!("`{text}` is no address: {why}"))?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err(format!(
                "`{text}` is no address that begins with http:// or https://"
            ));
        }
        Ok(Self {
            url,
            headers: Vec::new(),
        })
    }
}

/// Shows the address without what may be a key: its query and its password.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = self.url.origin().ascii_serialization();
        write!(f, "{origin}{}", self.url.path())
    }
}

impl ServerUrl {
    /// Returns a transport to the server. It connects when the first message is sent.
    pub(crate) fn transport(&self) -> Result<StreamableHttpClientTransport<Client>, String> {
        let headers = self.headers.iter().map(|(name, source)| {
            let wrong = |why: String| format!("the header `{name}` cannot be sent: {why}");
            let header: HeaderName = name
                .parse()
                .map_err(|_| wrong("this is no name of a header".into()))?;
            Ok((header, source.value().map_err(wrong)?))
        });
        let headers: HashMap<_, _> = headers.collect::<Result<_, String>>()?;
        let mut config =
            StreamableHttpClientTransportConfig::with_uri(self.url.as_str().to_owned())
                .custom_headers(headers)
                .max_concurrent_requests(AT_ONCE)
                .max_sse_event_size(LONGEST_LINE)
                .max_json_response_size(LONGEST_LINE);
        config.retry_config = Arc::new(Reconnects);
        Ok(StreamableHttpClientTransport::with_client(
            client()?,
            config,
        ))
    }
}

#[derive(Debug)]
struct Reconnects;

impl SseRetryPolicy for Reconnects {
    fn retry(&self, tried: usize) -> Option<Duration> {
        RECONNECTS.get(tried).copied()
    }
}

fn client() -> Result<Client, String> {
    // The process has one provider for TLS, which another part may have installed before.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .connect_timeout(CONNECTING)
        .redirect(Policy::custom(redirect))
        .build()
        .map_err(|error| format!("there is no client for HTTP: {}", root(&error)))
}

/// Follows a redirect only if the request stays what it is and reaches the same origin. Another
/// origin would get the headers, which may have a key.
fn redirect(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let keeps_request = [
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ]
    .contains(&attempt.status());
    let first = attempt.previous().first();
    let keeps_origin = first.is_some_and(|first| first.origin() == attempt.url().origin());
    if attempt.previous().len() > REDIRECTS {
        attempt.error("too many redirects")
    } else if keeps_request && keeps_origin {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// A request that failed.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpFailure {
    pub why: String,
    /// Whether the server certainly did not act on the request.
    pub was_refused: bool,
}

impl HttpFailure {
    /// Finds the failure of a request in the causes of an error of `rmcp`.
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        match (error.downcast_ref(), error.source()) {
            (Some(failure), _) => Some(Self::of(failure)),
            (None, Some(source)) => Self::find(source),
            (None, None) => None,
        }
    }

    fn of(error: &StreamableHttpError<reqwest::Error>) -> Self {
        let refused = |why: &str| Self {
            why: why.to_owned(),
            was_refused: true,
        };
        // The enum is not exhaustive, so no match can name all of its variants.
        if let StreamableHttpError::Client(error) = error {
            Self::of_client(error)
        } else if matches!(error, StreamableHttpError::AuthRequired(_)) {
            refused("it refuses the request without a valid key (HTTP 401)")
        } else if matches!(error, StreamableHttpError::InsufficientScope(_)) {
            refused("its key does not permit the request (HTTP 403)")
        } else if matches!(error, StreamableHttpError::SessionExpired) {
            refused("it does not know its session any more (HTTP 404)")
        } else if let StreamableHttpError::HttpStatus(error) = error {
            Self::of_status(error.status)
        } else if let StreamableHttpError::UnexpectedServerResponse(text) = error {
            // Other statuses are only in this text, which begins with them.
            let status = text.strip_prefix("HTTP ").and_then(|text| text.get(..3));
            let status = status.and_then(|status| status.parse().ok());
            status.map_or_else(
                || Self::unclear(format!("it cannot be used: {text}")),
                Self::of_status,
            )
        } else if let StreamableHttpError::UnexpectedContentType(kind) = error {
            let kind = kind.as_deref().unwrap_or("a body without a type");
            Self::unclear(format!(
                "it answers with {kind}, as no MCP server does; is the address complete?"
            ))
        } else {
            Self::unclear(format!("it cannot be used: {error}"))
        }
    }

    fn of_client(error: &reqwest::Error) -> Self {
        match error.status() {
            Some(status) => Self::of_status(status.as_u16()),
            // The error's own text has the address, whose query may have a key.
            None if error.is_connect() => Self {
                why: format!("it cannot be reached: {}", root(error)),
                was_refused: true,
            },
            None => Self::unclear(format!("the connection failed: {}", root(error))),
        }
    }

    fn of_status(status: u16) -> Self {
        let hint = match status {
            401 | 403 => ", so it needs a valid key",
            300..=399 | 404 | 405 => "; is the address complete?",
            _ => "",
        };
        Self {
            why: format!("it answers with HTTP {status}{hint}"),
            was_refused: (300..500).contains(&status),
        }
    }

    fn unclear(why: String) -> Self {
        Self {
            why,
            was_refused: false,
        }
    }
}

/// Returns the first cause of an error.
fn root(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
