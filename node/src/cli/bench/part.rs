//! The processes of a benchmark. Each is a child that ends when the benchmark does, however that
//! ends.

use std::{ffi::OsStr, io::Read as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::oneshot,
    time::timeout,
};

/// Kills a program when the guard's own standard input ends, which happens whenever the benchmark
/// dies. It prints the program's process id.
const GUARD: &str =
    r#""$@" >/dev/null 2>&1 </dev/null & echo $!; cat >/dev/null; kill -9 $! 2>/dev/null; wait"#;

/// A child process whose standard input stays open as long as this value lives. The child ends when
/// its input does.
pub struct BenchProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl BenchProcess {
    /// Starts this program in another role.
    pub fn of_this_program(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.arg("bench").args(arguments);
        Self::start(command)
    }

    /// Starts another program under a guard that ends it. The first line of its output is the
    /// process id.
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

    /// Returns the next line of its output.
    pub async fn line(&mut self, within: Duration) -> Result<String> {
        let line = timeout(within, self.lines.next_line())
            .await
            .context("a part of the bench says nothing")??;
        line.context("a part of the bench ended without an answer")
    }

    /// Waits until it has ended by itself.
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

/// Returns when the process that started this one is gone.
pub async fn orphaned() {
    let (gone, dropped) = oneshot::channel::<()>();
    // A thread of its own, which is never joined: it reads for as long as this process lives.
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
