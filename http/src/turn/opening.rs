//! Finds the turn with which an answer begins.

use planck_client::{Client, ClientError};
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::ReadEvents,
    envelope::Envelope,
    event::{Event, InputKind, TurnStart},
};

use super::place_of;

/// The number of events of the first step back in a log; every further step is four times as long.
const STEP: Seq = 256;
/// The number of events in one page of a log.
const PAGE: u32 = 500;

/// A turn with which an answer begins: a prompt opened it, or nothing that an agent has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
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
) -> Result<Option<Opening>, ClientError> {
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
    mut from: Seq,
) -> Result<Option<Opening>, ClientError> {
    let mut found = None;
    loop {
        let read = ReadEvents {
            from: Some(from),
            limit: Some(PAGE),
            agent: Some(agent.to_string()),
        };
        let page = client.events(session, &read).await?;
        let events = page.events.iter();
        for event in events.filter_map(|event| serde_json::from_str::<Envelope>(event.get()).ok()) {
            let (Some(seq), None) = (event.seq, event.hidden_by) else {
                continue;
            };
            let Some(Ok(Event::TurnStart(start))) = event.event() else {
                continue;
            };
            if start.index > turn {
                return Ok(found);
            }
            found = opening(seq, &start).or(found);
        }
        if page.next > page.head || page.next <= from {
            return Ok(found);
        }
        from = page.next;
    }
}

fn opening(seq: Seq, start: &TurnStart) -> Option<Opening> {
    let mut inputs = start.inputs.iter();
    let prompt = inputs.find(|input| input.kind == InputKind::Prompt);
    (prompt.is_some() || start.inputs.is_empty()).then(|| Opening {
        turn: start.index,
        prompt: prompt.map(|prompt| prompt.id.clone()),
        from: seq,
    })
}
