//! Turns of the writes that lock the row of their session. They wait for each other anyway. If they
//! did so in the database, each would hold a connection meanwhile, and the writes to one busy session
//! would keep all others of the node waiting.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use planck_common::SessionId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::StoreError;

/// The maximum number of connections that wait for the row of one session: one that works, and one
/// that is next.
const AT_ONCE: usize = 2;

/// The number of sessions from which those without a write are forgotten.
const MANY: usize = 1_024;

/// The turns of a node's writes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<HashMap<SessionId, Weak<Semaphore>>>>);

impl Turns {
    /// Waits for the turn of a write to this session. Drop the permit after the write.
    pub async fn take(
        &self,
        session: &SessionId,
        patience: Duration,
    ) -> Result<OwnedSemaphorePermit, StoreError> {
        let turn = timeout(patience, self.of(session).acquire_owned()).await;
        match turn {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(StoreError::Away(format!(
                "other writes to the session took longer than {} ms",
                patience.as_millis()
            ))),
        }
    }

    fn of(&self, session: &SessionId) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(session).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() >= MANY {
            all.retain(|_, turns| turns.strong_count() > 0);
        }
        let new = Arc::new(Semaphore::new(AT_ONCE));
        all.insert(session.clone(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writes_to_one_session_wait_for_each_other() {
        let (turns, patience) = (Turns::default(), Duration::from_secs(5));
        let [busy, other] = ["busy", "other"].map(|id| SessionId::parse(id).unwrap());
        let first = turns.take(&busy, patience).await.unwrap();
        let _second = turns.take(&busy, patience).await.unwrap();
        drop(turns.take(&other, patience).await.unwrap());
        let third = turns.take(&busy, patience).await;
        assert!(matches!(third, Err(StoreError::Away(_))));
        drop(first);
        drop(turns.take(&busy, patience).await.unwrap());
    }
}
