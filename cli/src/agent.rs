//! The commands `planck agent …`.

use clap::Subcommand;
use planck_common::{AgentId, command::Prompt};

use super::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::{Exit, UsageError},
    output::{Output, or_dash, say},
    permissions::described,
    render::{consumed, rounded},
    session::{AGENT_COLUMNS, PromptTiming, agent_row},
    waits::own_name,
};
use crate::watch::follow_work;
use planck_client::Client;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck agent ls bold-oak
  planck agent prompt 01a206a0330770c5aa972bc578a50dc0 \"And the tests?\"
  planck agent abort 01a206a0330770c5aa972bc578a50dc0")]
pub enum AgentCommand {
    /// List the agents of a session
    #[command(
        after_help = "Examples:\n  planck agent ls bold-oak\n  planck agent ls bold-oak -o json | jq -r '.[].id'"
    )]
    Ls {
        session: String,
        #[command(flatten)]
        output: Output,
    },
    /// Show an agent
    #[command(after_help = "Examples:\n  planck agent show 01a206a0330770c5aa972bc578a50dc0")]
    Show {
        agent: String,
        #[command(flatten)]
        output: Output,
    },
    /// Send it a prompt and return at once; without NATS stay until the work has ended
    #[command(
        after_help = "Examples:\n  planck agent prompt 01a206a0330770c5aa972bc578a50dc0 \"And the tests?\""
    )]
    Prompt {
        agent: String,
        text: String,
        /// How the prompt affects an agent that is busy
        #[arg(long, value_enum, default_value_t)]
        mode: PromptTiming,
    },
    /// Abort its running turn
    #[command(after_help = "Examples:\n  planck agent abort 01a206a0330770c5aa972bc578a50dc0")]
    Abort { agent: String },
    /// Stop it; with an orchestrator its whole team stops
    #[command(after_help = "Examples:\n  planck agent stop 01a206a0330770c5aa972bc578a50dc0")]
    Stop { agent: String },
}

impl AgentCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let looks = self.only_looks();
        let config = if looks {
            global.config()?
        } else {
            global.config_to_act(None)?
        };
        let link = if looks {
            ConnectedClient::look(&config).await?
        } else {
            ConnectedClient::open(&config).await?
        };
        let done = Box::pin(self.ask(&link)).await;
        link.close().await;
        done
    }

    fn only_looks(&self) -> bool {
        match self {
            Self::Ls { .. } | Self::Show { .. } => true,
            Self::Prompt { .. } | Self::Abort { .. } | Self::Stop { .. } => false,
        }
    }

    async fn ask(self, link: &ConnectedClient) -> anyhow::Result<Exit> {
        let client = &link.client;
        match self {
            Self::Ls { session, output } => {
                let agents = client.session(&session).await?.agents;
                output.list(
                    &agents,
                    &AGENT_COLUMNS,
                    agents.iter().map(agent_row).collect(),
                )?;
            }
            Self::Show { agent, output } => show(client, &parse(&agent)?, output).await?,
            Self::Prompt { agent, text, mode } => {
                let prompt = Prompt {
                    text: Some(text),
                    content: None,
                    prompt_id: None,
                    mode: mode.mode(),
                    agent: None,
                    by: own_name(),
                    output: None,
                };
                let accepted = client.prompt_agent(&parse(&agent)?, prompt).await?;
                if link.is_alone() {
                    let session = accepted.session_id.to_string();
                    return follow_work(link, &session, &accepted.into()).await;
                }
                say(&format!("accepted as {}\n", accepted.prompt_id))?;
            }
            Self::Abort { agent } => {
                let now = client.abort_agent(&parse(&agent)?, None).await?;
                say(&format!("{agent} is {}\n", now.state.name()))?;
            }
            Self::Stop { agent } => {
                let now = client.stop_agent(&parse(&agent)?, None).await?;
                say(&format!("{agent} is {}\n", now.state.name()))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn parse(text: &str) -> anyhow::Result<AgentId> {
    let remedy = "`planck agent ls SESSION` lists them";
    Ok(AgentId::parse(text).map_err(|error| UsageError(format!("{error}; {remedy}")))?)
}

async fn show(client: &Client, agent: &AgentId, output: Output) -> anyhow::Result<()> {
    let mut info = client.agent(agent).await?;
    info.usage = rounded(info.usage);
    let full = info.context_tokens.saturating_mul(100) / info.context_window.max(1);
    output.pairs(
        &info,
        &[
            ("name", info.name.clone()),
            ("type", info.r#type.clone()),
            (
                "state",
                format!(
                    "{}, turn {}, {} waiting",
                    info.state.name(),
                    info.turn,
                    info.queued
                ),
            ),
            ("session", info.session_id.to_string()),
            ("node", or_dash(info.node_id.as_ref())),
            (
                "model",
                format!("{}:{}", info.model.provider, info.model.id),
            ),
            (
                "context",
                format!(
                    "{} of {} tokens ({full} %)",
                    info.context_tokens, info.context_window
                ),
            ),
            ("consumed", consumed(&info.usage)),
            (
                "permissions",
                described(&info.permissions).trim().replace("\n  ", "; "),
            ),
            ("tools", info.tools.join(" ")),
            ("skills", info.skills.join(" ")),
        ],
    )
}
