//! Nodes, teams, models and sidecars, and what the cluster decides.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, response::Response};
use futures_util::StreamExt as _;
use planck_client::DecisionStream;
use planck_common::{
    NodeId,
    command::{Drain, Draining, Models, NodeInfo, NodeState, Nodes, Sidecars, Teams},
};

use super::Reply;
use crate::{
    body::{Id, JsonBody},
    front::Front,
    key::Caller,
    problem::Problem,
    sse::{self, Cut, EventSender, Frame},
};

pub async fn nodes(State(front): State<Arc<Front>>) -> Reply<Nodes> {
    Ok(Json(front.client().nodes().await?))
}

pub async fn node(State(front): State<Arc<Front>>, Id(node): Id) -> Reply<NodeInfo> {
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

pub async fn drain(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(node): Id,
    JsonBody(mut drain): JsonBody<Drain>,
) -> Reply<Draining> {
    let node = id_of(&front, &node).await?;
    drain.reason = caller.reason(drain.reason);
    Ok(Json(front.client().drain(&node, &drain).await?))
}

pub async fn teams(State(front): State<Arc<Front>>) -> Reply<Teams> {
    Ok(Json(front.client().teams().await?))
}

pub async fn models(State(front): State<Arc<Front>>) -> Reply<Models> {
    Ok(Json(front.client().models().await?))
}

pub async fn sidecars(State(front): State<Arc<Front>>) -> Reply<Sidecars> {
    Ok(Json(front.client().sidecars().await?))
}

/// Streams the decisions of the cluster as they are published. They are not stored, so a client
/// that was away has missed some.
pub async fn decisions(State(front): State<Arc<Front>>) -> Result<Response, Problem> {
    let decisions = front.client().decisions().await?;
    Ok(sse::stream(&front, |events| async move {
        // The stream ends when the client is gone, or when the subscription ends.
        let _ = pass_on(decisions, &events).await;
    }))
}

async fn pass_on(mut decisions: DecisionStream, events: &EventSender) -> Result<(), Cut> {
    events.send(Frame::retry(Duration::from_secs(1))).await?;
    while let Some(decision) = events.wait_for(decisions.next()).await? {
        let json = planck_common::event::json(&decision);
        events.send(Frame::data(None, &json)).await?;
    }
    Ok(())
}
