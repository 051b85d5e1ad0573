//! What follows after the answer to a chat, as its headers say.

use axum::http::HeaderMap;
use planck_client::Client;
use planck_common::SessionId;

use crate::{
    front::Front,
    openai::{
        error::ApiError,
        hints::{aborts_on_disconnect, task},
    },
};

pub struct Ending {
    client: Client,
    /// Whether the session was started only for this answer.
    is_task: bool,
    /// Whether the turn ends with the connection.
    aborts: bool,
}

impl Ending {
    pub fn of(front: &Front, headers: &HeaderMap) -> Result<Self, ApiError> {
        Ok(Self {
            client: front.client().clone(),
            is_task: task(headers).is_some(),
            aborts: aborts_on_disconnect(headers)?,
        })
    }

    /// Deletes the session of a task, whose answer has been sent.
    pub async fn answered(&self, session: &SessionId) {
        if !self.is_task {
            return;
        }
        let reason = Some("the task of a client is answered".to_owned());
        if let Err(error) = self.client.delete(session, reason).await {
            tracing::warn!(%session, %error, "cannot delete the session of a client's task");
        }
    }

    /// Aborts the turn of a client that is gone, if the client wants that.
    pub async fn gone(&self, session: &SessionId) {
        if !self.aborts {
            return;
        }
        let reason = Some("the client closed the connection".to_owned());
        if let Err(error) = self.client.abort_session(session, reason).await {
            tracing::warn!(%session, %error, "cannot abort the turn of a client that is gone");
        }
    }
}
