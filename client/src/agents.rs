//! Commands about agents.

use planck_common::{
    AgentId,
    command::{
        Accepted, AgentInfo, AgentStateNow, AgentVerb, Because, ChangeModel, Empty, Model, Prompt,
        SavedAt, SetCheckpoint, Snapshot, ToolName, Tools,
    },
    subject::Address,
};

use super::{
    ask::{Client, Repeat},
    error::ClientError,
    sessions::identified,
};

fn to(agent: &AgentId, verb: AgentVerb) -> Address {
    Address::agent(agent, verb.name())
}

impl Client {
    pub async fn prompt_agent(
        &self,
        agent: &AgentId,
        prompt: Prompt,
    ) -> Result<Accepted, ClientError> {
        let (prompt, repeat) = identified(prompt);
        self.ask(&to(agent, AgentVerb::Prompt), &prompt, repeat)
            .await
    }

    pub async fn agent(&self, agent: &AgentId) -> Result<AgentInfo, ClientError> {
        self.ask(&to(agent, AgentVerb::Info), &Empty {}, Repeat::Harmless)
            .await
    }

    pub async fn snapshot(&self, agent: &AgentId) -> Result<Snapshot, ClientError> {
        self.ask(&to(agent, AgentVerb::Snapshot), &Empty {}, Repeat::Harmless)
            .await
    }

    pub async fn abort_agent(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.ask(
            &to(agent, AgentVerb::Abort),
            &Because { reason },
            Repeat::IfNotDone,
        )
        .await
    }

    pub async fn stop_agent(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.ask(
            &to(agent, AgentVerb::Stop),
            &Because { reason },
            Repeat::IfNotDone,
        )
        .await
    }

    pub async fn nudge(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.ask(
            &to(agent, AgentVerb::Nudge),
            &Because { reason },
            Repeat::IfNotDone,
        )
        .await
    }

    pub async fn checkpoint(
        &self,
        agent: &AgentId,
        summary: String,
    ) -> Result<SavedAt, ClientError> {
        self.ask(
            &to(agent, AgentVerb::Checkpoint),
            &SetCheckpoint { summary },
            Repeat::IfNotDone,
        )
        .await
    }

    pub async fn add_tool(&self, agent: &AgentId, name: String) -> Result<Tools, ClientError> {
        self.ask(
            &to(agent, AgentVerb::AddTool),
            &ToolName { name },
            Repeat::Harmless,
        )
        .await
    }

    pub async fn remove_tool(&self, agent: &AgentId, name: String) -> Result<Tools, ClientError> {
        self.ask(
            &to(agent, AgentVerb::RemoveTool),
            &ToolName { name },
            Repeat::Harmless,
        )
        .await
    }

    pub async fn change_model(
        &self,
        agent: &AgentId,
        model: &ChangeModel,
    ) -> Result<Model, ClientError> {
        self.ask(&to(agent, AgentVerb::ChangeModel), model, Repeat::Harmless)
            .await
    }
}
