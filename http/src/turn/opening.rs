//! Finds the turn with which an answer begins.

use planck_client::{Client, ClientError};
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    event::{Event, InputKind, TurnStart},
};

use super::{
    place_of,
    stream::{STEP, find_event},
};

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
    from: Seq,
) -> Result<Option<Opening>, ClientError> {
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

fn opening(seq: Seq, start: &TurnStart) -> Option<Opening> {
    let mut inputs = start.inputs.iter();
    let prompt = inputs.find(|input| input.kind == InputKind::Prompt);
    (prompt.is_some() || start.inputs.is_empty()).then(|| Opening {
        turn: start.index,
        prompt: prompt.map(|prompt| prompt.id.clone()),
        from: seq,
    })
}
