//! The data parts of the UI message stream: workers, and what waits for a person. A later part with
//! the same id replaces an earlier one.

use std::collections::{BTreeMap, HashMap};

use planck_client::turn::{WorkerState, WorkerUpdate};
use planck_common::{
    AgentId, CallId,
    wait::{WaitClosed, WaitOpened},
};
use serde_json::{Value, json};

/// The data parts that were sent.
#[derive(Debug, Default)]
pub struct DataParts {
    /// The latest part of each worker, and the step in which its first part was sent.
    workers: BTreeMap<AgentId, (u32, Value)>,
    step: u32,
    /// The data of the open waits.
    waits: HashMap<CallId, Value>,
}

impl DataParts {
    pub fn step_started(&mut self) {
        self.step += 1;
    }

    /// Returns the parts that vanish when the client drops what it got in the running step.
    pub fn of_step(&self) -> Vec<Value> {
        let step = self.step;
        let of_step = self.workers.values().filter(|(first, _)| *first == step);
        of_step.map(|(_, part)| part.clone()).collect()
    }

    /// Returns the part that shows a worker.
    pub fn agent(&mut self, worker: &WorkerUpdate) -> Value {
        let state = match worker.state {
            WorkerState::Idle => "idle",
            WorkerState::Working => "working",
            WorkerState::Ended => "ended",
        };
        let waits: Vec<Value> = worker.waits.iter().map(of_wait).collect();
        let part = json!({"type": "data-agent", "id": worker.id, "data": {
            "id": worker.id, "name": worker.name, "state": state, "text": worker.text,
            "waits": waits,
        }});
        let step = self.step;
        let known = self.workers.entry(worker.id.clone());
        let known = known.or_insert_with(|| (step, Value::Null));
        known.1 = part.clone();
        part
    }

    /// Returns the part that shows a question or a budget.
    pub fn wait(&mut self, wait: &WaitOpened) -> Value {
        let data = with(of_wait(wait), "state", "open");
        self.waits.insert(wait.id.clone(), data.clone());
        json!({"type": "data-wait", "id": wait.id, "data": data})
    }

    /// Returns the part that says how a wait ended, if a part showed the wait.
    pub fn closed_wait(&mut self, wait: &WaitClosed) -> Option<Value> {
        let data = with(self.waits.remove(&wait.id)?, "state", wait.decision.name());
        Some(json!({"type": "data-wait", "id": wait.id, "data": data}))
    }
}

/// Returns what a person needs to know to answer a wait.
pub fn of_wait(wait: &WaitOpened) -> Value {
    serde_json::to_value(wait).unwrap_or_default()
}

/// Adds a field to an object.
pub fn with(mut object: Value, key: &str, value: impl Into<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value.into());
    }
    object
}
