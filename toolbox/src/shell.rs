//! The code that all tools with processes share: the environment, the sandbox, and the conversion
//! of a process's end into text.

use std::{
    ffi::OsString, os::unix::process::ExitStatusExt, path::PathBuf, process::ExitStatus, sync::Arc,
    time::Duration,
};

use nix::{sys::signal::Signal, unistd::Pid};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use planck_common::wait::ProtectedChange;

use crate::{
    Invocation, ToolOutcome, blocking,
    output::{Caps, Captured, cut},
    process::{CommandEnd, Finished, Launch, Launcher},
    protect::{Wall, WatchedCall},
    sandbox::Sandbox,
    workspace::Workspace,
};

/// The number by which the limits are divided to get the part of the output that is reserved for
/// stderr. The part is reserved if stdout and stderr are too long together, because stderr contains
/// the errors.
const FOR_STDERR: usize = 5;

/// The shared state of a node's process tools. Clones share it.
#[derive(Debug, Clone)]
pub struct Shell(Arc<ShellInner>);

#[derive(Debug)]
struct ShellInner {
    launcher: Launcher,
    sandbox: Sandbox,
    /// Absent if the files of the workspace are not protected.
    wall: Option<Wall>,
    env: Vec<(OsString, OsString)>,
    caps: Caps,
}

impl Shell {
    /// Creates the shell. `pass_on` names environment variables of the node that processes get in
    /// addition to the usual ones.
    pub fn new(
        launcher: Launcher,
        sandbox: Sandbox,
        wall: Option<Wall>,
        pass_on: &[String],
        caps: Caps,
    ) -> Self {
        let env = minimal_environment(pass_on);
        Self(Arc::new(ShellInner {
            launcher,
            sandbox,
            wall,
            env,
            caps,
        }))
    }

    /// Returns this shell without its sandbox. Its processes still run under the reaper and its
    /// limits, and the protected files are still compared.
    pub fn unconfined(&self) -> Self {
        let ShellInner {
            launcher,
            sandbox: _,
            wall,
            env,
            caps,
        } = &*self.0;
        Self(Arc::new(ShellInner {
            launcher: launcher.clone(),
            sandbox: Sandbox::off(),
            wall: wall.clone(),
            env: env.clone(),
            caps: *caps,
        }))
    }

    /// Returns the limits for the part of the output that is returned to the model.
    pub(super) fn caps(&self) -> Caps {
        self.0.caps
    }

    pub(super) fn env(&self) -> Vec<(OsString, OsString)> {
        self.0.env.clone()
    }

    /// Runs a command in the sandbox. Then compares the protected files with what they were before.
    /// The command may read `readable` in addition to the workspace.
    pub(super) async fn run(
        &self,
        launch: Launch,
        workspace: &Workspace,
        readable: &[PathBuf],
        limit: Duration,
        call: &Invocation,
    ) -> ToolOutcome {
        // The files are compared even if the caller no longer waits. The command then ends at once.
        let cancel = call.cancel.child_token();
        let _cancelled = cancel.clone().drop_guard();
        let (shell, call) = (self.clone(), call.clone());
        let (workspace, readable) = (workspace.clone(), readable.to_vec());
        let run = async move {
            let roots = workspace.roots().to_vec();
            let wrapping = shell.clone();
            let wrap = move || wrapping.0.sandbox.wrap(launch, &workspace, &readable);
            // Neither step needs the other, and each takes as long as a start of a small process.
            let (watched, sandboxed) = tokio::join!(shell.begin(&call, roots), blocking(wrap));
            let watched = match watched {
                Ok(watched) => watched,
                Err(why) => return ToolOutcome::error(format!("not run: {why}")),
            };
            let (outcome, sandboxed) = match sandboxed {
                Ok(Ok(sandboxed)) => {
                    let outcome = shell.run_confined(&sandboxed.launch, limit, &cancel).await;
                    (outcome, Some(sandboxed))
                }
                Ok(Err(refused)) => (ToolOutcome::error(refused.to_string()), None),
                Err(failed) => (ToolOutcome::error(failed), None),
            };
            let (changes, removed) =
                tokio::join!(shell.end(watched), blocking(move || drop(sandboxed)));
            match (changes, removed) {
                (Ok(changes), Ok(())) => ToolOutcome { changes, ..outcome },
                (Ok(changes), Err(failed)) => ToolOutcome {
                    changes,
                    ..ToolOutcome::error(failed)
                },
                (Err(why), _) => ToolOutcome::error(format!(
                    "{}\ncannot tell whether protected files were changed: {why}",
                    outcome.text
                )),
            }
        };
        tokio::spawn(run.in_current_span())
            .await
            .unwrap_or_else(|panic| ToolOutcome::error(format!("failed: {panic}")))
    }

