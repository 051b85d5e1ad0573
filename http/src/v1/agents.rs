//! Agents.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use planck_common::{
    AgentId,
    command::{
        Accepted, AgentInfo, AgentStateNow, Because, ChangeModel, Model, Prompt, SavedAt,
        SetCheckpoint, Snapshot, ToolName, Tools,
    },
};

use super::JsonReply;
use crate::{
    body::{Id, JsonBody, idempotency_key},
    front::Front,
    key::Caller,
    problem::Problem,
};

fn parsed(id: &str) -> Result<AgentId, Problem> {
    AgentId::parse(id).map_err(|error| Problem::bad_request(error.to_string()))
}

pub async fn info(State(front): State<Arc<Front>>, Id(id): Id) -> JsonReply<AgentInfo> {
    Ok(Json(front.client().agent(&parsed(&id)?).await?))
}

pub async fn snapshot(State(front): State<Arc<Front>>, Id(id): Id) -> JsonReply<Snapshot> {
    Ok(Json(front.client().snapshot(&parsed(&id)?).await?))
}

pub async fn prompt(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(id): Id,
    headers: HeaderMap,
    JsonBody(mut prompt): JsonBody<Prompt>,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    if let Some(key) = idempotency_key(&headers)? {
        prompt.prompt_id.get_or_insert(key);
    }
    prompt.by = caller.author(prompt.by);
    let accepted = front.client().prompt_agent(&parsed(&id)?, prompt).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Defines handlers that pass a body on to one call of the client.
macro_rules! passed_on {
    ($($name:ident: $body:ty => $reply:ty, |$client:ident, $id:ident, $caller:ident, $read:ident| $call:expr;)+) => {$(
        pub async fn $name(
            $caller: Caller,
            State(front): State<Arc<Front>>,
            Id(id): Id,
            JsonBody($read): JsonBody<$body>,
        ) -> JsonReply<$reply> {
            let ($client, $id) = (front.client(), parsed(&id)?);
            Ok(Json($call.await?))
        }
    )+};
}

passed_on! {
    abort: Because => AgentStateNow, |client, id, caller, body| client.abort_agent(&id, caller.reason(body.reason));
    stop: Because => AgentStateNow, |client, id, caller, body| client.stop_agent(&id, caller.reason(body.reason));
    nudge: Because => AgentStateNow, |client, id, caller, body| client.nudge(&id, caller.reason(body.reason));
    checkpoint: SetCheckpoint => SavedAt, |client, id, _caller, body| client.checkpoint(&id, body.summary);
    add_tool: ToolName => Tools, |client, id, _caller, body| client.add_tool(&id, body.name);
    remove_tool: ToolName => Tools, |client, id, _caller, body| client.remove_tool(&id, body.name);
    change_model: ChangeModel => Model, |client, id, _caller, body| client.change_model(&id, &body);
}
