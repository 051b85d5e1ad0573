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

use super::Reply;
use crate::{
    body::{Id, JsonBody, idempotency_key},
    front::Front,
    key::{Observer, Operator, User},
    problem::Problem,
};

fn parsed(id: &str) -> Result<AgentId, Problem> {
    AgentId::parse(id).map_err(|error| Problem::bad_request(error.to_string()))
}

pub async fn info(_: Observer, State(front): State<Arc<Front>>, Id(id): Id) -> Reply<AgentInfo> {
    Ok(Json(front.client().agent(&parsed(&id)?).await?))
}

pub async fn snapshot(_: Observer, State(front): State<Arc<Front>>, Id(id): Id) -> Reply<Snapshot> {
    Ok(Json(front.client().snapshot(&parsed(&id)?).await?))
}

pub async fn prompt(
    User(caller): User,
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
    ($($name:ident by $caller:ident: $body:ty => $reply:ty, $client:ident, $id:ident, $who:ident, $read:ident: $call:expr;)+) => {$(
        pub async fn $name(
            $caller($who): $caller,
            State(front): State<Arc<Front>>,
            Id(id): Id,
            JsonBody($read): JsonBody<$body>,
        ) -> Reply<$reply> {
            let ($client, $id) = (front.client(), parsed(&id)?);
            Ok(Json($call.await?))
        }
    )+};
}

passed_on! {
    abort by User: Because => AgentStateNow, client, id, who, body: client.abort_agent(&id, who.reason(body.reason));
    stop by Operator: Because => AgentStateNow, client, id, who, body: client.stop_agent(&id, who.reason(body.reason));
    nudge by User: Because => AgentStateNow, client, id, who, body: client.nudge(&id, who.reason(body.reason));
    checkpoint by Operator: SetCheckpoint => SavedAt, client, id, _who, body: client.checkpoint(&id, body.summary);
    add_tool by Operator: ToolName => Tools, client, id, _who, body: client.add_tool(&id, body.name);
    remove_tool by Operator: ToolName => Tools, client, id, _who, body: client.remove_tool(&id, body.name);
    change_model by Operator: ChangeModel => Model, client, id, _who, body: client.change_model(&id, &body);
}
