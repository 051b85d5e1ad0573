//! Records everything that is published on the subjects of agents and sessions, as any observer
//! would see it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use planck_common::{InputId, envelope::Envelope, event::Event};
use tokio::task::JoinHandle;

use crate::eventually::{PATIENCE, within};

/// A recording that continues until it is dropped.
pub struct Recorder {
    publications: Arc<Mutex<Vec<Publication>>>,
    tasks: Vec<JoinHandle<()>>,
}

/// One published message: an event or a `head`.
#[derive(Debug, Clone)]
pub struct Publication {
    pub subject: String,
    pub payload: Bytes,
}

impl Publication {
    /// Returns the event, or `None` for a `head`.
    pub fn envelope(&self) -> Option<Envelope> {
        serde_json::from_slice(&self.payload).ok()
    }

    fn is_of_session(&self) -> bool {
        self.subject.starts_with("session.")
    }
}

impl Recorder {
    /// Subscribes to the subjects. From the return of this call on, every published message is
    /// recorded.
    pub async fn start(nats: &Client) -> Result<Self> {
        let publications = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for subject in ["agent.>", "session.>"] {
            let news = nats.subscribe(subject).await?;
            tasks.push(tokio::spawn(record(news, Arc::clone(&publications))));
        }
        round_trip(nats).await?;
        Ok(Self {
            publications,
            tasks,
        })
    }

    pub fn publications(&self) -> Vec<Publication> {
        self.lock().clone()
    }

    /// Returns the payloads on one subject, in the order of arrival.
    pub fn on(&self, subject: &str) -> Vec<Bytes> {
        self.lock()
            .iter()
            .filter(|publications| publications.subject == subject)
            .map(|publications| publications.payload.clone())
            .collect()
    }

    /// Returns the events on one subject.
    pub fn events(&self, subject: &str) -> Vec<Envelope> {
        self.lock()
            .iter()
            .filter(|publications| publications.subject == subject)
            .filter_map(Publication::envelope)
            .collect()
    }

    /// Waits until an event on a session's subject matches, and returns the latest one that does.
    pub async fn until(
        &self,
        what: &str,
        is_it: impl FnMut(&Envelope) -> bool,
    ) -> Result<Envelope> {
        self.until_within(PATIENCE, what, is_it).await
    }

    async fn until_within(
        &self,
        patience: Duration,
        what: &str,
        mut is_it: impl FnMut(&Envelope) -> bool,
    ) -> Result<Envelope> {
        let found = within(patience, what, async || {
            let envelopes = self
                .lock()
                .iter()
                .rev()
                .filter(|publications| publications.is_of_session())
                .filter_map(Publication::envelope)
                .collect::<Vec<_>>();
            envelopes.into_iter().find(|envelope| is_it(envelope))
        });
        found
            .await
            .with_context(|| format!("publications {:?}", self.kinds()))
    }

    /// Waits for the event that ends the turn that consumed an input.
    pub async fn answered(&self, input: &InputId) -> Result<Envelope> {
        self.answered_within(PATIENCE, input).await
    }

    /// Like [`Self::answered`], for a turn whose calls may take long.
    pub async fn answered_within(&self, patience: Duration, input: &InputId) -> Result<Envelope> {
        self.until_within(patience, "the input's turn has ended", |envelope| {
            ends(envelope, input)
        })
        .await
    }

    fn kinds(&self) -> Vec<String> {
        let publications = self.lock();
        let sessions = publications
            .iter()
            .filter(|publications| publications.is_of_session());
        sessions
            .filter_map(Publication::envelope)
            .map(|envelope| envelope.kind)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Publication>> {
        self.publications
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Returns whether an event ends the turn that consumed an input.
pub fn ends(envelope: &Envelope, input: &InputId) -> bool {
    match envelope.event() {
        Some(Ok(Event::TurnEnd(end))) => end.inputs.contains(input),
        Some(Ok(Event::Error(error))) => error.inputs.contains(input),
        _ => false,
    }
}

async fn record(mut news: Subscriber, publications: Arc<Mutex<Vec<Publication>>>) {
    while let Some(message) = news.next().await {
        let news = Publication {
            subject: message.subject.to_string(),
            payload: message.payload,
        };
        publications
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(news);
    }
}

/// Waits until the server has received everything that was sent before. `flush` alone does not
/// guarantee that.
async fn round_trip(nats: &Client) -> Result<()> {
    let inbox = nats.new_inbox();
    let mut back = nats.subscribe(inbox.clone()).await?;
    nats.publish(inbox, Bytes::new()).await?;
    nats.flush().await?;
    back.next().await.context("the connection was closed")?;
    Ok(())
}
