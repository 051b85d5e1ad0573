//! An MCP session with a server, over a pair of streams or HTTP.

use std::{error::Error, sync::Arc, time::Duration};

use rmcp::{
    model::{PaginatedRequestParams, ProtocolVersion, Tool},
    service::{
        ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, Peer,
        RoleClient, RunningServiceCancellationToken,
    },
    transport::IntoTransport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    http::{HttpFailure, ServerUrl},
    lines::{BoundedLines, LONGEST_LINE},
    pending::OpenCalls,
    server_requests::{ProgressRoutes, ServerRequests},
    stdio::StdioTransport,
};

/// The maximum number of tools that are read, and of pages in which a server lists them.
const MOST_TOOLS: usize = 1024;
const MOST_PAGES: usize = 100;

/// How long the end of a session may take.
const CLOSING: Duration = Duration::from_secs(3);

/// An open session.
pub struct Session {
    pub peer: Peer<RoleClient>,
    pub progress: ProgressRoutes,
    pub calls: OpenCalls,
    pub tools_changed: Arc<Notify>,
    close: RunningServiceCancellationToken,
    ended: JoinHandle<()>,
    long_line: oneshot::Receiver<()>,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The server closed its output.
    Closed,
    /// The server wrote a line that was too long.
    LongLine,
}

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Ended(SessionEnd),
    #[error("it does not answer as an MCP server does: {0}")]
    NotMcp(String),
    #[error("{0}")]
    Http(String),
}

impl Session {
    /// Opens a session over the streams of a process.
    ///
    /// # Errors
    /// Returns an error if the server closes its output, or if its answers are not those of an MCP
    /// server.
    pub async fn over_streams<R, W>(output: R, input: W) -> Result<Self, OpenError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let (on_long, long_line) = oneshot::channel();
        let output = BoundedLines::new(output, LONGEST_LINE, on_long);
        Self::open(StdioTransport::new(output, input), newest(), long_line).await
    }

    /// Opens a session with a server at an address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be reached, refuses the request, or is not that of an
    /// MCP server.
    pub async fn over_http(server: &ServerUrl) -> Result<Self, OpenError> {
        // An older server may answer `server/discover` with a result that is none. Over HTTP a second
        // attempt costs one request.
        match Self::over_http_as(server, newest()).await {
            Err(OpenError::NotMcp(_)) => {
                Self::over_http_as(server, ClientLifecycleMode::Initialize).await
            }
            opened => opened,
        }
    }

    async fn over_http_as(
        server: &ServerUrl,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Self, OpenError> {
        // Over HTTP the client bounds each message itself.
        let (_, no_lines) = oneshot::channel();
        let transport = server.transport().map_err(OpenError::Http)?;
        Self::open(transport, lifecycle, no_lines).await
    }

    async fn open<T, E, A>(
        transport: T,
        lifecycle: ClientLifecycleMode,
        mut long_line: oneshot::Receiver<()>,
    ) -> Result<Self, OpenError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: Error + Send + Sync + 'static,
    {
        let requests = ServerRequests::default();
        let (progress, calls) = (requests.progress.clone(), requests.calls.clone());
        let tools_changed = requests.tools_changed.clone();
        let opened = requests.serve_with_lifecycle(transport, lifecycle).await;
        let service = opened.map_err(|error| {
            if long_line.try_recv().is_ok() {
                OpenError::Ended(SessionEnd::LongLine)
            } else if matches!(error, ClientInitializeError::ConnectionClosed(_)) {
                OpenError::Ended(SessionEnd::Closed)
            } else if let Some(failure) = HttpFailure::find(opening_error(&error)) {
                OpenError::Http(failure.why)
            } else {
                OpenError::NotMcp(error.to_string())
            }
        })?;
        let peer = service.peer().clone();
        // Every list is wanted because it may have changed.
        peer.set_response_cache_config(ClientCacheConfig::disabled())
            .await;
        Ok(Self {
            peer,
            progress,
            calls,
            tools_changed,
            close: service.cancellation_token(),
            ended: tokio::spawn(async move { drop(service.waiting().await) }),
            long_line,
        })
    }

    /// Waits for the end of the session.
    pub async fn ended(&mut self) -> SessionEnd {
        let _ = (&mut self.ended).await;
        match self.long_line.try_recv() {
            Ok(()) => SessionEnd::LongLine,
            Err(_) => SessionEnd::Closed,
        }
    }

    /// Closes the streams, which asks the server to end.
    pub async fn close(self) {
        self.close.cancel();
        let _not_in_time = timeout(CLOSING, self.ended).await;
    }
}

/// Returns the way to open a session with the newest version of the protocol that both sides know.
fn newest() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::V_2025_11_25),
    }
}

/// Returns the error that says why a session could not be opened. If the server knows no
/// `server/discover`, this is the one of `initialize`.
fn opening_error(error: &ClientInitializeError) -> &(dyn Error + 'static) {
    if let ClientInitializeError::LegacyFallbackFailed { fallback, .. } = error {
        opening_error(fallback)
    } else if let ClientInitializeError::TransportError { error, .. } = error {
        &*error.error
    } else {
        error
    }
}

/// Returns the version of the server, as the server says it.
pub fn version(server: &Peer<RoleClient>) -> String {
    let info = server.peer_info().and_then(|info| info.server_info.clone());
    info.map_or_else(String::new, |server| server.version)
}

/// Returns the tools of the server, and a warning if it has more than are read. `within` is the time for
/// each page.
pub async fn tools(
    server: &Peer<RoleClient>,
    within: Duration,
) -> Result<(Vec<Tool>, Option<String>), String> {
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..MOST_PAGES {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let page = timeout(within, server.list_tools(Some(page)))
            .await
            .map_err(|_| format!("it does not list its tools within {within:?}"))?
            .map_err(|error| format!("it does not list its tools: {error}"))?;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() > MOST_TOOLS {
            break;
        }
    }
    let has_more = cursor.is_some() || tools.len() > MOST_TOOLS;
    tools.truncate(MOST_TOOLS);
    let warning = format!(
        "it lists more than {MOST_TOOLS} tools or {MOST_PAGES} pages; the others are left out"
    );
    Ok((tools, has_more.then_some(warning)))
}

impl std::fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => write!(f, "it closed its output"),
            Self::LongLine => write!(f, "it wrote a line of more than {LONGEST_LINE} bytes"),
        }
    }
}
