//! `planck session …`

mod adopt;
mod change;
mod export;
mod look;
mod prune;

use clap::Subcommand;
use planck_common::Seq;

use super::{
    exit::Exit,
    link::Link,
    output::{EventFormat, EventOutput, Output, warn},
    place::Place,
    watch::{self, Sink, show_log},
};
use crate::config::Period;

pub use change::When;
pub use look::{AGENT_COLUMNS, agent_row};

#[derive(Debug, Subcommand)]
pub enum Session {
    /// List sessions
    Ls {
        /// Only open ones
        #[arg(long)]
        open: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show a session with its agents
    Show {
        session: String,
        #[command(flatten)]
        output: Output,
    },
    /// Send a prompt and come back at once
    Prompt(change::SendPrompt),
    /// Follow a session
    Attach {
        session: String,
        /// The first seq to show; without it what happens from now on, or, without NATS, the whole log
        #[arg(long, value_name = "SEQ")]
        from: Option<Seq>,
        #[command(flatten)]
        output: EventOutput,
    },
    /// Abort the running turns of all its agents
    Abort { session: String },
    /// Hide a message and all after it
    Rewind {
        session: String,
        /// The id of the message
        #[arg(long, value_name = "MESSAGE")]
        to: Seq,
    },
    /// Take a session up where it was left
    Resume { session: String },
    /// Stop its agents, and keep it
    Close { session: String },
    /// Remove a session and its log
    Rm { sessions: Vec<String> },
    /// Remove closed sessions that were not used for long
    Prune {
        /// How long: 30d, 12h, …
        #[arg(long, value_name = "TIME")]
        older_than: Period,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Write the whole log, a JSON line for each event
    Export { session: String },
    /// Take over the sessions of another folder, closed: those that an earlier version kept in this one, or of a moved project
    Adopt(adopt::Adopt),
}

impl Session {
    pub async fn perform(self, place: &Place) -> anyhow::Result<Exit> {
        let looks = self.only_looks();
        let config = if looks { place.config()? } else { place.config_to_act(None)? };
        if let Self::Adopt(adopt) = self {
            return Box::pin(adopt.perform(&config)).await;
        }
        let link = if looks { Link::look(&config).await? } else { Link::open(&config).await? };
        let done = Box::pin(self.ask(&link)).await;
        link.close().await;
        done
    }

    fn only_looks(&self) -> bool {
        match self {
            Self::Ls { .. } | Self::Show { .. } | Self::Attach { .. } | Self::Export { .. } => true,
            Self::Prune { dry_run, .. } => *dry_run,
            Self::Prompt(_)
            | Self::Abort { .. }
            | Self::Rewind { .. }
            | Self::Resume { .. }
            | Self::Close { .. }
            | Self::Rm { .. }
            | Self::Adopt(_) => false,
        }
    }

    async fn ask(self, link: &Link) -> anyhow::Result<Exit> {
        let client = &link.client;
        match self {
            Self::Ls { open, output } => look::list(client, open, output).await,
            Self::Show { session, output } => look::show(client, &session, output).await,
            Self::Prompt(prompt) => prompt.perform(client).await,
            Self::Attach { session, from, output } => attach(link, &session, from, output.output).await,
            Self::Abort { session } => change::abort(client, &session).await,
            Self::Rewind { session, to } => change::rewind(client, &session, to).await,
            Self::Resume { session } => change::resume(client, &session).await,
            Self::Close { session } => change::close(client, &session).await,
            Self::Rm { sessions } => change::remove(client, &sessions).await,
            Self::Prune { older_than, dry_run } => prune::perform(client, older_than, dry_run).await,
            Self::Export { session } => export::perform(client, &session).await,
            // It needs the store and no link.
            Self::Adopt(_) => Ok(Exit::Failed),
        }
    }
}

async fn attach(link: &Link, session: &str, from: Option<Seq>, format: EventFormat) -> anyhow::Result<Exit> {
    let client = &link.client;
    let info = client.session(session).await?;
    let mut sink = Sink::of(format);
    if !link.is_of_store() {
        let from = from.unwrap_or(info.head + 1);
        if format == EventFormat::Text {
            warn(&format!("following {} from event {from} on; an interrupt ends it", info.name));
        }
        return watch::attach(client, &info.id, from, &mut sink).await;
    }
    show_log(client, &info.id, from.unwrap_or(1), &mut sink).await?;
    let name = &info.name;
    warn(&format!(
        "planck: this is the log as it is now; without NATS_URL it cannot be followed. `planck run --session {name}` or `planck session \
         resume {name}` goes on with it"
    ));
    Ok(Exit::Done)
}
