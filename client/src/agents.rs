//! Commands about agents.

use planck_common::{
    AgentId,
    command::{
        Accepted, AgentInfo, AgentStateNow, AgentVerb, Because, ChangeModel, Empty, Model, Prompt,
        SavedAt, SetCheckpoint, Snapshot, ToolName, Tools,
    },
    subject::Address,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    client::{Client, RetryPolicy},
    error::ClientError,
    sessions::identified,
};

fn to(agent: &AgentId, verb: AgentVerb) -> Address {
    Address::agent(agent, verb.name())
}

impl Client {
    async fn call_agent<T: DeserializeOwned>(
        &self,
        agent: &AgentId,
        verb: AgentVerb,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        let policy = RetryPolicy::of(verb.is_idempotent());
        self.call(&to(agent, verb), body, policy).await
    }

    /// Sends a prompt to one agent. The call is retried like [`prompt`](Self::prompt).
    pub async fn prompt_agent(
        &self,
        agent: &AgentId,
        prompt: impl Into<Prompt>,
    ) -> Result<Accepted, ClientError> {
        let (prompt, policy) = identified(prompt.into());
        self.call(&to(agent, AgentVerb::Prompt), &prompt, policy)
            .await
    }

    /// Describes an agent. The call is idempotent.
    pub async fn agent(&self, agent: &AgentId) -> Result<AgentInfo, ClientError> {
        self.call_agent(agent, AgentVerb::Info, &Empty {}).await
    }

    /// Reads the work in progress of an agent: the streaming reply and the running tools. The call
    /// is idempotent.
    pub async fn snapshot(&self, agent: &AgentId) -> Result<Snapshot, ClientError> {
        self.call_agent(agent, AgentVerb::Snapshot, &Empty {}).await
    }

    /// Aborts an agent's running turn. The call is not idempotent.
    pub async fn abort_agent(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.call_agent(agent, AgentVerb::Abort, &Because { reason })
            .await
    }

    /// Stops an agent permanently. The call is not idempotent.
    pub async fn stop_agent(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.call_agent(agent, AgentVerb::Stop, &Because { reason })
            .await
    }

    /// Opens a turn without an input, if the agent is idle and its history is not empty. The call
    /// is not idempotent.
    pub async fn nudge(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.call_agent(agent, AgentVerb::Nudge, &Because { reason })
            .await
    }

    /// Saves a summary as the agent's checkpoint, after the running turn if there is one. Older
    /// messages are no longer sent to the model. The call is not idempotent.
    pub async fn checkpoint(
        &self,
        agent: &AgentId,
        summary: String,
    ) -> Result<SavedAt, ClientError> {
        self.call_agent(agent, AgentVerb::Checkpoint, &SetCheckpoint { summary })
            .await
    }

    /// Adds the tool `name` to an agent. The call is idempotent.
    pub async fn add_tool(&self, agent: &AgentId, name: String) -> Result<Tools, ClientError> {
        self.call_agent(agent, AgentVerb::AddTool, &ToolName { name })
            .await
    }

    /// Removes the tool `name` from an agent. The call is idempotent.
    pub async fn remove_tool(&self, agent: &AgentId, name: String) -> Result<Tools, ClientError> {
        self.call_agent(agent, AgentVerb::RemoveTool, &ToolName { name })
            .await
    }

    /// Changes the model of an agent from its next request on. The call is idempotent.
    pub async fn change_model(
        &self,
        agent: &AgentId,
        model: &ChangeModel,
    ) -> Result<Model, ClientError> {
        self.call_agent(agent, AgentVerb::ChangeModel, model).await
    }
}
