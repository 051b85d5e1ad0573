//! The counters of a front, in Prometheus' text format.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use axum::http::StatusCode;

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
