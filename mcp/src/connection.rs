//! A server in use: the session with it, and its process if it has one.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use planck_toolbox::Launcher;
use rmcp::service::{Peer, RoleClient};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    http::ServerUrl,
    pending::{HeldCalls, OpenCalls},
    process::{ServerCommand, ServerProcess, ServerStreams},
    server::Report,
    server_requests::ProgressRoutes,
    session::{OpenError, Session, SessionEnd},
};

/// How long a server may take to exit after its input was closed. The reaper kills it after two
/// seconds.
const LEAVING: Duration = Duration::from_secs(3);

/// How to reach a server.
#[derive(Debug, Clone)]
pub enum ServerTransport {
    /// A process that speaks on its standard input and output.
    Stdio(ServerCommand),
    /// An address that serves streamable HTTP.
    Http(ServerUrl),
}

/// Names the server for people: by its program, or by its address without what may be a key.
impl fmt::Display for ServerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio(command) => write!(f, "{}", command.program.display()),
            Self::Http(server) => write!(f, "{server}"),
        }
    }
}

/// The part of a running server that calls need.
#[derive(Debug)]
pub struct LiveServer {
    pub peer: Peer<RoleClient>,
    pub progress: ProgressRoutes,
    /// Notified when the supervisor must look at the server again: the server says that its tools
    /// have changed, or a request got no answer.
    pub look_again: Arc<Notify>,
    /// The calls that wait for their answers.
    pub calls: OpenCalls,
    /// The calls whose questions a person has.
    pub held: HeldCalls,
    /// Cancelled when the server is gone. The reason is set before.
    gone: CancellationToken,
    why: OnceLock<String>,
}

impl LiveServer {
    pub fn new(session: &Session) -> Self {
        Self {
            peer: session.peer.clone(),
            progress: session.progress.clone(),
            look_again: session.tools_changed.clone(),
            calls: session.calls.clone(),
            held: HeldCalls::default(),
            gone: CancellationToken::new(),
            why: OnceLock::new(),
        }
    }

    /// Returns whether a call waits for its answer. A server with one thread answers nothing else
    /// meanwhile.
    pub fn is_busy(&self) -> bool {
        self.calls.are_any()
    }

    /// Waits until the server is gone, and returns why.
    pub async fn gone(&self) -> &str {
        self.gone.cancelled().await;
        self.why.get().map_or("", String::as_str)
    }

    /// Records that the server is gone, which ends all calls.
    pub fn end(&self, why: &str) {
        let _first_reason_counts = self.why.set(why.to_owned());
        self.gone.cancel();
    }
}

/// A server that answers.
pub struct Connection {
    pub live: Arc<LiveServer>,
    session: Session,
    /// Absent for a server at an address.
    process: Option<ServerProcess>,
}

impl Connection {
    /// Opens a session with a server, and starts it if it is a process.
    ///
    /// # Errors
    /// Returns an error if the server ends, does not answer in time, or is no MCP server. None of its
    /// processes is left.
    pub async fn open(
        launcher: &Launcher,
        transport: &ServerTransport,
        within: Duration,
        report: &Report,
    ) -> Result<Self, String> {
        match transport {
            ServerTransport::Stdio(command) => {
                let (mut process, streams) =
                    ServerProcess::start(launcher, command, report).await?;
                match Self::over_streams(&mut process, streams, within).await {
                    Ok(session) => Ok(Self::new(session, Some(process))),
                    Err(why) => {
                        process.kill().await;
                        Err(why)
                    }
                }
            }
            ServerTransport::Http(server) => {
                let opened = timeout(within, Session::over_http(server)).await;
                let opened = opened.map_err(|_| no_answer(within))?;
                opened
                    .map(|session| Self::new(session, None))
                    .map_err(|why| why.to_string())
            }
        }
    }

    fn new(session: Session, process: Option<ServerProcess>) -> Self {
        Self {
            live: Arc::new(LiveServer::new(&session)),
            session,
            process,
        }
    }

    async fn over_streams(
        process: &mut ServerProcess,
        (output, input): ServerStreams,
        within: Duration,
    ) -> Result<Session, String> {
        let opened = tokio::select! {
            why = process.ended() => return Err(why),
            opened = Session::over_streams(output, input) => opened,
            () = sleep(within) => return Err(no_answer(within)),
        };
        match opened {
            Ok(session) => Ok(session),
            Err(OpenError::Ended(end @ SessionEnd::Closed)) => {
                Err(process.end_or(end.to_string()).await)
            }
            Err(why) => Err(why.to_string()),
        }
    }

    /// Returns whether the server is at an address. Then only an unanswered request tells that it is
    /// gone.
    pub fn is_remote(&self) -> bool {
        self.process.is_none()
    }

    /// Waits until the server is gone. Ends all calls, and returns why.
    pub async fn ended(&mut self) -> String {
        let why = match &mut self.process {
            Some(process) => tokio::select! {
                why = process.ended() => why,
                end = self.session.ended() => match end {
                    SessionEnd::Closed => process.end_or(end.to_string()).await,
                    SessionEnd::LongLine => end.to_string(),
                },
            },
            None => self.session.ended().await.to_string(),
        };
        self.live.end(&why);
        why
    }

    /// Ends the connection to a server that is gone, and kills what is left of its processes.
    pub async fn kill(self, why: &str) {
        self.live.end(why);
        if let Some(process) = self.process {
            process.kill().await;
        }
    }

    /// Asks the server to end, and kills it if it does not.
    pub async fn close(mut self, why: &str) {
        self.live.end(why);
        self.session.close().await;
        if let Some(mut process) = self.process.take() {
            let _killed_if_not_in_time = timeout(LEAVING, process.ended()).await;
            process.kill().await;
        }
    }
}

fn no_answer(within: Duration) -> String {
    format!("it does not answer within {within:?}")
}
