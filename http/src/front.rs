//! The front: its parts, and the table of its routes.

use std::{fmt, path::Path, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, Uri},
    middleware,
    response::{IntoResponse as _, Response},
    routing::any,
};
use planck_client::Client;
use planck_common::{
    SessionId,
    command::{Start, Started},
    event::json,
    spec::LOCAL,
};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ag_ui, console,
    feed::{Feed, Feeds},
    guard::{AllowedNames, guard},
    health,
    key::{Caller, KeyHash, Keys, Role},
    mcp, openai, openapi,
    problem::Problem,
    route::Route,
    server::{self, ConnectionLimits},
    ui, v1,
};
use crate::health::FrontCounters;

/// The settings of a front.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    pub names: AllowedNames,
    pub keys: Keys,
    /// The maximum number of concurrent connections. Further clients wait until one is closed.
    pub connections: usize,
    pub start: StartDefaults,
    pub metrics: Option<MetricsText>,
}

/// The part of the connections that one address may have without a key: a quarter.
const KEYLESS_SHARE: usize = 4;

/// The field of a session's metadata with the digest of the request that started the session.
const DIGEST: &str = "http_request";

/// Where a session works if its request names neither a workspace nor a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartDefaults {
    pub workspace: Option<String>,
    pub dir: Option<String>,
}

impl StartDefaults {
    /// Completes a request to start a session. Only an operator may name a directory of a machine,
    /// because the tools of the session read and write everything in it. Others name a workspace.
    pub fn complete(&self, start: &mut Start, caller: &Caller) -> Result<(), Problem> {
        let is_path = |dir: &str| Path::new(dir).is_absolute();
        let is_of_machine = |workspace: &str| workspace.starts_with(LOCAL);
        if start.dir.as_deref().is_some_and(is_path)
            || start.workspace.as_deref().is_some_and(is_of_machine)
        {
            let what = "an absolute `dir` (name a `workspace`, and a `dir` in it)";
            caller.needs(Role::Operate, what)?;
        }
        if start.workspace.is_none() && start.dir.is_none() {
            start.workspace.clone_from(&self.workspace);
            start.dir.clone_from(&self.dir);
        }
        Ok(())
    }
}

/// A function that returns the metrics of this process in Prometheus' text format, with those that the
/// front [counts](Front::counted).
#[derive(Clone)]
pub struct MetricsText(pub Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for MetricsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsText")
    }
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self {
            names: AllowedNames::default(),
            keys: Keys::default(),
            connections: 4_096,
            start: StartDefaults::default(),
            metrics: None,
        }
    }
}

