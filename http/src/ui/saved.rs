//! Reads the messages of a chat from the log of its session, for a client that opens the chat
//! again. A message is what the client would have: the chunks of a turn put together, or a prompt.

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc, time::Duration};

use planck_client::{
    Client, ClientError,
    turn::{TurnChoice, TurnEvent, TurnReader, Until},
};
use planck_common::{
    AgentId, Seq, SessionId,
    command::{Outcome, ReadEvents, SessionInfo, WorkState},
    event::{Event, EventKind},
    message::{MediaSource, Message, MessageRole, Part},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    chat::{self, Chat},
    chunks::{ChunkEncoder, with_field},
    ids,
};
use crate::{
    feed::{FeedEvent, FeedItem},
    front::Front,
    problem::Problem,
    turn,
};

/// The number of turns in one reply. The answers of the first of them may begin earlier.
const TURNS: u32 = 100;
/// The maximum number of answers that are read at a time, because other agents may still work for
/// them.
const OPEN: usize = 4;
/// The number of events in one page of the log.
const PAGE: u32 = 500;

/// Selects the messages that are read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "UiReadMessages")]
pub struct ReadChat {
    /// Only messages before the one that begins with this turn are read.
    pub before: Option<u32>,
}

/// The latest messages of a chat, oldest first. The message of a running answer is not among them.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "UiMessages")]
pub struct ChatMessages {
    /// Messages of the type `UIMessage` of the AI SDK.
    pub messages: Vec<Value>,
    /// Earlier messages are read with this `before`. It is absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<u32>,
}

/// Writes one answer as messages of a client.
pub trait AnswerWriter {
    /// The maximum size of the messages in one reply in bytes. The newest answer is always kept.
    const ROOM: usize;

    fn new(session: &SessionId) -> Self;

    fn take(&mut self, event: TurnEvent);

    /// Returns the messages of the answer. There may be none.
    fn messages(self, has_prompt: bool) -> Vec<Value>;

    /// Returns the message of the user that became the prompt `id`.
    fn of_user(id: &str, content: &[Part]) -> Value;
}

/// Reads messages of a chat. A chat that does not exist has none.
pub async fn messages(front: &Front, chat: &str, read: ReadChat) -> Result<ChatMessages, Problem> {
    match chat::find(front, chat, Until::Work).await? {
        Some(chat) => read_messages::<UiWriter>(&chat, read).await,
        None => Ok(ChatMessages::default()),
    }
}

/// Reads messages of a chat that exists.
pub async fn read_messages<W: AnswerWriter>(
    chat: &Chat<'_>,
    read: ReadChat,
) -> Result<ChatMessages, Problem> {
    let (client, session, agent) = (chat.client(), &chat.session, &chat.agent);
    let latest = client.agent(agent).await?.turn;
    // A turn that begins meanwhile belongs to the latest ones.
    let last = read.before.map_or(u32::MAX, |turn| turn.saturating_sub(1));
    let first = last.min(latest).saturating_sub(TURNS - 1).max(1);
    let opening = match first {
        1 => None,
        _ => turn::opening_of(client, &session.id, agent, first, session.head).await?,
    };
    let (first, mut from) = opening.map_or((1, 1), |opening| (opening.turn, opening.from));
    let mut chat = SavedChat::<W>::new(session, agent.clone(), first..=last);
    while !chat.is_over {
        let read = ReadEvents {
            from: Some(from),
            limit: Some(PAGE),
            agent: None,
        };
        let page = client.events(&session.id, &read).await?;
        for event in page.events {
            chat.take(event.into());
        }
        from = page.next;
        if page.next > page.head {
            break;
        }
    }
    chat.end(client).await
}

/// The messages of a chat that begin with consecutive turns, which are read from the events of the
/// log.
struct SavedChat<'a, W> {
    session: &'a SessionInfo,
    agent: AgentId,
    turns: RangeInclusive<u32>,
    /// The answers that are being read, oldest first.
    answers: Vec<SavedAnswer<W>>,
    kept: KeptMessages,
    /// Whether all turns were read.
    is_over: bool,
}

