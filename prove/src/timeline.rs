//! When sessions went on and nodes were declared dead, by the arrival of the events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::{task::JoinHandle, time::Instant};

use crate::client::{Caller, data, text};

/// A recording that goes on until it is dropped.
pub struct Timeline {
    recorded: Arc<Mutex<Recorded>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Recorded {
    resumed: Vec<(Instant, String, String)>,
    dead: Vec<(Instant, String)>,
}

impl Timeline {
    pub async fn start(caller: &Caller) -> Result<Self> {
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let sessions = caller.nats.subscribe(caller.subject("session.*")).await?;
        let cluster = caller.nats.subscribe(caller.subject("cluster.*")).await?;
        caller.nats.flush().await?;
        let mut both = futures_util::stream::select(sessions, cluster);
        let shared = Arc::clone(&recorded);
        let task = tokio::spawn(async move {
            while let Some(message) = both.next().await {
                if let Ok(event) = serde_json::from_slice(&message.payload) {
                    lock(&shared).take(&event);
                }
            }
        });
        Ok(Self { recorded, task })
    }

    /// Returns when another node first went on with a session of the node `gone`, at `after` or later.
    pub fn resumed(&self, session: &str, after: Instant, gone: &str) -> Option<Instant> {
        let recorded = lock(&self.recorded);
        let mut resumed = recorded.resumed.iter();
        let found = resumed.find(|(at, id, from)| id == session && *at >= after && from == gone);
        found.map(|(at, ..)| *at)
    }

    /// Returns when the cluster declared a node dead.
    pub fn death(&self, node: &str) -> Option<Instant> {
        let recorded = lock(&self.recorded);
        let found = recorded.dead.iter().find(|(_, dead)| dead == node);
        found.map(|(at, _)| *at)
    }

    /// Returns the nodes that the cluster declared dead.
    pub fn deaths(&self) -> Vec<String> {
        let recorded = lock(&self.recorded);
        recorded.dead.iter().map(|(_, node)| node.clone()).collect()
    }
}

impl Recorded {
    fn take(&mut self, event: &Value) {
        match text(event, "type") {
            "session_resumed" => {
                let session = text(event, "session_id").to_owned();
                let from = data(event, "from_node").to_owned();
                self.resumed.push((Instant::now(), session, from));
            }
            "node_dead" => {
                let node = data(event, "node").to_owned();
                self.dead.push((Instant::now(), node));
            }
            _ => {}
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(recorded: &Mutex<Recorded>) -> MutexGuard<'_, Recorded> {
    recorded.lock().unwrap_or_else(PoisonError::into_inner)
}
