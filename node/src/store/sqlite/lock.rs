//! A node's lock file, held for its process's life: by it alone others of the host tell whether the process lives.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::NodeId;

use super::fault;
use crate::store::StoreError;

/// How long a killed process may take to let its lock go.
const DYING: Duration = Duration::from_secs(2);

/// How often a lock is tried: others look at it for a moment each.
const LOOKED_AT: u32 = 20;

/// The lock of this process's node; the system lets it go when the process ends, however it ends.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
}

impl NodeLock {
    pub fn take(folder: &Path, node: &NodeId) -> Result<Self, StoreError> {
        let path = path(folder, node);
        let failed = |error: std::io::Error| fault::refused(&path, &error, "give this user write permission to the folder");
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        for _ in 0..LOOKED_AT {
            let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => {
                    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
                    write!(file, "{}", Holder::me()).and_then(|()| file.flush()).map_err(failed)?;
                    return Ok(Self { _file: file });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(2)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(StoreError::Busy(format!("node {node} already runs on this host")))
    }
}

/// Whether an open file was not removed since.
fn is_at(file: &File, path: &Path) -> bool {
    let inodes = file.metadata().and_then(|open| Ok((open.ino(), fs::metadata(path)?.ino())));
    inodes.is_ok_and(|(open, there)| open == there)
}

/// Removes the lock files of the dead: a missing one says the same.
pub fn tidy(folder: &Path) {
    let files = fs::read_dir(folder.join(".nodes")).into_iter().flatten().flatten();
    for path in files.map(|entry| entry.path()).filter(|path| path.file_name().is_some_and(|name| name != "index.lock")) {
        let Ok(file) = File::open(&path) else { continue };
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether the process of a node lives: it holds its lock.
pub fn lives(folder: &Path, node: &NodeId) -> Result<bool, StoreError> {
    Ok(held(&path(folder, node))?.is_some())
}

/// Kills the process that holds a convicted node's lock, and waits until the lock is free. Blocks for a moment.
pub fn end(folder: &Path, node: &NodeId) -> Result<(), StoreError> {
    let path = path(folder, node);
    let until = Instant::now() + DYING;
    while let Some(holder) = held(&path)? {
        holder.kill(&path)?;
        if Instant::now() > until {
            return Err(StoreError::Away(format!("process {} of node {node} does not die", holder.pid)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn path(folder: &Path, node: &NodeId) -> PathBuf {
    folder.join(".nodes").join(format!("{node}.lock"))
}

/// Who holds a lock; `None` where it is free.
fn held(path: &Path) -> Result<Option<Holder>, StoreError> {
    let failed = |error| fault::broken(path, error, "give this user read permission to the file");
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(failed)?;
            Ok(Some(Holder::parse(&text)))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A process, so named that no other one is taken for it: not one that got the same pid later, nor one in another
/// container. Without pid while it has not written itself down yet.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: i32,
    started: String,
    space: String,
}

impl Holder {
    fn me() -> Self {
        let pid = std::process::id().cast_signed();
        Self { pid, started: started(pid), space: space() }
    }

    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace().map(str::to_owned);
        let pid = words.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        Self { pid, started: words.next().unwrap_or_default(), space: words.next().unwrap_or_default() }
    }

    fn kill(&self, path: &Path) -> Result<(), StoreError> {
        if self.pid <= 1 || self.space != space() {
            let what = "the process that holds it cannot be seen from here";
            return Err(fault::broken(path, what, "stop that process by hand"));
        }
        if self.pid != std::process::id().cast_signed() && self.started == started(self.pid) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        Ok(())
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.pid, self.started, self.space)
    }
}

/// When a process began, in ticks since the machine did: field 22 of proc(5)'s `stat`, the 20th after the name.
fn started(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(19).unwrap_or("-").to_owned()
}

/// The namespace that pids are counted in.
fn space() -> String {
    fs::read_link("/proc/self/ns/pid").map_or_else(|_| "-".into(), |link| link.display().to_string())
}
