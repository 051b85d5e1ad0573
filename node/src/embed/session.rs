//! A session that a program started.

use planck_client::{Client, ClientError, Follow};
use planck_common::{
    AgentId, SessionId,
    command::{Accepted, Prompt, Started},
};

/// A session: what to prompt, and where its events are. Dropping it ends nothing.
///
/// Everything else that can be done with a session is in [`Client`], by its [`id`](Session::id).
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    started: Started,
}

impl Session {
    pub(super) fn new(client: Client, started: Started) -> Self {
        Self { client, started }
    }

    /// The session's id, by which a later process finds it again.
    pub fn id(&self) -> &SessionId {
        &self.started.session_id
    }

    /// The agent that gets the session's prompts.
    pub fn orchestrator(&self) -> &AgentId {
        &self.started.orchestrator
    }

    /// Sends a prompt. It is stored when this returns; the answer comes as [events](Self::events).
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] when the session is deleted or its inbox is full.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, ClientError> {
        self.client.prompt(self.id(), prompt).await
    }

    /// Follows the session's events from its first on: those of all its agents, in order, and
    /// pieces of replies while they stream.
    ///
    /// # Errors
    ///
    /// As of [`Client::follow`].
    pub async fn events(&self) -> Result<Follow, ClientError> {
        self.client.follow(self.id(), 1).await
    }
}
