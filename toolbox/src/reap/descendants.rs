//! Kills every process below this one. All of them are stopped before any is killed, so that none
//! forks in between. Orphans become children of this process, which is a subreaper, and are found
//! in the next round.

use std::{
    collections::HashSet,
    fs, thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid},
};

/// The maximum time for which descendants are killed again and again. A process that is still alive
/// afterwards belongs to another user, or is in a system call that does not return.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum number of rounds in which processes are stopped. After these rounds the processes
/// are killed even if new ones keep appearing.
const STOPPING_ROUNDS: usize = 200;

pub(super) struct Descendants {
    root: Pid,
}

impl Descendants {
    pub fn of_this_process() -> Self {
        Self { root: getpid() }
    }

    /// Kills all descendants. Returns when none is left, or after [`PATIENCE`].
    pub fn end(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Pause::default();
        while collect_dead() && Instant::now() < deadline {
            kill_all(|| self.find());
            pause.wait();
        }
    }

    pub fn find(&self) -> Vec<Pid> {
        below(vec![self.root]).split_off(1)
    }
}

/// The pause between rounds of killing. A killed process takes a moment to disappear.
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_micros(200))
    }
}

impl Pause {
    pub fn wait(&mut self) {
        thread::sleep(self.0);
        self.0 = (self.0 * 2).min(Duration::from_millis(20));
    }
}

/// Stops all processes that `find` returns, until it returns no new ones. Then kills all of them.
pub(crate) fn kill_all(find: impl Fn() -> Vec<Pid>) {
    let mut stopped = HashSet::new();
    for _ in 0..STOPPING_ROUNDS {
        let fresh: Vec<Pid> = find()
            .into_iter()
            .filter(|pid| stopped.insert(*pid))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            let _ = kill(pid, Signal::SIGSTOP);
        }
    }
    for pid in stopped {
        let _ = kill(pid, Signal::SIGKILL);
    }
}

/// Returns the roots and all of their descendants. Parents come before their children.
pub(crate) fn below(roots: Vec<Pid>) -> Vec<Pid> {
    let mut found = roots;
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(children(parent));
        next += 1;
    }
    found
}

/// Collects dead children. Returns whether any children are left.
fn collect_dead() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Err(Errno::ECHILD) => return false,
            Ok(_) | Err(_) => {}
        }
    }
}

/// Returns the children of a process, from `/proc/<pid>/task/*/children`. On a kernel without that
/// file, the `stat` of every process is read instead.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    let lists: Option<Vec<String>> = threads
        .flatten()
        .map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    match lists {
        Some(lists) => lists
            .iter()
            .flat_map(|list| list.split_whitespace().filter_map(parse))
            .collect(),
        None => all_processes()
            .filter(|pid| parent_of(*pid) == Some(parent))
            .collect(),
    }
}

/// Returns the children of the main thread. Orphaned descendants are among them, because the kernel
/// makes orphans children of the oldest live thread.
pub(crate) fn children_of_main_thread() -> Vec<Pid> {
    let own = getpid();
    match fs::read_to_string(format!("/proc/{own}/task/{own}/children")) {
        Ok(list) => list.split_whitespace().filter_map(parse).collect(),
        Err(_) => children(own),
    }
}

fn all_processes() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| parse(entry.file_name().to_str()?))
}

/// Returns the parent's process id, the second field after the name in `/proc/<pid>/stat`. The name
/// ends at the last parenthesis, because it may contain any character.
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?)
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}
