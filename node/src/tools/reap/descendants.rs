//! Ends every process below this one. Each is stopped before any is killed, so that none forks away
//! meanwhile; what lost its parent comes to this process, the subreaper, and is found here again.

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

/// What cannot be killed (another user's, or in a system call that never ends) is left after so
/// long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rounds of stopping before the killing begins whatever still appears.
const STOPPING_ROUNDS: usize = 200;

pub(super) struct Descendants {
    root: Pid,
}

impl Descendants {
    pub fn of_this_process() -> Self {
        Self { root: getpid() }
    }

    /// Returns when none is left.
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

/// Between rounds of killing: the dead need a moment to get off the stage.
pub(in crate::tools) struct Pause(Duration);

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

/// Stops all that can be found until nothing new appears, then kills all of it.
pub(in crate::tools) fn kill_all(find: impl Fn() -> Vec<Pid>) {
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

/// The roots and all below them, parents before their children.
pub(in crate::tools) fn below(roots: Vec<Pid>) -> Vec<Pid> {
    let mut found = roots;
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(children(parent));
        next += 1;
    }
    found
}

/// Whether there are children left.
fn collect_dead() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Err(Errno::ECHILD) => return false,
            Ok(_) | Err(_) => {}
        }
    }
}

/// From `/proc/<pid>/task/*/children`, or, on a kernel without it, from every process's `stat`.
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

/// Those that lost their own parent and came to this process, a subreaper, among some of its other
/// children. The kernel gives orphans to the oldest thread that lives.
pub(in crate::tools) fn children_of_main_thread() -> Vec<Pid> {
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

/// The second field after the name, which may itself hold anything and ends with the last
/// parenthesis.
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?)
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}
