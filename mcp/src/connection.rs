//! A running server: its process, the session with it, and what it writes to its standard error.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, OnceLock},
    time::Duration,
};

use planck_toolbox::{
    Launcher, describe_end,
    process::{Launch, PipedCommand, PipedProcess},
};
use rmcp::service::{Peer, RoleClient};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::Report,
    server_requests::ProgressRoutes,
    session::{OpenError, Session, SessionEnd},
};

/// How long a process may take to exit after it has closed its output.
const EXITING: Duration = Duration::from_millis(500);

/// How long a server may take to exit after its input was closed. The reaper kills it after two
/// seconds.
const LEAVING: Duration = Duration::from_secs(3);

/// The command that starts a server.
#[derive(Debug, Clone)]
pub struct ServerCommand {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub dir: PathBuf,
    /// All environment variables of the server.
    pub env: Vec<(OsString, OsString)>,
}

/// The part of a running server that calls need.
#[derive(Debug)]
pub struct LiveServer {
    pub peer: Peer<RoleClient>,
    pub progress: ProgressRoutes,
    /// Cancelled when the server is gone. The reason is set before.
    gone: CancellationToken,
    why: OnceLock<String>,
}

impl LiveServer {
    pub fn new(peer: Peer<RoleClient>, progress: ProgressRoutes) -> Self {
        Self {
            peer,
            progress,
            gone: CancellationToken::new(),
            why: OnceLock::new(),
        }
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

/// A server that runs and answers.
pub struct Connection {
    pub live: Arc<LiveServer>,
    session: Session,
    process: PipedProcess,
}

impl Connection {
    /// Starts a server and opens a session with it. Reports each line that the server writes to its
    /// standard error.
    ///
    /// # Errors
    /// Returns an error if the server ends, does not answer in time, or is no MCP server. None of its
    /// processes is left.
    pub async fn open(
        launcher: &Launcher,
        command: &ServerCommand,
        within: Duration,
        report: &Report,
    ) -> Result<Self, String> {
        let PipedCommand {
            stdin,
            stdout,
            stderr,
            mut process,
        } = launcher
            .start_piped(&command.launch())
            .map_err(|why| format!("it cannot be started: {why}"))?;
        tokio::spawn(report_lines(stderr, report.clone()));
        let opened = tokio::select! {
            (status, _) = process.ended() => Err(ended(status)),
            opened = Session::open(stdout, stdin) => match opened {
                Ok(session) => Ok(session),
                Err(OpenError::Ended(SessionEnd::Closed)) => {
                    Err(reason(&mut process, SessionEnd::Closed.to_string()).await)
                }
                Err(why) => Err(why.to_string()),
            },
            () = sleep(within) => Err(format!("it does not answer within {within:?}")),
        };
        match opened {
            Ok(session) => {
                let live = LiveServer::new(session.peer.clone(), session.progress.clone());
                Ok(Self {
                    live: Arc::new(live),
                    session,
                    process,
                })
            }
            Err(why) => {
                process.end().await;
                Err(why)
            }
        }
    }

    /// Returns what is notified when the server says that its tools have changed.
    pub fn tools_changed(&self) -> Arc<Notify> {
        self.session.tools_changed.clone()
    }

    /// Waits until the server is gone. Ends all calls, and returns why.
    pub async fn ended(&mut self) -> String {
        let why = tokio::select! {
            (status, _) = self.process.ended() => ended(status),
            end = self.session.ended() => match end {
                SessionEnd::Closed => reason(&mut self.process, end.to_string()).await,
                SessionEnd::LongLine => end.to_string(),
            },
        };
        self.live.end(&why);
        why
    }

    /// Kills what is left of a server.
    pub async fn kill(self) {
        self.process.end().await;
    }

    /// Asks the server to end, and kills it if it does not.
    pub async fn close(mut self, why: &str) {
        self.live.end(why);
        self.session.close().await;
        let _killed_if_not_in_time = timeout(LEAVING, self.process.ended()).await;
        self.process.end().await;
    }
}

impl ServerCommand {
    fn launch(&self) -> Launch {
        Launch {
            program: self.program.clone(),
            args: self.args.clone(),
            dir: self.dir.clone(),
            env: self.env.clone(),
            sandbox: None,
            input: Vec::new(),
            keep: 0,
        }
    }
}

fn ended(status: ExitStatus) -> String {
    format!("it ended: {}", describe_end(status))
}

/// Returns how the process ended, or `why` if it does not end soon.
async fn reason(process: &mut PipedProcess, why: String) -> String {
    match timeout(EXITING, process.ended()).await {
        Ok((status, _)) => ended(status),
        Err(_) => why,
    }
}

/// The maximum size of a line of a server's standard error in bytes.
const LONGEST: usize = 1000;

/// Reports the lines of a stream until its end. Breaks lines that are too long.
async fn report_lines(mut stream: impl AsyncRead + Unpin, report: Report) {
    let (mut chunk, mut line) = ([0; 4096], Vec::new());
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        for byte in chunk.iter().take(length) {
            if *byte != b'\n' {
                line.push(*byte);
            }
            if *byte == b'\n' || line.len() >= LONGEST {
                report_line(&line, &report);
                line.clear();
            }
        }
    }
    report_line(&line, &report);
}

fn report_line(line: &[u8], report: &Report) {
    let line = String::from_utf8_lossy(line);
    if !line.trim().is_empty() {
        report(&format!("| {}", line.trim_end()));
    }
}
