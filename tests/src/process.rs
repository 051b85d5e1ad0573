//! Reads the state of processes from the kernel, and freezes them.

use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long a process may take to stop. Each of its threads stops when it next handles signals.
const PATIENCE: Duration = Duration::from_secs(10);

/// Freezes a process, so that its connections stay open and it does nothing. All of its threads
/// have stopped when the call returns.
pub fn freeze(pid: Pid) -> Result<()> {
    kill(pid, Signal::SIGSTOP)?;
    let until = Instant::now() + PATIENCE;
    while !has_stopped(pid) {
        if Instant::now() > until {
            bail!("process {pid} goes on after SIGSTOP for {PATIENCE:?}");
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn has_stopped(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    threads
        .map(|thread| state(&thread.path()))
        .all(|state| matches!(state, Some('T' | 'Z' | 'X') | None))
}

/// Returns whether a process exists and is not a zombie.
pub fn is_alive(pid: Pid) -> bool {
    !matches!(
        state(Path::new(&format!("/proc/{pid}"))),
        None | Some('Z' | 'X')
    )
}

/// Returns the state of a process or a thread as the kernel's letter, for example `T` for stopped.
/// Returns `None` if there is no such process or thread.
fn state(folder: &Path) -> Option<char> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}