/// The newest messages, as far as there is room for them.
struct KeptMessages {
    /// The first turn whose messages are kept.
    first: u32,
    /// Messages with the turns with which their answers begin.
    messages: VecDeque<(u32, Value)>,
    /// The size of all messages as JSON in bytes.
    size: usize,
    /// The maximum of `size`.
    room: usize,
}

/// An answer that is being read: the turns of the agent that belong to the work of a prompt.
struct SavedAnswer<W> {
    /// The number of its first turn.
    number: u32,
    /// Whether the answer has a prompt. A rewind to the first prompt of a turn hides its messages, but
    /// not its start and its end.
    has_prompt: bool,
    reader: TurnReader,
    writer: W,
}

impl<'a, W: AnswerWriter> SavedChat<'a, W> {
    fn new(session: &'a SessionInfo, agent: AgentId, turns: RangeInclusive<u32>) -> Self {
        Self {
            session,
            agent,
            answers: Vec::new(),
            kept: KeptMessages::new(*turns.start(), W::ROOM),
            is_over: turns.is_empty(),
            turns,
        }
    }

    /// Takes the next event of the log.
    fn take(&mut self, json: Box<str>) {
        let event = Arc::new(FeedEvent::new(seq_of(&json), json));
        let item = FeedItem::Event(Arc::clone(&event));
        let envelope = event.envelope();
        let envelope = envelope.filter(|envelope| envelope.hidden_by.is_none());
        let own = envelope.filter(|envelope| envelope.agent_id == self.agent);
        let own = own.and_then(|envelope| Some((envelope.turn, envelope.event()?.ok()?)));
        let kind = envelope.and_then(|envelope| EventKind::find(&envelope.kind));
        let is_end = matches!(kind, Some(EventKind::Rewound))
            || matches!(
                &own,
                Some((_, Event::AgentStopped(_) | Event::SessionClosed(_)))
            );
        if is_end {
            // These events do not change what was said before.
            self.close(|answer| answer.reader.awaited().is_some());
        }
        for answer in &mut self.answers {
            answer.take(&item);
        }
        self.close(|answer| answer.reader.is_over());
        match own {
            Some((_, Event::TurnStart(start))) => self.started(start.index, &item),
            Some((turn, Event::Message(saved))) => self.prompts(turn, &saved.message),
            _ => {}
        }
    }

    /// Takes the start of a turn, with which a new answer begins if no other one goes on with it.
    fn started(&mut self, turn: u32, item: &FeedItem) {
        let is_new = |answer: &SavedAnswer<W>| answer.reader.turn() != Some(turn);
        if !self.answers.iter().all(is_new) {
            return;
        }
        // An agent has one turn at a time.
        self.close(|answer| answer.reader.turn().is_some());
        self.is_over |= turn > *self.turns.end();
        if self.turns.contains(&turn) {
            let mut answer = SavedAnswer::new(self.session, &self.agent, turn);
            answer.take(item);
            self.answers.push(answer);
        }
        while self.answers.len() > OPEN {
            let oldest = self.answers.remove(0);
            self.keep(oldest);
        }
    }

    fn prompts(&mut self, turn: u32, message: &Message) {
        let mut answers = self.answers.iter_mut();
        let answer = answers.find(|answer| answer.reader.turn() == Some(turn));
        let (Some(answer), MessageRole::User) = (answer, message.role) else {
            return;
        };
        // A message that another agent sent is no message of the user.
        if message.metadata.from.is_some() {
            return;
        }
        for id in &message.metadata.inputs {
            let message = W::of_user(id, &message.content);
            self.kept.push(answer.number, message);
        }
        answer.has_prompt |= !message.metadata.inputs.is_empty();
    }

