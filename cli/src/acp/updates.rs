//! Translates the events of a turn into updates of a session, without I/O.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use planck_client::turn::TurnEvent;
use planck_common::{CallId, event::TurnOutcome};
use planck_host::terminal::clean;
use serde_json::{Value, value::RawValue};

use super::{
    rpc::RpcError,
    wire::{
        Chunk, ClientCan, Compaction, CompactionStatus, Content, Location, StopReason, ToolCall,
        ToolContent, ToolKind, ToolStatus, Update,
    },
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
    /// The directory of the session, from which the paths of calls start.
    dir: PathBuf,
    can: ClientCan,
    /// The number of replies so far. Each is a message of its own.
    replies: usize,
    has_pieces: bool,
    is_again: bool,
    /// The reply of the last text, unless a tool call or a message of the user came after it. Many
    /// clients put the texts of replies together.
    said_in: Option<usize>,
    /// The calls that have not ended.
    open: HashMap<CallId, CallHead>,
    /// The number of compactions so far.
    compactions: usize,
    is_compacting: bool,
}

impl Translator {
    pub fn new(prefix: impl Into<String>, dir: &str, can: ClientCan) -> Self {
        Self {
            prefix: prefix.into(),
            dir: dir.into(),
            can,
            replies: 0,
            has_pieces: false,
            is_again: false,
            said_in: None,
            open: HashMap::new(),
            compactions: 0,
            is_compacting: false,
        }
    }

    /// Returns the updates of an event. The end of the work has none, and [`end`] translates it. Waits
    /// have none, because the client is asked about them.
    pub fn take(&mut self, event: &TurnEvent) -> Vec<Update> {
        if self.can.show_compactions
            && let Some(compaction) = self.compaction(event)
        {
            return vec![compaction];
        }
        match event {
            TurnEvent::StepStarted => self.begin(),
            TurnEvent::StepReset => {
                self.is_again |= self.has_pieces;
                self.begin()
            }
            TurnEvent::Text { text, .. } => self.text(text),
            TurnEvent::Reasoning { text, .. } => self.piece(text, Update::AgentThoughtChunk),
            TurnEvent::ToolCalled {
                call_id,
                name,
                args,
                invalid,
            } => {
                self.said_in = None;
                vec![self.called(call_id, name, args, invalid.as_deref())]
            }
            TurnEvent::ToolStarted { call_id } => {
                vec![self.changed(call_id, ToolStatus::InProgress, None)]
            }
            TurnEvent::ToolProgress {
                call_id, message, ..
            } => vec![self.changed(call_id, ToolStatus::InProgress, Some(message))],
            TurnEvent::ToolEnded {
                call_id,
                result,
                is_error,
            } => {
                let status = match is_error {
                    true => ToolStatus::Failed,
                    false => ToolStatus::Completed,
                };
                let result = Some(&**result).filter(|result| !result.is_empty());
                let ended = self.changed(call_id, status, result);
                self.open.remove(call_id);
                vec![ended]
            }
            TurnEvent::Warning { message, .. } => vec![self.notice(message)],
            TurnEvent::Compacting
            | TurnEvent::Compacted { .. }
            | TurnEvent::Started { .. }
            | TurnEvent::StepEnded { .. }
            | TurnEvent::WaitOpened(_)
            | TurnEvent::WaitClosed(_)
            | TurnEvent::Worker(_)
            | TurnEvent::CaughtUp
            | TurnEvent::Ended { .. }
            | TurnEvent::Failed { .. } => Vec::new(),
        }
    }

    /// Forgets what was said before a message of the user.
    pub fn user_said(&mut self) {
        self.said_in = None;
    }

    fn begin(&mut self) -> Vec<Update> {
        self.replies += 1;
        self.has_pieces = false;
        Vec::new()
    }

