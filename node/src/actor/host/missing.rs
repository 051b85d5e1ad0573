//! Records in which sessions this node may hold leases of agents that it does not host.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use planck_common::SessionId;

/// The number of sessions above which [`MissingAgents`] no longer lists them.
const LISTED: usize = 1_024;

/// The sessions in which this node may hold leases of agents that it does not host.
#[derive(Debug, PartialEq, Eq)]
pub enum MissingAgents {
    InAnySession,
    In(BTreeSet<SessionId>),
}

/// A [`MissingAgents`] that grows until it is taken.
#[derive(Debug)]
pub(super) struct MissingRecord(Mutex<MissingAgents>);

impl Default for MissingRecord {
    /// Begins with all sessions, because a starting node may hold leases from its last run.
    fn default() -> Self {
        Self(Mutex::new(MissingAgents::InAnySession))
    }
}

impl MissingRecord {
    pub fn add_all(&self) {
        *self.lock() = MissingAgents::InAnySession;
    }

    pub fn add(&self, session: &SessionId) {
        let mut missing = self.lock();
        match &mut *missing {
            MissingAgents::InAnySession => {}
            MissingAgents::In(sessions) if sessions.len() >= LISTED => {
                *missing = MissingAgents::InAnySession;
            }
            MissingAgents::In(sessions) => {
                sessions.insert(session.clone());
            }
        }
    }

    /// Returns what was added since the last call, and empties the record.
    pub fn take(&self) -> MissingAgents {
        let empty = MissingAgents::In(BTreeSet::new());
        std::mem::replace(&mut *self.lock(), empty)
    }

    fn lock(&self) -> MutexGuard<'_, MissingAgents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_listed_until_they_are_too_many() {
        let record = MissingRecord::default();
        let one = SessionId::mint();
        record.add(&one);
        assert_eq!(record.take(), MissingAgents::InAnySession);
        assert_eq!(record.take(), MissingAgents::In(BTreeSet::new()));
        record.add(&one);
        record.add(&one);
        assert_eq!(record.take(), MissingAgents::In(BTreeSet::from([one])));
        for _ in 0..LISTED {
            record.add(&SessionId::mint());
        }
        assert!(matches!(record.take(), MissingAgents::In(sessions) if sessions.len() == LISTED));
        for _ in 0..=LISTED {
            record.add(&SessionId::mint());
        }
        assert_eq!(record.take(), MissingAgents::InAnySession);
        record.add_all();
        assert_eq!(record.take(), MissingAgents::InAnySession);
    }
}
