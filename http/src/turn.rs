//! The turns of an agent that answer a prompt, read from the feed of the session. The wires of
//! ready-made clients are written from the parts that `planck-client` makes of the events. A header
//! of the request says until when an answer is open.

use std::{collections::VecDeque, time::Duration};

use axum::http::{HeaderMap, HeaderName};
use planck_client::{
    AwaitedOutcome, Client, ClientError, READER_LATE,
    turn::{TurnChoice, TurnEvent, TurnReader},
};
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::{Outcome, ReadEvents, SessionInfo, WorkState},
    envelope::Envelope,
    event::{Event, EventKind, InputKind, TurnStart},
    reply::Code,
};

use crate::{
    feed::{Cursor, FeedItem},
    front::Front,
    problem::Problem,
};

pub use planck_client::turn::Until;

/// A turn with which an answer begins: a prompt opened it, or nothing that an agent has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnOpening {
    pub turn: u32,
    pub prompt: Option<InputId>,
    /// A place in the log at or before the first event of the turn.
    pub from: Seq,
}

/// Finds the answer to which an agent's turn belongs if no prompt came after that of the answer. That
/// is the latest opening that is not after the turn. `head` is the number of an event of the turn or
/// of a later one.
pub async fn opening_of(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    turn: u32,
    head: Seq,
) -> Result<Option<TurnOpening>, ClientError> {
    let mut from = place_of(client, session, agent, turn, head).await?;
    let mut step = STEP;
    loop {
        let found = last_opening(client, session, agent, turn, from).await?;
        if found.is_some() || from <= 1 {
            return Ok(found);
        }
        from = (from - step).max(1);
        step *= 4;
    }
}

/// Finds the latest opening from a place on that is not after a turn.
async fn last_opening(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    turn: u32,
    from: Seq,
) -> Result<Option<TurnOpening>, ClientError> {
    let mut found = None;
    let later = find_event(client, session, agent, from, |event| {
        let (Some(seq), None) = (event.seq, event.hidden_by) else {
            return None;
        };
        let Some(Ok(Event::TurnStart(start))) = event.event() else {
            return None;
        };
        if start.index <= turn {
            found = opening(seq, &start).or(found.take());
        }
        (start.index > turn).then_some(())
    });
    later.await?;
    Ok(found)
}

fn opening(seq: Seq, start: &TurnStart) -> Option<TurnOpening> {
    let mut inputs = start.inputs.iter();
    let prompt = inputs.find(|input| input.kind == InputKind::Prompt);
    (prompt.is_some() || start.inputs.is_empty()).then(|| TurnOpening {
        turn: start.index,
        prompt: prompt.map(|prompt| prompt.id.clone()),
        from: seq,
    })
}

/// The number of events of the first step back in a log; every further step is four times as long.
const STEP: Seq = 256;
/// The number of events in one page of a log.
const PAGE: u32 = 500;

/// A turn that is read while it happens, or from the log.
pub struct TurnStream {
    source: TurnSource,
    reader: TurnReader,
    /// The events of the last item. An item means at most the pieces of one reply.
    queue: VecDeque<TurnEvent>,
}

impl TurnStream {
    /// Opens a turn of an agent of a session. `from` is a place in the log at or before the turn's
    /// first event: after a prompt it is `seq + 1` of the reply.
    pub async fn open(
        front: &Front,
        session: &SessionInfo,
        agent: &AgentId,
        choice: TurnChoice,
        from: Seq,
        until: Until,
    ) -> Result<Self, Problem> {
        let names = session.agents.iter();
        let names = names.map(|agent| (agent.id.clone(), agent.name.clone()));
        let sent = from.max(1) - 1;
        let least = session.head.max(sent);
        let reader = TurnReader::new(agent.clone(), choice).until(until);
        Ok(Self {
            source: TurnSource::open(front, &session.id, sent, least).await?,
            reader: reader.with_names(names),
            queue: VecDeque::new(),
        })
    }

    /// Waits for the next event, without a time limit. Returns `None` after the end. The method is
    /// cancel safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<TurnEvent, Problem>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(Ok(event));
            }
            if self.reader.is_over() {
                return None;
            }
            match self.source.next(&self.reader).await {
                Ok(TurnNews::Item(item)) => self.queue.extend(item.tell(&mut self.reader)),
                Ok(TurnNews::Over(outcome)) => {
                    self.queue.extend(self.reader.over(outcome.as_deref()));
                }
                Err(problem) => return Some(Err(problem)),
            }
            if self.reader.is_over() {
                self.source.done();
            }
        }
    }
}

/// Finds the running turn of an agent. Returns its number, and a place in the log at or before its
/// first event. Returns `None` if the agent has no running turn.
pub async fn running_turn(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
) -> Result<Option<(u32, Seq)>, ClientError> {
    let snapshot = client.snapshot(agent).await?;
    let Some(running) = snapshot.running else {
        return Ok(None);
    };
    let from = place_of(client, session, agent, running.turn, snapshot.head).await?;
    Ok(Some((running.turn, from)))
}

/// Returns a place in the log at or before the first event of an agent's turn. `head` is the number
/// of an event of the turn or of a later one.
pub async fn place_of(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    turn: u32,
    head: Seq,
) -> Result<Seq, ClientError> {
    let (mut from, mut step) = (head, STEP);
    while from > 1 {
        from = (from - step).max(1);
        step *= 4;
        if is_before(client, session, agent, from, turn).await? {
            break;
        }
    }
    Ok(from.max(1))
}

