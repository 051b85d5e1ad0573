//! The session that a command prompts.

use anyhow::Context as _;
use planck_common::{
    AgentId, SessionId, SessionName,
    command::{AgentRow, ChangeModel, Prompt, SessionInfo},
    message::Part,
    spec::AgentRole,
};

use crate::{connect::ConnectedClient, output::warn, waits::own_name, watch::WatchedWork};
use planck_client::Client;

const OFFLINE: &str = "planck: commands of agents have no network; `tools.network = \"on\"` in the configuration gives it to them";

/// A session that accepts prompts, with its model and agents.
#[derive(Debug, Clone)]
pub struct PromptTarget {
    pub id: SessionId,
    pub name: SessionName,
    pub orchestrator: AgentId,
    /// The model of the orchestrator as `provider:model`.
    pub model: String,
    /// The names of the agents. The orchestrator is the first.
    pub agents: Vec<String>,
}

impl PromptTarget {
    pub async fn with(client: &Client, session: &str) -> anyhow::Result<Self> {
        let info = client.session(session).await?;
        let orchestrator = orchestrator(&info)
            .with_context(|| format!("session {} has no agent", info.name))?
            .clone();
        let model = client.agent(&orchestrator.id).await?.model;
        let others = info
            .agents
            .iter()
            .filter(|agent| agent.id != orchestrator.id)
            .map(|agent| agent.name.clone());
        Ok(Self {
            model: format!("{}:{}", model.provider, model.id),
            agents: std::iter::once(orchestrator.name.clone())
                .chain(others)
                .collect(),
            orchestrator: orchestrator.id,
            id: info.id,
            name: info.name,
        })
    }

    /// Returns the title of the session, for example `session bold-oak · model anthropic:claude-…`.
    pub fn title(&self) -> String {
        let team = match self.agents.as_slice() {
            [] | [_] => String::new(),
            agents => format!(" · team {}", agents.join(", ")),
        };
        format!("session {} · model {}{team}", self.name, self.model)
    }

    /// Says that commands have no network if an agent of the session runs commands, and names the
    /// setting. A model that cannot fetch a package often does not say why.
    pub async fn say_if_offline(&self, link: &ConnectedClient) -> anyhow::Result<()> {
        if !link.lacks_network() {
            return Ok(());
        }
        for agent in link.client.session(&self.id).await?.agents {
            let tools = link.client.agent(&agent.id).await?.tools;
            if tools.iter().any(|tool| tool == "bash") {
                warn(OFFLINE);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes the model of the orchestrator.
    pub async fn change_model(
        &mut self,
        client: &Client,
        change: &ChangeModel,
    ) -> anyhow::Result<()> {
        let model = client.change_model(&self.orchestrator, change).await?.model;
        self.model = format!("{}:{}", model.provider, model.id);
        Ok(())
    }

    /// Sends a prompt to the session.
    pub async fn prompt(&self, client: &Client, content: Vec<Part>) -> anyhow::Result<WatchedWork> {
        let prompt = Prompt {
            text: None,
            content: Some(content),
            prompt_id: None,
            mode: Default::default(),
            agent: None,
            by: own_name(),
        };
        Ok(client.prompt(&self.id, prompt).await?.into())
    }
}

/// Returns the agent that receives the session's prompts: the orchestrator, or the first agent if
/// there is no orchestrator.
fn orchestrator(info: &SessionInfo) -> Option<&AgentRow> {
    info.agents
        .iter()
        .find(|agent| agent.role == AgentRole::Orchestrator)
        .or(info.agents.first())
}
