//! The other agents of the session, as far as their work shows during the turn.

use std::collections::BTreeMap;

use planck_common::{AgentId, CallId, event::Event};

use super::{TurnEvent, WorkerState, WorkerUpdate};

/// The maximum number of workers that are shown. Anyone who may publish can invent agents.
const MOST: usize = 1_024;
/// The maximum number of open waits that are shown of one worker.
const WAITS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Workers {
    known: BTreeMap<AgentId, WorkerUpdate>,
}

impl Workers {
    /// Records the name of an agent.
    pub(super) fn name(&mut self, id: AgentId, name: String) {
        if let Some(worker) = self.get(&id) {
            worker.name = name;
        }
    }

    /// Returns whether the session is known to have agents beside this one.
    pub(super) fn has_others(&self, agent: &AgentId) -> bool {
        self.known.keys().any(|id| id != agent)
    }

    /// Takes an event of the agent `id`, or one that tells of a worker. Returns the worker's new
    /// state if it has changed.
    pub(super) fn take(&mut self, id: &AgentId, event: &Event) -> Option<TurnEvent> {
        let id = subject(id, event);
        let worker = self.get(id)?;
        apply(worker, event).then(|| TurnEvent::Worker(worker.clone()))
    }

    fn get(&mut self, id: &AgentId) -> Option<&mut WorkerUpdate> {
        if !self.known.contains_key(id) && self.known.len() >= MOST {
            return None;
        }
        Some(
            self.known
                .entry(id.clone())
                .or_insert_with(|| WorkerUpdate {
                    id: id.clone(),
                    name: id.to_string(),
                    state: WorkerState::Idle,
                    text: None,
                    waits: Vec::new(),
                }),
        )
    }
}

/// Returns whether an event is about a worker, whichever agent sent it.
pub(super) fn tells_of_worker(event: &Event) -> bool {
    matches!(event, Event::WorkerSpawned(_) | Event::WorkerExit(_))
}

/// Returns the agent of which an event tells.
fn subject<'a>(sender: &'a AgentId, event: &'a Event) -> &'a AgentId {
    match event {
        Event::WorkerSpawned(spawned) => &spawned.id,
        Event::WorkerExit(exit) => &exit.id,
        Event::TurnStart(_)
        | Event::TurnEnd(_)
        | Event::Error(_)
        | Event::TextDelta(_)
        | Event::ThinkingDelta(_)
        | Event::Message(_)
        | Event::UsageDelta(_)
        | Event::ToolStart(_)
        | Event::ToolProgress(_)
        | Event::ToolEnd(_)
        | Event::WaitOpened(_)
        | Event::WaitClosed(_)
        | Event::Retry(_)
        | Event::MessageQueued(_)
        | Event::Compacting(_)
        | Event::Compacted(_)
        | Event::AgentStarted(_)
        | Event::AgentStopped(_)
        | Event::SessionStarted(_)
        | Event::SessionResumed(_)
        | Event::SessionClosed(_)
        | Event::Rewound(_)
        | Event::Checkpoint(_)
        | Event::ToolsChanged(_)
        | Event::ModelChanged(_)
        | Event::Warning(_) => sender,
    }
}

/// Changes the state of a worker by an event. Returns whether the event changed it.
fn apply(worker: &mut WorkerUpdate, event: &Event) -> bool {
    match event {
        // The worker may have begun its first task before the orchestrator's log has this event.
        Event::WorkerSpawned(spawned) => worker.name.clone_from(&spawned.name),
        Event::TurnStart(_) => worker.state = WorkerState::Working,
        Event::TurnEnd(end) => {
            worker.state = WorkerState::Idle;
            worker.text.clone_from(&end.message);
            worker.waits.clear();
        }
        Event::Error(error) => {
            worker.state = WorkerState::Idle;
            worker.text = Some(error.reason.clone());
            worker.waits.clear();
        }
        Event::WaitOpened(wait) => {
            forget_wait(worker, &wait.id);
            if worker.waits.len() < WAITS {
                worker.waits.push(wait.clone());
            }
        }
        Event::WaitClosed(wait) => forget_wait(worker, &wait.id),
        Event::AgentStopped(_) | Event::WorkerExit(_) => {
            worker.state = WorkerState::Ended;
            worker.waits.clear();
        }
        Event::TextDelta(_)
        | Event::ThinkingDelta(_)
        | Event::Message(_)
        | Event::UsageDelta(_)
        | Event::ToolStart(_)
        | Event::ToolProgress(_)
        | Event::ToolEnd(_)
        | Event::Retry(_)
        | Event::MessageQueued(_)
        | Event::Compacting(_)
        | Event::Compacted(_)
        | Event::AgentStarted(_)
        | Event::SessionStarted(_)
        | Event::SessionResumed(_)
        | Event::SessionClosed(_)
        | Event::Rewound(_)
        | Event::Checkpoint(_)
        | Event::ToolsChanged(_)
        | Event::ModelChanged(_)
        | Event::Warning(_) => return false,
    }
    true
}

fn forget_wait(worker: &mut WorkerUpdate, id: &CallId) {
    worker.waits.retain(|wait| wait.id != *id);
}
