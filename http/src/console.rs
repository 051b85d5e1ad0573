//! The console: a page for the browser, embedded in the program. It is a client of `/v1`.

use std::sync::Arc;

use axum::{
    Router,
    http::header,
    response::{IntoResponse as _, Response},
    routing::get,
};

use super::front::Front;

/// A file of the console.
struct ConsoleFile {
    path: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

macro_rules! files {
    ($($path:literal $kind:literal $file:literal,)+) => {
        &[$(ConsoleFile {
            path: $path,
            kind: $kind,
            content: include_bytes!(concat!("../console/", $file)),
        },)+]
    };
}

const HTML: &str = "text/html; charset=utf-8";

const FILES: &[ConsoleFile] = files! {
    "/" "text/html; charset=utf-8" "index.html",
};

/// Only files of this front may run, and nothing may embed the page.
const POLICY: &str =
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

pub fn routes() -> Router<Arc<Front>> {
    FILES.iter().fold(Router::new(), |routes, file| {
        routes.route(file.path, get(async || answer(file)))
    })
}

/// Returns whether a path is a file of the console.
pub fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

fn answer(file: &'static ConsoleFile) -> Response {
    let mut response = ([(header::CONTENT_TYPE, file.kind)], file.content).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-cache"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        header::HeaderValue::from_static("no-referrer"),
    );
    if file.kind == HTML {
        headers.insert(
            header::CONTENT_SECURITY_POLICY,
            header::HeaderValue::from_static(POLICY),
        );
    }
    response
}
