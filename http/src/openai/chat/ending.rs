//! Ends a chat completion: deletes the session of a task, and aborts the work for a client that is gone
//! if the client asked for that.

use planck_client::Client;
use planck_common::{InputId, SessionId};

use crate::openai::opening::Opened;

pub struct Ending {
    client: Client,
    session: SessionId,
    prompt: InputId,
    /// Whether the session was started only for this answer.
    is_task: bool,
    /// Whether the work ends with the connection.
    aborts: bool,
}

impl Ending {
    pub fn of(opened: &Opened, client: &Client, aborts: bool) -> Self {
        Self {
            client: client.clone(),
            session: opened.id.session.clone(),
            prompt: opened.input.clone(),
            is_task: opened.is_task,
            aborts,
        }
    }

    /// Deletes the session of a task, whose answer has been sent.
    pub async fn answered(&self) {
        if !self.is_task {
            return;
        }
        let (session, reason) = (&self.session, "the task of a client is answered");
        if let Err(error) = self.client.delete(session, Some(reason.into())).await {
            tracing::warn!(%session, %error, "cannot delete the session of a client's task");
        }
    }

    /// Aborts the work for a client that is gone, if the client wants that.
    pub async fn gone(&self) {
        if !self.aborts {
            return;
        }
        let (session, reason) = (&self.session, "the client closed the connection");
        let aborted = self
            .client
            .abort_session(session, &self.prompt, Some(reason.into()));
        if let Err(error) = aborted.await {
            tracing::warn!(%session, %error, "cannot abort the work for a client that is gone");
        }
    }
}
