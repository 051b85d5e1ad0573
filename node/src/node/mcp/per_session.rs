//! The processes of an MCP server that has one for each session. A process starts at the first call of
//! its session, in the session's folder, and ends when the session rests.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::FutureExt as _;
use planck_common::SessionId;
use planck_mcp::{McpServer, ServerOptions, ServerTransport};
use planck_sidecar::Tool;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{ConfiguredServer, report};
use crate::{services::Services, sidecar::FindTool};

/// The maximum number of such processes in a node.
pub const MOST: usize = 64;

/// How often it is looked whether a session rests.
const LOOKING: Duration = Duration::from_secs(1);

/// How the processes of a server depend on sessions.
#[derive(Clone)]
pub struct PerSession {
    /// The folder of a process, relative to that of its session.
    pub dir: PathBuf,
    /// How long a process stays while its session rests.
    pub stay: Duration,
    /// The places for processes in this node. Each process holds one.
    pub places: Arc<Semaphore>,
}

/// The processes of one server. Clones share them.
#[derive(Clone)]
pub struct SessionServers(Arc<SessionServersInner>);

struct SessionServersInner {
    configured: ConfiguredServer,
    per_session: PerSession,
    /// Not an `Arc`, because the services have the tools, which have this.
    services: Weak<Services>,
    /// The runtime of the node. A call runs on that of its agent.
    runtime: Handle,
    running: Mutex<HashMap<SessionId, McpServer>>,
    /// The server that has started last, whose tools are the latest.
    latest: watch::Sender<Option<McpServer>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl SessionServers {
    pub fn new(
        configured: ConfiguredServer,
        per_session: PerSession,
        services: Weak<Services>,
        stop: CancellationToken,
    ) -> Self {
        Self(Arc::new(SessionServersInner {
            configured,
            per_session,
            services,
            runtime: Handle::current(),
            running: Mutex::default(),
            latest: watch::Sender::new(None),
            tasks: TaskTracker::new(),
            stop,
        }))
    }

    /// Returns whether a process of any session runs.
    pub fn are_running(&self) -> bool {
        !self.running().is_empty()
    }

    /// Calls `show` with the server that has the latest tools, at first with `known`, and again whenever
    /// the tools or the processes have changed. Returns when `stop` was cancelled and all processes
    /// have ended.
    pub async fn show(&self, known: &McpServer, show: impl Fn(&McpServer)) {
        let (mut latest, stop) = (self.0.latest.subscribe(), &self.0.stop);
        loop {
            let server = latest.borrow_and_update().clone();
            show(server.as_ref().unwrap_or(known));
            if stop.run_until_cancelled(latest.changed()).await.is_none() {
                break;
            }
        }
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    pub fn finder(&self) -> FindTool {
        let servers = self.clone();
        Arc::new(move |name, call| {
            let (servers, session, dir) =
                (servers.clone(), call.session_id.clone(), call.dir.clone());
            async move { servers.find(&name, &session, &dir).await }.boxed()
        })
    }

    /// Returns the tool of the server of a session, once the server has started.
    ///
    /// # Errors
    /// Returns an error for the model if the server cannot be used or does not offer the tool.
    async fn find(&self, name: &str, session: &SessionId, dir: &Path) -> Result<Tool, String> {
        let mut server = self.server(session, dir)?;
        while !server.is_up() && server.away().is_none() && server.changed().await {}
        let why = server.away();
        let offer = server.offer().ok_or_else(|| {
            let why = why.unwrap_or_else(|| "it is being stopped".into());
            format!("the MCP server cannot be used: {why}; nothing was done")
        })?;
        let mut tools = server.tools(&offer).into_iter().zip(&offer.tools);
        let found = tools.find(|(_, offered)| offered.name == name);
        found.map(|(tool, _)| tool).ok_or_else(|| {
            format!("the MCP server of this session does not offer `{name}` as it was allowed; nothing was done")
        })
    }

    /// Returns the server of a session, and starts it if it does not run.
    fn server(&self, session: &SessionId, dir: &Path) -> Result<McpServer, String> {
        let SessionServersInner {
            configured,
            per_session,
            runtime,
            tasks,
            stop,
            ..
        } = &*self.0;
        let mut running = self.running();
        if let Some(server) = running.get(session) {
            return Ok(server.clone());
        }
        let name = &configured.name;
        let places = per_session.places.clone();
        let place = places.try_acquire_owned().map_err(|_| {
            format!("nothing was done: this node runs {MOST} processes of MCP servers for sessions, which is the most; try again when others rest, or set `mcp.{name}.per` to `node`")
        })?;
        if stop.is_cancelled() {
            return Err("nothing was done: the node is being stopped".into());
        }
        let mut options: ServerOptions = configured.options.clone();
        if let ServerTransport::Stdio(command) = &mut options.transport {
            command.dir = super::absolute(&dir.join(&per_session.dir));
        }
        let (launcher, stop) = (configured.launcher.clone(), stop.child_token());
        let _on_the_node = runtime.enter();
        let (server, supervising) = McpServer::start(options, launcher, report(name), stop.clone());
        running.insert(session.clone(), server.clone());
        let (servers, session, attended) = (self.clone(), session.clone(), server.clone());
        tasks.spawn(async move {
            servers.attend(session, attended, &stop).await;
            stop.cancel();
            if let Err(panic) = supervising.await {
                tracing::error!(%panic, "an MCP server is not kept in use any more");
            }
            drop::<OwnedSemaphorePermit>(place);
        });
        Ok(server)
    }

    /// Returns when the server of a session is to end.
    async fn attend(&self, session: SessionId, mut server: McpServer, stop: &CancellationToken) {
        let (mut look, mut rests_since) = (interval(LOOKING), None);
        loop {
            tokio::select! {
                () = stop.cancelled() => break drop(self.running().remove(&session)),
                is_kept = server.changed() => match is_kept {
                    true if server.is_up() => drop(self.0.latest.send_replace(Some(server.clone()))),
                    true => {}
                    false => break drop(self.running().remove(&session)),
                },
                _ = look.tick() => if self.end_at_rest(&session, &mut rests_since) { break },
            }
        }
        self.0.latest.send_modify(|_| ());
    }

    /// Takes the server of a session out if the session rests for long enough, or has no agent here.
    fn end_at_rest(&self, session: &SessionId, rests_since: &mut Option<Instant>) -> bool {
        // A call finds its server under this lock, and while it runs, its agent does not rest.
        let mut running = self.running();
        let Some(services) = self.0.services.upgrade() else {
            return true;
        };
        let host = &services.handles.host;
        let agents = host.agents(Some(session));
        // An agent whose call asks a person is parked, and the call is lost with its server.
        let asks = || running.get(session).is_some_and(McpServer::is_busy);
        if !agents.iter().all(|agent| host.is_parked(agent)) || !agents.is_empty() && asks() {
            *rests_since = None;
            return false;
        }
        let since = *rests_since.get_or_insert_with(Instant::now);
        let is_over = agents.is_empty() || since.elapsed() >= self.0.per_session.stay;
        if is_over {
            running.remove(session);
        }
        is_over
    }

    fn running(&self) -> MutexGuard<'_, HashMap<SessionId, McpServer>> {
        let running = &self.0.running;
        running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
