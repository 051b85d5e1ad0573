//! Nodes, teams, models and sidecars, and what the cluster decides.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, response::Response};
use futures_util::StreamExt as _;
use planck_client::Decisions;
use planck_common::command::{Drain, Draining, Models, NodeInfo, Nodes, Sidecars, Teams};

use super::Reply;
use crate::{
    body::{Id, JsonBody},
    front::Front,
    key::{Observer, Operator},
    problem::Problem,
    sse::{self, Cut, EventSender, Frame, HEARTBEAT},
};

pub async fn nodes(_: Observer, State(front): State<Arc<Front>>) -> Reply<Nodes> {
    Ok(Json(front.client().nodes().await?))
}

pub async fn node(_: Observer, State(front): State<Arc<Front>>, Id(node): Id) -> Reply<NodeInfo> {
    Ok(Json(front.client().node(&node).await?))
}

pub async fn drain(
    _: Operator,
    State(front): State<Arc<Front>>,
    Id(node): Id,
    JsonBody(drain): JsonBody<Drain>,
) -> Reply<Draining> {
    Ok(Json(front.client().drain(&node, drain.timeout_ms).await?))
}

pub async fn teams(_: Observer, State(front): State<Arc<Front>>) -> Reply<Teams> {
    Ok(Json(front.client().teams().await?))
}

pub async fn models(_: Observer, State(front): State<Arc<Front>>) -> Reply<Models> {
    Ok(Json(front.client().models().await?))
}

pub async fn sidecars(_: Observer, State(front): State<Arc<Front>>) -> Reply<Sidecars> {
    Ok(Json(front.client().sidecars().await?))
}

/// Streams the decisions of the cluster as they are published. They are not stored, so a client
/// that was away has missed some.
pub async fn decisions(_: Observer, State(front): State<Arc<Front>>) -> Result<Response, Problem> {
    let decisions = front.client().decisions().await?;
    Ok(sse::stream(&front, |events| async move {
        // The stream ends when the client is gone, or when the subscription ends.
        let _ = pass_on(decisions, &events).await;
    }))
}

async fn pass_on(mut decisions: Decisions, events: &EventSender) -> Result<(), Cut> {
    events.send(Frame::retry(Duration::from_secs(1))).await?;
    loop {
        match tokio::time::timeout(HEARTBEAT, decisions.next()).await {
            Ok(Some(decision)) => {
                let json = planck_common::event::json(&decision);
                events.send(Frame::data(None, &json)).await?;
            }
            Ok(None) => return Ok(()),
            Err(_) => events.send(Frame::comment()).await?,
        }
    }
}
