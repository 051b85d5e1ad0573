//! A session that a program has started.

use planck_client::{Client, ClientError, Follow};
use planck_common::{
    AgentId, SessionId,
    command::{Accepted, Outcome, Prompt, Started},
};

/// A handle to a session, with methods that send prompts and follow events. Dropping this value
/// does not end the session.
///
/// [`Client`] has all other operations on a session, which they identify by its
/// [`id`](Session::id).
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    started: Started,
}

impl Session {
    pub(super) fn new(client: Client, started: Started) -> Self {
        Self { client, started }
    }

    /// Returns the session's id, with which another process can find the session later.
    pub fn id(&self) -> &SessionId {
        &self.started.session_id
    }

    /// Returns the id of the agent that receives the session's prompts.
    pub fn orchestrator(&self) -> &AgentId {
        &self.started.orchestrator
    }

    /// Sends a prompt. The prompt is stored when this function returns, and the answer arrives as
    /// [events](Self::events).
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Refused`], for example if the session was deleted or its inbox is
    /// full.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, ClientError> {
        self.client.prompt(self.id(), prompt).await
    }

    /// Sends a prompt, and waits until the work that it caused is over: the agent's turns, and those
    /// of the agents to which it gave tasks or questions. Also returns if nothing can happen before
    /// an answer from outside, such as an approval; the [`state`](Outcome::state) tells.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use planck_node::{Agent, Runtime, ScriptedModel};
    ///
    /// let runtime = Runtime::builder()
    ///     .scripted_model(ScriptedModel::new().text("Hello!"))
    ///     .start()
    ///     .await?;
    /// let session = runtime.start(Agent::new("greeter")).await?;
    /// let outcome = session.run("Hi.").await?;
    /// assert_eq!(outcome.message.as_deref(), Some("Hello!"));
    /// runtime.shut_down().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Client::run`].
    pub async fn run(&self, prompt: impl Into<Prompt>) -> Result<Outcome, ClientError> {
        self.client.run(self.id(), prompt).await
    }

    /// Follows the events of all agents of the session, from the first one on. While replies are
    /// streamed, their parts are included.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Client::follow`].
    pub async fn events(&self) -> Result<Follow, ClientError> {
        self.client.follow(self.id(), 1).await
    }
}
