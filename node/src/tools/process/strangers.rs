//! Ends what outlived its reaper. A tool can kill the reaper it runs under, or stop it so that the
//! node has to; this process is a subreaper too, so whatever is left of the call becomes its child.
//!
//! A stranger is a child in another session than this process that no call started. What this
//! process starts itself stays in its session, but for the reapers, which are registered; a tool's
//! processes are in the session of their reaper or in a later one, and no process can enter a
//! session that exists.

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

/// How long a call waits for the end of strangers. What is not dead by then is reported; the
/// killing goes on.
const PATIENCE: Duration = Duration::from_millis(1200);

/// What is not dead after so long sits in a system call that does not end, or belongs to another
/// user.
const KILLING: Duration = Duration::from_secs(60);

/// The reapers that run. A process has one set of children, so there is one of these.
static REAPERS: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// Shared by those that start reapers, held alone by a search: it never sees a reaper that is not
/// registered yet.
static STARTING: RwLock<()> = RwLock::new(());

/// Held while strangers are ended and collected, so that no process id changes hands between its
/// discovery and its use.
static ENDING: Mutex<()> = Mutex::new(());

/// Strangers that calls have reported because they did not die in time. Later calls do not wait for
/// them.
static REPORTED: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// From now on orphans of this process's descendants come to it.
pub(super) fn adopt() {
    if let Err(why) = prctl::set_child_subreaper(true) {
        tracing::warn!(%why, "processes of tools that kill their reaper cannot be found");
    }
}

/// Starts a reaper so that it is never taken for a stranger.
pub(super) fn spawn(mut command: Command) -> io::Result<Child> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    if let Some(pid) = pid_of(&child) {
        lock(&REAPERS).get_or_insert_default().insert(pid);
    }
    Ok(child)
}

/// The process of a child that was not waited for to its end.
pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    Some(Pid::from_raw(i32::try_from(child.id()?).ok()?))
}

/// Forgets a reaper that has ended.
pub(super) fn forget(reaper: Pid) {
    lock(&REAPERS).get_or_insert_default().remove(&reaper);
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all strangers, whichever call they are from, and gives those that are not dead in time.
/// Call it after a reaper's end.
pub(super) async fn end() -> Vec<Pid> {
    if unreported(candidates()).is_empty() {
        return Vec::new();
    }
    let (done, ended) = oneshot::channel();
    // Not a thread of the runtime, which would wait for it at its own end.
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

/// The strangers that live. Collects the dead ones, for which nobody else waits.
fn living() -> Vec<Pid> {
    let starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let strangers = candidates();
    drop(starting);
    strangers.into_iter().filter(|pid| !is_dead(*pid)).collect()
}

/// Without those that were reported. Forgets the reported ones that are gone.
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

/// The children in another session that are not registered, and perhaps a reaper that is just being
/// started.
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
        // A signal without a name killed it.
        Ok(_) | Err(Errno::EINVAL | Errno::ECHILD) => true,
        Err(_) => false,
    }
}

/// Whether a process was stopped, by a signal or by whoever traces it.
pub(super) fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}
