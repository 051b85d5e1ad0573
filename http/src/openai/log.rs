//! The turns of a session that clients asked for, read from its log.

use planck_client::Client;
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::ReadEvents,
    envelope::Envelope,
    event::{Event, InputKind, TurnStart},
    message::{Message, MessageRole, text_of},
};

use super::{ask::normal, error::ApiError};

/// The maximum number of pages that are read of one log. The events of longer sessions are not
/// compared with what a client says about them.
const PAGES: usize = 64;
/// The number of events of the first step back in a log; every further step is four times as long.
const STEP: Seq = 256;

/// A turn that a prompt opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedTurn {
    /// The first row of the preceding turn; 0 if there is none.
    pub place: Seq,
    /// The first row of the turn.
    pub start: Seq,
    /// The prompt that opened the turn.
    pub input: InputId,
    /// The text of the prompt, and that of the replies, with single spaces.
    pub asked: String,
    pub said: String,
    pub is_over: bool,
}

/// Collects the turns from the events of the orchestrator.
#[derive(Debug, Default)]
struct TurnLog {
    turns: Vec<LoggedTurn>,
    /// The number of the last turn of `turns`, while it runs.
    running: Option<u32>,
}

impl TurnLog {
    fn take(&mut self, envelope: &Envelope) {
        let (Some(seq), None) = (envelope.seq, envelope.hidden_by) else {
            return;
        };
        match envelope.event() {
            Some(Ok(Event::TurnStart(start))) => self.begin(seq, envelope.turn, &start),
            Some(Ok(Event::Message(saved))) if self.running == Some(envelope.turn) => {
                self.message(&saved.message);
            }
            Some(Ok(Event::TurnEnd(_) | Event::Error(_)))
                if self.running == Some(envelope.turn) =>
            {
                self.running = None;
                if let Some(turn) = self.turns.last_mut() {
                    turn.is_over = true;
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, start: Seq, number: u32, turn: &TurnStart) {
        let mut inputs = turn.inputs.iter();
        let prompt = inputs.find(|input| input.kind == InputKind::Prompt);
        self.running = prompt.map(|_| number);
        let Some(prompt) = prompt else {
            return;
        };
        self.turns.push(LoggedTurn {
            place: self.turns.last().map_or(0, |last| last.start),
            start,
            input: prompt.id.clone(),
            asked: String::new(),
            said: String::new(),
            is_over: false,
        });
    }

    fn message(&mut self, message: &Message) {
        let Some(turn) = self.turns.last_mut() else {
            return;
        };
        let into = match message.role {
            MessageRole::User => &mut turn.asked,
            MessageRole::Assistant => &mut turn.said,
            MessageRole::ToolResult | MessageRole::Custom => return,
        };
        let text = normal(&text_of(&message.content));
        if !into.is_empty() && !text.is_empty() {
            into.push(' ');
        }
        into.push_str(&text);
    }
}

/// Reads the turns that begin at the place `from` of the log or later. The `place` of the first one
/// is known only if `from` is the first row of the log, or that of a turn.
pub async fn turns_from(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    from: Seq,
) -> Result<Vec<LoggedTurn>, ApiError> {
    let mut log = TurnLog::default();
    let mut from = from.max(1);
    for _ in 0..PAGES {
        let read = ReadEvents {
            from: Some(from),
            limit: None,
            agent: Some(agent.to_string()),
        };
        let page = client.events(session, &read).await?;
        let events = page.events.iter();
        for envelope in events.filter_map(|event| serde_json::from_str(event.get()).ok()) {
            log.take(&envelope);
        }
        if page.next > page.head || page.next <= from {
            return Ok(log.turns);
        }
        from = page.next;
    }
    Err(ApiError::conflict(
        "conversation_too_long",
        format!(
            "session `{session}` is too long to be compared with a history; continue it with `previous_response_id`"
        ),
    ))
}

/// Returns the latest turn.
pub async fn latest_turn(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    head: Seq,
) -> Result<Option<LoggedTurn>, ApiError> {
    let (mut step, mut from) = (STEP, head);
    loop {
        from = (from - step).max(1);
        step *= 4;
        let mut turns = turns_from(client, session, agent, from).await?;
        if turns.len() > 1 || from == 1 {
            return Ok(turns.pop());
        }
    }
}