    fn text(&mut self, text: &str) -> Vec<Update> {
        let before = self.said_in.replace(self.replies);
        let is_next = before.is_some_and(|reply| reply != self.replies);
        match is_next && !self.is_again {
            true => self.piece(&format!("\n\n{text}"), Update::AgentMessageChunk),
            false => self.piece(text, Update::AgentMessageChunk),
        }
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

    /// Returns what this command itself says. A client that has no notices shows it as a message.
    pub fn notice(&self, text: &str) -> Update {
        let text = clean(text);
        if self.can.show_notices {
            return Update::Notice {
                severity: "warning",
                title: text.into_owned(),
            };
        }
        let id = format!("{}-notice", self.prefix);
        Update::AgentMessageChunk(chunk(id, format!("\n\n(planck: {text})\n\n")))
    }

    /// Returns a message of the lead about the session, which no model has said.
    pub fn said(&self, text: &str) -> Update {
        Update::AgentMessageChunk(self.chunk(text))
    }

    /// Returns the update of a compaction, if the event begins or ends one. A compaction may be reported to
    /// begin twice, as when another node takes over in the middle of it.
    fn compaction(&mut self, event: &TurnEvent) -> Option<Update> {
        let was_compacting = self.is_compacting;
        let (status, summary, error) = if let TurnEvent::Compacting = event {
            (CompactionStatus::InProgress, None, None)
        } else if let TurnEvent::Compacted { summary } = event {
            (CompactionStatus::Completed, Some(summary), None)
        } else if let TurnEvent::Warning { code, message } = event
            && code == "not_compacted"
        {
            (CompactionStatus::Failed, None, Some(message))
        } else if let TurnEvent::Failed { reason, .. } = event
            && was_compacting
        {
            (CompactionStatus::Failed, None, Some(reason))
        } else if let TurnEvent::Ended { .. } = event
            && was_compacting
        {
            (CompactionStatus::Cancelled, None, None)
        } else {
            return None;
        };
        self.is_compacting = status == CompactionStatus::InProgress;
        if was_compacting && self.is_compacting {
            return None;
        }
        self.compactions += usize::from(!was_compacting);
        Some(Update::Compaction(Compaction {
            compaction_id: format!("{}-compaction-{}", self.prefix, self.compactions),
            status,
            summary: summary.map(|text| [Content::Text { text: text.clone() }]),
            error: error.map(|text| clean(text).into_owned()),
        }))
    }

    fn changed(&self, id: &CallId, status: ToolStatus, text: Option<&str>) -> Update {
        let content = text.map(|text| vec![ToolContent::text(text)]);
        let head = self.open.get(id).cloned();
        let changed = head.map(|head| head.changed(id, status));
        Update::ToolCallChanged(ToolCall {
            content,
            ..changed.unwrap_or_else(|| ToolCall {
                tool_call_id: id.to_string(),
                status: Some(status),
                ..ToolCall::default()
            })
        })
    }

    fn called(
        &mut self,
        id: &CallId,
        name: &str,
        args: &RawValue,
        invalid: Option<&str>,
    ) -> Update {
        let input = match invalid {
            Some(text) => Value::from(text),
            None => serde_json::from_str(args.get()).unwrap_or_default(),
        };
        let content = change_of(&self.dir, name, &input);
        let head = CallHead::of(name, args);
        self.open.insert(id.clone(), head.clone());
        Update::ToolCall(ToolCall {
            tool_call_id: id.to_string(),
            title: Some(head.title),
            kind: Some(head.kind),
            status: Some(ToolStatus::Pending),
            content: content.map(|change| vec![change]),
            locations: path_of(&self.dir, name, &input)
                .map(|path| Location { path })
                .into_iter()
                .collect(),
            raw_input: Some(input),
        })
    }
}

/// Returns the file that a call of a tool for files names.
fn path_of(dir: &Path, tool: &str, input: &Value) -> Option<String> {
    let is_about_files = matches!(tool, "read" | "edit" | "write");
    let path = input.get("path").and_then(Value::as_str);
    let path = dir.join(path.filter(|_| is_about_files)?);
    // An editor cannot open the file of a session that works on another machine.
    let path = path.is_absolute().then_some(path)?;
    Some(path.to_string_lossy().into_owned())
}

/// Returns the change that a call makes to a file. What `write` replaces is not known.
fn change_of(dir: &Path, tool: &str, input: &Value) -> Option<ToolContent> {
    let text = |name: &str| Some(input.get(name)?.as_str()?.to_owned());
    let (old_text, new_text) = match tool {
        "edit" => (Some(text("old_string")?), text("new_string")?),
        "write" => (None, text("content")?),
        _ => return None,
    };
    let path = path_of(dir, tool, input)?;
    Some(ToolContent::Diff {
        path,
        old_text,
        new_text,
    })
}

/// Returns the update for what the user has said.
pub fn said(id: &str, text: &str) -> Update {
    Update::UserMessageChunk(chunk(id.to_owned(), text))
}

pub fn chunk(message_id: String, text: impl Into<String>) -> Chunk {
    Chunk {
        message_id,
        content: Content::Text { text: text.into() },
    }
}

/// The part of a call by which an editor names it. Every update repeats it, because an editor may keep
/// calls only for one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHead {
    pub title: String,
    pub kind: ToolKind,
}