    /// Keeps the messages of the answers that are complete.
    fn close(&mut self, is_complete: impl Fn(&SavedAnswer<W>) -> bool) {
        while let Some(at) = self.answers.iter().position(&is_complete) {
            let answer = self.answers.remove(at);
            self.keep(answer);
        }
    }

    /// Adds the messages of an answer.
    fn keep(&mut self, mut answer: SavedAnswer<W>) {
        answer.end(None);
        for message in answer.writer.messages(answer.has_prompt) {
            self.kept.push(answer.number, message);
        }
    }

    /// Returns the messages, after the last event. The message of a running answer is left out: its
    /// stream has all of it, and a client that answered a wait before it has the stream would lose
    /// the answer to the stream.
    async fn end(mut self, client: &Client) -> Result<ChatMessages, Problem> {
        for mut answer in std::mem::take(&mut self.answers) {
            let Some(prompt) = answer.reader.awaited() else {
                continue;
            };
            let asked = client.outcome(&self.session.id, prompt, Duration::ZERO);
            match asked.await {
                Ok(outcome) if outcome.state == WorkState::Over => answer.end(Some(&outcome)),
                Ok(_) => continue,
                // The session or its prompt was removed meanwhile.
                Err(ClientError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            }
            self.keep(answer);
        }
        Ok(self.kept.end())
    }
}

impl KeptMessages {
    fn new(first: u32, room: usize) -> Self {
        Self {
            first,
            messages: VecDeque::new(),
            size: 0,
            room,
        }
    }

    /// Adds a message after the others of its answer. Drops the oldest answers if there is no room
    /// for them.
    fn push(&mut self, turn: u32, message: Value) {
        if turn < self.first {
            return;
        }
        self.size += size_of(&message);
        let before = self.messages.iter().rposition(|(of, _)| *of <= turn);
        let at = before.map_or(0, |before| before + 1);
        self.messages.insert(at, (turn, message));
        let newest = self.messages.back().map(|(of, _)| *of);
        while self.size > self.room
            && let Some((oldest, _)) = self.messages.front()
            && Some(*oldest) < newest
        {
            self.drop_answer(*oldest);
        }
    }

    fn drop_answer(&mut self, turn: u32) {
        while let Some((_, message)) = self.messages.pop_front_if(|(of, _)| *of == turn) {
            self.size -= size_of(&message);
        }
        let next = self.messages.front().map(|(of, _)| *of);
        self.first = next.unwrap_or(turn + 1);
    }

    fn end(self) -> ChatMessages {
        let messages = self.messages.into_iter();
        ChatMessages {
            messages: messages.map(|(_, message)| message).collect(),
            before: (self.first > 1).then_some(self.first),
        }
    }
}

/// Returns the size of a message as JSON in bytes.
pub fn size_of(message: &Value) -> usize {
    message.to_string().len()
}

impl<W: AnswerWriter> SavedAnswer<W> {
    fn new(session: &SessionInfo, agent: &AgentId, number: u32) -> Self {
        let names = session.agents.iter();
        let names = names.map(|agent| (agent.id.clone(), agent.name.clone()));
        let reader = TurnReader::new(agent.clone(), TurnChoice::Number(number));
        Self {
            number,
            has_prompt: false,
            reader: reader.until(Until::Work).with_names(names),
            writer: W::new(&session.id),
        }
    }

    fn take(&mut self, item: &FeedItem) {
        let events = item.tell(&mut self.reader);
        self.write(events);
    }

    /// Takes that the work is over.
    fn end(&mut self, outcome: Option<&Outcome>) {
        let events = self.reader.over(outcome);
        self.write(events);
    }

    fn write(&mut self, events: Vec<TurnEvent>) {
        for event in events {
            self.writer.take(event);
        }
    }
}

/// Writes the message of the assistant that a client of the stream would have.
struct UiWriter {
    encoder: ChunkEncoder,
    message: AssistantMessage,
}

impl AnswerWriter for UiWriter {
    const ROOM: usize = 16 << 20;

