//! Translates the events of a turn into updates of a session, without I/O.

use planck_client::turn::TurnEvent;
use planck_common::{CallId, event::TurnOutcome};
use serde_json::{Value, value::RawValue};

use super::wire::{
    Chunk, Content, RpcError, StopReason, ToolCall, ToolContent, ToolKind, ToolStatus, Update,
};
use crate::ask::leaves_sandbox;

/// What follows a reply that was shown in part and is made again. The protocol cannot take back what
/// was shown.
const AGAIN: &str = "\n\n(the model answers again)\n\n";

/// Translates the events of one prompt.
#[derive(Debug)]
pub struct Translator {
    /// The beginning of the ids of messages, which are unique in the session.
    prefix: String,
    /// The number of replies so far. Each is a message of its own.
    replies: usize,
    has_pieces: bool,
    is_again: bool,
}

impl Translator {
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            replies: 0,
            has_pieces: false,
            is_again: false,
        }
    }

    /// Returns the updates of an event. The end of the work has none, and [`end`] translates it. Waits
    /// have none, because the client is asked about them.
    pub fn take(&mut self, event: &TurnEvent) -> Vec<Update> {
        match event {
            TurnEvent::StepStarted => self.begin(),
            TurnEvent::StepReset => {
                self.is_again |= self.has_pieces;
                self.begin()
            }
            TurnEvent::Text { text, .. } => self.piece(text, Update::AgentMessageChunk),
            TurnEvent::Reasoning { text, .. } => self.piece(text, Update::AgentThoughtChunk),
            TurnEvent::ToolCalled {
                call_id,
                name,
                args,
                invalid,
            } => vec![called(call_id, name, args, invalid.as_deref())],
            TurnEvent::ToolStarted { call_id } => {
                vec![changed(call_id, ToolStatus::InProgress, None)]
            }
            TurnEvent::ToolProgress {
                call_id, message, ..
            } => vec![changed(call_id, ToolStatus::InProgress, Some(message))],
            TurnEvent::ToolEnded {
                call_id,
                result,
                is_error,
            } => {
                let status = match is_error {
                    true => ToolStatus::Failed,
                    false => ToolStatus::Completed,
                };
                vec![changed(call_id, status, Some(result))]
            }
            TurnEvent::Started { .. }
            | TurnEvent::StepEnded { .. }
            | TurnEvent::WaitOpened(_)
            | TurnEvent::WaitClosed(_)
            | TurnEvent::Worker(_)
            | TurnEvent::Warning { .. }
            | TurnEvent::CaughtUp
            | TurnEvent::Ended { .. }
            | TurnEvent::Failed { .. } => Vec::new(),
        }
    }

    fn begin(&mut self) -> Vec<Update> {
        self.replies += 1;
        self.has_pieces = false;
        Vec::new()
    }

    fn piece(&mut self, text: &str, update: fn(Chunk) -> Update) -> Vec<Update> {
        let again = std::mem::take(&mut self.is_again);
        let again = again.then(|| Update::AgentMessageChunk(self.chunk(AGAIN)));
        self.has_pieces = true;
        again
            .into_iter()
            .chain([update(self.chunk(text))])
            .collect()
    }

    fn chunk(&self, text: impl Into<String>) -> Chunk {
        chunk(format!("{}-{}", self.prefix, self.replies), text)
    }

    /// Returns a message that this command itself says.
    pub fn notice(&self, text: &str) -> Update {
        let id = format!("{}-notice", self.prefix);
        Update::AgentMessageChunk(chunk(id, format!("\n\n(planck: {text})\n\n")))
    }
}

/// Returns the update for what the user has said.
pub fn said(id: &str, text: &str) -> Update {
    Update::UserMessageChunk(chunk(id.to_owned(), text))
}

fn chunk(message_id: String, text: impl Into<String>) -> Chunk {
    Chunk {
        message_id,
        content: Content::Text { text: text.into() },
    }
}

fn called(id: &CallId, name: &str, args: &RawValue, invalid: Option<&str>) -> Update {
    let input = match invalid {
        Some(text) => Value::from(text),
        None => serde_json::from_str(args.get()).unwrap_or_default(),
    };
    Update::ToolCall(ToolCall {
        tool_call_id: id.to_string(),
        title: Some(title(name, args)),
        kind: Some(kind(name)),
        status: Some(ToolStatus::Pending),
        content: None,
        raw_input: Some(input),
    })
}

fn changed(id: &CallId, status: ToolStatus, text: Option<&str>) -> Update {
    Update::ToolCallChanged(ToolCall {
        tool_call_id: id.to_string(),
        status: Some(status),
        content: text.map(|text| vec![ToolContent::text(text)]),
        ..ToolCall::default()
    })
}

/// Returns the title of a call. It has the whole command, because a person decides by it.
pub fn title(tool: &str, args: &RawValue) -> String {
    let read: Value = serde_json::from_str(args.get()).unwrap_or_default();
    let text = |name: &str| read.get(name).and_then(Value::as_str);
    let place = match leaves_sandbox(tool, args) {
        true => "OUTSIDE of the sandbox: ",
        false => "",
    };
    match (text("command"), text("path")) {
        (Some(command), _) if tool == "bash" => format!("{place}{command}"),
        (Some(command), _) => format!("{tool}: {command}"),
        (None, Some(path)) => format!("{tool} {path}"),
        (None, None) => tool.to_owned(),
    }
}

/// Returns the kind of a tool, by which an editor chooses how to show its calls.
pub fn kind(tool: &str) -> ToolKind {
    match tool {
        "bash" => ToolKind::Execute,
        "read" => ToolKind::Read,
        "edit" | "write" => ToolKind::Edit,
        _ => ToolKind::Other,
    }
}