/// A client of the protocol that serves it over HTTP.
pub struct Front {
    client: Client,
    names: AllowedNames,
    keys: Keys,
    connections: usize,
    start: StartDefaults,
    metrics: Option<MetricsText>,
    counters: Arc<FrontCounters>,
    feeds: Arc<Feeds>,
    /// The tasks that fill the streams of the clients.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Front {
    /// Creates a front of the cluster, or of the node, to which `client` is connected.
    pub fn new(client: Client, options: FrontOptions) -> Arc<Self> {
        Arc::new(Self {
            client,
            names: options.names,
            keys: options.keys,
            connections: options.connections,
            start: options.start,
            metrics: options.metrics,
            counters: Arc::default(),
            feeds: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Serves requests until `stop` is cancelled. Then it ends the streams, and waits for a limited
    /// time until the running requests are answered.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let routes = self.routes();
        let ending = stop.clone();
        let streams = self.stop.clone();
        self.tasks.spawn(async move {
            ending.cancelled().await;
            streams.cancel();
        });
        let limits = ConnectionLimits {
            all: self.connections,
            keyless: match self.keys {
                Keys::Off => self.connections,
                Keys::Own(_) | Keys::Listed(_) => self.connections.div_ceil(KEYLESS_SHARE),
            },
        };
        server::serve(listener, routes, limits, stop).await;
        self.end_streams().await;
    }

    /// Ends the streams and feeds, and waits for their tasks.
    pub(crate) async fn end_streams(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Returns all routes, behind the checks that every request passes.
    pub fn routes(self: &Arc<Self>) -> Router {
        let add = |router: Router<_>, route: Route| router.route(route.path, route.handler());
        table()
            .into_iter()
            .fold(Router::new(), add)
            .merge(openapi::routes())
            .route("/openai/{*rest}", any(openai::no_route))
            .merge(console::routes())
            .merge(health::routes())
            .fallback(no_route)
            .method_not_allowed_fallback(no_method)
            .layer(middleware::from_fn_with_state(Arc::clone(self), guard))
            .with_state(Arc::clone(self))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns an error if the front knows that it cannot reach a node now. A request would only wait
    /// until its client gives up.
    pub(crate) fn check_link(&self) -> Result<(), Problem> {
        if self.client.is_connected() {
            return Ok(());
        }
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the connection to NATS is down; the front connects again as soon as NATS answers",
        ))
    }

    pub(crate) fn names(&self) -> &AllowedNames {
        &self.names
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn start_defaults(&self) -> &StartDefaults {
        &self.start
    }

    /// Starts the session that a request names with a key of the client's, or finds it if the same
    /// request was sent before. Refuses another request with the same key.
    pub(crate) async fn start_once(
        &self,
        mut start: Start,
        by: Option<String>,
    ) -> Result<Started, Problem> {
        // The author is no part of the digest, because another caller may repeat the request.
        let digest = KeyHash::of(&json(&start)).to_string();
        start.metadata.insert(DIGEST.into(), digest.as_str().into());
        start.by = by;
        let started = self.client.start(start).await?;
        let known = self.client.session(&started.session_id).await?;
        if known.metadata.get(DIGEST).and_then(Value::as_str) != Some(&digest) {
            return Err(Problem::conflict(format!(
                "the session `{}` was started by another request; use a new key",
                started.session_id
            )));
        }
        Ok(started)
    }

    /// Returns what the front counts, in Prometheus' text format.
    pub fn counted(&self) -> String {
        self.counters.text()
    }

    /// Returns the metrics of the process.
    pub(crate) fn metrics(&self) -> String {
        match &self.metrics {
            Some(MetricsText(text)) => text(),
            None => self.counted(),
        }
    }

    pub(crate) fn counters(&self) -> &Arc<FrontCounters> {
        &self.counters
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Returns the feed of a session, which all streams of the session share.
    pub(crate) fn feed(&self, session: &SessionId) -> Arc<Feed> {
        self.feeds
            .of(&self.client, session, &self.tasks, &self.stop)
    }

    /// Returns the session with this id if its streams are served already.
    pub(crate) fn fed_session(&self, session: &str) -> Option<SessionId> {
        self.feeds.known(session)
    }

    /// Returns the token that ends all streams.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Returns whether everybody may read a path: the files of the console, which ask for the key
    /// themselves, and what tells nothing about sessions.
    pub(crate) fn is_public(&self, path: &str) -> bool {
        console::has(path) || health::is_public(path) || path == openapi::PATH
    }
}

/// Returns the table of the routes that the description has.
pub fn table() -> Vec<Route> {
    [
        v1::routes(),
        ui::routes(),
        ag_ui::routes(),
        openai::routes(),
        mcp::routes(),
    ]
    .concat()
}

async fn no_route(uri: Uri) -> Response {
    let path: String = uri.path().chars().take(80).collect();
    openai::misplaced(&path).unwrap_or_else(|| {
        let what = format!(
            "there is no `{path}` here; `{}` lists the routes",
            openapi::PATH
        );
        Problem::not_found(what).into_response()
    })
}

async fn no_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!(
            "this route has other methods; `{}` lists them",
            openapi::PATH
        ),
    )
}