    fn new(session: &SessionId) -> Self {
        Self {
            encoder: ChunkEncoder::new(session.clone(), None),
            message: AssistantMessage::default(),
        }
    }

    fn take(&mut self, event: TurnEvent) {
        for chunk in self.encoder.take(event) {
            self.message.take(&chunk);
        }
    }

    /// A message without content is left out, unless it says why a prompt has no answer.
    fn messages(self, has_prompt: bool) -> Vec<Value> {
        let is_kept = self.message.has_parts() || (has_prompt && self.message.has_failed());
        is_kept.then(|| self.message.json()).into_iter().collect()
    }

    fn of_user(id: &str, content: &[Part]) -> Value {
        message_of_user(id, content)
    }
}

/// Returns the number of a durable event.
fn seq_of(json: &str) -> Option<Seq> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: Option<Seq>,
    }
    serde_json::from_str::<Numbered>(json).ok()?.seq
}

/// Puts the chunks of one turn together, as the clients of the stream do. Chunks that a client shows
/// once and does not keep are dropped.
#[derive(Debug, Default)]
struct AssistantMessage {
    id: Value,
    metadata: Map<String, Value>,
    parts: Vec<Value>,
    /// The place of the part that text is added to.
    open: usize,
}

impl AssistantMessage {
    fn take(&mut self, chunk: &Value) {
        let kind = chunk["type"].as_str().unwrap_or_default();
        match kind {
            "start" => {
                self.id = chunk["messageId"].clone();
                self.describe(chunk);
            }
            "finish" => self.describe(chunk),
            "error" => {
                let error = chunk["errorText"].clone();
                self.metadata.insert("error".into(), error);
            }
            "start-step" => self.parts.push(json!({"type": "step-start"})),
            "reset-step" => {
                let is_start = |part: &Value| part["type"] == "step-start";
                let start = self.parts.iter().rposition(is_start);
                self.parts.truncate(start.map_or(0, |at| at + 1));
            }
            "text-start" => self.open_text(json!({"type": "text"})),
            "reasoning-start" => {
                self.open_text(json!({"type": "reasoning", "id": chunk["id"]}));
            }
            "text-delta" | "reasoning-delta" => self.add_text(chunk),
            "text-end" | "reasoning-end" => {
                if let Some(part) = self.parts.get_mut(self.open) {
                    put(part, "state", "done");
                }
            }
            _ if kind.starts_with("tool-") => self.tool(kind, chunk),
            _ if kind.starts_with("data-") && chunk["transient"] != true => self.data(chunk),
            _ => {}
        }
    }

    fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    fn has_failed(&self) -> bool {
        self.metadata.contains_key("error")
    }

    /// Returns the message as JSON.
    fn json(self) -> Value {
        json!({"id": self.id, "role": "assistant", "metadata": self.metadata, "parts": self.parts})
    }

    fn describe(&mut self, chunk: &Value) {
        if let Some(metadata) = chunk["messageMetadata"].as_object() {
            self.metadata.extend(metadata.clone());
        }
    }

    fn open_text(&mut self, part: Value) {
        self.open = self.parts.len();
        let part = with_field(with_field(part, "text", ""), "state", "streaming");
        self.parts.push(part);
    }

    fn add_text(&mut self, chunk: &Value) {
        let part = self.parts.get_mut(self.open);
        if let Some(Value::String(text)) = part.and_then(|part| part.get_mut("text")) {
            text.push_str(chunk["delta"].as_str().unwrap_or_default());
        }
    }

