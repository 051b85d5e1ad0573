//! Aborts the work of a prompt.

use std::time::Duration;

use planck_client::{Client, ClientError};
use planck_common::{
    InputId, SessionId,
    command::{Aborted, WorkState},
};

/// How often the running turns are aborted, and how long the work may take after that until the next
/// time.
const TIMES: usize = 10;
const WAIT: Duration = Duration::from_millis(500);

/// Aborts the running turns of a session until the work of a prompt is over. Once is not enough: if
/// the turn of a worker is aborted, the agent that gave the task is told, and begins a turn.
pub async fn abort_work(
    client: &Client,
    session: &SessionId,
    prompt: &InputId,
    reason: Option<String>,
) -> Result<Aborted, ClientError> {
    let first = client.abort_session(session, reason.clone()).await?;
    for _ in 1..TIMES {
        match client.outcome(session, prompt, WAIT).await {
            Ok(outcome) if outcome.state != WorkState::Over => {}
            // A node of an earlier version cannot tell.
            Ok(_) | Err(_) => break,
        }
        client.abort_session(session, reason.clone()).await?;
    }
    Ok(first)
}
