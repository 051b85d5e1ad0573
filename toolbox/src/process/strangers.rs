//! Kills processes that outlived their reaper. A tool can kill its reaper, or stop it so that the
//! node must kill it. This process is a subreaper too, so the remaining processes of the call
//! become its children.
//!
//! A *stranger* is a child of this process that is in another session and is not a registered
//! reaper. All other processes that the node starts stay in the node's session. The processes of a
//! tool are in the session of their reaper or in a newer one, because no process can enter an
//! existing session.

use std::{
    collections::HashSet,
    io,
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getsid},
};
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    time::timeout,
};

use crate::reap::descendants::{Pause, below, children_of_main_thread, kill_all};

/// The maximum time that a call waits for strangers to end. Strangers that are still alive
/// afterwards are reported, and killing them continues in the background.
const PATIENCE: Duration = Duration::from_millis(1200);

/// The maximum time for which strangers are killed again and again. A process that is still alive
/// afterwards is in a system call that does not return, or belongs to another user.
const KILLING: Duration = Duration::from_secs(60);

/// The running reapers. The set is global, because the children belong to the process as a whole.
static REAPERS: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// The lock that is held for reading while a reaper is started, and for writing while [`living`]
/// searches for strangers, so that this search never finds an unregistered reaper.
static STARTING: RwLock<()> = RwLock::new(());

/// The lock that is held while strangers are killed and collected, so that no process id is reused
/// between its discovery and the signal.
static ENDING: Mutex<()> = Mutex::new(());

/// Strangers that did not end in time and were reported by a call. Later calls do not wait for
/// them.
static REPORTED: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Makes this process a subreaper: orphaned descendants become its children.
pub(super) fn adopt() {
    if let Err(why) = prctl::set_child_subreaper(true) {
        tracing::warn!(%why, "processes of tools that kill their reaper cannot be found");
    }
}

/// Starts a reaper and registers it, so that it is never mistaken for a stranger.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    if let Some(pid) = pid_of(&child) {
        lock(&REAPERS).get_or_insert_default().insert(pid);
    }
    Ok(child)
}

/// Returns the process id of a child, or `None` if the child was already collected.
pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    Some(Pid::from_raw(i32::try_from(child.id()?).ok()?))
}

/// Removes a reaper that has ended from the running reapers.
pub(super) fn forget(reaper: Pid) {
    lock(&REAPERS).get_or_insert_default().remove(&reaper);
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all strangers, whichever call they belong to, unless all of them were reported before.
/// Returns the unreported ones that are still alive after [`PATIENCE`], with their descendants. It
/// must be called after a reaper has ended, because the processes that the reaper left behind
/// become children of this process only then.
pub(super) async fn end() -> Vec<Pid> {
    if unreported(candidates()).is_empty() {
        return Vec::new();
    }
    let (done, ended) = oneshot::channel();
    // The work runs on its own thread, because a runtime would wait at shutdown for a blocking
    // task.
    thread::spawn(move || {
        end_all();
        let _ = done.send(());
    });
    if timeout(PATIENCE, ended).await.is_ok() {
        return Vec::new();
    }
    let left = below(unreported(candidates()));
    tracing::error!(processes = ?left, "processes of a tool call could not be ended");
    lock(&REPORTED).get_or_insert_default().extend(&left);
    left
}

fn end_all() {
    let _ending = lock(&ENDING);
    let deadline = Instant::now() + KILLING;
    let mut pause = Pause::default();
    let first = living();
    if !first.is_empty() {
        tracing::warn!(processes = ?first, "ending processes that outlived the reaper of their call");
    }
    while !living().is_empty() && Instant::now() < deadline {
        kill_all(|| below(living()));
        pause.wait();
    }
}

/// Returns the live strangers, and collects the dead ones, because nothing else waits for them.
fn living() -> Vec<Pid> {
    let starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let strangers = candidates();
    drop(starting);
    strangers.into_iter().filter(|pid| !is_dead(*pid)).collect()
}

/// Returns the strangers that have not been reported yet. Removes reported strangers that no longer
/// exist from the list.
fn unreported(strangers: Vec<Pid>) -> Vec<Pid> {
    let mut reported = lock(&REPORTED);
    let Some(known) = reported.as_mut() else {
        return strangers;
    };
    let there: HashSet<Pid> = below(strangers.clone()).into_iter().collect();
    known.retain(|pid| there.contains(pid));
    strangers
        .into_iter()
        .filter(|pid| !known.contains(pid))
        .collect()
}

/// Returns the children in other sessions that are not registered as reapers. Without the lock
/// [`STARTING`], a reaper that is just being started may be among them.
fn candidates() -> Vec<Pid> {
    let own = getsid(None).ok();
    let children = children_of_main_thread().into_iter();
    let elsewhere: Vec<Pid> = children
        .filter(|pid| getsid(Some(*pid)).is_ok_and(|session| Some(session) != own))
        .collect();
    if elsewhere.is_empty() {
        return elsewhere;
    }
    let reapers = lock(&REAPERS);
    let is_reaper = |pid: &Pid| {
        reapers
            .as_ref()
            .is_some_and(|reapers| reapers.contains(pid))
    };
    elsewhere
        .into_iter()
        .filter(|pid| !is_reaper(pid))
        .collect()
}

fn is_dead(pid: Pid) -> bool {
    match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => false,
        // `waitpid` returns EINVAL if the process was killed by a signal that `nix` has no name
        // for.
        Ok(_) | Err(Errno::EINVAL | Errno::ECHILD) => true,
        Err(_) => false,
    }
}

/// Returns whether a process is stopped, by a signal or by a tracer.
pub(super) fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}