/// Returns how a prompt ends with this event, or `None` if it goes on.
pub fn end(event: &TurnEvent) -> Option<Result<StopReason, RpcError>> {
    match event {
        TurnEvent::Ended {
            outcome, refused, ..
        } => Some(Ok(match outcome {
            TurnOutcome::Completed if *refused => StopReason::Refusal,
            TurnOutcome::Completed => StopReason::EndTurn,
            TurnOutcome::Truncated => StopReason::MaxTokens,
            TurnOutcome::Limit => StopReason::MaxTurnRequests,
            TurnOutcome::Aborted => StopReason::Cancelled,
        })),
        TurnEvent::Failed { code, reason } => Some(Err(RpcError::new(
            RpcError::INTERNAL,
            format!("{code}: {reason}"),
        ))),
        TurnEvent::Started { .. }
        | TurnEvent::StepStarted
        | TurnEvent::Text { .. }
        | TurnEvent::Reasoning { .. }
        | TurnEvent::StepEnded { .. }
        | TurnEvent::StepReset
        | TurnEvent::ToolCalled { .. }
        | TurnEvent::ToolStarted { .. }
        | TurnEvent::ToolProgress { .. }
        | TurnEvent::ToolEnded { .. }
        | TurnEvent::WaitOpened(_)
        | TurnEvent::WaitClosed(_)
        | TurnEvent::Worker(_)
        | TurnEvent::Warning { .. }
        | TurnEvent::CaughtUp => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::to_raw_value};

    use super::*;

    fn text(text: &str) -> TurnEvent {
        TurnEvent::Text {
            part: 0,
            text: text.into(),
        }
    }

    fn id() -> CallId {
        CallId::parse("c1").unwrap()
    }

    fn translated(events: &[TurnEvent]) -> Value {
        let mut translator = Translator::new("p");
        let updates = events.iter().flat_map(|event| translator.take(event));
        serde_json::to_value(updates.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn replies_are_messages_and_a_reset_begins_a_new_one() {
        let thought = TurnEvent::Reasoning {
            part: 0,
            text: "Hm.".into(),
        };
        let updates = translated(&[
            TurnEvent::StepStarted,
            thought,
            text("One"),
            TurnEvent::StepReset,
            TurnEvent::StepReset,
            text("Two"),
            TurnEvent::StepStarted,
            // Nothing was shown of this reply, so nothing is said twice.
            TurnEvent::StepReset,
            text("Three"),
        ]);
        let chunk = |kind: &str, id: &str, text: &str| {
            let content = json!({"type": "text", "text": text});
            json!({"sessionUpdate": kind, "messageId": id, "content": content})
        };
        let expected = json!([
            chunk("agent_thought_chunk", "p-1", "Hm."),
            chunk("agent_message_chunk", "p-1", "One"),
            chunk("agent_message_chunk", "p-3", AGAIN),
            chunk("agent_message_chunk", "p-3", "Two"),
            chunk("agent_message_chunk", "p-5", "Three"),
        ]);
        assert_eq!(updates, expected);
    }

    #[test]
    fn calls_are_pending_until_they_run_and_keep_their_ids() {
        let args = to_raw_value(&json!({"command": "echo 1\necho 2"})).unwrap();
        let updates = translated(&[
            TurnEvent::ToolCalled {
                call_id: id(),
                name: "bash".into(),
                args,
                invalid: None,
            },
            TurnEvent::ToolStarted { call_id: id() },
            TurnEvent::ToolEnded {
                call_id: id(),
                result: "1\n2".into(),
                is_error: true,
            },
        ]);
        let content = json!([{"type": "content", "content": {"type": "text", "text": "1\n2"}}]);
        let expected = json!([
            {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "echo 1\necho 2",
                "kind": "execute", "status": "pending", "rawInput": {"command": "echo 1\necho 2"}},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "in_progress"},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "failed",
                "content": content},
        ]);
        assert_eq!(updates, expected);
    }

    #[test]
    fn titles_name_what_a_call_does() {
        for (tool, args, expected) in [
            ("bash", json!({"command": "ls"}), "ls"),
            (
                "bash",
                json!({"command": "ls", "unsandboxed": true}),
                "OUTSIDE of the sandbox: ls",
            ),
            ("deploy", json!({"command": "ls"}), "deploy: ls"),
            (
                "write",
                json!({"path": "a.txt", "content": "x"}),
                "write a.txt",
            ),
            ("ask_agent", json!({"agent": "bob"}), "ask_agent"),
        ] {
            assert_eq!(title(tool, &to_raw_value(&args).unwrap()), expected);
        }
    }

    #[test]
    fn every_end_has_a_stop_reason_or_an_error() {
        let ended = |outcome, refused| TurnEvent::Ended {
            seq: 1,
            outcome,
            refused,
            limit: None,
            output: None,
            usage: Default::default(),
        };
        for (event, expected) in [
            (ended(TurnOutcome::Completed, false), StopReason::EndTurn),
            (ended(TurnOutcome::Completed, true), StopReason::Refusal),
            (ended(TurnOutcome::Truncated, false), StopReason::MaxTokens),
            (
                ended(TurnOutcome::Limit, false),
                StopReason::MaxTurnRequests,
            ),
            (ended(TurnOutcome::Aborted, false), StopReason::Cancelled),
        ] {
            assert_eq!(end(&event), Some(Ok(expected)));
        }
        let failed = TurnEvent::Failed {
            code: "provider".into(),
            reason: "no key".into(),
        };
        let error = end(&failed).unwrap().unwrap_err();
        assert_eq!(error.message, "provider: no key");
        assert_eq!(end(&TurnEvent::CaughtUp), None);
    }
}
