//! The commands `planck session …`.

pub mod change;
pub mod list;

use clap::Subcommand;
use futures_util::TryStreamExt as _;
use planck_client::Client;
use planck_common::{Seq, command::SessionState};
use planck_node::config::Period;

use crate::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::{Exit, until_terminated},
    output::{EventFormat, EventOutput, Format, Output, json_text, or_dash, say, table, warn},
    watch::{self, EventDisplay, show_log},
};

pub use change::{PromptTiming, rename};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck session ls                       # the sessions, with what they are about
  planck session show bold-oak
  planck session attach bold-oak          # what happens in it from now on")]
pub enum SessionCommand {
    /// List sessions, the most recently used first
    Ls(list::Ls),
    /// Show a session with its agents
    #[command(after_help = "Examples:\n  planck session show bold-oak")]
    Show {
        session: String,
        #[command(flatten)]
        output: Output,
    },
    /// Send a prompt and return at once; without NATS stay until the work has ended
    #[command(
        after_help = "Examples:\n  planck session prompt bold-oak \"And the tests?\"\n  \
                            planck session prompt bold-oak --mode steer \"Leave the docs alone\"\n  \
                            planck session prompt bold-oak --agent coder \"Use no regex\""
    )]
    Prompt(change::SendPrompt),
    /// Follow a session until an interrupt
    #[command(
        after_help = "Examples:\n  planck session attach bold-oak               # from now on\n  \
                            planck session attach bold-oak --from 1      # from its beginning on\n  \
                            planck session attach bold-oak -o jsonl | jq -r .type"
    )]
    Attach {
        session: String,
        /// The first seq to show; by default what happens from now on, or, without NATS, the whole
        /// log
        #[arg(long, value_name = "SEQ")]
        from: Option<Seq>,
        #[command(flatten)]
        output: EventOutput,
    },
    /// Abort the running turns of all its agents
    #[command(after_help = "Examples:\n  planck session abort bold-oak")]
    Abort { session: String },
    /// Hide a message and all after it, or list the messages to go back to
    #[command(
        after_help = "Examples:\n  planck session rewind bold-oak            # the messages to go back to\n  \
                            planck session rewind bold-oak --to 17    # hide message 17 and all after it"
    )]
    Rewind {
        session: String,
        /// The number of the message; without it the messages are listed
        #[arg(long, value_name = "MESSAGE")]
        to: Option<Seq>,
    },
    /// Give a session a title that lists show; its name stays
    #[command(
        after_help = "Examples:\n  planck session rename bold-oak \"Mend the parser\"\n  \
                            planck session rename bold-oak \"\"           # without a title again"
    )]
    Rename { session: String, title: String },
    /// Continue an interrupted or closed session; without NATS this stays until its work has ended
    #[command(after_help = "Examples:\n  planck session resume bold-oak")]
    Resume { session: String },
    /// Stop its agents, and keep it
    #[command(after_help = "Examples:\n  planck session close bold-oak")]
    Close { session: String },
    /// Remove a session and its log
    #[command(after_help = "Examples:\n  planck session rm bold-oak grey-fern")]
    Rm {
        #[arg(required = true)]
        sessions: Vec<String>,
    },
    /// Remove closed sessions that were not used for a long time
    #[command(after_help = "Examples:\n  planck session prune --older-than 30d --dry-run")]
    Prune {
        /// How long: 30d, 12h, …
        #[arg(long, value_name = "TIME")]
        older_than: Period,
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Write the whole log, one JSON line per event
    #[command(after_help = "Examples:\n  planck session export bold-oak > bold-oak.jsonl")]
    Export { session: String },
    /// Take over sessions of another folder as closed, such as those of a moved project
    Adopt(change::Adopt),
}

