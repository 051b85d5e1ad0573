//! One at a time: whatever starts, takes up, rewinds or closes a session on this node does so
//! alone, so that none of it meets another's half-done work: a lease that is recorded and not yet
//! hosted, or members that are stopped before their lead.

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

/// How long to wait for whoever is inside; a close waits for processes to end.
const PATIENCE: Duration = Duration::from_secs(8);

/// A place for each session that somebody is at.
#[derive(Debug, Default)]
pub struct Turnstile(Mutex<HashMap<SessionId, Arc<Semaphore>>>);

/// Whoever has it is alone with the session, until it is dropped.
pub type Alone = OwnedSemaphorePermit;

impl Turnstile {
    pub async fn pass(&self, session: &SessionId) -> Result<Alone, Refusal> {
        match timeout(PATIENCE, self.place(session).acquire_owned()).await {
            Ok(Ok(alone)) => Ok(alone),
            Ok(Err(_)) | Err(_) => Err(Refusal::unavailable(format!(
                "session {session} is being taken up or closed; ask again"
            ))),
        }
    }

    fn place(&self, session: &SessionId) -> Arc<Semaphore> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, place| Arc::strong_count(place) > 1);
        Arc::clone(
            places
                .entry(session.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_session_one_at_a_time() {
        let (turnstile, one, other) = (
            Turnstile::default(),
            SessionId::parse("one").unwrap(),
            SessionId::parse("other").unwrap(),
        );
        let inside = turnstile.pass(&one).await.unwrap();
        let _elsewhere = turnstile.pass(&other).await.unwrap();
        assert_eq!(
            turnstile.pass(&one).await.unwrap_err().code,
            planck_common::reply::Code::Unavailable
        );
        let next = turnstile.pass(&one);
        drop(inside);
        drop(next.await.unwrap());
        turnstile.pass(&other).await.unwrap_err();
        assert_eq!(
            turnstile.0.lock().unwrap().len(),
            1,
            "what nobody uses is forgotten"
        );
    }
}
