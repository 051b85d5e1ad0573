//! Control groups for tool calls. They require control groups of version 2 and a subtree that was
//! delegated to this process.
//!
//! Each call has its own group. A process enters the group before it executes the command. Every
//! process that the command starts is in the group, however often it forks and whatever its parent
//! is. A process cannot leave the group if the sandbox hides the control groups. The node therefore
//! finds the processes that a call left behind even if the reaper is dead. The kernel limits the
//! number of the call's tasks with `pids.max`.
//!
//! The groups are *threaded*. A process that enters an ordinary group waits until every CPU has
//! passed a quiescent state, which takes 7 to 30 ms. A single thread enters a threaded group in 0.1
//! ms. Threaded groups have neither `cgroup.kill` nor `memory.max`. Instead, the reaper and the
//! node freeze a group and kill its processes one by one, and the reaper checks the memory.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::{AccessFlags, Pid, access, getpid},
};

use crate::reap::{CommandLimits, THREADS};

/// The prefix of the name of a call's group. The node's pid namespace, the node's process id and a
/// number that is unique to the call follow it.
const PREFIX: &str = "planck-call-";

/// The controller that limits the number of tasks. Threaded groups support it.
const PIDS: &str = "pids";

/// The maximum time to wait for killed processes to end. A process that takes longer is in a system
/// call that does not return.
const DYING: Duration = Duration::from_secs(1);

const PAUSE: Duration = Duration::from_millis(1);

/// The maximum depth of nested groups that are searched. A tool that is not sandboxed may create
/// groups inside its own.
const DEEPEST: usize = 16;

/// The reason why the calls of this node have no control groups.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    #[error("this process is in no control group of version 2")]
    NoHierarchy,
    #[error("the control group {group} is mounted nowhere that this process can see")]
    NotMounted { group: String },
    #[error("{folder} is not delegated: {why}")]
    NotDelegated { folder: PathBuf, why: Errno },
    #[error("{folder} takes no groups of calls: {why}")]
    Unusable { folder: PathBuf, why: io::Error },
}

/// The control group of this process, in which it may create others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegated {
    pub folder: PathBuf,
    /// Whether the kernel can limit the number of a call's tasks in this group.
    pub bounds_tasks: bool,
}

impl Delegated {
    /// Finds the control group of this process and checks that it is delegated. Changes nothing.
    pub fn look() -> Result<Self, Missing> {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        let folder = own_folder(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))?;
        for needed in [folder.clone(), folder.join("cgroup.procs")] {
            access(&needed, AccessFlags::W_OK).map_err(|why| Missing::NotDelegated {
                folder: folder.clone(),
                why,
            })?;
        }
        let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
        let bounds_tasks = controllers
            .split_whitespace()
            .any(|controller| controller == PIDS);
        Ok(Self {
            folder,
            bounds_tasks,
        })
    }
}

/// The control groups of this node's calls. Clones share one state.
#[derive(Debug, Clone)]
pub struct Groups(Arc<CgroupsInner>);

#[derive(Debug)]
struct CgroupsInner {
    folder: PathBuf,
    /// The value of `pids.max` for a call, or `None` if the number of tasks is not limited.
    tasks: Option<u64>,
    /// Whether a call without a group has already been logged.
    warned: AtomicBool,
}

impl Groups {
    /// Ends the processes that calls of dead nodes left behind, enables the controller of tasks if
    /// calls have a limit of processes, and then checks whether calls can have groups, by creating
    /// one and entering it with a thread. Other nodes may do the same in the same folder at the
    /// same time. This function may block.
    pub fn prepare(limits: CommandLimits) -> Result<Self, Missing> {
        let Delegated {
            folder,
            bounds_tasks,
        } = Delegated::look()?;
        end_leftovers(&folder);
        let tasks = Some(limits.processes.saturating_mul(THREADS))
            .filter(|tasks| *tasks > 0 && bounds_tasks);
        let tasks = tasks.filter(|_| enable_pids(&folder).is_ok());
        let groups = Self(Arc::new(CgroupsInner {
            folder,
            tasks,
            warned: AtomicBool::new(false),
        }));
        match groups.try_out() {
            Ok(()) => Ok(groups),
            Err(why) => Err(Missing::Unusable {
                folder: groups.0.folder.clone(),
                why,
            }),
        }
    }

