//! Sends the results of a client's tool calls.

use planck_common::{CallId, InputId, command::Answer, wait::WaitDecision};
use serde_json::value::RawValue;

use super::{Known, Opened, known, opened};
use crate::{
    front::Front,
    key::Caller,
    openai::{
        ask::{Ask, Target, ToolResult},
        error::ApiError,
        ids::{ResponseId, ToolCallId},
        log::{latest_turns, turn_after},
        segment::{Beginning, Segment},
    },
};

/// Answers the waits of the calls. The response is what the turn says after them.
pub async fn send(
    front: &Front,
    caller: &Caller,
    ask: Ask,
    results: Vec<ToolResult>,
) -> Result<Opened, ApiError> {
    let first = results.first().map(|result| result.id.clone());
    let first = first.ok_or_else(|| ApiError::parameter("input", "there are no results"))?;
    check_place(&first, &results, &ask.target)?;
    let session = known(front.client(), &first.session).await?;
    let mut opened = after_call(front, &session, &first).await?;
    let mut segment = Segment::open(front, &opened).await?;
    let after = segment.find().await?;
    segment.load_turn().await?;
    let is_known = |call: &CallId| results.iter().any(|result| result.id.call == *call);
    if let Some(missing) = segment.open_calls().iter().find(|call| !is_known(call)) {
        let missing = ToolCallId {
            call: missing.clone(),
            ..first
        };
        return Err(ApiError::parameter(
            "input",
            format!("the result of the call `{missing}` is missing; send all results together"),
        ));
    }
    for result in &results {
        let text = planck_common::event::json(&result.text);
        let answer = Answer {
            wait: result.id.call.clone(),
            decision: WaitDecision::Answer,
            args: None,
            value: RawValue::from_string(text).ok(),
            reason: None,
            scope: None,
            digest: None,
            by: caller.name.clone(),
        };
        front.client().answer(&session.id, &answer).await?;
    }
    opened.id.after = after;
    opened.beginning = after.map_or(Beginning::Turn, Beginning::Reply);
    opened.warnings = ask.warnings;
    Ok(opened)
}

/// Checks that all results are for one turn, and for the response that the request continues.
fn check_place(
    first: &ToolCallId,
    results: &[ToolResult],
    target: &Target,
) -> Result<(), ApiError> {
    let is_here = |id: &ToolCallId| (&id.session, id.place) == (&first.session, first.place);
    let fits = match target {
        Target::Response(id) => (&id.session, id.place) == (&first.session, first.place),
        Target::History | Target::Session { .. } => true,
    };
    if fits && results.iter().all(|result| is_here(&result.id)) {
        return Ok(());
    }
    Err(ApiError::parameter(
        "input",
        "the results are for calls of different responses; send those of one response together",
    ))
}

async fn after_call(front: &Front, session: &Known, call: &ToolCallId) -> Result<Opened, ApiError> {
    let begun = turn_after(front.client(), &session.id, &session.agent, call.place).await?;
    let (turn, _) =
        begun.ok_or_else(|| ApiError::not_found(format!("there is no call `{call}`")))?;
    let beginning = Beginning::Call(call.call.clone());
    Ok(opened(session, call.place, turn.input, beginning))
}

/// Finds a response by its id.
pub async fn find(front: &Front, id: &ResponseId) -> Result<Opened, ApiError> {
    let client = front.client();
    let session = known(client, &id.session).await?;
    let input = match turn_after(client, &id.session, &session.agent, id.place).await? {
        Some((turn, _)) => turn.input,
        None => waiting(front, &session, id).await?,
    };
    let beginning = id.after.map_or(Beginning::Turn, Beginning::Reply);
    let mut opened = opened(&session, id.place, input, beginning);
    opened.id = id.clone();
    Ok(opened)
}

/// Returns the prompt of a response that has not begun, because the prompt waits for the agent.
/// Such a response follows the latest turn.
async fn waiting(front: &Front, session: &Known, id: &ResponseId) -> Result<InputId, ApiError> {
    let latest = latest_turns(front.client(), &session.id, &session.agent, session.head).await?;
    // The turn may have begun meanwhile.
    let mut turns = latest.turns.iter();
    if let Some(turn) = turns.find(|turn| turn.place == id.place) {
        return Ok(turn.input.clone());
    }
    if id.place == latest.end && id.after.is_none() {
        return Ok(ResponseId::prompt(&session.id, latest.end));
    }
    Err(ApiError::not_found(format!(
        "there is no response `{id}`, or a rewind hid it"
    )))
}
