//! Interprets answers that are not streams: HTTP statuses, error bodies, HTML pages of proxies, and
//! failed connections.

use std::{error::Error, io, time::Duration};

use reqwest::{
    Response, StatusCode,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
};
use time::{OffsetDateTime, PrimitiveDateTime, macros::format_description};
use tokio::time::{Instant, timeout_at};

use planck_agent::model::{Failure, FailureKind};

use super::Destination;
use crate::{
    decode::{bounded, broken, garbled},
    error_body::{ProviderError, kind_of_status},
    preset::Preset,
};

/// The maximum number of bytes of an error body that are read.
const READ: usize = 64 << 10;

/// The maximum length of a body that is quoted although it is no error message, in characters.
const SHOWN: usize = 1_000;

/// A failure, and whether it means that the provider is overloaded for all requests.
pub struct HttpRefusal {
    pub failure: Failure,
    pub overload: bool,
}

impl From<Failure> for HttpRefusal {
    fn from(failure: Failure) -> Self {
        Self {
            overload: failure.retry_after.is_some(),
            failure,
        }
    }
}

/// Reads the beginning of a response that is not a stream, and returns the failure that the
/// response means.
pub async fn of(response: Response, within: Duration, destination: &Destination) -> HttpRefusal {
    let address = &destination.address;
    let status = response.status();
    let header_wait = retry_after(response.headers(), time::OffsetDateTime::now_utc());
    let location = response
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = body(response, within).await;
    if let Some(location) = location.filter(|_| status.is_redirection()) {
        let message =
            format!("{address} redirects to {location}; set that as base_url if it is right");
        return Failure {
            public: Some(format!("{address} redirects elsewhere")),
            ..Failure::new(FailureKind::Refused, message)
        }
        .into();
    }
    if status.is_success() {
        return no_stream(&body);
    }
    let failure = by_status(status, &body, header_wait, destination);
    let overload = failure.kind == FailureKind::Transient
        && (matches!(status.as_u16(), 429 | 529) || failure.retry_after.is_some());
    HttpRefusal { failure, overload }
}

fn by_status(
    status: StatusCode,
    body: &[u8],
    header_wait: Option<Duration>,
    destination: &Destination,
) -> Failure {
    let error_body = ProviderError::read(body);
    let kind = error_body.as_ref().map_or_else(
        || kind_of_status(Some(status.as_u16())),
        |error_body| error_body.kind(Some(status.as_u16())),
    );
    let within_body = error_body
        .as_ref()
        .and_then(|error_body| error_body.retry_after);
    let error_body = error_body.map_or_else(|| excerpt(body), |error_body| error_body.text());
    let retry_after = header_wait
        .or(within_body)
        .filter(|_| kind == FailureKind::Transient);
    let hint = if error_body.contains("/v1/responses") {
        OTHER_WIRE.to_owned()
    } else if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        let proxy = destination.proxy.as_deref().unwrap_or("a proxy");
        format!("; {proxy} asks for a user name and a password")
    } else {
        hint(kind, status, destination)
    };
    let public = Some(format!("{}{hint}", words(status)));
    Failure {
        kind,
        message: format!("{}: {error_body}{hint}", words(status)),
        public,
        retry_after,
    }
}

/// Returns the failure for a request that could not be sent or got no answer.
pub fn unsent(error: reqwest::Error, provider: &str, destination: &Destination) -> Failure {
    let kind = if error.is_builder() {
        FailureKind::Refused
    } else {
        FailureKind::Transient
    };
    let what = if error.is_connect() {
        "cannot connect to"
    } else {
        "no answer from"
    };
    let hint = match is_refused(&error) {
        true => start_it(provider, destination),
        false => String::new(),
    };
    let way = destination.way();
    Failure::new(kind, format!("{what} {way}: {}{hint}", causes(error)))
}

/// Returns whether no program listens at the address.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        let io = inner.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// Returns the hint for a server of the user's own that does not run, or runs elsewhere. A vendor's
/// own address and a proxy are not for the user to start.
fn start_it(provider: &str, destination: &Destination) -> String {
    let preset = Preset::find(provider);
    let is_vendors = preset.is_some_and(|preset| {
        let own = preset.base_url.filter(|_| !preset.assumed);
        own.is_some_and(|own| destination.address.starts_with(own))
    });
    if is_vendors || destination.proxy.is_some() {
        return String::new();
    }
    let setting = preset
        .and_then(|preset| preset.address_variable)
        .map_or_else(|| format!("`providers.{provider}.base_url`"), str::to_owned);
    let start = match provider {
        "ollama" => "start it with `ollama serve`",
        _ => "start the server",
    };
    format!("; nothing listens there: {start}, or set {setting} to its address")
}

/// Returns the failure for a connection that broke while the stream was read.
pub fn cut(error: reqwest::Error) -> Failure {
    broken(format!("the stream broke off: {}", causes(error)))
}