    /// Returns the folder in which the groups are created.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns the maximum number of tasks of a call, or `None` if their number is not limited.
    pub fn tasks(&self) -> Option<u64> {
        self.0.tasks
    }

    /// Creates the group of a call. Returns `None` if that fails; the call then runs without a
    /// group.
    pub(super) fn of_call(&self) -> Option<CallGroup> {
        match self.make() {
            Ok(group) => Some(group),
            Err(why) => {
                if !self.0.warned.swap(true, Ordering::Relaxed) {
                    tracing::debug!(folder = %self.0.folder.display(), %why, "a call has no control group");
                }
                None
            }
        }
    }

    fn make(&self) -> io::Result<CallGroup> {
        let name = format!(
            "{}{:016x}",
            prefix(own_namespace(), getpid()),
            fastrand::u64(..)
        );
        let group = CallGroup(self.0.folder.join(name));
        fs::create_dir(&group.0)?;
        let made = write(&group.0, "cgroup.type", "threaded").and_then(|()| {
            self.0.tasks.map_or(Ok(()), |tasks| {
                write(&group.0, "pids.max", &tasks.to_string())
            })
        });
        if let Err(why) = made {
            group.remove();
            return Err(why);
        }
        Ok(group)
    }

    fn try_out(&self) -> io::Result<()> {
        let group = self.make()?;
        let entered = thread::scope(|scope| scope.spawn(|| group.enter()).join());
        // The thread has ended, but the kernel removes it from the group a little later.
        group.wait_until_empty();
        group.remove();
        entered.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    }
}

/// The control group of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallGroup(PathBuf);

impl CallGroup {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Moves the calling thread into the group. Threads and processes that it starts later are in
    /// the group too. Other threads of its process are not moved.
    pub(super) fn enter(&self) -> io::Result<()> {
        write(&self.0, "cgroup.threads", "0")
    }

    /// Returns whether the group has no live process. Zombies do not count as live. A group that
    /// cannot be read counts as empty.
    pub(super) fn is_empty(&self) -> bool {
        let events = fs::read_to_string(self.0.join("cgroup.events")).unwrap_or_default();
        !events.lines().any(|line| line == "populated 1")
    }

    /// Freezes the group, so that its processes cannot start others, and sends them SIGKILL.
    /// Returns the ids of the threads to which it sent the signal.
    pub(super) fn kill(&self) -> Vec<Pid> {
        if self.is_empty() {
            return Vec::new();
        }
        let _ = write(&self.0, "cgroup.freeze", "1");
        let members = self.members();
        for member in &members {
            let _ = kill(*member, Signal::SIGKILL);
        }
        members
    }

    /// Returns the ids of all threads in this group and in the groups below it, except the main
    /// thread of this process.
    pub(super) fn members(&self) -> Vec<Pid> {
        let mut members = Vec::new();
        for folder in below(&self.0, DEEPEST) {
            let threads = fs::read_to_string(folder.join("cgroup.threads")).unwrap_or_default();
            // A thread that is not visible in this pid namespace is listed as 0. A signal to 0
            // would reach this process's own process group.
            members.extend(
                threads
                    .lines()
                    .filter_map(|line| line.parse().ok())
                    .filter(|id| *id > 0)
                    .map(Pid::from_raw),
            );
        }
        members.retain(|member| *member != getpid());
        members
    }

    /// Removes this group and the groups below it. Returns whether the group is gone. The kernel
    /// refuses to remove a group with a live process.
    pub(super) fn remove(&self) -> bool {
        // If this group cannot be removed directly, the groups below it are removed first, because
        // the kernel removes only groups without children.
        is_removed(&self.0)
            || below(&self.0, DEEPEST)
                .iter()
                .rev()
                .fold(false, |_, folder| is_removed(folder))
    }

    fn wait_until_empty(&self) {
        let deadline = Instant::now() + DYING;
        while !self.is_empty() && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }

    /// Kills the group's processes until none is left or [`DYING`] has passed, and then removes the
    /// group. Returns the ids of the threads that are still alive.
    pub(super) async fn end(&self) -> Vec<Pid> {
        let deadline = Instant::now() + DYING;
        while !self.is_empty() && Instant::now() < deadline {
            self.kill();
            tokio::time::sleep(PAUSE).await;
        }
        let left = if self.is_empty() {
            Vec::new()
        } else {
            self.members()
        };
        self.remove();
        left
    }
}

