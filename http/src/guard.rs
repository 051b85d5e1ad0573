//! Checks every request before it is handled: the name of the host, the origin of the page that
//! sent it, and the key of the caller.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use planck_common::allowed_hosts::{AllowedHosts, name_of};

use super::{
    front::Front, health, key::Keys, problem::Problem, route::refuse, server::ClientConnection,
};

/// The names under which a front may be addressed, and the pages that may use it.
#[derive(Debug, Clone, Default)]
pub struct AllowedNames {
    pub hosts: AllowedHosts,
    /// Origins such as `http://localhost:3000`, whose pages may use the front.
    pub origins: Vec<String>,
}

impl AllowedNames {
    /// Refuses a request for another host. `has_callers` is whether there is a key for each caller:
    /// such a front may have any name unless its names are listed.
    fn check_host(&self, host: &str, has_callers: bool) -> Result<(), Problem> {
        match self.hosts.allow(host) || (has_callers && self.hosts.0.is_empty()) {
            true => Ok(()),
            false => Err(wrong_host(host)),
        }
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

fn wrong_host(host: &str) -> Problem {
    Problem::denied(format!(
        "the host `{}` is not served; add it to `http.allowed_hosts`",
        name_of(host).chars().take(80).collect::<String>()
    ))
}

/// Passes a request on to its handler if the checks permit, with the caller as an extension.
pub async fn guard(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin
        .as_ref()
        .and_then(|origin| origin.to_str().ok())
        .is_some_and(|origin| front.names().allows(origin));
    let mut response = match check(&front, &mut request, origin.as_ref()) {
        Ok(()) if request.method() == Method::OPTIONS && origin.is_some() => preflight(&request),
        Ok(()) => next.run(request).await,
        Err(problem) => refuse(request.uri().path(), problem),
    };
    front.counters().answered(response.status());
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

/// Returns the host that a request is for, which may be missing. With two of them, this front and a
/// proxy before it could each check another one.
fn host(request: &Request) -> Result<&str, Problem> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let no_text = |_| Problem::bad_request("the header `Host` is no text");
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err(Problem::bad_request(
            "the request has several `Host` headers",
        )),
        (Some(host), None) => host.to_str().map_err(no_text),
        (None, _) => Ok(""),
    }
}

fn check(
    front: &Front,
    request: &mut Request,
    origin: Option<&HeaderValue>,
) -> Result<(), Problem> {
    let host = host(request)?.to_owned();
    let has_callers = matches!(front.keys(), Keys::Listed(_));
    front.names().check_host(&host, has_callers)?;
    if let Some(origin) = origin {
        let origin = origin.to_str().unwrap_or("null");
        front.names().check_origin(origin, &host)?;
    }
    if request.method() == Method::OPTIONS || front.is_public(request.uri().path()) {
        return Ok(());
    }
    let caller = front.keys().caller(request.headers())?;
    if let Some(connection) = request.extensions().get::<ClientConnection>() {
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
    use axum::body::Body;
    use planck_client::{
        Client,
        bus::{MemoryBus, MemoryHub},
    };
    use tower::ServiceExt as _;

    use super::*;
    use crate::FrontOptions;

    fn names() -> AllowedNames {
        AllowedNames {
            hosts: AllowedHosts(vec!["planck.example.com".into()]),
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

    #[tokio::test]
    async fn request_with_two_hosts_is_refused() {
        let client = Client::over(Arc::new(MemoryBus::new(MemoryHub::new())));
        let front = Front::new(client, FrontOptions::default());
        let two = Request::get("/livez")
            .header(header::HOST, "127.0.0.1:8400")
            .header(header::HOST, "127.0.0.1:8401");
        let answer = front.routes().oneshot(two.body(Body::empty()).unwrap());
        assert_eq!(answer.await.unwrap().status(), StatusCode::BAD_REQUEST);
    }
}
