//! The UI message stream of the AI SDK, version 1, for `useChat` and other clients of it. A chat is
//! a session, and a message of the assistant is a turn.

mod answers;
mod body;
mod chat;
mod chunks;
mod data;
mod history;
mod ids;
mod stream;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use planck_common::command::Aborted;

use super::{
    body::{Id, JsonBody},
    front::Front,
    key::{Observer, User},
    problem::Problem,
};

pub use body::ChatBody;

pub fn routes() -> Router<Arc<Front>> {
    Router::new()
        .route("/ui/chat", post(send))
        .route("/ui/chat/{chat}/stream", get(resume))
        .route("/ui/chat/{chat}/stop", post(stop))
}

/// Sends a message of the user, or the client's answers, and streams the message of the assistant.
async fn send(
    User(caller): User,
    State(front): State<Arc<Front>>,
    JsonBody(body): JsonBody<ChatBody>,
) -> Result<Response, Problem> {
    let reply = chat::perform(&front, body.read()?, caller.name).await?;
    Ok(stream::response(&front, reply))
}

/// Streams the running message from its start. Answers 204 if none is running.
async fn resume(
    _: Observer,
    State(front): State<Arc<Front>>,
    Id(chat): Id,
) -> Result<Response, Problem> {
    Ok(match chat::running(front.client(), &chat).await? {
        Some(reply) => stream::response(&front, reply),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Aborts the running turn. A client that only disconnects aborts nothing.
async fn stop(
    _: User,
    State(front): State<Arc<Front>>,
    Id(chat): Id,
) -> Result<Json<Aborted>, Problem> {
    Ok(Json(front.client().abort_session(&chat).await?))
}
