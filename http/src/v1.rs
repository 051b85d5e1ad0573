//! The protocol over HTTP, under `/v1`. A route does what the verb of the same name does.

mod agents;
mod events;
mod sessions;

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, response::Response};
use futures_util::StreamExt as _;
use planck_client::DecisionStream;
use planck_common::{
    NodeId,
    command::{
        Accepted, Drain, Draining, Events, Models, NodeInfo, NodeState, Nodes, Sidecars, Teams,
    },
};
use serde_json::json;

use crate::{
    body::{Id, JsonBody},
    front::Front,
    key::Caller,
    problem::Problem,
    route::{Route, routes},
    sse::{self, EventFrame, EventSender, StreamCut},
};

/// The result of a handler.
type JsonReply<T> = Result<Json<T>, Problem>;

/// The content of a stream of events.
const EVENTS: &str = "Server-sent events. The `data` of each is the envelope of an event of the protocol, and the `id` of a durable one is its place.";
/// The content of a stream of decisions.
const DECISIONS: &str = "Server-sent events. The `data` of each is a decision of the cluster.";
/// The header with which a stream continues.
const LAST: (&str, &str) = (
    "Last-Event-ID",
    "The id of the last event that was received.",
);

pub fn routes() -> Vec<Route> {
    let names =
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 32});
    let names = json!({"name": "session", "in": "query", "required": true, "schema": names});
    routes! {
        get "/v1/sessions" needs Observe: sessions::list, "List sessions";
        post "/v1/sessions" needs Use: sessions::start, "Start a session" [.status("201")];
        get "/v1/sessions/{session}" needs Observe: sessions::info, "Describe a session";
        delete "/v1/sessions/{session}" needs Operate: sessions::delete, "Close and delete a session";
        post "/v1/sessions/{session}/prompt" needs Use: sessions::send_prompt, "Send a prompt" [
            .reply::<Accepted>()
            .status("202")
        ];
        get "/v1/sessions/{session}/prompts/{prompt}" needs Observe: sessions::outcome, "Describe a prompt";
        post "/v1/sessions/{session}/abort" needs Use: sessions::abort, "Abort the running work";
        post "/v1/sessions/{session}/rewind" needs Use: sessions::rewind, "Hide a message and all later ones";
        post "/v1/sessions/{session}/rename" needs Use: sessions::rename, "Give a session a title, or remove it";
        post "/v1/sessions/{session}/resume" needs Use: sessions::resume, "Resume a session";
        post "/v1/sessions/{session}/close" needs Operate: sessions::close, "Close a session";
        post "/v1/sessions/{session}/answer" needs Use: sessions::answer, "Answer a wait";
        get "/v1/sessions/{session}/messages" needs Observe: sessions::messages, "Read messages";
        get "/v1/sessions/{session}/events" needs Observe: events::of_session, "Read a page of the log, or follow it as a stream" [
            .reply::<Events>()
            .header(LAST.0, LAST.1)
            .stream(EVENTS)
        ];
        get "/v1/events" needs Observe: events::of_sessions, "Follow up to 32 sessions in one stream" [
            .parameter(names)
            .header(LAST.0, LAST.1)
            .stream(EVENTS)
        ];
        get "/v1/waits" needs Observe: sessions::waits, "List what agents wait for";

        get "/v1/agents/{agent}" needs Observe: agents::info, "Describe an agent";
        get "/v1/agents/{agent}/snapshot" needs Observe: agents::snapshot, "Read the running work of an agent";
        post "/v1/agents/{agent}/prompt" needs Use: agents::prompt, "Send a prompt" [.status("202")];
        post "/v1/agents/{agent}/abort" needs Use: agents::abort, "Abort the running turn";
        post "/v1/agents/{agent}/stop" needs Operate: agents::stop, "Stop an agent for good";
        post "/v1/agents/{agent}/nudge" needs Use: agents::nudge, "Open a turn without input";
        post "/v1/agents/{agent}/checkpoint" needs Operate: agents::checkpoint, "Save a summary";
        post "/v1/agents/{agent}/add_tool" needs Operate: agents::add_tool, "Add a tool";
        post "/v1/agents/{agent}/remove_tool" needs Operate: agents::remove_tool, "Remove a tool";
        post "/v1/agents/{agent}/change_model" needs Operate: agents::change_model, "Change the model";

        get "/v1/nodes" needs Observe: nodes, "List the nodes";
        get "/v1/nodes/{node}" needs Observe: node, "Describe a node";
        post "/v1/nodes/{node}/drain" needs Operate: drain, "Drain a node";
        get "/v1/teams" needs Observe: teams, "List the templates of teams";
        get "/v1/models" needs Observe: models, "List the models";
        get "/v1/sidecars" needs Observe: sidecars, "List the sidecars";
        get "/v1/decisions" needs Observe: decisions, "Follow the decisions of the cluster" [
            .stream(DECISIONS)
        ];
    }
}

async fn nodes(State(front): State<Arc<Front>>) -> JsonReply<Nodes> {
    Ok(Json(front.client().nodes().await?))
}

async fn node(State(front): State<Arc<Front>>, Id(node): Id) -> JsonReply<NodeInfo> {
    let node = id_of(&front, &node).await?;
    Ok(Json(front.client().node(&node).await?))
}

/// Returns the id of a node that is named by id or name. Only the node itself answers its commands,
/// so an unknown one would look like one that is away.
async fn id_of(front: &Front, node: &str) -> Result<NodeId, Problem> {
    let nodes = front.client().nodes().await?.nodes;
    let is_meant = |info: &&NodeInfo| info.id.as_str() == node || info.name == node;
    // Nodes that left or died come last, because several nodes may have had one name.
    let is_gone = |info: &&NodeInfo| matches!(info.state, NodeState::Left | NodeState::Dead);
    let meant = nodes.iter().filter(is_meant).min_by_key(is_gone);
    let unknown = || Problem::not_found(format!("no node `{node}`; `GET /v1/nodes` lists them"));
    meant.map(|info| info.id.clone()).ok_or_else(unknown)
}

async fn drain(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(node): Id,
    JsonBody(mut drain): JsonBody<Drain>,
) -> JsonReply<Draining> {
    let node = id_of(&front, &node).await?;
    drain.reason = caller.reason(drain.reason);
    Ok(Json(front.client().drain(&node, &drain).await?))
}

async fn teams(State(front): State<Arc<Front>>) -> JsonReply<Teams> {
    Ok(Json(front.client().teams().await?))
}

async fn models(State(front): State<Arc<Front>>) -> JsonReply<Models> {
    Ok(Json(front.client().models().await?))
}

async fn sidecars(State(front): State<Arc<Front>>) -> JsonReply<Sidecars> {
    Ok(Json(front.client().sidecars().await?))
}

/// Streams the decisions of the cluster as they are published. They are not stored, so a client
/// that was away has missed some.
async fn decisions(State(front): State<Arc<Front>>) -> Result<Response, Problem> {
    let decisions = front.client().decisions().await?;
    Ok(sse::stream(&front, |events| async move {
        // The stream ends when the client is gone, or when the subscription ends.
        let _ = pass_on(decisions, &events).await;
    }))
}

async fn pass_on(mut decisions: DecisionStream, events: &EventSender) -> Result<(), StreamCut> {
    events
        .send(EventFrame::retry(Duration::from_secs(1)))
        .await?;
    while let Some(decision) = events.wait_for(decisions.next()).await? {
        let json = planck_common::event::json(&decision);
        events.send(EventFrame::data(None, &json)).await?;
    }
    Ok(())
}
