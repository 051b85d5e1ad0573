//! The checks of the front that need no node: names, origins, keys, roles and bodies.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, Response, StatusCode, header},
};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use planck_client::{
    Client,
    bus::{Bus, BusError, CommandHandler, Delivery, MemoryBus, MemoryHub, Published, ServiceGuard},
    protocol::{AgentId, NodeId, SessionId, subject::Address},
};
use planck_http::{AllowedNames, Front, FrontOptions, Key, KeyHash, Keys, Role};
use serde_json::Value;
use tower::ServiceExt as _;

/// Returns a front that no node answers, with a key for each role.
fn front(options: FrontOptions) -> Router {
    let client = Client::over(Arc::new(MemoryBus::new(MemoryHub::new())));
    Front::new(client, options).routes()
}

fn with_keys() -> Router {
    let key = |role: Role| Key {
        name: role.name().into(),
        hash: KeyHash::of(role.name()),
        role,
    };
    front(FrontOptions {
        keys: Keys::Listed(vec![key(Role::Observe), key(Role::Use), key(Role::Operate)]),
        ..FrontOptions::default()
    })
}

fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "127.0.0.1:8400")
}

async fn send(front: &Router, request: Request<Body>) -> Response<Body> {
    front.clone().oneshot(request).await.unwrap()
}

/// A bus whose link is down. No request may be sent over it.
struct Down(MemoryBus);

#[async_trait]
impl Bus for Down {
    fn publish(&self, subject: String, payload: Bytes) {
        self.0.publish(subject, payload);
    }

    fn publish_event(&self, event: Published) {
        self.0.publish_event(event);
    }

    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        self.0.turn_open(session, agent, open);
    }

    async fn request(&self, to: &Address, _: Bytes, _: Duration) -> Result<Bytes, BusError> {
        panic!("a request to {to} over a link that is down")
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        self.0.subscribe(subject).await
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        self.0.serve(node, answer).await
    }

    fn is_connected(&self) -> bool {
        false
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.0.flush(timeout).await
    }
}

#[tokio::test]
async fn front_without_a_link_answers_at_once() {
    let bus = Down(MemoryBus::new(MemoryHub::new()));
    let front = Front::new(Client::over(Arc::new(bus)), FrontOptions::default()).routes();
    let get = async |path: &str| {
        let request = request(Method::GET, path).body(Body::empty()).unwrap();
        send(&front, request).await
    };
    for path in ["/v1/sessions", "/readyz", "/openai/v1/models"] {
        let response = get(path).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(
            response.headers().contains_key(header::RETRY_AFTER),
            "{path}"
        );
        assert_eq!(code(path, response).await, "unavailable", "{path}");
    }
    for path in ["/livez", "/metrics", "/openapi.json", "/"] {
        assert_eq!(get(path).await.status(), StatusCode::OK, "{path}");
    }
}

/// Returns the code of a refusal in the form of the wire to which a path belongs.
async fn code(path: &str, response: Response<Body>) -> Value {
    if !path.starts_with("/openai/") {
        return problem(response).await["code"].clone();
    }
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let error: Value = serde_json::from_slice(&bytes).unwrap();
    error["error"]["code"].clone()
}

async fn problem(response: Response<Body>) -> Value {
    let kind = response.headers().get(header::CONTENT_TYPE).cloned();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    assert_eq!(kind.unwrap(), "application/problem+json", "{bytes:?}");
    serde_json::from_slice(&bytes).unwrap()
}

/// Every route of the document, with an id for each parameter.
async fn routes(front: &Router) -> Vec<(Method, String, Role)> {
    let document = send(
        front,
        request(Method::GET, "/openapi.json")
            .body(Body::empty())
            .unwrap(),
    );
    let document = to_bytes(document.await.into_body(), 1 << 20).await.unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let about = operation["description"].as_str().unwrap();
            let roles = [Role::Observe, Role::Use, Role::Operate];
            let named = |role: &Role| about.contains(&format!("`{}`", role.name()));
            let role = roles.into_iter().find(named).unwrap();
            let parts = path.split('/').map(|part| match part {
                "{response}" => "resp_x_0",
                _ if part.starts_with('{') => "x",
                _ => part,
            });
            let path = parts.collect::<Vec<_>>().join("/");
            routes.push((method.to_uppercase().parse().unwrap(), path, role));
        }
    }
    assert!(routes.len() > 25, "{}", routes.len());
    routes
}

