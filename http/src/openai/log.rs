//! The turns of a session that clients asked for, read from its log.

use planck_client::Client;
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::ReadEvents,
    envelope::Envelope,
    event::{Event, InputKind, TurnStart},
    message::{Message, MessageRole, text_of},
};

use super::{
    ask::{marked, normal},
    error::ApiError,
};

/// The maximum number of pages that are read of one log. The events of longer sessions are not
/// compared with what a client says about them.
const PAGES: usize = 64;
/// The number of events of the first step back in a log; every further step is four times as long.
const STEP: Seq = 256;

/// A turn that a prompt opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedTurn {
    /// The place after which the turn begins.
    pub place: Seq,
    /// The first row of the turn.
    pub start: Seq,
    /// The prompt that opened the turn, and the row of its message.
    pub input: InputId,
    pub message: Option<Seq>,
    /// The text of the prompt, and that of the replies, with single spaces.
    pub asked: String,
    pub said: String,
    /// The part of `said` that belongs to the last of the turns that said something: the agent may
    /// have read results of other agents in turns of their own.
    pub latest: String,
    pub is_over: bool,
}

/// Some turns of a session that follow each other.
#[derive(Debug, Default)]
pub struct LoggedTurns {
    pub turns: Vec<LoggedTurn>,
    /// The place after which the next turn begins: the first row of the last turn, or a later
    /// rewind.
    pub end: Seq,
    /// The number of the last turn of `turns`, while it runs.
    pub(super) running: Option<u32>,
    /// Whether the running turn reads what agents have sent after a prompt's turn.
    pub(super) is_later: bool,
    /// The number of the turn in which `latest` was said.
    pub(super) said_in: Option<u32>,
}

impl LoggedTurns {
    pub fn last(&self) -> Option<&LoggedTurn> {
        self.turns.last()
    }

    fn take(&mut self, envelope: &Envelope) {
        let (Some(seq), None) = (envelope.seq, envelope.hidden_by) else {
            return;
        };
        match envelope.event() {
            Some(Ok(Event::TurnStart(start))) => self.begin(seq, envelope.turn, &start),
            Some(Ok(Event::Message(saved))) if self.running == Some(envelope.turn) => {
                self.message(seq, &saved.message);
            }
            Some(Ok(Event::TurnEnd(_) | Event::Error(_)))
                if self.running == Some(envelope.turn) =>
            {
                self.running = None;
                if let Some(turn) = self.turns.last_mut() {
                    turn.is_over = true;
                }
            }
            Some(Ok(Event::Rewound(_))) => self.rewound(seq),
            _ => {}
        }
    }

    fn begin(&mut self, start: Seq, number: u32, turn: &TurnStart) {
        let mut inputs = turn.inputs.iter();
        let prompt = inputs.find(|input| input.kind == InputKind::Prompt);
        self.is_later = prompt.is_none() && !turn.inputs.is_empty() && !self.turns.is_empty();
        self.running = (prompt.is_some() || self.is_later).then_some(number);
        if let Some(turn) = self.turns.last_mut().filter(|_| self.is_later) {
            turn.is_over = false;
        }
        let Some(prompt) = prompt else {
            return;
        };
        self.said_in = None;
        self.turns.push(LoggedTurn {
            place: std::mem::replace(&mut self.end, start),
            start,
            input: prompt.id.clone(),
            message: None,
            asked: String::new(),
            said: String::new(),
            latest: String::new(),
            is_over: false,
        });
    }

    /// Removes the turns whose prompts are hidden. The first row of such a turn may be visible.
    fn rewound(&mut self, seq: Seq) {
        self.turns.retain(|turn| turn.message.is_some());
        (self.end, self.running) = (seq, None);
    }

    fn message(&mut self, seq: Seq, message: &Message) {
        let Some(turn) = self.turns.last_mut() else {
            return;
        };
        match message.role {
            MessageRole::User if self.is_later => {}
            MessageRole::User => {
                turn.message.get_or_insert(seq);
                add(&mut turn.asked, &normal(&marked(&message.content)));
            }
            MessageRole::Assistant => {
                let text = normal(&text_of(&message.content));
                if !text.is_empty() && self.said_in != self.running {
                    self.said_in = self.running;
                    turn.latest.clear();
                }
                add(&mut turn.said, &text);
                add(&mut turn.latest, &text);
            }
            MessageRole::ToolResult | MessageRole::Custom => {}
        }
    }
}

/// Adds a text after a space.
fn add(to: &mut String, text: &str) {
    if !to.is_empty() && !text.is_empty() {
        to.push(' ');
    }
    to.push_str(text);
}

