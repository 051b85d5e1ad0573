//! Shows the other agents of a session to the client, without I/O. A client that can has a session for
//! each of them. To any other one an agent is a call of the lead, with its own content.

use std::collections::HashMap;

use planck_client::turn::{WorkerState, WorkerUpdate};
use planck_common::{AgentId, CallId};
use planck_host::terminal::clean;

use super::{
    updates::{CallHead, chunk},
    wire::{Subagent, SubagentState, ToolCall, ToolContent, ToolKind, ToolStatus, Update},
};

/// An update, and the agent in whose session the client shows it, if that is not the lead's.
pub type Shown = (Option<AgentId>, Update);

/// What the client knows of the agents beside the lead.
#[derive(Debug, Default)]
pub struct Workers {
    /// Whether the client has a session for each agent.
    have_sessions: bool,
    known: HashMap<AgentId, Known>,
}

#[derive(Debug, Default)]
struct Known {
    text: String,
    /// How many texts the client has, of which each is a message.
    texts: usize,
    /// The calls that were allowed and that may still run.
    calls: Vec<(CallId, CallHead)>,
}

impl Workers {
    pub fn new(have_sessions: bool) -> Self {
        Self {
            have_sessions,
            known: HashMap::new(),
        }
    }

    /// Returns the updates for what has changed of an agent.
    pub fn take(&mut self, worker: &WorkerUpdate) -> Vec<Shown> {
        let is_new = !self.known.contains_key(&worker.id);
        let known = self.known.entry(worker.id.clone()).or_default();
        let text = worker.text.clone().filter(|text| *text != known.text);
        if let Some(text) = &text {
            known.text.clone_from(text);
            known.texts += 1;
        }
        let mut shown = Vec::new();
        if worker.state != WorkerState::Working {
            let ended = std::mem::take(&mut known.calls).into_iter();
            let ended = ended.map(|(id, call)| changed(&id, call, ToolStatus::Completed));
            let at = self.have_sessions.then(|| worker.id.clone());
            shown.extend(ended.map(|update| (at.clone(), update)));
        }
        match self.have_sessions {
            true => {
                shown.insert(0, (None, subagent(worker)));
                let id = format!("{}-{}", worker.id, known.texts);
                let said = text.map(|text| Update::AgentMessageChunk(chunk(id, text)));
                shown.extend(said.map(|said| (Some(worker.id.clone()), said)));
            }
            false => shown.insert(0, (None, call(worker, is_new, text))),
        }
        shown
    }

    /// Returns the session in which the client is asked about a wait of an agent, if that is not the
    /// lead's.
    pub fn session_of(&self, agent: Option<&AgentId>) -> Option<AgentId> {
        agent.filter(|_| self.have_sessions).cloned()
    }

    /// Returns the update for a call about which a person has decided. The client gets no events of
    /// the call itself if it is not one of the lead.
    pub fn decided(
        &mut self,
        agent: &AgentId,
        (id, call): (CallId, CallHead),
        is_allowed: bool,
    ) -> Shown {
        let status = match is_allowed {
            true => ToolStatus::InProgress,
            false => ToolStatus::Failed,
        };
        let known = self.known.entry(agent.clone()).or_default();
        let running = is_allowed.then(|| (id.clone(), call.clone()));
        known.calls.extend(running);
        (self.session_of(Some(agent)), changed(&id, call, status))
    }
}

fn subagent(worker: &WorkerUpdate) -> Update {
    Update::Subagent(Subagent {
        session_id: worker.id.to_string(),
        title: clean(&worker.name).into_owned(),
        state: match worker.state {
            WorkerState::Working if !worker.waits.is_empty() => SubagentState::RequiresAction,
            WorkerState::Working => SubagentState::Running,
            WorkerState::Idle | WorkerState::Ended => SubagentState::Idle,
        },
    })
}

/// Returns an agent as a call of the lead.
fn call(worker: &WorkerUpdate, is_new: bool, text: Option<String>) -> Update {
    let call = ToolCall {
        tool_call_id: format!("agent-{}", worker.id),
        // The name of an agent that was just spawned is known a moment later.
        title: Some(format!("agent {}", clean(&worker.name))),
        kind: Some(ToolKind::Think),
        status: Some(match worker.state {
            WorkerState::Working => ToolStatus::InProgress,
            WorkerState::Idle | WorkerState::Ended => ToolStatus::Completed,
        }),
        content: text.map(|text| vec![ToolContent::text(text)]),
        ..ToolCall::default()
    };
    match is_new {
        true => Update::ToolCall(call),
        false => Update::ToolCallChanged(call),
    }
}

fn changed(id: &CallId, call: CallHead, status: ToolStatus) -> Update {
    Update::ToolCallChanged(call.changed(id, status))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn worker(state: WorkerState, text: Option<&str>) -> WorkerUpdate {
        WorkerUpdate {
            id: AgentId::parse("w").unwrap(),
            name: "scout".into(),
            state,
            text: text.map(Into::into),
            waits: Vec::new(),
        }
    }

    fn shown(workers: &mut Workers) -> Value {
        let id = AgentId::parse("w").unwrap();
        let head = CallHead {
            title: "ls".into(),
            kind: ToolKind::Execute,
        };
        let call = || (CallId::parse("c1").unwrap(), head.clone());
        let mut shown = workers.take(&worker(WorkerState::Working, None));
        shown.push(workers.decided(&id, call(), true));
        shown.extend(workers.take(&worker(WorkerState::Idle, Some("Found."))));
        shown.extend(workers.take(&worker(WorkerState::Working, Some("Found."))));
        shown.push(workers.decided(&id, call(), false));
        shown.extend(workers.take(&worker(WorkerState::Ended, Some("Found."))));
        serde_json::to_value(shown).unwrap()
    }

    fn call(session: &Value, status: &str) -> Value {
        json!([session, {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "ls",
            "kind": "execute", "status": status}])
    }

    #[test]
    fn worker_is_a_call_of_the_lead() {
        let of = |kind: &str, status: &str| {
            json!([null, {"sessionUpdate": kind, "toolCallId": "agent-w", "title": "agent scout",
                "kind": "think", "status": status}])
        };
        let text = json!([{"type": "content", "content": {"type": "text", "text": "Found."}}]);
        let mut found = of("tool_call_update", "completed");
        found[1]["content"] = text;
        let lead = Value::Null;
        let expected = json!([
            of("tool_call", "in_progress"),
            call(&lead, "in_progress"),
            found,
            call(&lead, "completed"),
            of("tool_call_update", "in_progress"),
            call(&lead, "failed"),
            of("tool_call_update", "completed"),
        ]);
        assert_eq!(shown(&mut Workers::new(false)), expected);
    }

    #[test]
    fn worker_has_a_session_of_its_own() {
        let of = |state: &str| {
            json!([null, {"sessionUpdate": "subagent_update", "sessionId": "w", "title": "scout",
                "state": {"state": state}}])
        };
        let own = json!("w");
        let said = json!(["w", {"sessionUpdate": "agent_message_chunk", "messageId": "w-1",
            "content": {"type": "text", "text": "Found."}}]);
        let expected = json!([
            of("running"),
            call(&own, "in_progress"),
            of("idle"),
            call(&own, "completed"),
            said,
            of("running"),
            call(&own, "failed"),
            of("idle"),
        ]);
        assert_eq!(shown(&mut Workers::new(true)), expected);
    }
}
