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
    ($($path:literal $kind:tt $file:literal,)+) => {
        &[$(ConsoleFile {
            path: $path,
            kind: $kind,
            content: include_bytes!(concat!("../console/", $file)),
        },)+]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

const FILES: &[ConsoleFile] = files! {
    "/" HTML "index.html",
    "/console/icon.svg" "image/svg+xml" "icon.svg",
    "/console/pages.css" CSS "pages.css",
    "/console/session.css" CSS "session.css",
    "/console/style.css" CSS "style.css",
    "/console/address.js" JS "address.js",
    "/console/agent.js" JS "agent.js",
    "/console/answer.js" JS "answer.js",
    "/console/api.js" JS "api.js",
    "/console/app.js" JS "app.js",
    "/console/arguments.js" JS "arguments.js",
    "/console/asking.js" JS "asking.js",
    "/console/border.js" JS "border.js",
    "/console/changes.js" JS "changes.js",
    "/console/cluster.js" JS "cluster.js",
    "/console/colour.js" JS "colour.js",
    "/console/conversation.js" JS "conversation.js",
    "/console/decided.js" JS "decided.js",
    "/console/diff.js" JS "diff.js",
    "/console/export.js" JS "export.js",
    "/console/format.js" JS "format.js",
    "/console/head.js" JS "head.js",
    "/console/html.js" JS "html.js",
    "/console/keys.js" JS "keys.js",
    "/console/lanes.js" JS "lanes.js",
    "/console/live.js" JS "live.js",
    "/console/markdown.js" JS "markdown.js",
    "/console/parts.js" JS "parts.js",
    "/console/pick.js" JS "pick.js",
    "/console/reducer.js" JS "reducer.js",
    "/console/sent.js" JS "sent.js",
    "/console/session.js" JS "session.js",
    "/console/sessions.js" JS "sessions.js",
    "/console/sse.js" JS "sse.js",
    "/console/start.js" JS "start.js",
    "/console/store.js" JS "store.js",
    "/console/theme.js" JS "theme.js",
    "/console/timeline.js" JS "timeline.js",
    "/console/tool.js" JS "tool.js",
    "/console/tree.js" JS "tree.js",
    "/console/visible.js" JS "visible.js",
    "/console/waits.js" JS "waits.js",
    "/console/vendor/hooks.js" JS "vendor/hooks.js",
    "/console/vendor/htm.js" JS "vendor/htm.js",
    "/console/vendor/markdown-it.js" JS "vendor/markdown-it.js",
    "/console/vendor/preact.js" JS "vendor/preact.js",
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use sha2::{Digest as _, Sha256};

    use super::*;

    fn folder() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/console"))
    }

    #[test]
    fn every_file_of_the_console_is_embedded() {
        let served: BTreeSet<_> = FILES
            .iter()
            .map(|file| file.path.trim_start_matches("/console/").to_owned())
            .collect();
        for name in ["", "vendor/"] {
            for entry in fs::read_dir(folder().join(name)).unwrap() {
                let file = entry.unwrap().file_name().into_string().unwrap();
                let path = format!("{name}{file}");
                if [".js", ".css", ".svg"]
                    .iter()
                    .any(|end| path.ends_with(end))
                {
                    assert!(served.contains(&path), "{path} is not in the table");
                }
            }
        }
    }

    #[test]
    fn console_files_match_their_checksums() {
        let table = fs::read_to_string(folder().join("vendor/README.md")).unwrap();
        for name in ["preact.js", "hooks.js", "htm.js", "markdown-it.js"] {
            let content = fs::read(folder().join("vendor").join(name)).unwrap();
            let digest: String = Sha256::digest(&content)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let row = table
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}`")));
            assert!(row.unwrap().contains(&digest), "{name} is {digest}");
        }
    }

    #[test]
    fn console_never_makes_markup_from_text() {
        for file in FILES.iter().filter(|file| !file.path.contains("/vendor/")) {
            let text = String::from_utf8_lossy(file.content);
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval("] {
                assert!(!text.contains(forbidden), "{} has {forbidden}", file.path);
            }
        }
    }
}
