//! The health and the metrics of the process: `/livez`, `/readyz` and `/metrics`, with the counters
//! of the front.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{front::Front, key::Role, problem::Problem, route::require};

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
    // A node answers with its own templates. For a list of nodes it may have to ask them all.
    let asked = tokio::time::timeout(PATIENCE, front.client().teams()).await;
    let late = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no node answers in time");
    asked.map_err(late)??;
    Ok("ok\n")
}

async fn metrics(State(front): State<Arc<Front>>) -> Response {
    let text = front.metrics();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Counts what a front does from its start on, and the streams that are open.
#[derive(Debug, Default)]
pub struct FrontCounters {
    /// Answered requests by the first digit of their status, from 1 to 5.
    requests: [AtomicU64; 5],
    streams: AtomicU64,
    frames: AtomicU64,
    cut_off: AtomicU64,
}

/// Counts a stream as open until it is dropped.
#[derive(Debug)]
pub struct OpenStream(Arc<FrontCounters>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}

impl FrontCounters {
    pub fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).checked_sub(1);
        if let Some(count) = class.and_then(|class| self.requests.get(class)) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub fn opened(self: &Arc<Self>) -> OpenStream {
        self.streams.fetch_add(1, Relaxed);
        OpenStream(Arc::clone(self))
    }

    pub fn sent_frame(&self) {
        self.frames.fetch_add(1, Relaxed);
    }

    pub fn cut_off(&self) {
        self.cut_off.fetch_add(1, Relaxed);
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let name = "planck_http_requests_total";
        let _ = writeln!(
            text,
            "# HELP {name} Requests that were answered.\n# TYPE {name} counter"
        );
        for (class, count) in (1..).zip(&self.requests) {
            let count = count.load(Relaxed);
            let _ = writeln!(text, "{name}{{status=\"{class}xx\"}} {count}");
        }
        let rest = [
            (
                "planck_http_streams",
                "gauge",
                "Streams of events that are open.",
                &self.streams,
            ),
            (
                "planck_http_frames_total",
                "counter",
                "Events that were sent on streams.",
                &self.frames,
            ),
            (
                "planck_http_cut_off_total",
                "counter",
                "Clients that read too slowly.",
                &self.cut_off,
            ),
        ];
        for (name, kind, about, count) in rest {
            let count = count.load(Relaxed);
            let _ = writeln!(
                text,
                "# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {count}"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_counts_what_happened() {
        let counters = Arc::new(FrontCounters::default());
        counters.answered(StatusCode::OK);
        counters.answered(StatusCode::NOT_FOUND);
        counters.cut_off();
        let stream = counters.opened();
        assert!(counters.text().contains("planck_http_streams 1\n"));
        drop(stream);
        let text = counters.text();
        for line in [
            "planck_http_requests_total{status=\"2xx\"} 1",
            "planck_http_requests_total{status=\"4xx\"} 1",
            "planck_http_requests_total{status=\"5xx\"} 0",
            "planck_http_streams 0",
            "planck_http_cut_off_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
