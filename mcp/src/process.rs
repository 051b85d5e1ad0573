//! The process of a server, and what it writes to its standard error.

use std::{collections::VecDeque, ffi::OsString, fmt, path::PathBuf, time::Duration};

use planck_toolbox::{
    Launcher, describe_end,
    process::{Launch, PipedCommand, PipedProcess},
    sandbox::{Sandbox, Sandboxed},
    workspace::Roots,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::unix::pipe,
    process::ChildStdout,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, timeout},
};

use crate::server::Report;

/// How long a process may take to exit after it has closed its output, and its standard error after
/// it has exited.
const EXITING: Duration = Duration::from_millis(500);

/// The command that starts a server.
#[derive(Debug, Clone)]
pub struct ServerCommand {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub dir: PathBuf,
    /// All environment variables of the server.
    pub env: Vec<(OsString, OsString)>,
    /// Confines the server to `dir`.
    pub sandbox: Sandbox,
}

/// The output and the input of a server.
pub type ServerStreams = (ChildStdout, pipe::Sender);

/// The running process of a server.
pub struct ServerProcess {
    process: PipedProcess,
    /// Returns the last lines of the standard error.
    stderr: JoinHandle<VecDeque<String>>,
    is_confined: bool,
    /// What the sandbox needs as long as the process runs.
    _sandboxed: Sandboxed,
}

impl ServerProcess {
    /// Starts a server. Reports each line that it writes to its standard error.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub async fn start(
        launcher: &Launcher,
        command: &ServerCommand,
        report: &Report,
    ) -> Result<(Self, ServerStreams), String> {
        let sandboxed = command.sandboxed().await?;
        let PipedCommand {
            stdin,
            stdout,
            stderr,
            process,
        } = launcher
            .start_piped(&sandboxed.launch)
            .map_err(|why| format!("it cannot be started: {why}"))?;
        let process = Self {
            process,
            stderr: tokio::spawn(report_lines(stderr, report.clone())),
            is_confined: !command.sandbox.is_open(),
            _sandboxed: sandboxed,
        };
        Ok((process, (stdout, stdin)))
    }

    /// Waits until the server and everything that it started have ended. Returns how it ended.
    pub async fn ended(&mut self) -> String {
        let (status, _) = self.process.ended().await;
        let ended = format!("it ended: {}", describe_end(status));
        if status.success() {
            return ended;
        }
        let last = match timeout(EXITING, &mut self.stderr).await {
            Ok(Ok(lines)) => lines,
            Ok(Err(_)) | Err(_) => return ended,
        };
        match complaint(&last) {
            Some(line) if self.is_confined && is_denial(line) => format!(
                "{ended}: {line} (it runs in the sandbox; `sandbox` of its entry and `tools.readable` open it)"
            ),
            Some(line) => format!("{ended}: {line}"),
            None => ended,
        }
    }

    /// Returns how the process ended, or `why` if it does not end soon.
    pub async fn end_or(&mut self, why: String) -> String {
        timeout(EXITING, self.ended()).await.unwrap_or(why)
    }

    /// Kills what is left of the server.
    pub async fn kill(self) {
        self.process.end().await;
    }
}

impl ServerCommand {
    async fn sandboxed(&self) -> Result<Sandboxed, String> {
        let command = self.clone();
        let wrapped = spawn_blocking(move || {
            let cannot = |why: &dyn fmt::Display| format!("it cannot be started: {why}");
            let dir = command.dir.display();
            let workspace = Roots::confined(Vec::new(), Vec::new())
                .of(&command.dir)
                .map_err(|why| cannot(&format!("{dir}: {why}")))?;
            let launch = command.launch();
            let sandboxed = command.sandbox.wrap(launch, &workspace, &[]);
            sandboxed.map_err(|why| cannot(&why))
        });
        wrapped
            .await
            .map_err(|panic| format!("it cannot be started: {panic}"))?
    }

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

/// The maximum size of a line of a server's standard error in bytes.
const LONGEST: usize = 1000;

/// The number of lines that are kept to tell why a server ended, and of characters that are told.
const KEPT: usize = 40;
const TOLD: usize = 300;

/// The number of lines that are reported within each [`SPAN`]. Further ones are counted.
const REPORTED: u32 = 200;
const SPAN: Duration = Duration::from_secs(10);

/// Reports the lines of a server within bounds, because a log has no bound.
struct LineReport {
    report: Report,
    began: Instant,
    lines: u32,
}

impl LineReport {
    fn new(report: Report) -> Self {
        Self {
            report,
            began: Instant::now(),
            lines: 0,
        }
    }

    fn tell(&mut self, line: &str) {
        if self.began.elapsed() > SPAN {
            let left_out = self.lines.saturating_sub(REPORTED);
            if left_out > 0 {
                (self.report)(&format!(
                    "{left_out} lines of its standard error were left out"
                ));
            }
            (self.began, self.lines) = (Instant::now(), 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines <= REPORTED {
            (self.report)(&format!("| {line}"));
        }
    }
}

/// Reports the lines of a stream until its end. Breaks lines that are too long. Returns the last ones.
async fn report_lines(mut stream: impl AsyncRead + Unpin, report: Report) -> VecDeque<String> {
    let mut report = LineReport::new(report);
    let (mut chunk, mut line, mut last) = ([0; 4096], Vec::new(), VecDeque::new());
    let mut end_line = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if !text.trim().is_empty() {
            report.tell(&text);
            if last.len() >= KEPT {
                last.pop_front();
            }
            last.push_back(text);
        }
    };
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        for byte in chunk.iter().take(length) {
            if *byte != b'\n' {
                line.push(*byte);
            }
            if *byte == b'\n' || line.len() >= LONGEST {
                end_line(&mut line);
            }
        }
    }
    end_line(&mut line);
    last
}

/// Returns the line that most likely says why a server ended: the last one that names an error, or the
/// last one.
fn complaint(lines: &VecDeque<String>) -> Option<&str> {
    let names_error = |line: &&String| line.contains("rror");
    let line = lines.iter().rev().find(names_error).or(lines.back())?;
    let end = line
        .char_indices()
        .nth(TOLD)
        .map_or(line.len(), |(at, _)| at);
    line.get(..end).map(str::trim)
}

/// Returns whether a line says that the kernel denied something.
fn is_denial(line: &str) -> bool {
    let marks = [
        "EACCES",
        "EPERM",
        "EAI_AGAIN",
        "ENOTFOUND",
        "EROFS",
        "ermission denied",
        "not permitted",
        "Read-only file system",
        "name resolution",
    ];
    marks.iter().any(|mark| line.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_with_the_error_is_told() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        let node =
            "node:fs:448\nError: EACCES: permission denied, open '/a'\n    at x\nNode.js v20";
        assert_eq!(
            complaint(&lines(node)),
            Some("Error: EACCES: permission denied, open '/a'")
        );
        assert_eq!(complaint(&lines("one\ntwo")), Some("two"));
        assert_eq!(complaint(&VecDeque::new()), None);
        assert!(
            is_denial("Error: EACCES: permission denied, open '/a'") && !is_denial("no such tool")
        );
    }
}
