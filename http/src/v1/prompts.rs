//! Prompts: how they are sent, and what has become of the work that they caused.

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
    command::{Outcome, Prompt, WorkState},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Reply;
use crate::{
    body::{self, Arguments, Id, JsonBody, idempotency_key},
    front::Front,
    key::Caller,
    problem::Problem,
};

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
pub async fn send(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(session): Id,
    Arguments(how_long): Arguments<HowLong>,
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
    Arguments(how_long): Arguments<HowLong>,
) -> Reply<Outcome> {
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