impl CallHead {
    pub fn of(tool: &str, args: &RawValue) -> Self {
        Self {
            title: title(tool, args),
            kind: kind(tool),
        }
    }

    /// Returns the head of a call that has one.
    pub fn of_call(call: &ToolCall) -> Option<Self> {
        Some(Self {
            title: call.title.clone()?,
            kind: call.kind?,
        })
    }

    /// Returns the update that gives the call another status.
    pub fn changed(self, id: &CallId, status: ToolStatus) -> ToolCall {
        ToolCall {
            tool_call_id: id.to_string(),
            title: Some(self.title),
            kind: Some(self.kind),
            status: Some(status),
            ..ToolCall::default()
        }
    }
}

/// Returns the title of a call. It has the whole command, because a person decides by it. Characters
/// that hide others are shown as what they are.
fn title(tool: &str, args: &RawValue) -> String {
    let read: Value = serde_json::from_str(args.get()).unwrap_or_default();
    let text = |name: &str| read.get(name).and_then(Value::as_str);
    let place = match leaves_sandbox(tool, args) {
        true => "OUTSIDE of the sandbox: ",
        false => "",
    };
    let title = match (text("command"), text("path")) {
        (Some(command), _) if tool == "bash" => format!("{place}{command}"),
        (Some(command), _) => format!("{tool}: {command}"),
        (None, Some(path)) => format!("{tool} {path}"),
        (None, None) => match text("agent").or(text("type")) {
            Some(agent) => {
                let task = text("question").or(text("task")).unwrap_or_default();
                let task = task.lines().next().unwrap_or_default();
                format!("{tool} {agent}: {task}")
            }
            None => tool.to_owned(),
        },
    };
    clean(&title).into_owned()
}

/// Returns the kind of a tool, by which an editor chooses how to show its calls.
fn kind(tool: &str) -> ToolKind {
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
        | TurnEvent::Compacting
        | TurnEvent::Compacted { .. }
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
        let can = ClientCan {
            show_compactions: true,
            ..ClientCan::default()
        };
        let mut translator = Translator::new("p", "/work", can);
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
            chunk("agent_message_chunk", "p-5", "\n\nThree"),
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
            {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "echo 1\necho 2",
                "kind": "execute", "status": "in_progress"},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "echo 1\necho 2",
                "kind": "execute", "status": "failed", "content": content},
        ]);
        assert_eq!(updates, expected);
    }

    #[test]
    fn compaction_has_one_id_until_it_is_over() {
        let warning = TurnEvent::Warning {
            code: "not_compacted".into(),
            message: "no time".into(),
        };
        let done = TurnEvent::Compacted {
            summary: "All was well.".into(),
        };
        let failed = TurnEvent::Failed {
            code: "context_full".into(),
            reason: "the context is full".into(),
        };
        let updates = translated(&[
            TurnEvent::Compacting,
            // Another node goes on.
            TurnEvent::Compacting,
            done.clone(),
            TurnEvent::Compacting,
            warning,
            // The log of a session has no beginnings.
            done,
            TurnEvent::Compacting,
            failed,
        ]);
        let update = |id: &str, status: &str| json!({"sessionUpdate": "compaction_update", "compactionId": id, "status": status});
        let with = |mut update: Value, name: &str, value: Value| {
            update[name] = value;
            update
        };
        let summary = json!([{"type": "text", "text": "All was well."}]);
        let completed = |id| with(update(id, "completed"), "summary", summary.clone());
        let failed = |id, why| with(update(id, "failed"), "error", json!(why));
        let expected = json!([
            update("p-compaction-1", "in_progress"),
            completed("p-compaction-1"),
            update("p-compaction-2", "in_progress"),
            failed("p-compaction-2", "no time"),
            completed("p-compaction-3"),
            update("p-compaction-4", "in_progress"),
            failed("p-compaction-4", "the context is full"),
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
            (
                "ask_agent",
                json!({"agent": "bob", "question": "Where?\nNow."}),
                "ask_agent bob: Where?",
            ),
            ("list_team", json!({}), "list_team"),
            (
                "bash",
                json!({"command": "rm \u{202e}a\u{1b}[8m"}),
                "rm \\u{202e}a␛[8m",
            ),
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
