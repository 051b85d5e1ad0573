//! Records when sessions resumed and when nodes were declared dead, by the arrival of the events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt as _;
use planck_common::{NodeId, SessionId, envelope::Envelope, event::Event};
use serde_json::Value;
use tokio::{task::JoinHandle, time::Instant};

/// A recording that continues until it is dropped.
pub struct Timeline {
    recorded: Arc<Mutex<Recorded>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Recorded {
    resumed: Vec<(Instant, SessionId, Option<NodeId>)>,
    dead: Vec<(Instant, NodeId)>,
}

impl Timeline {
    pub async fn start(nats: &Client) -> Result<Self> {
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let sessions = nats.subscribe("session.*").await?;
        let cluster = nats.subscribe("cluster.*").await?;
        nats.flush().await?;
        let tasks = vec![
            tokio::spawn(hear(sessions, Arc::clone(&recorded), of_session)),
            tokio::spawn(hear(cluster, Arc::clone(&recorded), of_cluster)),
        ];
        Ok(Self { recorded, tasks })
    }

    /// Returns when a node first resumed the session from the node `gone`, at `after` or later, or
    /// `None` if no node has done so yet.
    pub fn resumed(&self, session: &SessionId, after: Instant, gone: &NodeId) -> Option<Instant> {
        let recorded = self.recorded();
        let here = recorded
            .resumed
            .iter()
            .find(|(at, id, from)| id == session && *at >= after && from.as_ref() == Some(gone));
        here.map(|(at, ..)| *at)
    }

    /// Returns when the event arrived that declared a node dead, or `None` if none has.
    pub fn death(&self, node: &NodeId) -> Option<Instant> {
        self.recorded()
            .dead
            .iter()
            .find(|(_, dead)| dead == node)
            .map(|(at, _)| *at)
    }

    /// Returns every node that an event declared dead.
    pub fn deaths(&self) -> Vec<NodeId> {
        self.recorded()
            .dead
            .iter()
            .map(|(_, node)| node.clone())
            .collect()
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn hear(mut news: Subscriber, recorded: Arc<Mutex<Recorded>>, of: fn(&mut Recorded, &[u8])) {
    while let Some(message) = news.next().await {
        of(
            &mut recorded.lock().unwrap_or_else(PoisonError::into_inner),
            &message.payload,
        );
    }
}

fn of_session(recorded: &mut Recorded, payload: &[u8]) {
    let Ok(envelope) = serde_json::from_slice::<Envelope>(payload) else {
        return;
    };
    if let Some(Ok(Event::SessionResumed(resumed))) = envelope.event() {
        recorded
            .resumed
            .push((Instant::now(), envelope.session_id, resumed.from_node));
    }
}

fn of_cluster(recorded: &mut Recorded, payload: &[u8]) {
    let Ok(decision) = serde_json::from_slice::<Value>(payload) else {
        return;
    };
    let about = decision.pointer("/data/node").and_then(Value::as_str);
    if decision.get("type").and_then(Value::as_str) == Some("node_dead")
        && let Some(node) = about.and_then(|id| NodeId::parse(id).ok())
    {
        recorded.dead.push((Instant::now(), node));
    }
}
