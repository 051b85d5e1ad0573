//! The child processes of a benchmark. Each ends when the benchmark ends, even if the benchmark is
//! killed.

use std::{ffi::OsStr, io::Read as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::oneshot,
    time::timeout,
};

/// A shell script that runs a program and prints its process id. The script kills the program when
/// the script's standard input is closed, which happens even if the benchmark is killed.
const GUARD: &str =
    r#""$@" >/dev/null 2>&1 </dev/null & echo $!; cat >/dev/null; kill -9 $! 2>/dev/null; wait"#;

/// A child process that ends when its standard input is closed. Dropping this value closes that
/// input.
pub struct BenchProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl BenchProcess {
    /// Starts this executable again with the given arguments.
    pub fn of_this_program(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::start(command)
    }

    /// Starts another program under [`GUARD`], which kills it when the benchmark ends. The first
    /// line of output is the program's process id.
    pub fn guarded(program: &Command) -> Result<Self> {
        let program = program.as_std();
        let mut command = Command::new("sh");
        command
            .args(["-c", GUARD, "guard"])
            .arg(program.get_program())
            .args(program.get_args());
        command.envs(
            program
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {:?}", command.as_std().get_program()))?;
        let output = child.stdout.take().context("a child without an output")?;
        Ok(Self {
            child,
            lines: BufReader::new(output).lines(),
        })
    }

    /// Returns the next line of the child's output.
    pub async fn line(&mut self, within: Duration) -> Result<String> {
        let line = timeout(within, self.lines.next_line())
            .await
            .context("a part of the bench says nothing")??;
        line.context("a part of the bench ended without an answer")
    }

    /// Waits until the child has ended by itself. Fails if that takes longer than `within`, or if
    /// the exit status is not success.
    pub async fn finish(mut self, within: Duration) -> Result<()> {
        let input = self.child.stdin.take();
        let status = timeout(within, self.child.wait())
            .await
            .context("a part of the bench does not end")??;
        drop(input);
        if !status.success() {
            bail!("a part of the bench ended with {status}");
        }
        Ok(())
    }
}

/// Waits until standard input is closed, which happens when the parent process ends.
pub async fn orphaned() {
    let (gone, dropped) = oneshot::channel::<()>();
    // This thread is never joined, because it may block in the read until this process ends.
    let reading = std::thread::Builder::new()
        .name("parent".into())
        .spawn(move || {
            let _end = std::io::stdin().read_to_end(&mut Vec::new());
            drop(gone);
        });
    if reading.is_ok() {
        let _gone = dropped.await;
    }
}
