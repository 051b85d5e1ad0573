//! Records everything that is published on the subjects of agents and sessions, as any observer
//! would see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use planck_common::{InputId, envelope::Envelope, event::Event};
use tokio::task::JoinHandle;

use crate::eventually::eventually;

/// Records until it is dropped.
pub struct Recorder {
    heard: Arc<Mutex<Vec<Heard>>>,
    tasks: Vec<JoinHandle<()>>,
}

/// One publication; `head` messages are included.
#[derive(Debug, Clone)]
pub struct Heard {
    pub subject: String,
    pub payload: Bytes,
}

impl Heard {
    /// Returns the event, or `None` for a `head`.
    pub fn envelope(&self) -> Option<Envelope> {
        serde_json::from_slice(&self.payload).ok()
    }

    fn is_of_session(&self) -> bool {
        self.subject.starts_with("session.")
    }
}

impl Recorder {
    /// Subscribes. Everything that is published after this returns is recorded.
    pub async fn start(nats: &Client) -> Result<Self> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for subject in ["agent.>", "session.>"] {
            let news = nats.subscribe(subject).await?;
            tasks.push(tokio::spawn(record(news, Arc::clone(&heard))));
        }
        round_trip(nats).await?;
        Ok(Self { heard, tasks })
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.lock().clone()
    }

    /// Returns the payloads on one subject, in the order of arrival.
    pub fn on(&self, subject: &str) -> Vec<Bytes> {
        self.lock()
            .iter()
            .filter(|heard| heard.subject == subject)
            .map(|heard| heard.payload.clone())
            .collect()
    }

    /// Returns the events on one subject.
    pub fn events(&self, subject: &str) -> Vec<Envelope> {
        self.lock()
            .iter()
            .filter(|heard| heard.subject == subject)
            .filter_map(Heard::envelope)
            .collect()
    }

    /// Waits for an event on a session's subject.
    pub async fn until(
        &self,
        what: &str,
        mut is_it: impl FnMut(&Envelope) -> bool,
    ) -> Result<Envelope> {
        let found = eventually(what, async || {
            let envelopes = self
                .lock()
                .iter()
                .rev()
                .filter(|heard| heard.is_of_session())
                .filter_map(Heard::envelope)
                .collect::<Vec<_>>();
            envelopes.into_iter().find(|envelope| is_it(envelope))
        });
        found
            .await
            .with_context(|| format!("heard {:?}", self.kinds()))
    }

    /// Waits for the end of the turn that consumed an input.
    pub async fn answered(&self, input: &InputId) -> Result<Envelope> {
        self.until("the input's turn has ended", |envelope| {
            ends(envelope, input)
        })
        .await
    }

    fn kinds(&self) -> Vec<String> {
        let heard = self.lock();
        let sessions = heard.iter().filter(|heard| heard.is_of_session());
        sessions
            .filter_map(Heard::envelope)
            .map(|envelope| envelope.kind)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
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

async fn record(mut news: Subscriber, heard: Arc<Mutex<Vec<Heard>>>) {
    while let Some(message) = news.next().await {
        let news = Heard {
            subject: message.subject.to_string(),
            payload: message.payload,
        };
        heard
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
