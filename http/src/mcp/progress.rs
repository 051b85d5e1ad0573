//! Tells a client that waits for a call which agent does what. Messages are short, and at most one is
//! sent in a second, because clients show only the latest.

use std::{collections::HashMap, future::pending, time::Duration};

use planck_common::{
    AgentId, Seq,
    envelope::Envelope,
    event::Event,
    message::{MessageRole, text_of},
};
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    feed::{Cursor, FeedItem},
    front::Front,
    problem::Problem,
};

/// The minimum time between two messages.
const PACE: Duration = Duration::from_secs(1);
/// How long a client may take to make room for a message. It then misses the message.
const SLOWEST: Duration = Duration::from_secs(1);
/// The maximum number of characters of a message.
const LONGEST: usize = 200;
/// The maximum number of agents whose names are known.
const MOST_NAMES: usize = 1_000;

/// The progress of one call.
pub struct Progress {
    /// The client and its token, if it has asked for progress.
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    /// The number of the last message.
    count: u32,
    next: Instant,
}

impl Progress {
    pub fn new(to: Option<(Peer<RoleServer>, ProgressToken)>) -> Self {
        Self {
            to,
            count: 0,
            next: Instant::now(),
        }
    }

    /// Sends a message at once.
    pub async fn tell(&mut self, message: &str) {
        let Some((peer, token)) = &self.to else {
            return;
        };
        self.count += 1;
        let param = ProgressNotificationParam::new(token.clone(), self.count.into());
        let told = peer.notify_progress(param.with_message(short(message, LONGEST)));
        // A client that has gone or does not read misses messages only.
        let _ = timeout(SLOWEST, told).await;
        self.next = Instant::now() + PACE;
    }

    /// Tells what the agents of a session do after the event `since`, by default from now on. Never
    /// returns.
    pub async fn follow(&mut self, front: &Front, session: &str, since: Option<Seq>) {
        if self.to.is_some() {
            // The call has its answer without the progress.
            let _ = self.follow_agents(front, session, since).await;
        }
        pending().await
    }

    async fn follow_agents(
        &mut self,
        front: &Front,
        session: &str,
        since: Option<Seq>,
    ) -> Result<(), Problem> {
        let info = front.client().session(session).await?;
        let since = since.unwrap_or(info.head);
        let feed = front.feed(&info.id);
        let mut cursor = Cursor::in_log(since, since, front.client().clone(), feed).await?;
        let agents = info.agents.into_iter().map(|agent| (agent.id, agent.name));
        let mut names = Names(agents.take(MOST_NAMES).collect());
        let mut latest: Option<String> = None;
        loop {
            tokio::select! {
                item = cursor.next() => {
                    if let FeedItem::Event(event) = item?
                        && let Some(told) = event.envelope().and_then(|event| names.describe(event))
                    {
                        latest = Some(told);
                    }
                }
                () = sleep_until(self.next), if latest.is_some() => {
                    self.tell(&latest.take().unwrap_or_default()).await;
                }
            }
        }
    }
}

/// The names of a session's agents.
struct Names(HashMap<AgentId, String>);

impl Names {
    /// Describes an event, or returns `None` if it is not worth a message.
    fn describe(&mut self, envelope: &Envelope) -> Option<String> {
        let Ok(event) = envelope.event()? else {
            return None;
        };
        if let Event::WorkerSpawned(spawned) = &event
            && self.0.len() < MOST_NAMES
        {
            self.0.insert(spawned.id.clone(), spawned.name.clone());
        }
        let id = &envelope.agent_id;
        let name = self.0.get(id).map_or(id.as_str(), String::as_str);
        let told = what_it_does(&event)?;
        Some(format!("{name} {told}"))
    }
}

fn what_it_does(event: &Event) -> Option<String> {
    match event {
        Event::TurnStart(_) => Some("begins a turn".to_owned()),
        Event::TurnEnd(_) => Some("ended its turn".to_owned()),
        Event::Error(error) => Some(format!("failed: {}", error.reason)),
        Event::Message(saved) if saved.message.role == MessageRole::Assistant => {
            let text = text_of(&saved.message.content);
            (!text.trim().is_empty()).then(|| format!("says: {text}"))
        }
        Event::ToolStart(call) => Some(format!("calls {} {}", call.name, call.args.get())),
        Event::ToolProgress(progress) => Some(format!("reports: {}", progress.message)),
        Event::WaitOpened(wait) => Some(format!("waits for an answer: {}", wait.title)),
        Event::WaitClosed(wait) => Some(format!("got an answer: {}", wait.decision.name())),
        Event::Retry(retry) => Some(format!("tries again: {}", retry.reason)),
        Event::Compacting(_) => Some("summarises its history".to_owned()),
        Event::WorkerSpawned(spawned) => Some(format!("spawned {}", spawned.name)),
        Event::SessionResumed(_) => Some("continues on another node".to_owned()),
        Event::TextDelta(_)
        | Event::ThinkingDelta(_)
        | Event::Message(_)
        | Event::UsageDelta(_)
        | Event::ToolEnd(_)
        | Event::MessageQueued(_)
        | Event::Compacted(_)
        | Event::WorkerExit(_)
        | Event::AgentStarted(_)
        | Event::AgentStopped(_)
        | Event::SessionStarted(_)
        | Event::SessionClosed(_)
        | Event::Rewound(_)
        | Event::Checkpoint(_)
        | Event::ToolsChanged(_)
        | Event::ModelChanged(_)
        | Event::Warning(_) => None,
    }
}

/// Returns the beginning of a text as one line of at most `most` characters.
pub fn short(text: &str, most: usize) -> String {
    let beginning: String = text.chars().take(most * 4).collect();
    let words = beginning.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let line = words.join(" ");
    if line.chars().count() <= most {
        return line;
    }
    let kept: String = line.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(kind: &str, agent: &str, data: &Value) -> Envelope {
        serde_json::from_value(json!({
            "v": 1, "type": kind, "agent_id": agent, "session_id": "s", "team_id": "t", "node_id": "n",
            "epoch": 1, "seq": 1, "turn": 1, "request": 1, "at": "2026-01-01T00:00:00.000Z", "data": data,
        }))
        .unwrap()
    }

    #[test]
    fn messages_name_the_agent_and_what_it_does() {
        let mut names = Names(HashMap::from([(
            AgentId::parse("a1").unwrap(),
            "lead".into(),
        )]));
        let spawned = json!({"id": "a2", "name": "helper", "type": "helper", "node_id": "n"});
        let call = json!({"call_id": "c", "id": "x", "name": "bash", "args": {"command": "ls"}, "effect": "mutating"});
        for (event, told) in [
            (
                event("worker_spawned", "a1", &spawned),
                Some("lead spawned helper"),
            ),
            (
                event("tool_start", "a2", &call),
                Some(r#"helper calls bash {"command": "ls"}"#),
            ),
            (
                event("turn_start", "a3", &json!({"index": 1, "inputs": []})),
                Some("a3 begins a turn"),
            ),
            (event("checkpoint", "a1", &json!({"covers": 1})), None),
            (event("of_a_later_version", "a1", &json!({})), None),
        ] {
            let found = names
                .describe(&event)
                .map(|text| text.replace(":\"", ": \""));
            assert_eq!(found.as_deref(), told);
        }
    }

    #[test]
    fn message_is_one_short_line() {
        assert_eq!(short("a\n b\u{1b}[31m  c", 200), "a b [31m c");
        assert_eq!(short(&"é".repeat(300), 5), "éééé…");
        assert_eq!(short("", 5), "");
    }
}