/// Returns whether the agent's first event from a place on belongs to a turn before `turn`.
async fn is_before(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    from: Seq,
    turn: u32,
) -> Result<bool, ClientError> {
    let read = ReadEvents {
        from: Some(from),
        limit: Some(1),
        agent: Some(agent.to_string()),
    };
    let page = client.events(session, &read).await?;
    let first = page.events.first();
    let first = first.and_then(|event| serde_json::from_str::<Envelope>(event.get()).ok());
    Ok(first.is_some_and(|event| event.turn < turn))
}

/// Returns whether a rewind hid the content of an agent's turn. `from` is a place in the log at or
/// before the first event of the turn. A rewind to the first message of a turn leaves the turn's
/// start and end visible, so the first message decides.
pub async fn is_hidden(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    turn: u32,
    from: Seq,
) -> Result<bool, ClientError> {
    let first = find_event(client, session, agent, from, |event| {
        let is_first =
            event.turn == turn && EventKind::find(&event.kind) == Some(EventKind::Message);
        is_first.then(|| event.hidden_by.is_some())
    });
    Ok(first.await?.unwrap_or(false))
}

/// Reads the events of an agent from a place on, until `look` has found something.
async fn find_event<T>(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
    mut from: Seq,
    mut look: impl FnMut(&Envelope) -> Option<T>,
) -> Result<Option<T>, ClientError> {
    loop {
        let read = ReadEvents {
            from: Some(from),
            limit: Some(PAGE),
            agent: Some(agent.to_string()),
        };
        let page = client.events(session, &read).await?;
        let events = page.events.iter();
        let mut events = events.filter_map(|event| serde_json::from_str(event.get()).ok());
        if let Some(found) = events.find_map(|event| look(&event)) {
            return Ok(Some(found));
        }
        if page.next > page.head || page.next <= from {
            return Ok(None);
        }
        from = page.next;
    }
}

/// The next news for the reader.
pub enum TurnNews {
    Item(FeedItem),
    /// The work is over. There is no outcome if no node can tell it.
    Over(Option<Box<Outcome>>),
}

/// The place of a reader in the events. While the reader is between two turns, one request for the
/// outcome of the prompt is open.
pub struct TurnSource {
    cursor: Cursor,
    client: Client,
    session: SessionId,
    work: Option<AwaitedOutcome>,
}

impl TurnSource {
    /// Opens the events of a session after the number `sent`. The log has at least `least` events.
    pub async fn open(
        front: &Front,
        session: &SessionId,
        sent: Seq,
        least: Seq,
    ) -> Result<Self, Problem> {
        let (client, feed) = (front.client().clone(), front.feed(session));
        Ok(Self {
            cursor: Cursor::in_log(sent, least, client.clone(), feed).await?,
            client,
            session: session.clone(),
            work: None,
        })
    }

    /// Waits for what is next. The method is cancel safe.
    pub async fn next(&mut self, reader: &TurnReader) -> Result<TurnNews, Problem> {
        let (work, client, session) = (&mut self.work, &self.client, &self.session);
        tokio::select! {
            biased;
            over = AwaitedOutcome::of_reader(work, client, session, reader) => {
                Ok(TurnNews::Over(over.map(Box::new)))
            }
            item = self.cursor.next() => item.map(TurnNews::Item),
        }
    }

    /// Asks whether the work is over by now, if the reader is between two turns. Returns whether it
    /// is.
    pub async fn is_over(&mut self, reader: &TurnReader) -> Result<bool, ClientError> {
        let Some(prompt) = reader.awaited() else {
            return Ok(false);
        };
        if self
            .work
            .as_ref()
            .is_some_and(|work| work.known().is_some())
        {
            return Ok(true);
        }
        let asked = self.client.outcome(&self.session, prompt, Duration::ZERO);
        let over = match asked.await {
            Ok(outcome) if outcome.state == WorkState::Over => Ok(outcome),
            Ok(_) => return Ok(false),
            Err(error) if is_final(&error) => Err(error),
            Err(error) => return Err(error),
        };
        self.work = Some(AwaitedOutcome::new(std::future::ready(over), READER_LATE));
        Ok(true)
    }

    /// Records that the reader has all that it wants and will not connect again.
    pub fn done(&mut self) {
        self.cursor.done();
    }
}

/// Returns whether asking again cannot help, because the session has no such prompt any more or the
/// front may not ask.
fn is_final(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(refusal) => matches!(
            refusal.code,
            Code::BadRequest | Code::NotFound | Code::Denied
        ),
        ClientError::Unreachable(_) | ClientError::Malformed { .. } => false,
    }
}

/// The header with which a caller says until when the answer is open. All wires of ready-made
/// clients have it.
pub const UNTIL_HEADER: HeaderName = HeaderName::from_static("x-planck-until");

/// What the header means, for the description of the routes that take it.
pub const UNTIL_MEANING: &str = "Until when the answer is open: `work`, which is the default, or `turn`, the orchestrator's first turn.";

/// Reads the header of a request. A header without a value has no effect.
pub fn read_until(headers: &HeaderMap) -> Result<Until, Problem> {
    match headers.get(UNTIL_HEADER).map(|value| value.as_bytes()) {
        None | Some(b"" | b"work") => Ok(Until::Work),
        Some(b"turn") => Ok(Until::Turn),
        Some(_) => Err(Problem::bad_request(format!(
            "the header `{UNTIL_HEADER}` must be `work` or `turn`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn header_says_until_when_an_answer_is_open() {
        for (value, expected) in [
            (None, Some(Until::Work)),
            (Some(""), Some(Until::Work)),
            (Some("work"), Some(Until::Work)),
            (Some("turn"), Some(Until::Turn)),
            (Some("Turn"), None),
            (Some("never"), None),
        ] {
            let headers = value.map(|value| (UNTIL_HEADER, HeaderValue::from_static(value)));
            let headers = HeaderMap::from_iter(headers);
            assert_eq!(read_until(&headers).ok(), expected, "{value:?}");
        }
    }
}