    /// Records the protected files before a call, if they are compared.
    async fn begin(
        &self,
        call: &Invocation,
        roots: Vec<PathBuf>,
    ) -> Result<Option<WatchedCall>, String> {
        match &self.0.wall {
            Some(wall) => wall.begin(call, roots).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the protected files that a call has changed.
    async fn end(&self, watched: Option<WatchedCall>) -> Result<Vec<ProtectedChange>, String> {
        match (&self.0.wall, watched) {
            (Some(wall), Some(watched)) => wall.end(watched).await,
            (None, _) | (_, None) => Ok(Vec::new()),
        }
    }

    /// Runs a command in the sandbox. All its processes are dead afterwards.
    async fn run_confined(
        &self,
        launch: &Launch,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> ToolOutcome {
        match self.0.launcher.run(launch, limit, cancel).await {
            Ok(finished) => outcome(finished, limit, self.0.caps, &self.0.sandbox),
            Err(why) => {
                let dir = launch.dir.display();
                ToolOutcome::error(format!("cannot start a process in {dir}: {why}"))
            }
        }
    }
}

fn outcome(finished: Finished, limit: Duration, caps: Caps, sandbox: &Sandbox) -> ToolOutcome {
    let Finished {
        end,
        left,
        stdout,
        stderr,
    } = finished;
    let complaint = match (end, left.is_empty()) {
        (CommandEnd::Exited(status), true) if status.success() => {
            return ToolOutcome::ok(joined("", stdout, stderr, caps));
        }
        (CommandEnd::Exited(status), _) => {
            let output = [&stderr.text, &stdout.text];
            match output.into_iter().find_map(|text| sandbox.advice(text)) {
                Some(advice) => format!("{}; {advice}", describe_end(status)),
                None => describe_end(status),
            }
        }
        (CommandEnd::TimedOut, true) => {
            format!("timed out after {} ms and was killed", limit.as_millis())
        }
        (CommandEnd::TimedOut, false) => format!("timed out after {} ms", limit.as_millis()),
        (CommandEnd::Aborted, _) => {
            let still = still_there(&left).unwrap_or_default();
            return ToolOutcome::stopped(joined(&still, stdout, stderr, caps));
        }
    };
    let complaint = match still_there(&left) {
        Some(still) => format!("{complaint}; {still}"),
        None => complaint,
    };
    ToolOutcome::error(joined(&complaint, stdout, stderr, caps))
}

/// Returns a line that lists the processes that could not be killed, or `None` if there are none.
fn still_there(left: &[Pid]) -> Option<String> {
    if left.is_empty() {
        return None;
    }
    let pids: Vec<String> = left.iter().map(Pid::to_string).collect();
    Some(format!(
        "these of its processes could not be ended and may still run: {}",
        pids.join(", ")
    ))
}

/// Says in a few words how a command ended.
pub fn describe_end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => match signal.and_then(|number| Signal::try_from(number).ok()) {
            Some(signal) => format!("killed by {signal}"),
            None => "killed".into(),
        },
    }
}

/// Joins three texts within the limits: `complaint`, then stdout, then stderr after the line
/// `STDERR:`. `complaint` says what went wrong, and may be empty. If something is left out, the
/// last line reports the truncation.
fn joined(complaint: &str, stdout: Captured, stderr: Captured, caps: Caps) -> String {
    let mut missing = stdout.truncated || stderr.truncated;
    let mut text = String::new();
    section(&mut text, complaint);
    section(&mut text, &stdout.text);
    if !stderr.text.is_empty() {
        let errors = format!("STDERR:\n{}", stderr.text);
        let share = Caps {
            lines: caps.lines / FOR_STDERR,
            bytes: caps.bytes / FOR_STDERR,
        };
        let reserved = errors.get(..share.end(&errors)).unwrap_or_default();
        let room = Caps {
            lines: caps.lines.saturating_sub(reserved.lines().count()),
            bytes: caps.bytes.saturating_sub(reserved.len() + 1),
        };
        missing |= limit(&mut text, room);
        section(&mut text, &errors);
    }
    missing |= limit(&mut text, caps);
    let end = text.len();
    if missing { cut(text, end) } else { text }
}

/// Appends `body` so that it begins on a new line.
fn section(text: &mut String, body: &str) {
    if !body.is_empty() && !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(body);
}

/// Cuts a text to the limits. Returns whether something was removed.
fn limit(text: &mut String, caps: Caps) -> bool {
    let end = caps.end(text);
    let cut = end < text.len();
    text.truncate(end);
    cut
}

// The environment variables of tool processes: the few that a shell needs and those that the
// configuration names. No other variable of the node, such as a key, reaches a tool.

/// The variables of the node's own environment that every tool process gets. The function `default`
/// has values for some of them, in case the node does not have them.
const PASSED_ON: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prefixes of the variables that are never passed on. They can make the dynamic linker or the C
/// library load code from any path, including a file that a tool has written. The reaper gets the
/// same environment and would run that code outside of the sandbox.
const LOADER: &[&str] = &["LD_", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"];

/// Returns `PATH`, `HOME`, `LANG` and `TMPDIR`, with defaults for all but `TMPDIR`, and those
/// variables named in `besides` that the node has. Leaves out variables whose names begin with a
/// prefix in `LOADER`.
pub fn minimal_environment(besides: &[String]) -> Vec<(OsString, OsString)> {
    from(besides, planck_host::environment::variable)
}

/// Returns whether a variable can make the dynamic linker or the C library load code. Such a variable is
/// passed to no process of a tool or server.
pub fn is_of_loader(name: &str) -> bool {
    LOADER.iter().any(|loader| name.starts_with(loader))
}

fn from(
    besides: &[String],
    of_node: impl Fn(&str) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let is_safe = |name: &&str| !is_of_loader(name);
    let names = PASSED_ON
        .iter()
        .copied()
        .chain(besides.iter().map(String::as_str).filter(is_safe));
    names
        .filter_map(|name| Some((name.into(), of_node(name).or_else(|| default(name))?)))
        .collect()
}

fn default(name: &str) -> Option<OsString> {
    match name {
        "PATH" => Some(PATH.into()),
        "HOME" => Some("/".into()),
        "LANG" => Some("C.UTF-8".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallEnd;

    fn captured(text: &str) -> Captured {
        Captured {
            text: text.into(),
            truncated: false,
        }
    }

    #[test]
    fn both_streams_fit_into_the_limits() {
        let lines = |n| captured(&"x\n".repeat(n));
        for (out, err, out_lines, err_lines, cut) in [
            (2000, 0, 2000, 0, false),
            (2001, 0, 2000, 0, true),
            (0, 1999, 0, 1999, false),
            (1000, 999, 1000, 999, false),
            (3000, 10, 1989, 10, true),
            (3000, 3000, 1600, 399, true),
            (100, 3000, 100, 1899, true),
        ] {
            let text = joined("", lines(out), lines(err), Caps::default());
            let (told_out, told_err) = text.split_once("STDERR:\n").unwrap_or((&text, ""));
            let count = |text: &str| text.lines().filter(|line| *line == "x").count();
            assert_eq!(
                (
                    count(told_out),
                    count(told_err),
                    text.ends_with("[output truncated]")
                ),
                (out_lines, err_lines, cut),
                "{out} {err}"
            );
            assert_eq!(
                Caps::default().apply(text.clone()),
                text,
                "a second cut changes nothing"
            );
        }
    }

    #[test]
    fn a_death_is_told_only_where_it_was_seen() {
        let told = |end, left: &[i32]| {
            let left = left.iter().copied().map(Pid::from_raw).collect();
            let finished = Finished {
                end,
                left,
                stdout: captured("out\n"),
                stderr: captured(""),
            };
            let caps = Caps::default();
            outcome(finished, Duration::from_secs(2), caps, &Sandbox::off())
        };
        let exited = CommandEnd::Exited(ExitStatus::from_raw(0));
        let still = "these of its processes could not be ended and may still run: 7, 8";
        for (end, left, ended, text) in [
            (exited, &[][..], CallEnd::Done, "out\n".to_owned()),
            (
                CommandEnd::TimedOut,
                &[],
                CallEnd::Failed,
                "timed out after 2000 ms and was killed\nout\n".to_owned(),
            ),
            (
                CommandEnd::Aborted,
                &[],
                CallEnd::Stopped,
                "out\n".to_owned(),
            ),
            (
                exited,
                &[7, 8],
                CallEnd::Failed,
                format!("exit status 0; {still}\nout\n"),
            ),
            (
                CommandEnd::TimedOut,
                &[7, 8],
                CallEnd::Failed,
                format!("timed out after 2000 ms; {still}\nout\n"),
            ),
            (
                CommandEnd::Aborted,
                &[7, 8],
                CallEnd::Stopped,
                format!("{still}\nout\n"),
            ),
        ] {
            let outcome = told(end, left);
            assert_eq!((outcome.end, outcome.text), (ended, text));
        }
    }

    #[test]
    fn long_lines_fit_into_the_limits() {
        let long = captured(&"ä".repeat(40_000));
        let text = joined("exit status 1", long.clone(), long, Caps::default());
        let (out, err) = text.split_once("STDERR:\n").unwrap();
        assert!(
            text.len() <= 50_000 + "\n[output truncated]".len(),
            "{}",
            text.len()
        );
        assert!(
            out.starts_with("exit status 1\nä") && out.len() > 39_000 && err.len() > 9_900,
            "{} {}",
            out.len(),
            err.len()
        );
    }

    #[test]
    fn keys_are_not_passed_on() {
        let node = |name: &str| match name {
            "PATH" => Some("/bin".into()),
            "OPENAI_API_KEY" | "CARGO_HOME" | "LD_PRELOAD" => Some("set".into()),
            _ => None,
        };
        let pairs = |names: &[(&str, &str)]| {
            names
                .iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            from(&[], node),
            pairs(&[("PATH", "/bin"), ("HOME", "/"), ("LANG", "C.UTF-8")])
        );
        assert_eq!(
            from(
                &["CARGO_HOME".into(), "NONE".into(), "LD_PRELOAD".into()],
                node
            )
            .last(),
            pairs(&[("CARGO_HOME", "set")]).last()
        );
    }
}