/// Reads the turns that begin after a place. The `place` of the first one is right if `after` is one
/// or 0.
pub async fn turns_after(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    after: Seq,
) -> Result<LoggedTurns, ApiError> {
    let mut turns = LoggedTurns {
        end: after,
        ..LoggedTurns::default()
    };
    let mut from = after + 1;
    for _ in 0..PAGES {
        let read = ReadEvents {
            from: Some(from),
            limit: None,
            agent: Some(agent.to_string()),
        };
        let page = client.events(session, &read).await?;
        let events = page.events.iter();
        for envelope in events.filter_map(|event| serde_json::from_str(event.get()).ok()) {
            turns.take(&envelope);
        }
        if page.next > page.head || page.next <= from {
            return Ok(turns);
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

/// Reads the turn that begins after a place, and all later ones. Returns `None` if there is none,
/// or if a rewind hid it.
pub async fn turn_after(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    place: Seq,
) -> Result<Option<(LoggedTurn, LoggedTurns)>, ApiError> {
    let turns = turns_after(client, session, agent, place).await?;
    let first = turns.turns.first().filter(|turn| turn.place == place);
    Ok(first.cloned().map(|first| (first, turns)))
}

/// Reads the latest turn, perhaps with some before it.
pub async fn latest_turns(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    head: Seq,
) -> Result<LoggedTurns, ApiError> {
    let (mut step, mut from) = (STEP, head);
    loop {
        from = (from - step).max(0);
        step *= 4;
        let turns = turns_after(client, session, agent, from).await?;
        if turns.turns.len() > 1 || from == 0 {
            return Ok(turns);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(seq: Seq, kind: &str, turn: u32, data: &Value) -> Envelope {
        let event = json!({"v": 1, "type": kind, "agent_id": "a", "session_id": "s", "team_id": "t",
            "node_id": "n", "epoch": 1, "seq": seq, "prev": 0, "turn": turn, "request": 0,
            "at": "2026-01-01T12:00:00.000Z", "data": data});
        serde_json::from_value(event).unwrap()
    }

    /// The rows of a turn: its start, its prompt and its end.
    fn turn(first: Seq, number: u32) -> [Envelope; 3] {
        let inputs = json!([{"id": format!("p{number}"), "kind": "prompt", "from": null}]);
        let start = json!({"index": number, "inputs": inputs});
        let message = json!({"message": {"id": first + 1, "agent_id": "a",
            "at": "2026-01-01T12:00:00.000Z", "role": "user",
            "content": [{"type": "text", "text": "hi"}], "metadata": {}}});
        let usage = json!({"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 0,
            "cache_write_tokens": 0, "cost_usd": 0.0});
        let end = json!({"outcome": "completed", "message": null, "usage": usage, "inputs": []});
        [
            event(first, "turn_start", number, &start),
            event(first + 1, "message", number, &message),
            event(first + 2, "turn_end", number, &end),
        ]
    }

    fn read<'a>(rows: impl IntoIterator<Item = &'a Envelope>) -> LoggedTurns {
        let mut turns = LoggedTurns::default();
        rows.into_iter().for_each(|row| turns.take(row));
        turns
    }

    #[test]
    fn place_of_a_turn_is_the_first_row_of_the_one_before() {
        let turns = read(&[turn(3, 1), turn(6, 2)].concat());
        let places: Vec<_> = turns.turns.iter().map(|turn| turn.place).collect();
        assert_eq!((places, turns.end), (vec![0, 3], 6));
        assert!(turns.last().is_some_and(|turn| turn.is_over));
    }

    #[test]
    fn results_of_agents_are_read_in_turns_of_the_prompt_before() {
        let says = |seq: Seq, number: u32, role: &str, text: &str| {
            let message = json!({"id": seq, "agent_id": "a", "at": "2026-01-01T12:00:00.000Z",
                "role": role, "content": [{"type": "text", "text": text}], "metadata": {}});
            event(seq, "message", number, &json!({"message": message}))
        };
        let mut rows = turn(3, 1).to_vec();
        rows.insert(2, says(5, 1, "assistant", "Both are at work."));
        let inputs = json!([{"id": "r", "kind": "response", "from": "w"}]);
        let start = json!({"index": 2, "inputs": inputs});
        rows.push(event(7, "turn_start", 2, &start));
        rows.push(says(8, 2, "user", "From w: three"));
        rows.push(says(9, 2, "assistant", "It has three."));
        let running = read(&rows);
        let [prompt] = running.turns.as_slice() else {
            panic!("{running:?}")
        };
        assert!(!prompt.is_over);
        let texts = (&*prompt.asked, &*prompt.said, &*prompt.latest);
        let said = "Both are at work. It has three.";
        assert_eq!(texts, ("hi", said, "It has three."));
        assert_eq!(running.end, 3, "the next prompt follows that of the turn");
    }

    #[test]
    fn rewound_turn_is_gone_and_the_rewind_is_the_next_place() {
        let mut rows = [turn(3, 1), turn(6, 2)].concat();
        // The first row of the second turn stays visible, and its end follows once more.
        for row in &mut rows[4..] {
            row.hidden_by = Some(10);
        }
        rows.push(event(9, "turn_end", 2, &json!({})));
        rows.push(event(10, "rewound", 2, &json!({"to": 7, "by": "a"})));
        let turns = read(&rows);
        let messages: Vec<_> = turns.turns.iter().map(|turn| turn.message).collect();
        assert_eq!((messages, turns.end), (vec![Some(4)], 10));
        rows.extend(turn(11, 3));
        let turns = read(&rows);
        assert_eq!(turns.last().map(|turn| turn.place), Some(10));
    }
}