/// Returns a group and the groups below it, down to `depth` levels. Each group precedes those below
/// it.
fn below(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let entries = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|_| depth > 0);
    for inner in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        found.extend(below(&inner.path(), depth - 1));
    }
    found
}

/// Removes a group. Returns whether the group no longer exists, and therefore also `true` if it did
/// not exist before.
fn is_removed(group: &Path) -> bool {
    fs::remove_dir(group).map_or_else(|why| why.kind() == io::ErrorKind::NotFound, |()| true)
}

/// Writes to a control file. Fails if the file is missing, because the file is opened without
/// `O_CREAT`.
fn write(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(folder.join(file))
        .and_then(|mut file: File| file.write_all(text.as_bytes()))
}

/// Enables the `pids` controller for the groups in `folder`. Other nodes may use this setting of
/// the folder too, so no node reverts it.
fn enable_pids(folder: &Path) -> io::Result<()> {
    let enabled = fs::read_to_string(folder.join("cgroup.subtree_control"))?;
    if enabled
        .split_whitespace()
        .any(|controller| controller == PIDS)
    {
        return Ok(());
    }
    // Only the root group has no `cgroup.events`. The machine's administrator decides about the
    // settings of the root group.
    if !folder.join("cgroup.events").exists() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    write(folder, "cgroup.subtree_control", &format!("+{PIDS}"))
}

/// Kills the processes in the groups of dead nodes, and removes these groups.
fn end_leftovers(folder: &Path) {
    let namespace = own_namespace();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_left = entry
            .file_name()
            .to_str()
            .and_then(|name| node_of(name, namespace))
            .is_some_and(is_dead);
        if is_left {
            let group = CallGroup(entry.path());
            let killed = group.kill();
            if !killed.is_empty() {
                tracing::warn!(processes = ?killed, "ending processes that outlived the reaper of their call and its node");
            }
            group.wait_until_empty();
            group.remove();
        }
    }
}

/// Returns the prefix of the names of a node's groups.
fn prefix(namespace: u64, node: Pid) -> String {
    format!("{PREFIX}{namespace}-{node}-")
}

/// Returns the process id of the node that created a group. Returns `None` if the name is not that
/// of a call's group, or if the id belongs to another pid namespace.
fn node_of(name: &str, namespace: u64) -> Option<Pid> {
    let call = name.get(name.len().checked_sub(16)?..)?;
    let node = name
        .strip_prefix(PREFIX)?
        .split('-')
        .nth(1)?
        .parse()
        .ok()
        .filter(|node| *node > 0)
        .map(Pid::from_raw)?;
    let is_ours =
        call.bytes().all(|byte| byte.is_ascii_hexdigit()) && name == prefix(namespace, node) + call;
    is_ours.then_some(node)
}

/// Returns the number of this process's pid namespace, which is 4026531836 if the link reads
/// `pid:[4026531836]`, or 0 if the link cannot be read. The number distinguishes containers that
/// share a control group.
fn own_namespace() -> u64 {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let number = link
        .to_str()
        .and_then(|link| link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
    number.unwrap_or_default()
}

fn is_dead(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

// Finds the folder at which the control group of this process is mounted.

/// Returns the folder of a process's control group. `groups` and `mounts` are the contents of its
/// `/proc/self/cgroup` and `/proc/self/mountinfo`. The hierarchy may be mounted at
/// `/sys/fs/cgroup`, or next to the hierarchies of version 1.
fn own_folder(groups: &str, mounts: &str) -> Result<PathBuf, Missing> {
    let group = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or(Missing::NoHierarchy)?;
    let is_outside = Path::new(group)
        .components()
        .any(|part| part.as_os_str() == "..");
    let folder = mounts
        .lines()
        .filter_map(cgroup2)
        .find_map(|(root, point)| {
            let rest = Path::new(group)
                .strip_prefix(root)
                .ok()
                .filter(|_| !is_outside)?;
            Some(point.join(rest).components().collect())
        });
    folder.ok_or_else(|| Missing::NotMounted {
        group: group.into(),
    })
}

/// Returns the mounted group and its mount point from a line of `mountinfo` such as `41 31 0:38 /
/// /sys/fs/cgroup rw - cgroup2 cgroup2 rw`. Returns `None` for other file systems. The path needs
/// no unescaping, because control groups are mounted at paths without special characters.
fn cgroup2(line: &str) -> Option<(&Path, &Path)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3).map(Path::new);
    system
        .starts_with("cgroup2 ")
        .then_some((fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests;
