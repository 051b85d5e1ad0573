//! Ends processes that outlived their reaper. A tool can kill its reaper, or stop it so that the
//! node must kill it. This process is a subreaper too, so the remaining processes of the call
//! become its children.
//!
//! A stranger is a child in another session than this process that no call started. Processes that
//! the node starts stay in its session, except reapers, which are registered. A tool's processes
//! are in the session of their reaper or in a later one, and no process can enter an existing
//! session.

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

use crate::tools::reap::descendants::{Pause, below, children_of_main_thread, kill_all};

/// How long a call waits for the end of strangers. Those that are still alive then are reported,
/// and the killing continues.
const PATIENCE: Duration = Duration::from_millis(1200);

/// How long strangers are killed. A process that is still alive then is in a system call that does
/// not return, or belongs to another user.
const KILLING: Duration = Duration::from_secs(60);

/// The running reapers. They are global because a process has one set of children.
static REAPERS: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Held shared while a reaper is started and exclusively while strangers are searched, so that the
/// search never sees an unregistered reaper.
static STARTING: RwLock<()> = RwLock::new(());

/// Held while strangers are ended and collected, so that no process id is reused between its
/// discovery and its use.
static ENDING: Mutex<()> = Mutex::new(());

/// Strangers that calls have reported because they did not die in time. Later calls do not wait for
/// them.
static REPORTED: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Makes this process the parent of its descendants' orphans.
pub(super) fn adopt() {
    if let Err(why) = prctl::set_child_subreaper(true) {
        tracing::warn!(%why, "processes of tools that kill their reaper cannot be found");
    }
}

/// Starts a reaper in such a way that it is never mistaken for a stranger.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    if let Some(pid) = pid_of(&child) {
        lock(&REAPERS).get_or_insert_default().insert(pid);
    }
    Ok(child)
}

/// Returns the process id of a child that has not been collected yet.
pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    Some(Pid::from_raw(i32::try_from(child.id()?).ok()?))
}

/// Removes a reaper that has ended.
pub(super) fn forget(reaper: Pid) {
    lock(&REAPERS).get_or_insert_default().remove(&reaper);
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all strangers, whichever call they come from, and returns those that are not dead in time.
/// Call it after a reaper's end.
pub(super) async fn end() -> Vec<Pid> {
    if unreported(candidates()).is_empty() {
        return Vec::new();
    }
    let (done, ended) = oneshot::channel();
    // Uses a thread of its own, because a runtime would wait for one of its threads at shutdown.
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

/// Returns the strangers that are alive. Collects the dead ones, which no other code waits for.
fn living() -> Vec<Pid> {
    let starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let strangers = candidates();
    drop(starting);
    strangers.into_iter().filter(|pid| !is_dead(*pid)).collect()
}

/// Returns the strangers that were not reported yet, and forgets the reported ones that are gone.
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

/// Returns the children in other sessions that are not registered. A reaper that is just being
/// started may be among them.
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
        // The process was killed by a signal without a name.
        Ok(_) | Err(Errno::EINVAL | Errno::ECHILD) => true,
        Err(_) => false,
    }
}

/// Returns whether a process was stopped, by a signal or by a tracer.
pub(super) fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}
