//! A lock for each session. An operation that starts, takes over, rewinds or closes a session holds
//! the session's lock. The lock hides the intermediate states of other operations, such as a
//! recorded lease whose agent has not started yet.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use planck_common::{SessionId, reply::Refusal};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// How long to wait for a lock. A close may hold it while processes end.
const PATIENCE: Duration = Duration::from_secs(8);

/// The locks of the sessions in use on this node.
#[derive(Debug, Default)]
pub struct SessionLocks(Mutex<HashMap<SessionId, Arc<Semaphore>>>);

/// Holds a session's lock until it is dropped.
pub type SessionGuard = OwnedSemaphorePermit;

impl SessionLocks {
    /// Waits for the session's lock. Refuses if another operation holds it for too long.
    pub async fn lock(&self, session: &SessionId) -> Result<SessionGuard, Refusal> {
        match timeout(PATIENCE, self.of(session).acquire_owned()).await {
            Ok(Ok(guard)) => Ok(guard),
            Ok(Err(_)) | Err(_) => Err(Refusal::unavailable(format!(
                "session {session} is being taken over or closed; ask again"
            ))),
        }
    }

    fn of(&self, session: &SessionId) -> Arc<Semaphore> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(
            locks
                .entry(session.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_session_has_one_lock() {
        let (locks, one, other) = (
            SessionLocks::default(),
            SessionId::parse("one").unwrap(),
            SessionId::parse("other").unwrap(),
        );
        let held = locks.lock(&one).await.unwrap();
        let _elsewhere = locks.lock(&other).await.unwrap();
        assert_eq!(
            locks.lock(&one).await.unwrap_err().code,
            planck_common::reply::Code::Unavailable
        );
        let next = locks.lock(&one);
        drop(held);
        drop(next.await.unwrap());
        locks.lock(&other).await.unwrap_err();
        assert_eq!(
            locks.0.lock().unwrap().len(),
            1,
            "a lock that is not used is forgotten"
        );
    }
}