    fn tool(&mut self, kind: &str, chunk: &Value) {
        let state = match kind {
            "tool-input-available" => return self.parts.push(called(chunk, "input-available")),
            "tool-input-error" => {
                let part = called(chunk, "output-error");
                return self
                    .parts
                    .push(with_field(part, "errorText", chunk["errorText"].clone()));
            }
            "tool-approval-request" => "approval-requested",
            "tool-approval-response" => "approval-responded",
            "tool-output-denied" => "output-denied",
            "tool-output-available" => "output-available",
            "tool-output-error" => "output-error",
            _ => return,
        };
        let Some(part) = self.parts.iter_mut().rfind(|part| is_about(part, chunk)) else {
            return;
        };
        put(part, "state", state);
        match kind {
            "tool-approval-request" => {
                let approval = json!({"id": chunk["approvalId"],
                    "descriptor": chunk["approvalDescriptor"], "requestReason": chunk["reason"]});
                put(part, "approval", approval);
            }
            "tool-approval-response" => {
                if let Some(approval) = part.get_mut("approval") {
                    put(approval, "approved", chunk["approved"].clone());
                    if let Some(reason) = chunk.get("reason") {
                        put(approval, "reason", reason.clone());
                    }
                }
            }
            "tool-output-available" => put(part, "output", chunk["output"].clone()),
            "tool-output-error" => put(part, "errorText", chunk["errorText"].clone()),
            _ => {}
        }
    }

    /// Takes a part with data, which replaces an earlier one with the same id.
    fn data(&mut self, chunk: &Value) {
        let is_same =
            |part: &&mut Value| part["type"] == chunk["type"] && part["id"] == chunk["id"];
        match self.parts.iter_mut().find(is_same) {
            Some(part) => *part = chunk.clone(),
            None => self.parts.push(chunk.clone()),
        }
    }
}