#[tokio::test]
async fn every_route_needs_a_key_with_its_role() {
    let front = with_keys();
    for (method, path, role) in routes(&front).await {
        let ask = |key: &str| {
            let request = request(method.clone(), &path)
                .header(header::AUTHORIZATION, key)
                // The body is refused before a node is asked, so the test does not wait for one.
                .header(header::CONTENT_TYPE, "text/plain")
                .body(Body::from("x"));
            send(&front, request.unwrap())
        };
        let refused = ask("Bearer wrong").await;
        assert_eq!(
            refused.status(),
            StatusCode::UNAUTHORIZED,
            "{method} {path}"
        );
        assert_eq!(code(&path, refused).await, "unauthorized");
        let lower = match role {
            Role::Observe => continue,
            Role::Use => Role::Observe,
            Role::Operate => Role::Use,
        };
        let refused = ask(&format!("Bearer {}", lower.name())).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{method} {path}");
        // These take no body, so they would ask a node.
        let asks = ["/ui/chat/x/stop", "/openai/v1/responses/resp_x_0"];
        if asks.iter().any(|asking| path.starts_with(asking)) {
            continue;
        }
        let admitted = ask(&format!("Bearer {}", role.name())).await;
        assert_eq!(
            admitted.status(),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{method} {path}"
        );
    }
}

/// The tools of a session read and write everything in its directory.
#[tokio::test]
async fn directory_of_the_machine_needs_an_operator() {
    let front = with_keys();
    for body in [
        r#"{"dir":"/"}"#,
        r#"{"workspace":"local:box","dir":"etc"}"#,
        r#"{"workspace":"code","dir":"/etc"}"#,
    ] {
        let ask = |role: Role| {
            let request = request(Method::POST, "/v1/sessions")
                .header(header::AUTHORIZATION, format!("Bearer {}", role.name()))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(body));
            send(&front, request.unwrap())
        };
        let refused = ask(Role::Use).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{body}");
        let problem = problem(refused).await;
        assert!(
            problem["detail"].as_str().unwrap().contains("`operate`"),
            "{problem}"
        );
        let admitted = ask(Role::Operate).await.status();
        assert_eq!(admitted, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    }
}

