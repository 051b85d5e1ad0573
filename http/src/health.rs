//! The health and the metrics of the process: `/livez`, `/readyz` and `/metrics`.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use super::{front::Front, key::Role, problem::Problem, route::require};

/// How long `/readyz` waits for a node's answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The path of the metrics, which the front answers on its own.
pub const METRICS: &str = "/metrics";

/// Returns the routes. The metrics need a key, unlike those at `telemetry.listen`.
pub fn routes() -> Router<Arc<Front>> {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route(METRICS, require(Role::Observe, get(metrics)))
}

/// Returns whether a path needs no key, because load balancers have none.
pub fn is_public(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

async fn livez() -> &'static str {
    "ok\n"
}

/// Answers `ok` if a node answers this front.
async fn readyz(State(front): State<Arc<Front>>) -> Result<&'static str, Problem> {
    front.check_link()?;
    let asked = tokio::time::timeout(PATIENCE, front.client().nodes()).await;
    let late = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no node answers in time");
    asked.map_err(late)??;
    Ok("ok\n")
}

async fn metrics(State(front): State<Arc<Front>>) -> Response {
    let text = front.metrics();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
