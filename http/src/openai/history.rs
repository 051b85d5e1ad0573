//! Reads the turns of a session that clients asked for from its log, and compares them with the
//! history that a client sends. The client's history is not trusted: it only chooses a session, and
//! only its last message is new.

use planck_client::Client;
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::ReadEvents,
    envelope::Envelope,
    event::{Event, InputKind, TurnEnd, TurnStart},
    message::{Message, MessageRole, text_of},
};

use super::{
    ask::{Said, marked, normal},
    error::OpenAiError,
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
    /// Whether the answer of the running turn has a shape.
    pub(super) has_shape: bool,
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
            Some(Ok(event @ (Event::TurnEnd(_) | Event::Error(_))))
                if self.running == Some(envelope.turn) =>
            {
                if let Event::TurnEnd(TurnEnd {
                    output: Some(output),
                    ..
                }) = event
                {
                    self.said(&normal(output.get()));
                }
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
        self.has_shape = turn.output.is_some();
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

    fn said(&mut self, text: &str) {
        let Some(turn) = self.turns.last_mut() else {
            return;
        };
        if !text.is_empty() && self.said_in != self.running {
            self.said_in = self.running;
            turn.latest.clear();
        }
        add(&mut turn.said, text);
        add(&mut turn.latest, text);
    }

    fn message(&mut self, seq: Seq, message: &Message) {
        let Some(turn) = self.turns.last_mut() else {
            return;
        };
        match message.role {
            MessageRole::User if self.is_later => {}
            MessageRole::User if message.is_from_runtime() => {}
            MessageRole::User => {
                turn.message.get_or_insert(seq);
                add(&mut turn.asked, &normal(&marked(&message.content)));
            }
            // The answer of a turn with a shape is the object at its end.
            MessageRole::Assistant if self.has_shape => {}
            MessageRole::Assistant => self.said(&normal(&text_of(&message.content))),
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
) -> Result<LoggedTurns, OpenAiError> {
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
    Err(OpenAiError::conflict(
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
) -> Result<Option<(LoggedTurn, LoggedTurns)>, OpenAiError> {
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
) -> Result<LoggedTurns, OpenAiError> {
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

const INTRODUCTION: &str = "The conversation so far, as the client shows it:";
const NEXT: &str = "The next message is:";

/// How a client's history and a session fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// The history is all that happened in the session. The next turn follows.
    Next,
    /// The session already has the turn for which the request asks, as its last one.
    Asked,
    /// The history is another one, or only a part of what happened.
    Other,
}

/// Compares a history, and the new prompt after it, with the turns of a session.
pub fn fit(turns: &[LoggedTurn], history: &[Said], prompt: &str, is_retry: bool) -> Fit {
    // A turn that failed before it said anything is not in the history of the client.
    let is_shown = |turn: &&LoggedTurn| !turn.is_over || !turn.said.is_empty();
    let shown: Vec<_> = turns.iter().filter(is_shown).collect();
    // The first turn of some sessions has the beginning of the history as a transcript.
    let told = shown
        .first()
        .map_or(0, |first| told(first, history, prompt));
    let history = history.get(told..).unwrap_or_default();
    let Some(rest) = shown.get(history.len()..) else {
        return Fit::Other;
    };
    let mut pairs = shown.iter().zip(history);
    let mut is_first = told > 0;
    let is_same = pairs.all(|(turn, said)| {
        let asked = std::mem::replace(&mut is_first, false) || asks(turn, &said.user);
        asked && answers(turn, &said.assistant)
    });
    if !is_same {
        return Fit::Other;
    }
    match rest {
        [] => Fit::Next,
        [turn] if asks(turn, prompt) && (is_retry || !turn.is_over) => Fit::Asked,
        _ => Fit::Other,
    }
}

/// Returns whether the prompt of a turn contains a text. The front may have put instructions in
/// front of it.
pub fn asks(turn: &LoggedTurn, prompt: &str) -> bool {
    turn.asked.ends_with(&normal(prompt))
}

/// Returns whether the replies of a turn are those that the client shows. The client may have
/// stopped reading before the end, and may have read pieces of a reply that was made again.
fn answers(turn: &LoggedTurn, answer: &str) -> bool {
    let answer = normal(answer);
    let is_shown = |said: &String| {
        (said.starts_with(&answer) && !answer.is_empty())
            || (answer.ends_with(said) && !said.is_empty())
    };
    // A completion that was not streamed has only what was said last.
    !turn.is_over || is_shown(&turn.said) || is_shown(&turn.latest)
}

/// Returns how many turns of the history a session's first prompt tells as a transcript.
fn told(first: &LoggedTurn, history: &[Said], prompt: &str) -> usize {
    if !first.asked.contains(INTRODUCTION) {
        return 0;
    }
    let length = |text: &str| normal(text).len() + 1;
    let mut total = length(INTRODUCTION) + length(NEXT);
    let mut fitting = Vec::new();
    for (at, said) in history.iter().enumerate() {
        total += length(&shown(said));
        let user = history
            .get(at + 1)
            .map_or(prompt, |next| next.user.as_str());
        if total + normal(user).len() <= first.asked.len() {
            fitting.push(at + 1);
        }
        if total > first.asked.len() {
            break;
        }
    }
    // Instructions before the transcript make shorter prompts fit too, so a few are tried.
    let told = |count: &&usize| {
        let user = history
            .get(**count)
            .map_or(prompt, |next| next.user.as_str());
        let whole = transcript(history.get(..**count).unwrap_or_default()) + user;
        asks(first, &whole)
    };
    fitting
        .iter()
        .rev()
        .take(8)
        .find(told)
        .copied()
        .unwrap_or(0)
}

fn shown(said: &Said) -> String {
    let (user, assistant) = (said.user.trim(), said.assistant.trim());
    format!("User: {user}\n\nAssistant: {assistant}\n\n")
}

/// Writes a history as a text for the prompt of a new session.
pub fn transcript(history: &[Said]) -> String {
    let turns: String = history.iter().map(shown).collect();
    format!("{INTRODUCTION}\n\n{turns}{NEXT}\n\n")
}

#[cfg(test)]
mod tests {
    use planck_common::InputId;
    use serde_json::{Value, json};

    use super::*;

    fn event(seq: Seq, kind: &str, turn: u32, data: &Value) -> Envelope {
        let event = json!({"v": 1, "type": kind, "agent_id": "a", "session_id": "s", "team_id": "t",
            "node_id": "n", "epoch": 1, "seq": seq, "prev": 0, "turn": turn, "request": 0,
            "at": "2026-01-01T12:00:00.000Z", "data": data});
        serde_json::from_value(event).unwrap()
    }

    /// The rows of a turn: its start, its prompt and its end.
    fn turn_events(first: Seq, number: u32) -> [Envelope; 3] {
        let inputs = json!([{"id": format!("p{number}"), "kind": "prompt", "from": null}]);
        let start = json!({"index": number, "inputs": inputs});
        let message = json!({"message": {"id": first + 1, "agent_id": "a",
            "at": "2026-01-01T12:00:00.000Z", "role": "user",
            "content": [{"type": "text", "text": "hi"}], "metadata": {"inputs": [format!("p{number}")]}}});
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
        let turns = read(&[turn_events(3, 1), turn_events(6, 2)].concat());
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
        let mut rows = turn_events(3, 1).to_vec();
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

    /// Neither what the runtime says in the turn nor the model's prose is part of the conversation.
    #[test]
    fn answer_in_a_shape_is_the_object() {
        let says = |seq: Seq, role: &str, text: &str| {
            let message = json!({"id": seq, "agent_id": "a", "at": "2026-01-01T12:00:00.000Z",
                "role": role, "content": [{"type": "text", "text": text}], "metadata": {}});
            event(seq, "message", 1, &json!({"message": message}))
        };
        let mut rows = turn_events(3, 1).to_vec();
        let mut start: Value = serde_json::from_str(rows[0].data.get()).unwrap();
        start["output"] = json!({"shape": {"schema": {"type": "object"}}});
        rows[0] = event(3, "turn_start", 1, &start);
        rows.insert(2, says(5, "assistant", "It is warm."));
        rows.insert(3, says(6, "user", "Call submit_output now."));
        let mut end: Value = serde_json::from_str(rows[4].data.get()).unwrap();
        end["output"] = json!({"degrees": 21});
        rows[4] = event(7, "turn_end", 1, &end);
        let turns = read(&rows);
        let turn = turns.last().unwrap();
        let texts = (&*turn.asked, &*turn.said, &*turn.latest);
        let object = r#"{"degrees":21}"#;
        assert_eq!(texts, ("hi", object, object));
    }

    #[test]
    fn rewound_turn_is_gone_and_the_rewind_is_the_next_place() {
        let mut rows = [turn_events(3, 1), turn_events(6, 2)].concat();
        // The first row of the second turn stays visible, and its end follows once more.
        for row in &mut rows[4..] {
            row.hidden_by = Some(10);
        }
        rows.push(event(9, "turn_end", 2, &json!({})));
        rows.push(event(10, "rewound", 2, &json!({"to": 7, "by": "a"})));
        let turns = read(&rows);
        let messages: Vec<_> = turns.turns.iter().map(|turn| turn.message).collect();
        assert_eq!((messages, turns.end), (vec![Some(4)], 10));
        rows.extend(turn_events(11, 3));
        let turns = read(&rows);
        assert_eq!(turns.last().map(|turn| turn.place), Some(10));
    }

    fn turn(asked: &str, said: &str, is_over: bool) -> LoggedTurn {
        LoggedTurn {
            place: 0,
            start: 1,
            input: InputId::parse("i").unwrap(),
            message: Some(2),
            asked: asked.into(),
            said: said.into(),
            latest: said.into(),
            is_over,
        }
    }

    fn said(user: &str, assistant: &str) -> Said {
        Said {
            user: user.into(),
            assistant: assistant.into(),
        }
    }

    #[test]
    fn history_continues_the_session_that_it_shows() {
        let (one, two) = (turn("hi", "hello", true), turn("more", "much more", true));
        let failed = turn("oh", "", true);
        let running = turn("more", "", false);
        let (first, second) = (said("hi", " hello\n"), said("more", "much"));
        let again = said("hi", "hel hello");
        let turns = |turns: &[&LoggedTurn]| turns.iter().copied().cloned().collect::<Vec<_>>();
        for (turns, history, is_retry, expected) in [
            (turns(&[&one]), vec![first.clone()], false, Fit::Next),
            (turns(&[&one]), vec![again], false, Fit::Next),
            (
                turns(&[&one, &failed]),
                vec![first.clone()],
                false,
                Fit::Next,
            ),
            (
                turns(&[&one, &two]),
                vec![first.clone(), second.clone()],
                false,
                Fit::Next,
            ),
            // The client regenerates an answer, or edits a question.
            (turns(&[&one, &two]), vec![first.clone()], false, Fit::Other),
            (turns(&[&one, &two]), vec![first.clone()], true, Fit::Asked),
            (
                turns(&[&one, &running]),
                vec![first.clone()],
                false,
                Fit::Asked,
            ),
            (
                turns(&[&one, &running]),
                vec![first.clone(), second.clone()],
                false,
                Fit::Next,
            ),
            (turns(&[&one]), vec![second], false, Fit::Other),
            (turns(&[&one]), vec![said("hi", "")], false, Fit::Other),
            (turns(&[&one]), vec![said("hi", "bye")], false, Fit::Other),
            (turns(&[]), vec![first.clone()], false, Fit::Other),
            (turns(&[&running]), vec![], true, Fit::Asked),
        ] {
            let found = fit(&turns, &history, "more", is_retry);
            assert_eq!(found, expected, "{turns:?} {history:?}");
        }
    }

    #[test]
    fn answer_is_all_that_was_said_or_what_was_said_last() {
        let turn = LoggedTurn {
            latest: "It has three.".into(),
            ..turn("hi", "They work. It has three.", true)
        };
        for (answer, expected) in [
            ("They work.\n\nIt has three.", Fit::Next),
            ("It has three.", Fit::Next),
            ("It has four.", Fit::Other),
        ] {
            let found = fit(
                std::slice::from_ref(&turn),
                &[said("hi", answer)],
                "more",
                false,
            );
            assert_eq!(found, expected, "{answer}");
        }
    }

    #[test]
    fn session_with_a_transcript_is_continued() {
        let history = [
            said("hi", "hello"),
            said("more", "much more"),
            said("and?", "yes"),
        ];
        for count in 1..=2 {
            let next = &history[count].user;
            let first = format!("Be brief. {}{next}", transcript(&history[..count]));
            let mut turns = vec![turn(&normal(&first), &history[count].assistant, true)];
            let later = history.iter().skip(count + 1);
            turns.extend(later.map(|said| turn(&said.user, &said.assistant, true)));
            assert_eq!(fit(&turns, &history, "so?", false), Fit::Next, "{count}");
        }
    }

    #[test]
    fn instructions_before_a_prompt_do_not_count() {
        let turn = turn("Be brief. hi", "hello", true);
        assert_eq!(
            fit(&[turn], &[said("hi", "hello")], "more", false),
            Fit::Next
        );
    }
}
