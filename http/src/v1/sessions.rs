//! Sessions, their waits and their prompts.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use planck_client::ClientError;
use planck_common::{
    InputId,
    command::{
        AbortSession, Aborted, Answer, Answered, Because, HeadAt, ListSessions, ListWaits,
        Messages, Outcome, Prompt, ReadMessages, Removed, Rename, Renamed, Rewind, SessionInfo,
        SessionStateNow, Sessions, Start, Started, Waits, WorkState,
    },
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::JsonReply;
use crate::{
    body::{self, Id, JsonBody, QueryArguments, idempotency_key},
    front::Front,
    key::Caller,
    problem::Problem,
};

pub async fn list(
    State(front): State<Arc<Front>>,
    QueryArguments(filter): QueryArguments<ListSessions>,
) -> JsonReply<Sessions> {
    Ok(Json(front.client().sessions(&filter).await?))
}

pub async fn start(
    caller: Caller,
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
    JsonBody(mut start): JsonBody<Start>,
) -> Result<(StatusCode, Json<Started>), Problem> {
    front.start_defaults().complete(&mut start, &caller)?;
    let by = caller.author(start.by.take());
    let started = match idempotency_key(&headers)? {
        Some(key) => {
            start.session_id.get_or_insert(key);
            front.start_once(start, by).await?
        }
        None => {
            start.by = by;
            front.client().start(start).await?
        }
    };
    Ok((StatusCode::CREATED, Json(started)))
}

pub async fn info(State(front): State<Arc<Front>>, Id(session): Id) -> JsonReply<SessionInfo> {
    Ok(Json(front.client().session(&session).await?))
}

pub async fn delete(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> JsonReply<Removed> {
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
) -> JsonReply<Aborted> {
    let reason = caller.reason(abort.reason);
    let (client, prompt) = (front.client(), abort.prompt_id.as_ref());
    Ok(Json(client.abort_session(&session, prompt, reason).await?))
}

pub async fn rewind(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(rewind): JsonBody<Rewind>,
) -> JsonReply<HeadAt> {
    let by = caller.author(rewind.by);
    Ok(Json(front.client().rewind(&session, rewind.to, by).await?))
}

pub async fn rename(
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(Rename { title }): JsonBody<Rename>,
) -> JsonReply<Renamed> {
    Ok(Json(front.client().rename(&session, title).await?))
}

pub async fn resume(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    JsonBody(because): JsonBody<Because>,
) -> JsonReply<Started> {
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
) -> JsonReply<SessionStateNow> {
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
) -> JsonReply<Answered> {
    answer.by = caller.author(answer.by);
    Ok(Json(front.client().answer(&session, &answer).await?))
}

pub async fn messages(
    State(front): State<Arc<Front>>,
    Id(session): Id,
    QueryArguments(read): QueryArguments<ReadMessages>,
) -> JsonReply<Messages> {
    Ok(Json(front.client().messages(&session, &read).await?))
}

pub async fn waits(
    State(front): State<Arc<Front>>,
    QueryArguments(filter): QueryArguments<ListWaits>,
) -> JsonReply<Waits> {
    Ok(Json(front.client().waits(&filter).await?))
}

/// The maximum number of seconds for which a request may wait. Proxies close connections on which
/// nothing comes for a minute.
const MOST_WAIT: u64 = 50;

/// How long a request waits for the work on a prompt.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct HowLong {
    /// How many seconds to wait until the work is over, or waits for an answer from outside: 0 by
    /// default, 50 at most.
    #[serde(default)]
    #[schemars(range(max = 50))]
    wait: Option<u64>,
}

impl HowLong {
    fn checked(self) -> Result<Duration, Problem> {
        match self.wait.unwrap_or(0) {
            wait if wait <= MOST_WAIT => Ok(Duration::from_secs(wait)),
            wait => Err(Problem::bad_request(format!(
                "`wait` is {wait} and at most {MOST_WAIT} seconds; ask again, or follow the events"
            ))),
        }
    }
}

/// Sends a prompt. The reply is the outcome if the work is over in time, and otherwise says only
/// that the prompt is stored.
pub async fn send_prompt(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    QueryArguments(how_long): QueryArguments<HowLong>,
    headers: HeaderMap,
    JsonBody(mut prompt): JsonBody<Prompt>,
) -> Result<Response, Problem> {
    let wait = how_long.checked()?;
    if let Some(key) = idempotency_key(&headers)? {
        prompt.prompt_id.get_or_insert(key);
    }
    prompt.by = caller.author(prompt.by);
    let accepted = front.client().prompt(&session, prompt).await?;
    if !wait.is_zero() {
        // The prompt is stored, so an error must not look as if it were not.
        let found = within(&front, &accepted.session_id, &accepted.prompt_id, wait).await;
        if let Ok(found) = found
            && found.state == WorkState::Over
        {
            return Ok(Json(found).into_response());
        }
    }
    Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
}

/// Tells what has become of the work that a prompt caused.
pub async fn outcome(
    State(front): State<Arc<Front>>,
    Path((session, prompt)): Path<(String, String)>,
    QueryArguments(how_long): QueryArguments<HowLong>,
) -> JsonReply<Outcome> {
    body::id(&session)?;
    let prompt =
        InputId::parse(&prompt).map_err(|error| Problem::bad_request(error.to_string()))?;
    let wait = how_long.checked()?;
    Ok(Json(within(&front, &session, &prompt, wait).await?))
}

/// Returns the outcome of a prompt, and waits for up to `wait` while the work goes on.
async fn within(
    front: &Front,
    session: &str,
    prompt: &InputId,
    wait: Duration,
) -> Result<Outcome, ClientError> {
    let client = front.client();
    let asked = client.outcome(session, prompt, wait);
    match front.stop().run_until_cancelled(asked).await {
        Some(found) => found,
        None => client.outcome(session, prompt, Duration::ZERO).await,
    }
}
