//! Sessions and their waits.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use planck_common::{
    command::{
        AbortSession, Aborted, Answer, Answered, Because, HeadAt, ListSessions, ListWaits,
        Messages, ReadMessages, Removed, Rename, Renamed, Rewind, SessionInfo, SessionStateNow,
        Sessions, Start, Started, Waits,
    },
    event::json,
};
use serde_json::Value;

use super::Reply;
use crate::{
    body::{Arguments, Id, JsonBody, idempotency_key},
    front::Front,
    key::{Caller, KeyHash},
    problem::Problem,
};

/// The field of a session's metadata with the digest of the request that started the session.
const DIGEST: &str = "http_request";

pub async fn list(
    State(front): State<Arc<Front>>,
    Arguments(filter): Arguments<ListSessions>,
) -> Reply<Sessions> {
    Ok(Json(front.client().sessions(&filter).await?))
}

pub async fn start(
    caller: Caller,
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
    JsonBody(mut start): JsonBody<Start>,
) -> Result<(StatusCode, Json<Started>), Problem> {
    front.start_defaults().complete(&mut start, &caller)?;
    // The author is no part of the digest, because another caller may repeat the request.
    let by = caller.author(start.by.take());
    let Some(key) = idempotency_key(&headers)? else {
        start.by = by;
        let started = front.client().start(start).await?;
        return Ok((StatusCode::CREATED, Json(started)));
    };
    start.session_id.get_or_insert(key);
    let digest = digest(&start);
    start.metadata.insert(DIGEST.into(), digest.as_str().into());
    start.by = by;
    let started = front.client().start(start).await?;
    let known = front.client().session(&started.session_id).await?;
    if known.metadata.get(DIGEST).and_then(Value::as_str) != Some(&digest) {
        return Err(Problem::conflict(format!(
            "the session `{}` was started by another request; use a new `Idempotency-Key`",
            started.session_id
        )));
    }
    Ok((StatusCode::CREATED, Json(started)))
}

/// Returns a digest of a request, by which a repetition is told from another request.
fn digest(start: &Start) -> String {
    KeyHash::of(&json(start)).to_string()
}

pub async fn info(State(front): State<Arc<Front>>, Id(session): Id) -> Reply<SessionInfo> {
    Ok(Json(front.client().session(&session).await?))
}

pub async fn delete(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> Reply<Removed> {
    Ok(Json(
        front
            .client()
            .delete(&session, caller.reason(because.reason))
            .await?,
    ))
}

pub async fn abort(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(abort): JsonBody<AbortSession>,
) -> Reply<Aborted> {
    let reason = caller.reason(abort.reason);
    let (client, prompt) = (front.client(), abort.prompt_id.as_ref());
    Ok(Json(client.abort_session(&session, prompt, reason).await?))
}

pub async fn rewind(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(rewind): JsonBody<Rewind>,
) -> Reply<HeadAt> {
    let by = caller.author(rewind.by);
    Ok(Json(front.client().rewind(&session, rewind.to, by).await?))
}

pub async fn rename(
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(Rename { title }): JsonBody<Rename>,
) -> Reply<Renamed> {
    Ok(Json(front.client().rename(&session, title).await?))
}

pub async fn resume(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> Reply<Started> {
    Ok(Json(
        front
            .client()
            .resume(&session, caller.reason(because.reason))
            .await?,
    ))
}

pub async fn close(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> Reply<SessionStateNow> {
    Ok(Json(
        front
            .client()
            .close(&session, caller.reason(because.reason))
            .await?,
    ))
}

/// Answers a wait. If the caller has a key, the answer is recorded under the name of the key.
pub async fn answer(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(mut answer): JsonBody<Answer>,
) -> Reply<Answered> {
    answer.by = caller.author(answer.by);
    Ok(Json(front.client().answer(&session, &answer).await?))
}

pub async fn messages(
    State(front): State<Arc<Front>>,
    Id(session): Id,
    Arguments(read): Arguments<ReadMessages>,
) -> Reply<Messages> {
    Ok(Json(front.client().messages(&session, &read).await?))
}

pub async fn waits(
    State(front): State<Arc<Front>>,
    Arguments(filter): Arguments<ListWaits>,
) -> Reply<Waits> {
    Ok(Json(front.client().waits(&filter).await?))
}
