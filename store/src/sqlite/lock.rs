//! The lock file of a node. The node's process holds the lock until it ends, so that other
//! processes of the host can find out whether it is running.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
    time::{Duration, Instant},
};

use planck_common::NodeId;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{fault, folder::StoreFolder};
use crate::StoreError;

/// The name of the folder with the lock files, in a store's folder.
pub const FOLDER: &str = ".nodes";

/// How long a killed process may take to release its lock.
const DYING: Duration = Duration::from_secs(2);

/// The maximum number of attempts to take a lock. Other processes hold it briefly while they check
/// it.
const LOOKED_AT: u32 = 20;

/// The maximum size in bytes of the text that identifies the holder.
const LONGEST_HOLDER: u64 = 256;

/// The lock of this process's node. The operating system releases it when the process ends, even by
/// a crash.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
}

impl NodeLock {
    pub fn take(store: &StoreFolder, node: &NodeId) -> Result<Self, StoreError> {
        let (folder, name) = (store.create_folder(FOLDER)?, file_name(node));
        let path = folder.path().join(&name);
        let failed = |error: std::io::Error| {
            fault::refused(
                &path,
                &error,
                "give this user write permission to the folder",
            )
        };
        for _ in 0..LOOKED_AT {
            let mut file = folder.create_file(&name)?;
            match file.try_lock() {
                Ok(()) if folder.holds(&name, &file) => {
                    file.set_len(0)
                        .and_then(|()| file.rewind())
                        .map_err(failed)?;
                    write!(file, "{}", Holder::me())
                        .and_then(|()| file.flush())
                        .map_err(failed)?;
                    return Ok(Self { _file: file });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(StoreError::Busy(format!(
            "node {node} already runs on this host"
        )))
    }
}

/// Removes the lock files of dead nodes, which have the same meaning as missing ones. Leaves all
/// other files.
pub fn tidy(store: &StoreFolder) {
    let Ok(Some(folder)) = store.find_folder(FOLDER) else {
        return;
    };
    for name in folder.names().unwrap_or_default() {
        if is_of_the_dead(&folder, &name).unwrap_or(false) {
            let _ = folder.remove(&name);
        }
    }
}

/// Returns whether a file is the lock of a dead node: its name and its text are those of a lock,
/// and no process holds it. An empty file counts too. The file may belong to a node that is just
/// taking its lock, but that node notices that the file was removed, and tries again.
fn is_of_the_dead(folder: &StoreFolder, name: &str) -> Result<bool, StoreError> {
    if name
        .strip_suffix(".lock")
        .is_none_or(|id| uuid::Uuid::try_parse(id).is_err())
    {
        return Ok(false);
    }
    let Some(mut file) = folder.find_file(name)? else {
        return Ok(false);
    };
    if file.try_lock().is_err() {
        return Ok(false);
    }
    let text = text_of(&mut file).unwrap_or_default();
    let is_text_of_a_lock = text.is_empty() && is_empty(&file) || Holder::parse(&text).is_some();
    Ok(is_text_of_a_lock && folder.holds(name, &file))
}

fn is_empty(file: &File) -> bool {
    file.metadata().is_ok_and(|there| there.len() == 0)
}

/// Returns whether any process holds a lock file of a store. Locks that cannot be read count as
/// free.
pub fn is_in_use(store: &StoreFolder) -> bool {
    let Ok(Some(folder)) = store.find_folder(FOLDER) else {
        return false;
    };
    let is_held = |name: &String| {
        let file = folder.read_file(name).ok().flatten();
        file.is_some_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    };
    folder
        .names()
        .unwrap_or_default()
        .iter()
        .filter(|name| name.ends_with(".lock"))
        .any(is_held)
}

/// Returns whether the process of a node is running, which means that it holds its lock.
pub fn lives(store: &Path, node: &NodeId) -> Result<bool, StoreError> {
    Ok(held(store, node)?.is_some())
}

/// Kills the process that holds the lock of a dead node if the process is stopped, and waits for at
/// most two seconds until the lock is free. Returns whether it killed a process, and fails with
/// `Away` if the lock is still held. Blocks the thread.
pub fn end_stopped(store: &Path, node: &NodeId) -> Result<bool, StoreError> {
    let Some(holder) = held(store, node)? else {
        return Ok(false);
    };
    if !holder.kill_if_stopped() {
        return Ok(false);
    }
    let until = Instant::now() + DYING;
    while held(store, node)?.is_some() {
        if Instant::now() > until {
            return Err(StoreError::Away(format!(
                "process {} of node {node} does not end after SIGKILL",
                holder.pid
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

fn file_name(node: &NodeId) -> String {
    format!("{node}.lock")
}

/// Returns the holder of a node's lock, or `None` if the lock is free.
fn held(store: &Path, node: &NodeId) -> Result<Option<Holder>, StoreError> {
    let name = file_name(node);
    let path = store.join(FOLDER).join(&name);
    let failed = |error| fault::broken(&path, error, "give this user read permission to the file");
    let Some(folder) = StoreFolder::open(store)?.find_folder(FOLDER)? else {
        return Ok(None);
    };
    let Some(mut file) = folder.find_file(&name)? else {
        return Ok(None);
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let text = text_of(&mut file).map_err(failed)?;
            Ok(Some(Holder::parse(&text).unwrap_or_default()))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn text_of(file: &mut File) -> std::io::Result<String> {
    let mut text = String::new();
    Read::by_ref(file)
        .take(LONGEST_HOLDER)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// A process that holds a lock. The start time and the pid namespace distinguish it from a later
/// process with the same pid and from processes of other containers. The pid is 0 while the holder
/// has not written its text yet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Holder {
    pid: i32,
    started: String,
    space: String,
}

impl Holder {
    fn me() -> Self {
        let pid = std::process::id().cast_signed();
        Self {
            pid,
            started: Stat::read(pid).started,
            space: space(),
        }
    }

    /// Parses the text of a lock file. Returns `None` for a text that no node writes.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (pid, started, space) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
        let is_space = space == "-" || space.starts_with("pid:[");
        let is_start = started == "-" || started.bytes().all(|byte| byte.is_ascii_digit());
        let is_whole = is_space && is_start && words.next().is_none();
        is_whole.then(|| Self {
            pid,
            started: started.to_owned(),
            space: space.to_owned(),
        })
    }

    /// Kills this process if it is stopped, and returns whether it did so. A process with the same
    /// pid that started at another time, or is in another pid namespace, is a different one and is
    /// not killed. The descriptor is opened before the start times are compared, so it refers to
    /// the process that was compared even if the pid is used again.
    fn kill_if_stopped(&self) -> bool {
        let is_me = self.pid == std::process::id().cast_signed();
        if is_me || self.started == UNKNOWN || self.space != space() {
            return false;
        }
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else {
            return false;
        };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        let stat = Stat::read(self.pid);
        stat.started == self.started
            && stat.is_stopped
            && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.pid, self.started, self.space)
    }
}

/// The text in place of a start time or a namespace that cannot be read.
const UNKNOWN: &str = "-";

/// The state of a process, from proc(5).
struct Stat {
    /// The start time in clock ticks since boot.
    started: String,
    /// Whether a signal has stopped the process.
    is_stopped: bool,
}

impl Stat {
    /// Reads `stat`, of which field 3 is the state and field 22 the start. Field 2, the name, ends
    /// with the last parenthesis.
    fn read(pid: i32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_whitespace();
        let is_stopped = fields.next() == Some("T");
        Self {
            started: fields.nth(18).unwrap_or(UNKNOWN).to_owned(),
            is_stopped,
        }
    }
}

/// Returns the pid namespace of this process, or `-` if it is unknown.
fn space() -> String {
    fs::read_link("/proc/self/ns/pid")
        .map_or_else(|_| UNKNOWN.into(), |link| link.display().to_string())
}
