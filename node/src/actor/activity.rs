//! Counts the activity of the agents on this node, for heartbeats and metrics.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use planck_common::SessionId;

/// The numbers of open turns, queued inputs and active sessions. Actors update these numbers, and
/// heartbeats and metrics read them.
#[derive(Debug, Default)]
pub struct ActivityCounts {
    /// The number of agents whose turn is open.
    running: AtomicUsize,
    /// The number of inputs that wait in the queues of loaded agents.
    queued: AtomicUsize,
    /// The number of open turns of each session that has at least one.
    sessions: Mutex<HashMap<SessionId, usize>>,
}

impl ActivityCounts {
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns the number of sessions with an open turn.
    pub fn sessions(&self) -> usize {
        self.sessions_by_turns().len()
    }

    pub(super) fn turn(&self, session: &SessionId, open: bool) {
        let mut sessions = self.sessions_by_turns();
        if open {
            self.running.fetch_add(1, Ordering::Relaxed);
            *sessions.entry(session.clone()).or_default() += 1;
        } else {
            self.running.fetch_sub(1, Ordering::Relaxed);
            if let Some(turns) = sessions.get_mut(session) {
                *turns -= 1;
                if *turns == 0 {
                    sessions.remove(session);
                }
            }
        }
    }

    /// Updates the number of waiting inputs after an agent's queue changed from `before` to `now`
    /// inputs.
    pub(super) fn queue(&self, before: usize, now: usize) {
        if now > before {
            self.queued.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.queued.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    fn sessions_by_turns(&self) -> MutexGuard<'_, HashMap<SessionId, usize>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_active_while_any_of_its_turns_is_open() {
        let (activity, session) = (ActivityCounts::default(), SessionId::parse("s").unwrap());
        activity.turn(&session, true);
        activity.turn(&session, true);
        activity.turn(&session, false);
        assert_eq!((activity.running(), activity.sessions()), (1, 1));
        activity.turn(&session, false);
        assert_eq!((activity.running(), activity.sessions()), (0, 0));
    }
}
