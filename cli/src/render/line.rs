//! Renders the events that take one line each, what agents wait for, and the messages that they
//! received.

use std::collections::{HashMap, HashSet};

use planck_common::{
    AgentId, CallId, InputId,
    event::{
        Compacted, Event, InputKind, MessageQueued, Retry, ToolProgress, TurnEnd, TurnOutcome,
    },
    message::{Custom, Message, MessageRole, Part, text_of},
    wait::{WaitClosed, WaitDecision, WaitKind, WaitOpened},
};
use planck_host::terminal::{Drawing, clean_line};
use serde_json::{Value, value::RawValue};

use super::style::{Paint, Style, count, duration, one_line};

/// Returns the line for an event, or `None` if the event takes no line. `is_repeated` says that the
/// event has the same reason as the one before, so that it is not repeated.
pub fn of(event: &Event, is_repeated: bool, style: Style, names: &AgentNames) -> Option<Drawing> {
    let (paint, text) = match event {
        Event::TurnEnd(end) => ended(end)?,
        Event::Error(error) => (Paint::Bad, format!("✗ {} ({})", error.reason, error.code)),
        Event::Retry(retry) => (Paint::Warning, retried(retry, is_repeated)),
        Event::Warning(warning) => (Paint::Warning, format!("! {}", warning.message)),
        Event::ToolProgress(progress) => (Paint::Dim, progressed(progress)),
        Event::MessageQueued(queued) => (Paint::Dim, waiting(queued, names)),
        Event::Compacting(compacting) => (
            Paint::Dim,
            format!("summarising {} tokens", count(compacting.tokens_before)),
        ),
        Event::Compacted(done) => (Paint::Dim, compacted(done)),
        Event::WorkerSpawned(worker) => (
            Paint::Good,
            format!("+ {} ({})", worker.name, worker.r#type),
        ),
        Event::WorkerExit(worker) => (
            Paint::Warning,
            format!("- {}: {}", worker.name, worker.reason),
        ),
        Event::SessionResumed(resumed) => {
            (Paint::Dim, format!("session resumed: {}", resumed.reason))
        }
        Event::SessionClosed(closed) => (Paint::Dim, format!("session closed: {}", closed.reason)),
        Event::Rewound(rewound) => (
            Paint::Warning,
            format!("rewound to before message {} by {}", rewound.to, rewound.by),
        ),
        Event::ToolsChanged(tools) => (Paint::Dim, changed(&tools.added, &tools.removed)),
        Event::ModelChanged(change) => (
            Paint::Dim,
            format!("model is now {}:{}", change.model.provider, change.model.id),
        ),
        Event::Message(_)
        | Event::Checkpoint(_)
        | Event::TurnStart(_)
        | Event::TextDelta(_)
        | Event::ThinkingDelta(_)
        | Event::UsageDelta(_)
        | Event::ToolStart(_)
        | Event::ToolEnd(_)
        | Event::WaitOpened(_)
        | Event::WaitClosed(_)
        | Event::AgentStarted(_)
        | Event::AgentStopped(_)
        | Event::SessionStarted(_) => return None,
    };
    // These lines are not cut to the width, because the cause or the way out is often at the end.
    let is_trouble = matches!(event, Event::Error(_) | Event::Retry(_) | Event::Warning(_));
    let width = if is_trouble {
        usize::MAX
    } else {
        style.width.saturating_sub(2)
    };
    Some(style.paint(paint, &format!("  {}", one_line(&text, width))))
}

/// Returns the lines of the answer of a turn that has a shape.
pub fn output(end: &TurnEnd, style: Style) -> Vec<Drawing> {
    let value = end.output.as_deref().map(RawValue::get);
    let value = value.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let text = value.map_or_else(String::new, |value| format!("{value:#}"));
    let lines = text.lines();
    lines.map(|line| style.paint(Paint::Strong, line)).collect()
}

fn retried(retry: &Retry, is_repeated: bool) -> String {
    let wait = duration(retry.delay_ms);
    let reason = match is_repeated {
        true => "the same again",
        false => &retry.reason,
    };
    format!("↻ try {} in {wait}: {reason}", retry.attempt)
}

fn progressed(progress: &ToolProgress) -> String {
    let percent = progress.percent.map(|percent| format!(" {percent:.0} %"));
    format!("…{} {}", percent.unwrap_or_default(), progress.message)
}

fn waiting(queued: &MessageQueued, names: &AgentNames) -> String {
    let from = match (&queued.from, &queued.by) {
        (Some(agent), _) => names.of(agent),
        (None, Some(by)) => by.clone(),
        (None, None) => "a client".into(),
    };
    let (kind, number) = (queued.kind.name(), queued.queued);
    format!("↓ {kind} from {from} waits ({number} in the inbox)")
}

fn compacted(done: &Compacted) -> String {
    let (before, after) = (count(done.tokens_before), count(done.tokens_after));
    let Compacted { by, kept, .. } = done;
    format!("summarised {before} tokens to {after} ({by}), {kept} messages kept")
}

fn ended(end: &TurnEnd) -> Option<(Paint, String)> {
    match end.outcome {
        TurnOutcome::Completed if end.refused => Some((
            Paint::Warning,
            "■ the model refused to answer, or a filter of its provider stopped the answer".into(),
        )),
        TurnOutcome::Completed => None,
        TurnOutcome::Aborted => {
            let reason = end.reason.as_ref();
            let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
            Some((Paint::Warning, format!("■ aborted{reason}")))
        }
        TurnOutcome::Truncated => Some((
            Paint::Warning,
            "■ the answer was cut off at the model's output limit".into(),
        )),
        TurnOutcome::Limit => Some((
            Paint::Warning,
            format!(
                "■ stopped by the limit {}",
                end.limit.as_deref().unwrap_or("of this agent")
            ),
        )),
    }
}

fn changed(added: &[String], removed: &[String]) -> String {
    let words = added
        .iter()
        .map(|name| format!("+{name}"))
        .chain(removed.iter().map(|name| format!("-{name}")));
    format!("tools: {}", words.collect::<Vec<_>>().join(" "))
}

#[derive(Debug, Default)]
pub struct InputLines {
    /// The kinds of the inputs that opened turns. Rendering the message of an agent removes its
    /// entry.
    kinds: HashMap<InputId, InputKind>,
    /// The prompt that the user has just typed, which is not shown again.
    pub own: Option<InputId>,
    /// The name of the user. Prompts of others are shown with the names of their authors.
    pub reader: Option<String>,
}

impl InputLines {
    pub fn line(&mut self, event: &Event, style: Style) -> Option<Drawing> {
        if let Event::TurnStart(start) = event {
            self.kinds.extend(
                start
                    .inputs
                    .iter()
                    .map(|input| (input.id.clone(), input.kind)),
            );
        }
        let Event::Message(saved) = event else {
            return None;
        };
        let (paint, text) = self.message(&saved.message)?;
        Some(style.paint(
            paint,
            &format!("  {}", one_line(&text, style.width.saturating_sub(2))),
        ))
    }

    fn message(&mut self, message: &Message) -> Option<(Paint, String)> {
        let inputs = &message.metadata.inputs;
        if self
            .own
            .as_ref()
            .is_some_and(|own| inputs.as_slice() == std::slice::from_ref(own))
        {
            return None;
        }
        match (message.role, &message.custom) {
            (MessageRole::User, _) if message.is_from_runtime() => {
                let text = text_of(&message.content);
                Some((Paint::Dim, format!("← the runtime: {text}")))
            }
            (MessageRole::User, _) => {
                let by = message.metadata.by.as_ref();
                let other = by.filter(|by| self.reader.as_ref() != Some(by));
                let author = other.map_or(String::new(), |by| format!("{by} "));
                let text = text_of(&message.content);
                Some((Paint::Strong, format!("{author}› {text}")))
            }
            (MessageRole::Custom, Some(Custom::AgentMessage)) => {
                let kind = message
                    .metadata
                    .inputs
                    .iter()
                    .find_map(|input| self.kinds.remove(input));
                let who = message
                    .metadata
                    .from
                    .as_ref()
                    .map_or("the runtime", |from| from.name.as_str());
                let text = text_of(without_sender(&message.content));
                Some((Paint::Dim, format!("← {}: {text}", introduced(kind, who))))
            }
            (MessageRole::Custom | MessageRole::Assistant | MessageRole::ToolResult, _) => None,
        }
    }
}

fn introduced(kind: Option<InputKind>, who: &str) -> String {
    match kind {
        Some(InputKind::Task) => format!("task from {who}"),
        Some(InputKind::Question) => format!("{who} asks"),
        Some(InputKind::Response) => format!("{who} answers"),
        Some(InputKind::Note | InputKind::Prompt) | None => who.into(),
    }
}

/// Returns the content without its first part if that part only tells the model who the sender is.
fn without_sender(content: &[Part]) -> &[Part] {
    match content {
        [Part::Text { text, .. }, rest @ ..]
            if !rest.is_empty() && text.starts_with('[') && text.ends_with("]\n\n") =>
        {
            rest
        }
        all => all,
    }
}

#[derive(Debug, Default)]
pub struct WaitLines {
    /// The titles of the open waits.
    titles: HashMap<CallId, String>,
    /// Whether a person is asked at this terminal. Then a line about a wait that a person can answer
    /// would say everything twice.
    pub are_asked_here: bool,
    /// The calls about which a person was asked at this terminal, and whose end is not known yet.
    asked: HashSet<CallId>,
}

impl WaitLines {
    /// Stores a wait about which a person is asked at this terminal, and its title. It may have been
    /// opened before the first event that is shown.
    pub fn learn(&mut self, wait: &CallId, title: &str) {
        self.titles.insert(wait.clone(), title.into());
        self.asked.insert(wait.clone());
    }

    /// Forgets that a person was asked about a call, which has ended. Returns whether that was so.
    pub fn was_asked(&mut self, call: &CallId) -> bool {
        self.asked.remove(call)
    }

    /// Returns the line for an event. It is not cut to the width, because the way to answer is at
    /// its end.
    pub fn line(&mut self, event: &Event, style: Style) -> Option<Drawing> {
        let (paint, text) = if let Event::WaitOpened(wait) = event {
            self.titles.insert(wait.id.clone(), wait.title.clone());
            let is_shown = !self.are_asked_here || wait.kind == WaitKind::ClientTool;
            (Paint::Warning, is_shown.then(|| asked(wait))?)
        } else if let Event::WaitClosed(wait) = event {
            let title = self.titles.remove(&wait.id);
            (Paint::Dim, wait_ended(wait, title.as_deref()))
        } else {
            // A rewind withdraws every open wait without an event for each.
            if let Event::Rewound(_) = event {
                self.titles.clear();
                self.asked.clear();
            }
            return None;
        };
        Some(style.paint(paint, &format!("  {}", one_line(&text, usize::MAX))))
    }
}

fn asked(wait: &WaitOpened) -> String {
    let how = match wait.kind {
        WaitKind::Approval | WaitKind::Change => "allow|deny",
        WaitKind::Question | WaitKind::ClientTool => "TEXT",
        WaitKind::Budget => "NEW-LIMIT|deny",
    };
    let id: String = wait.id.chars().take(8).collect();
    format!("? {} · planck answer {id} {how}", wait.title)
}

/// Returns a text that says how a wait ended, by which person or program, and what it was about.
pub fn wait_ended(wait: &WaitClosed, title: Option<&str>) -> String {
    let how = match wait.decision {
        WaitDecision::Allow => "allowed",
        WaitDecision::Deny => "denied",
        WaitDecision::Answer => "answered",
        WaitDecision::Error => "failed",
        WaitDecision::Expired => "expired",
        WaitDecision::Withdrawn => "withdrawn",
    };
    let by = wait.by.as_deref();
    let by = by.map_or(String::new(), |by| format!(" by {by}"));
    let title = title.map_or(String::new(), |title| format!(": {title}"));
    let reason = wait.reason.as_deref();
    let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
    format!("{how}{by}{title}{reason}")
}

/// How many characters of an agent's id are shown if its name is unknown. They are its last ones,
/// because an id begins with the time, and agents that begin together would look the same.
const OF_AN_ID: usize = 8;

#[derive(Debug, Default)]
pub struct AgentNames(HashMap<AgentId, String>);

impl AgentNames {
    pub fn learn(&mut self, agent: &AgentId, name: &str) {
        self.0.insert(agent.clone(), clean_line(name).into_owned());
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn of(&self, agent: &AgentId) -> String {
        self.0.get(agent).cloned().unwrap_or_else(|| {
            let id: &str = agent;
            let from = id.len().saturating_sub(OF_AN_ID);
            clean_line(id.get(from..).unwrap_or(id)).into_owned()
        })
    }

    /// Returns the name of the agent to which the argument of a tool call refers by id or name.
    pub fn of_target(&self, target: &str) -> String {
        let known = AgentId::parse(target)
            .ok()
            .and_then(|id| self.0.get(&id).cloned());
        known.unwrap_or_else(|| clean_line(target).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn opened(id: &str, kind: WaitKind) -> Event {
        let data =
            json!({ "id": id, "kind": kind, "title": "bash: ls", "request": {}, "digest": "d" });
        Event::WaitOpened(serde_json::from_value(data).unwrap())
    }

    fn closed(id: &str, decision: &str, by: Option<&str>, reason: Option<&str>) -> Event {
        let data = json!({ "id": id, "decision": decision, "by": by, "reason": reason });
        Event::WaitClosed(serde_json::from_value(data).unwrap())
    }

    #[test]
    fn lines_say_what_waits_and_how_it_ended() {
        let mut lines = WaitLines::default();
        for (event, line) in [
            (
                opened("67f260c4-0a57", WaitKind::Approval),
                "? bash: ls · planck answer 67f260c4 allow|deny",
            ),
            (
                closed("67f260c4-0a57", "deny", Some("ann"), Some("not now")),
                "denied by ann: bash: ls (not now)",
            ),
            (
                opened("w2", WaitKind::Budget),
                "? bash: ls · planck answer w2 NEW-LIMIT|deny",
            ),
            (closed("w2", "expired", None, None), "expired: bash: ls"),
            (closed("w3", "allow", Some("ann"), None), "allowed by ann"),
        ] {
            let drawn = lines.line(&event, Style::plain(20)).unwrap();
            assert_eq!(drawn.as_str(), format!("  {line}"));
        }
        assert!(lines.titles.is_empty());
    }

    #[test]
    fn wait_that_is_asked_about_here_has_no_line() {
        let mut lines = WaitLines {
            are_asked_here: true,
            ..WaitLines::default()
        };
        assert!(
            lines
                .line(&opened("w1", WaitKind::Question), Style::plain(80))
                .is_none()
        );
        assert!(
            lines
                .line(&opened("w2", WaitKind::ClientTool), Style::plain(80))
                .is_some()
        );
        let closed = lines.line(&closed("w1", "answer", Some("ann"), None), Style::plain(80));
        assert_eq!(closed.unwrap().as_str(), "  answered by ann: bash: ls");
    }
}