/// Sets a field of an object.
fn put(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Returns whether a chunk is about the call of a part, which it names or whose approval it names.
fn is_about(part: &Value, chunk: &Value) -> bool {
    match chunk.get("toolCallId") {
        Some(call) => part.get("toolCallId") == Some(call),
        None => part.pointer("/approval/id") == chunk.get("approvalId"),
    }
}

/// Returns the part of a call.
fn called(chunk: &Value, state: &str) -> Value {
    let name = chunk["toolName"].as_str().unwrap_or_default();
    let part = json!({"toolCallId": chunk["toolCallId"], "state": state, "input": chunk["input"]});
    let part = match chunk["dynamic"] == true {
        true => with_field(with_field(part, "type", "dynamic-tool"), "toolName", name),
        false => with_field(part, "type", format!("tool-{name}")),
    };
    match chunk.get("providerExecuted") {
        Some(is) => with_field(part, "providerExecuted", is.clone()),
        None => part,
    }
}

/// Returns the message of the user that became the prompt `id`.
fn message_of_user(id: &str, content: &[Part]) -> Value {
    let parts: Vec<Value> = content.iter().filter_map(user_part).collect();
    json!({"id": ids::base_of(id), "role": "user", "parts": parts})
}

fn user_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text, .. } => Some(json!({"type": "text", "text": text})),
        Part::Image { mime, source } => Some(file(mime, source)),
        Part::File { mime, name, source } => Some(match name {
            Some(name) => with_field(file(mime, source), "filename", name.as_str()),
            None => file(mime, source),
        }),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn file(mime: &str, source: &MediaSource) -> Value {
    let url = match source {
        MediaSource::Data(data) => format!("data:{mime};base64,{data}"),
        MediaSource::Url(url) => url.clone(),
    };
    json!({"type": "file", "mediaType": mime, "url": url})
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    #[test]
    fn newest_turns_are_kept_whole_within_the_room() {
        let mut kept = KeptMessages::new(1, ROOM);
        let third = "x".repeat(ROOM / 3);
        for turn in [1, 1, 2, 4, 4] {
            kept.push(turn, format!("{turn}{third}").into());
        }
        // The prompt of the first turn does not stay without its answer.
        let ChatMessages { messages, before } = kept.end();
        let turns = messages
            .iter()
            .map(|message| message.as_str().unwrap().chars().next());
        assert_eq!(turns.collect::<Vec<_>>(), [Some('4'), Some('4')]);
        assert_eq!(before, Some(4));

        let mut kept = KeptMessages::new(7, ROOM);
        kept.push(7, "x".repeat(ROOM + 1).into());
        assert_eq!(kept.end().messages.len(), 1);

        // An answer goes on after the prompt of the next one.
        let mut kept = KeptMessages::new(1, ROOM);
        for (turn, message) in [(1, "ask"), (3, "ask"), (1, "answer"), (3, "answer")] {
            kept.push(turn, format!("{turn} {message}").into());
        }
        let expected = ["1 ask", "1 answer", "3 ask", "3 answer"];
        assert_eq!(kept.end().messages, expected);
    }

    #[test]
    fn chunks_become_the_parts_that_a_client_keeps() {
        let chunks = [
            json!({"type": "start", "messageId": "s-1", "messageMetadata": {"turn": 1}}),
            json!({"type": "start-step"}),
            json!({"type": "text-start", "id": "text-1"}),
            json!({"type": "text-delta", "id": "text-1", "delta": "void"}),
            json!({"type": "reset-step"}),
            json!({"type": "reasoning-start", "id": "reasoning-2"}),
            json!({"type": "reasoning-delta", "id": "reasoning-2", "delta": "Hm"}),
            json!({"type": "data-agent", "id": "a", "data": {"state": "working"}}),
            json!({"type": "reasoning-delta", "id": "reasoning-2", "delta": "m."}),
            json!({"type": "reasoning-end", "id": "reasoning-2"}),
            json!({"type": "tool-input-available", "toolCallId": "c1", "toolName": "read",
                "input": {}, "dynamic": true, "providerExecuted": true}),
            json!({"type": "data-progress", "data": {}, "transient": true}),
            json!({"type": "tool-output-error", "toolCallId": "c1", "errorText": "no file"}),
            json!({"type": "tool-input-error", "toolCallId": "c2", "toolName": "read",
                "input": "{", "errorText": "no JSON", "dynamic": true, "providerExecuted": true}),
            json!({"type": "data-agent", "id": "a", "data": {"state": "idle"}}),
            json!({"type": "finish-step"}),
            json!({"type": "finish", "messageMetadata": {"outcome": "completed"}}),
        ];
        let mut message = AssistantMessage::default();
        chunks.iter().for_each(|chunk| message.take(chunk));
        let parts = json!([
            {"type": "step-start"},
            {"type": "reasoning", "id": "reasoning-2", "text": "Hmm.", "state": "done"},
            {"type": "data-agent", "id": "a", "data": {"state": "idle"}},
            {"type": "dynamic-tool", "toolName": "read", "toolCallId": "c1", "input": {},
                "state": "output-error", "errorText": "no file", "providerExecuted": true},
            {"type": "dynamic-tool", "toolName": "read", "toolCallId": "c2", "input": "{",
                "state": "output-error", "errorText": "no JSON", "providerExecuted": true},
        ]);
        let metadata = json!({"turn": 1, "outcome": "completed"});
        assert_eq!(
            message.json(),
            json!({"id": "s-1", "role": "assistant", "metadata": metadata, "parts": parts})
        );
    }

    #[test]
    fn prompt_becomes_the_message_that_was_sent() {
        let content = [
            Part::text("Look."),
            Part::Image {
                mime: "image/png".into(),
                source: MediaSource::Data("AAAA".into()),
            },
            Part::File {
                mime: "text/csv".into(),
                name: Some("a.csv".into()),
                source: MediaSource::Url("https://example.org/a.csv".into()),
            },
        ];
        let parts = json!([
            {"type": "text", "text": "Look."},
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
            {"type": "file", "mediaType": "text/csv", "url": "https://example.org/a.csv",
                "filename": "a.csv"},
        ]);
        assert_eq!(
            message_of_user("m1_r7", &content),
            json!({"id": "m1", "role": "user", "parts": parts})
        );
    }
}
