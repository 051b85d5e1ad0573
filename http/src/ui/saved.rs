//! Reads the messages of a chat from the log of its session, for a client that opens the chat again.

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc};

use planck_common::{
    AgentId, Seq,
    command::{ReadEvents, SessionInfo},
    envelope::Envelope,
    event::Event,
    message::{Message, MessageRole},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    chat,
    chunks::Encoder,
    message::{self, AssistantMessage},
};
use crate::{
    feed::{FeedEvent, FeedItem},
    front::Front,
    problem::Problem,
    turn::{self, TurnChoice, TurnReader},
};

/// The maximum number of turns in one answer.
const TURNS: u32 = 100;
/// The maximum size of the messages in one answer in bytes. The newest turn is always kept.
const ROOM: usize = 16 << 20;
/// The number of events in one page of the log.
const PAGE: u32 = 500;

/// Selects the messages that are read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "UiReadMessages")]
pub struct ReadChat {
    /// Only messages of turns before the one with this number are read.
    pub before: Option<u32>,
}

/// The latest messages of a chat, oldest first. The message of a running turn is not among them.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "UiMessages")]
pub struct ChatMessages {
    /// Messages of the type `UIMessage` of the AI SDK.
    messages: Vec<Value>,
    /// Earlier messages are read with this `before`. It is absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<u32>,
}

/// Reads messages of a chat. A chat that does not exist has none.
pub async fn messages(front: &Front, chat: &str, read: ReadChat) -> Result<ChatMessages, Problem> {
    let Some((session, agent)) = chat::session(front, chat).await? else {
        return Ok(ChatMessages::default());
    };
    let client = front.client();
    let latest = client.agent(&agent).await?.turn;
    // A turn that begins meanwhile belongs to the latest ones.
    let last = read.before.map_or(u32::MAX, |turn| turn.saturating_sub(1));
    let first = last.min(latest).saturating_sub(TURNS - 1).max(1);
    let mut from = match first {
        1 => 1,
        _ => turn::place_of(client, &session.id, &agent, first, session.head).await?,
    };
    let mut chat = SavedChat::new(&session, agent, first..=last);
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
    Ok(chat.end())
}

/// The messages of consecutive turns, which are read from the events of the log.
struct SavedChat<'a> {
    session: &'a SessionInfo,
    agent: AgentId,
    turns: RangeInclusive<u32>,
    /// The turn that is being read.
    turn: Option<SavedTurn>,
    kept: KeptMessages,
    /// Whether all turns were read.
    is_over: bool,
}

/// The messages of the newest turns, as far as there is room for them.
struct KeptMessages {
    /// The first turn whose messages are kept.
    first: u32,
    /// Messages with the turns to which they belong.
    messages: VecDeque<(u32, Value)>,
    /// The size of all messages as JSON in bytes.
    size: usize,
}

/// A turn that is being read.
struct SavedTurn {
    number: u32,
    /// Whether the turn has a prompt. A rewind to the first prompt of a turn hides its messages, but
    /// not its start and its end.
    has_prompt: bool,
    reader: TurnReader,
    encoder: Encoder,
    message: AssistantMessage,
}

impl<'a> SavedChat<'a> {
    fn new(session: &'a SessionInfo, agent: AgentId, turns: RangeInclusive<u32>) -> Self {
        Self {
            session,
            agent,
            turn: None,
            kept: KeptMessages::from(*turns.start()),
            is_over: turns.is_empty(),
            turns,
        }
    }

    /// Takes the next event of the log.
    fn take(&mut self, json: Box<str>) {
        let event = Arc::new(FeedEvent::new(seq_of(&json), json));
        if let Some(envelope) = event.envelope()
            && envelope.agent_id == self.agent
            && envelope.hidden_by.is_none()
        {
            self.own(envelope);
        }
        if let Some(turn) = &mut self.turn {
            turn.take(&FeedItem::Event(event));
        }
    }

    /// Takes an event of the agent that no rewind hid.
    fn own(&mut self, envelope: &Envelope) {
        match envelope.event() {
            Some(Ok(Event::TurnStart(start))) => {
                self.end_turn();
                self.is_over = start.index > *self.turns.end();
                if self.turns.contains(&start.index) {
                    self.turn = Some(SavedTurn::new(self.session, &self.agent, start.index));
                }
            }
            Some(Ok(Event::Message(saved))) if self.turns.contains(&envelope.turn) => {
                self.prompts(envelope.turn, &saved.message);
            }
            _ => {}
        }
    }

    fn prompts(&mut self, turn: u32, message: &Message) {
        if message.role != MessageRole::User {
            return;
        }
        for id in &message.metadata.inputs {
            self.kept.push(turn, message::of_user(id, &message.content));
        }
        if let Some(turn) = &mut self.turn {
            turn.has_prompt |= !message.metadata.inputs.is_empty();
        }
    }

    /// Adds the message of the turn that was read. A message without content is left out, unless it
    /// says why a prompt has no answer.
    fn end_turn(&mut self) {
        if let Some(turn) = self.turn.take()
            && (turn.message.has_parts() || (turn.has_prompt && turn.message.has_failed()))
        {
            self.kept.push(turn.number, turn.message.json());
        }
    }

    /// Returns the messages, after the last event. The message of a running turn is left out: its
    /// stream has all of it, and a client that answered a wait before it has the stream would lose
    /// the answer to the stream.
    fn end(mut self) -> ChatMessages {
        if self.turn.as_ref().is_some_and(|turn| turn.reader.is_over()) {
            self.end_turn();
        }
        self.kept.end()
    }
}

impl KeptMessages {
    fn from(first: u32) -> Self {
        Self {
            first,
            messages: VecDeque::new(),
            size: 0,
        }
    }

    /// Adds a message. Drops the oldest turns if there is no room for them.
    fn push(&mut self, turn: u32, message: Value) {
        self.size += size_of(&message);
        self.messages.push_back((turn, message));
        while self.size > ROOM
            && let Some((oldest, _)) = self.messages.front()
            && *oldest < turn
        {
            self.drop_turn(*oldest);
        }
    }

    fn drop_turn(&mut self, turn: u32) {
        while let Some((_, message)) = self.messages.pop_front_if(|(of, _)| *of == turn) {
            self.size -= size_of(&message);
        }
        self.first = turn + 1;
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
fn size_of(message: &Value) -> usize {
    message.to_string().len()
}

impl SavedTurn {
    fn new(session: &SessionInfo, agent: &AgentId, number: u32) -> Self {
        let names = session.agents.iter();
        let names = names.map(|agent| (agent.id.clone(), agent.name.clone()));
        let choice = TurnChoice::Number(number);
        Self {
            number,
            has_prompt: false,
            reader: TurnReader::new(agent.clone(), choice).with_names(names),
            encoder: Encoder::new(session.id.clone(), None),
            message: AssistantMessage::default(),
        }
    }

    fn take(&mut self, item: &FeedItem) {
        for event in self.reader.take(item) {
            for chunk in self.encoder.take(event) {
                self.message.take(&chunk);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_turns_are_kept_whole_within_the_room() {
        let mut kept = KeptMessages::from(1);
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
        assert_eq!(before, Some(3));

        let mut kept = KeptMessages::from(7);
        kept.push(7, "x".repeat(ROOM + 1).into());
        assert_eq!(kept.end().messages.len(), 1);
    }
}
