//! A turn, or all turns of the work of a prompt, as a stream: a place in the feed of the session, and
//! the reader.

use std::collections::VecDeque;

use planck_client::{
    Client, ClientError,
    turn::{TurnChoice, TurnEvent, TurnReader, Until},
};
use planck_common::{
    AgentId, Seq, SessionId,
    command::{AgentRow, AgentState, ReadEvents, SessionInfo},
    envelope::Envelope,
    event::EventKind,
    spec::AgentRole,
};

use super::{Next, TurnSource};
use crate::{front::Front, problem::Problem};

/// The number of events of the first step back in a log; every further step is four times as long.
pub(super) const STEP: Seq = 256;
/// The number of events in one page of a log.
const PAGE: u32 = 500;

/// A turn that is read while it happens, or from the log.
pub struct Turn {
    source: TurnSource,
    reader: TurnReader,
    /// The events of the last item. An item means at most the pieces of one reply.
    queue: VecDeque<TurnEvent>,
}

impl Turn {
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
                Ok(Next::Item(item)) => self.queue.extend(item.tell(&mut self.reader)),
                Ok(Next::Over(outcome)) => {
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

/// Returns the agent that clients talk to unless they name another one. The agent of a session with
/// only one has no workers, and is the first.
pub fn orchestrator(session: &SessionInfo) -> Option<&AgentRow> {
    let leads = |agent: &&AgentRow| agent.role == AgentRole::Orchestrator;
    let mut agents = session.agents.iter();
    agents.find(leads).or_else(|| session.agents.first())
}

/// Returns whether an agent has a running turn, as far as its record says.
pub fn is_working(agent: &AgentRow) -> bool {
    match agent.state {
        AgentState::Streaming
        | AgentState::ExecutingTools
        | AgentState::Waiting
        | AgentState::Compacting => true,
        AgentState::Idle | AgentState::Stopped => false,
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
pub(super) async fn find_event<T>(
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
