//! Sessions and their waits.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use planck_common::command::{
    Aborted, Accepted, Answer, Answered, Because, Empty, HeadAt, ListSessions, ListWaits, Messages,
    Prompt, ReadMessages, Removed, Rewind, SessionInfo, SessionStateNow, Sessions, Start, Started,
    Waits,
};

use super::Reply;
use crate::{
    body::{Arguments, Id, JsonBody, idempotency_key},
    front::Front,
    key::{Observer, Operator, User},
    problem::Problem,
};

pub async fn list(
    _: Observer,
    State(front): State<Arc<Front>>,
    Arguments(filter): Arguments<ListSessions>,
) -> Reply<Sessions> {
    Ok(Json(front.client().sessions(&filter).await?))
}

pub async fn start(
    _: User,
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
    JsonBody(mut start): JsonBody<Start>,
) -> Result<(StatusCode, Json<Started>), Problem> {
    if let Some(key) = idempotency_key(&headers)? {
        start.session_id.get_or_insert(key);
    }
    front.start_defaults().complete(&mut start);
    let started = front.client().start(start).await?;
    Ok((StatusCode::CREATED, Json(started)))
}

pub async fn info(
    _: Observer,
    State(front): State<Arc<Front>>,
    Id(session): Id,
) -> Reply<SessionInfo> {
    Ok(Json(front.client().session(&session).await?))
}

pub async fn delete(
    _: Operator,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> Reply<Removed> {
    Ok(Json(front.client().delete(&session, because.reason).await?))
}

pub async fn prompt(
    _: User,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    headers: HeaderMap,
    JsonBody(mut prompt): JsonBody<Prompt>,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    if let Some(key) = idempotency_key(&headers)? {
        prompt.prompt_id.get_or_insert(key);
    }
    let accepted = front.client().prompt(&session, prompt).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

pub async fn abort(
    _: User,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(Empty {}): JsonBody<Empty>,
) -> Reply<Aborted> {
    Ok(Json(front.client().abort_session(&session).await?))
}

pub async fn rewind(
    _: Operator,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(rewind): JsonBody<Rewind>,
) -> Reply<HeadAt> {
    Ok(Json(front.client().rewind(&session, rewind.to).await?))
}

pub async fn resume(
    _: User,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> Reply<Started> {
    Ok(Json(front.client().resume(&session, because.reason).await?))
}

pub async fn close(
    _: Operator,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> Reply<SessionStateNow> {
    Ok(Json(front.client().close(&session, because.reason).await?))
}

/// Answers a wait. If the caller has a key, the answer is recorded under the name of the key.
pub async fn answer(
    User(caller): User,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(mut answer): JsonBody<Answer>,
) -> Reply<Answered> {
    if caller.name.is_some() {
        answer.by = caller.name;
    }
    Ok(Json(front.client().answer(&session, &answer).await?))
}

pub async fn messages(
    _: Observer,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    Arguments(read): Arguments<ReadMessages>,
) -> Reply<Messages> {
    Ok(Json(front.client().messages(&session, &read).await?))
}

pub async fn waits(
    _: Observer,
    State(front): State<Arc<Front>>,
    Arguments(filter): Arguments<ListWaits>,
) -> Reply<Waits> {
    Ok(Json(front.client().waits(&filter).await?))
}