fn no_stream(body: &[u8]) -> HttpRefusal {
    match ProviderError::read(body) {
        Some(error_body) => HttpRefusal {
            overload: error_body.is_overload(),
            failure: error_body.midway(),
        },
        None => garbled("the answer is no stream of events", excerpt(body)).into(),
    }
}

/// The hint for a server that accepts the request only in another wire format.
const OTHER_WIRE: &str = "; set the provider's `wire` to \"responses\"";

fn words(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("status {} {reason}", status.as_u16()),
        None => format!("status {}", status.as_u16()),
    }
}

fn hint(
    kind: FailureKind,
    status: StatusCode,
    Destination { address, model, .. }: &Destination,
) -> String {
    let check = format!("; check the model's name (`{model}`) and base_url ({address})");
    match kind {
        FailureKind::Auth => "; check the provider's key".to_owned(),
        FailureKind::Refused
            if status == StatusCode::NOT_FOUND && address.ends_with("/responses") =>
        {
            format!("{check}, or set the provider's `wire` to \"chat\"")
        }
        FailureKind::Refused if status == StatusCode::NOT_FOUND => check,
        FailureKind::Refused
        | FailureKind::Transient
        | FailureKind::ContextFull
        | FailureKind::AnswerLimit => String::new(),
    }
}

/// Joins the messages of an error and its causes, because the innermost causes are the most
/// specific. The URL is left out, because the caller's message already contains it.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Reads the beginning of a body, which is enough for an error message.
async fn body(mut response: Response, within: Duration) -> Vec<u8> {
    let until = Instant::now() + within.min(Duration::from_secs(10));
    let mut body = Vec::new();
    while let Ok(Ok(Some(bytes))) = timeout_at(until, response.chunk()).await {
        body.extend_from_slice(
            bytes
                .get(..READ.saturating_sub(body.len()))
                .unwrap_or(&bytes),
        );
        if body.len() >= READ {
            break;
        }
    }
    body
}

/// Returns the beginning of the visible text of a body, as one line without control characters and
/// HTML tags. The body is not a known error and may be arbitrary bytes.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let page = text.trim_start().starts_with('<');
    let visible = if page {
        without_tags(&text)
    } else {
        text.into_owned()
    };
    let clean: String = visible
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let line = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    match (page, line.is_empty()) {
        (_, true) => "an empty body".to_owned(),
        (true, false) => format!("an HTML page: {}", bounded(&line, SHOWN)),
        (false, false) => bounded(&line, SHOWN),
    }
}

fn without_tags(page: &str) -> String {
    let mut text = String::new();
    for piece in page.split('<') {
        let hidden = ["style", "script"].iter().any(|tag| piece.starts_with(tag));
        let shown = piece.split_once('>').map_or("", |(_, shown)| shown);
        if !hidden {
            text.push_str(shown);
            text.push(' ');
        }
    }
    text
}

// Reads from the headers of an answer how long the provider asks the client to wait.

/// Reads `retry-after-ms`, or else `retry-after`, which holds seconds or an HTTP date.
pub fn retry_after(headers: &HeaderMap, now: OffsetDateTime) -> Option<Duration> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    let millis = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    let seconds = |text: &str| text.parse::<f64>().ok();
    millis
        .and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok())
        .or_else(|| Duration::try_from_secs_f64(text(RETRY_AFTER.as_str()).and_then(seconds)?).ok())
        .or_else(|| until(text(RETRY_AFTER.as_str())?, now))
}

/// Returns the time until an HTTP date (IMF-fixdate), or zero if the date has passed.
fn until(date: &str, now: OffsetDateTime) -> Option<Duration> {
    let format = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let at = PrimitiveDateTime::parse(date, format).ok()?.assume_utc();
    Some(Duration::try_from(at - now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};
    use time::macros::datetime;

    use super::*;

    #[test]
    fn every_form_of_the_header_is_read() {
        let now = datetime!(2026-11-22 03:00:00 UTC);
        for (headers, expected) in [
            (vec![("retry-after", "7")], Some(7_000)),
            (vec![("retry-after", "0.25")], Some(250)),
            (
                vec![("retry-after", "7"), ("retry-after-ms", "12.5")],
                Some(12),
            ),
            (
                vec![("retry-after", "Sun, 22 Nov 2026 03:00:05 GMT")],
                Some(5_000),
            ),
            (
                vec![("retry-after", "Sun, 22 Nov 2026 02:00:05 GMT")],
                Some(0),
            ),
            (vec![("retry-after", "soon")], None),
            (vec![("retry-after", "-3")], None),
            (vec![("retry-after", "NaN")], None),
            (vec![], None),
        ] {
            let map = headers
                .iter()
                .map(|(name, value)| {
                    (
                        HeaderName::from_static(name),
                        HeaderValue::from_static(value),
                    )
                })
                .collect();
            assert_eq!(
                retry_after(&map, now).map(|wait| wait.as_millis()),
                expected,
                "{headers:?}"
            );
        }
    }
}
