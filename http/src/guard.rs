//! Checks every request before it is handled: the name of the host, the origin of the page that
//! sent it, and the key of the caller.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    front::Front,
    health,
    openai::{self, ApiError},
    problem::Problem,
    server::Connection,
};

/// The names under which a front may be addressed, and the pages that may use it.
#[derive(Debug, Clone, Default)]
pub struct AllowedNames {
    /// Names of hosts, without ports. Names of this machine and IP addresses are always allowed.
    pub hosts: Vec<String>,
    /// Origins such as `http://localhost:3000`, whose pages may use the front.
    pub origins: Vec<String>,
}

impl AllowedNames {
    /// Refuses a request for another host. A page of a stranger can make a browser address this
    /// machine under the stranger's own name, and would then count as a page of this front.
    /// `has_keys` is whether requests need a key, which such a page does not have.
    fn check_host(&self, host: &str, has_keys: bool) -> Result<(), Problem> {
        let name = name_of(host);
        let is_own = name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok();
        let is_listed = self
            .hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name));
        if is_own || is_listed || (has_keys && self.hosts.is_empty()) {
            return Ok(());
        }
        Err(Problem::denied(format!(
            "this front does not serve the host `{}`; add it to `http.allowed_hosts`",
            name.chars().take(80).collect::<String>()
        )))
    }

    /// Refuses a request from a page of another origin, unless that origin is allowed.
    fn check_origin(&self, origin: &str, host: &str) -> Result<(), Problem> {
        let is_same = origin
            .split_once("://")
            .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
        if is_same || self.allows(origin) {
            return Ok(());
        }
        Err(Problem::denied(format!(
            "pages of `{}` may not use this front; add the origin to `http.allowed_origins`",
            origin.chars().take(80).collect::<String>()
        )))
    }

    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|known| known == origin)
    }
}

/// Returns the name in `NAME:PORT` or `[ADDRESS]:PORT`.
fn name_of(host: &str) -> &str {
    if let Some(address) = host.strip_prefix('[') {
        return address.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

/// Returns the text of a header, or an empty text if it is missing or not text.
fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// Passes a request on to its handler if the checks permit, with the caller as an extension.
pub async fn guard(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin
        .as_ref()
        .and_then(|origin| origin.to_str().ok())
        .is_some_and(|origin| front.names().allows(origin));
    let is_openai = request.uri().path().starts_with(openai::PREFIX);
    let mut response = match check(&front, &mut request, origin.as_ref()) {
        Ok(()) if request.method() == Method::OPTIONS && origin.is_some() => preflight(&request),
        Ok(()) => next.run(request).await,
        Err(problem) if is_openai => ApiError::from(problem).into_response(),
        Err(problem) => problem.into_response(),
    };
    front.meter().answered(response.status());
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin.filter(|_| allowed) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    response
}

fn check(
    front: &Front,
    request: &mut Request,
    origin: Option<&HeaderValue>,
) -> Result<(), Problem> {
    // With two hosts, this front and a proxy before it could each check another one.
    if request.headers().get_all(header::HOST).iter().count() > 1 {
        return Err(Problem::bad_request(
            "the request has several `Host` headers",
        ));
    }
    let host = text(request.headers(), header::HOST).to_owned();
    front.names().check_host(&host, !front.keys().is_empty())?;
    if let Some(origin) = origin {
        let origin = origin.to_str().unwrap_or("null");
        front.names().check_origin(origin, &host)?;
    }
    if request.method() == Method::OPTIONS || front.is_public(request.uri().path()) {
        return Ok(());
    }
    let caller = front.keys().caller(request.headers())?;
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.has_key();
    }
    request.extensions_mut().insert(caller);
    if request.uri().path() == health::METRICS {
        return Ok(());
    }
    front.check_link()
}

/// Answers the question of a browser whether a page of an allowed origin may send a request.
fn preflight(request: &Request) -> Response {
    let mut response = (
        StatusCode::NO_CONTENT,
        [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ],
    )
        .into_response();
    // The headers of a request give no right, and SDKs send many of their own.
    let asked = request
        .headers()
        .get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    if let Some(asked) = asked {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> AllowedNames {
        AllowedNames {
            hosts: vec!["planck.example.com".into()],
            origins: vec!["http://localhost:3000".into()],
        }
    }

    #[test]
    fn only_known_names_are_served() {
        let served = [
            "localhost:8400",
            "127.0.0.1:8400",
            "[::1]:8400",
            "Planck.example.com",
        ];
        for host in served {
            assert!(names().check_host(host, false).is_ok(), "{host}");
        }
        for host in ["evil.example.com:8400", "localhost.evil.example.com", ""] {
            assert!(names().check_host(host, false).is_err(), "{host}");
        }
        assert!(AllowedNames::default().check_host("front", true).is_ok());
        assert!(AllowedNames::default().check_host("front", false).is_err());
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        for origin in [
            "http://127.0.0.1:8400",
            "https://127.0.0.1:8400",
            "http://localhost:3000",
        ] {
            assert!(
                names().check_origin(origin, "127.0.0.1:8400").is_ok(),
                "{origin}"
            );
        }
        for origin in [
            "null",
            "http://127.0.0.1:9000",
            "http://evil.example.com",
            "",
        ] {
            assert!(
                names().check_origin(origin, "127.0.0.1:8400").is_err(),
                "{origin}"
            );
        }
    }
}