impl SessionCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let looks = self.only_looks();
        let config = if looks {
            global.config()?
        } else {
            global.config_to_act(None)?
        };
        if let Self::Adopt(adopt) = self {
            return Box::pin(adopt.perform(&config)).await;
        }
        let link = if looks {
            ConnectedClient::look(&config).await?
        } else {
            ConnectedClient::open(&config).await?
        };
        let done = until_terminated(Box::pin(self.ask(&link))).await;
        link.close().await;
        done
    }

    fn only_looks(&self) -> bool {
        match self {
            Self::Ls(_)
            | Self::Show { .. }
            | Self::Attach { .. }
            | Self::Export { .. }
            | Self::Rewind { to: None, .. } => true,
            Self::Prune { dry_run, .. } => *dry_run,
            Self::Prompt(_)
            | Self::Abort { .. }
            | Self::Rewind { to: Some(_), .. }
            | Self::Rename { .. }
            | Self::Resume { .. }
            | Self::Close { .. }
            | Self::Rm { .. }
            | Self::Adopt(_) => false,
        }
    }

    async fn ask(self, link: &ConnectedClient) -> anyhow::Result<Exit> {
        let client = &link.client;
        match self {
            Self::Ls(ls) => Box::pin(ls.perform(client)).await,
            Self::Show { session, output } => show(client, &session, output).await,
            Self::Prompt(prompt) => prompt.perform(link).await,
            Self::Attach {
                session,
                from,
                output,
            } => attach(link, &session, from, output.output).await,
            Self::Abort { session } => change::abort(client, &session).await,
            Self::Rewind { session, to } => change::rewind(client, &session, to).await,
            Self::Rename { session, title } => change::rename(client, &session, &title).await,
            Self::Resume { session } => change::resume(link, &session).await,
            Self::Close { session } => change::close(client, &session).await,
            Self::Rm { sessions } => change::remove(client, &sessions).await,
            Self::Prune {
                older_than,
                dry_run,
            } => change::prune(client, older_than, dry_run).await,
            Self::Export { session } => export(client, &session).await,
            // `perform` handles this command, because the command opens the store itself and needs
            // no connection.
            Self::Adopt(_) => Ok(Exit::Failed),
        }
    }
}

async fn attach(
    link: &ConnectedClient,
    session: &str,
    from: Option<Seq>,
    format: EventFormat,
) -> anyhow::Result<Exit> {
    let client = &link.client;
    let info = client.session(session).await?;
    let mut display = EventDisplay::of(format);
    if !link.is_of_store() {
        let from = from.unwrap_or(info.head + 1);
        if format == EventFormat::Text {
            warn(&format!(
                "following {} from event {from} on; an interrupt ends it",
                info.name
            ));
        }
        return watch::attach(client, &info.id, from, &mut display).await;
    }
    show_log(client, &info.id, from.unwrap_or(1), &mut display).await?;
    let name = &info.name;
    warn(&format!(
        "planck: this is the log as it is now; without NATS_URL it cannot be followed. `planck run --session {name}` or `planck session \
         resume {name}` goes on with it"
    ));
    Ok(Exit::Done)
}

fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Open => "open",
        SessionState::Closed => "closed",
    }
}

async fn show(client: &Client, session: &str, output: Output) -> anyhow::Result<Exit> {
    let mut info = client.session(session).await?;
    info.usage = crate::render::rounded(info.usage);
    let usage = crate::render::consumed(&info.usage);
    let mut pairs = vec![
        ("name", info.name.to_string()),
        ("id", info.id.to_string()),
        ("state", state(info.state).into()),
        ("workspace", format!("{} {}", info.workspace, info.dir)),
        ("node", or_dash(info.owner.as_ref())),
        ("log", format!("{} events", info.head)),
        ("consumed", usage),
    ];
    pairs.extend(info.title.clone().map(|title| ("title", title)));
    output.pairs(&info, &pairs)?;
    if output.output == Format::Table {
        say("\n")?;
        say(&agents(&info.agents))?;
    }
    Ok(Exit::Done)
}

/// Formats the agents of a session as a table.
pub fn agents(agents: &[planck_common::command::AgentRow]) -> String {
    let rows: Vec<_> = agents.iter().map(agent_row).collect();
    table(&AGENT_COLUMNS, &rows)
}

pub const AGENT_COLUMNS: [&str; 6] = ["name", "type", "role", "state", "node", "id"];

pub fn agent_row(agent: &planck_common::command::AgentRow) -> Vec<String> {
    let role = match agent.role {
        planck_common::spec::AgentRole::Orchestrator => "orchestrator",
        planck_common::spec::AgentRole::Worker => "worker",
    };
    vec![
        agent.name.clone(),
        agent.r#type.clone(),
        role.into(),
        agent.state.name().into(),
        or_dash(agent.node_id.as_ref()),
        agent.id.to_string(),
    ]
}

/// Writes the events of the log up to its head at the time of the call.
async fn export(client: &Client, session: &str) -> anyhow::Result<Exit> {
    let end = client.session(session).await?.head;
    let mut pages = client.pages(session, 1, end);
    while let Some(page) = pages.try_next().await? {
        let lines = page.iter().flat_map(|event| [event.get(), "\n"]);
        json_text(&lines.collect::<String>())?;
    }
    Ok(Exit::Done)
}