#[tokio::test]
async fn only_what_tells_nothing_is_public() {
    let front = with_keys();
    for path in ["/", "/openapi.json", "/livez"] {
        let answer = send(
            &front,
            request(Method::GET, path).body(Body::empty()).unwrap(),
        )
        .await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
    }
    for path in ["/metrics", "/v1/decisions", "/nope"] {
        let answer = send(
            &front,
            request(Method::GET, path).body(Body::empty()).unwrap(),
        )
        .await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
}

#[tokio::test]
async fn page_of_a_stranger_is_refused() {
    refuses_strangers(Keys::Off).await;
    refuses_strangers(Keys::Own(KeyHash::of("secret"))).await;
}

async fn refuses_strangers(keys: Keys) {
    let front = front(FrontOptions {
        keys,
        ..FrontOptions::default()
    });
    let from = |host: &str, origin: &str| {
        let request = Request::post("/v1/sessions")
            .header(header::HOST, host)
            .header(header::ORIGIN, origin)
            .header(header::AUTHORIZATION, "Bearer secret")
            .header(header::CONTENT_TYPE, "application/json");
        send(&front, request.body(Body::from("[]")).unwrap())
    };
    // The stranger's page asks this machine under its own name, or across origins.
    for (host, origin) in [
        ("evil.example.com:8400", "http://evil.example.com:8400"),
        ("127.0.0.1:8400", "http://evil.example.com"),
        ("127.0.0.1:8400", "null"),
        ("127.0.0.1:8400", "http://127.0.0.1:9999"),
    ] {
        let refused = from(host, origin).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{host} {origin}");
        let headers = refused.headers();
        assert!(!headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    }
    let own = from("127.0.0.1:8400", "http://127.0.0.1:8400").await;
    assert_eq!(own.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn page_of_an_allowed_origin_may_ask_first() {
    let origin = "http://localhost:3000";
    let front = front(FrontOptions {
        names: AllowedNames {
            origins: vec![origin.into()],
            ..AllowedNames::default()
        },
        ..FrontOptions::default()
    });
    let asked = request(Method::OPTIONS, "/v1/sessions")
        .header(header::ORIGIN, origin)
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "x-stainless-os");
    let answer = send(&front, asked.body(Body::empty()).unwrap()).await;
    let allowed = &answer.headers()[header::ACCESS_CONTROL_ALLOW_HEADERS];
    assert_eq!(allowed, "x-stainless-os");
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN],
        origin
    );
}

#[tokio::test]
async fn bad_bodies_are_named() {
    let front = front(FrontOptions::default());
    let deep = format!(
        "{{\"metadata\":{{\"a\":{}{}}}}}",
        "[".repeat(200),
        "]".repeat(200)
    );
    let large = "x".repeat((8 << 20) + 1);
    let json = "application/json; charset=utf-8";
    for (kind, body, status, told) in [
        ("text/plain", "{}", 415, "text/plain"),
        ("", "{}", 415, "Content-Type"),
        (json, "[]", 400, "no JSON object"),
        (json, "{", 400, "cannot be read"),
        (json, "{\"name\":\"A B\"}", 400, "malformed"),
        (json, deep.as_str(), 400, "recursion limit"),
        (json, large.as_str(), 413, "8 MiB"),
    ] {
        let request = request(Method::POST, "/v1/sessions").header(header::CONTENT_TYPE, kind);
        let answer = send(&front, request.body(Body::from(body.to_owned())).unwrap()).await;
        assert_eq!(answer.status().as_u16(), status, "{told}");
        let problem = problem(answer).await;
        assert!(
            problem["detail"].as_str().unwrap().contains(told),
            "{problem}"
        );
        assert_eq!(problem["status"], status);
    }
}

#[tokio::test]
async fn bad_addresses_are_named() {
    let front = front(FrontOptions::default());
    for (path, status, told) in [
        ("/v1/sessions/a.b", 400, "malformed id"),
        ("/v1/sessions/%2a/events", 400, "malformed id"),
        ("/v1/sessions/a%00", 400, "malformed id"),
        ("/v1/sessions?limit=x", 400, "limit"),
        ("/v1/sessions?limit=99999999999", 400, "limit"),
        ("/v1/events", 400, "name 1 to 32"),
        ("/v2", 404, "/openapi.json"),
    ] {
        let answer = send(
            &front,
            request(Method::GET, path).body(Body::empty()).unwrap(),
        )
        .await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        let problem = problem(answer).await;
        assert!(
            problem["detail"].as_str().unwrap().contains(told),
            "{path}: {problem}"
        );
    }
    let put = request(Method::PUT, "/v1/sessions")
        .body(Body::empty())
        .unwrap();
    let answer = send(&front, put).await;
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    let key = request(Method::POST, "/v1/sessions/a/prompt")
        .header("idempotency-key", "a key")
        .header(header::CONTENT_TYPE, "application/json");
    let answer = send(&front, key.body(Body::from("{\"text\":\"x\"}")).unwrap()).await;
    assert!(
        problem(answer).await["detail"]
            .as_str()
            .unwrap()
            .contains("Idempotency-Key")
    );
}

#[tokio::test]
async fn front_without_nodes_says_so() {
    let front = front(FrontOptions::default());
    let answer = send(
        &front,
        request(Method::GET, "/readyz").body(Body::empty()).unwrap(),
    )
    .await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem = problem(answer).await;
    assert_eq!(problem["retryable"], true);
}
