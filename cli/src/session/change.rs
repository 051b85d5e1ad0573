//! The commands `planck session prompt`, `abort`, `rename`, `resume`, `close` and `rm`.

use clap::{Args, ValueEnum};
use planck_common::command::{InputMode, Prompt};

use super::show::state;
use crate::{
    connect::ConnectedClient,
    exit::Exit,
    follow_work::follow_work,
    output::{say, warn},
    render::style::counted,
    waits::own_name,
    watch::WatchedWork,
};
use planck_client::{Client, ClientError};

/// How a prompt affects an agent that is busy.
#[derive(Debug, Clone, Copy, ValueEnum, Default)]
pub enum PromptTiming {
    /// It waits for the next turn
    #[default]
    Queue,
    /// It joins the running turn
    Steer,
    /// It is refused
    Reject,
}

#[derive(Debug, Args)]
pub struct SendPrompt {
    session: String,
    text: String,
    /// The agent, by id or name; by default the orchestrator
    #[arg(long)]
    agent: Option<String>,
    /// How the prompt affects an agent that is busy
    #[arg(long, value_enum, default_value_t)]
    mode: PromptTiming,
}

impl PromptTiming {
    pub fn mode(self) -> InputMode {
        match self {
            Self::Queue => InputMode::Queue,
            Self::Steer => InputMode::Steer,
            Self::Reject => InputMode::Reject,
        }
    }
}

impl SendPrompt {
    pub async fn perform(self, link: &ConnectedClient) -> anyhow::Result<Exit> {
        let prompt = Prompt {
            text: Some(self.text),
            content: None,
            prompt_id: None,
            mode: self.mode.mode(),
            agent: self.agent,
            by: own_name(),
        };
        let accepted = link.client.prompt(&self.session, prompt).await?;
        if link.is_alone() {
            let session = &self.session;
            return follow_work(link, session, &accepted.into()).await;
        }
        say(&format!(
            "accepted as {}; follow it with `planck session attach {} --from {}`\n",
            accepted.prompt_id,
            self.session,
            accepted.seq + 1
        ))?;
        Ok(Exit::Done)
    }
}

pub async fn abort(client: &Client, session: &str) -> anyhow::Result<Exit> {
    let aborted = client.abort_session(session, None, None).await?.aborted;
    say(&format!("aborted {}\n", counted(aborted.len(), "agent")))?;
    Ok(Exit::Done)
}

/// Resumes a session. Without a cluster this process stays until the session's work has ended.
pub async fn resume(link: &ConnectedClient, session: &str) -> anyhow::Result<Exit> {
    let started = link.client.resume(session, None).await?;
    say(&format!(
        "{} is {} on {}\n",
        started.name,
        state(started.state),
        started.node_id
    ))?;
    if !link.is_alone() {
        return Ok(Exit::Done);
    }
    let work = WatchedWork {
        session: started.session_id,
        prompt: None,
        from: started.seq + 1,
    };
    follow_work(link, &started.name, &work).await
}

pub async fn rename(client: &Client, session: &str, title: &str) -> anyhow::Result<Exit> {
    let renamed = client.rename(session, Some(title.to_owned())).await?;
    say(&match renamed.title {
        Some(title) => format!("{session} has the title \"{title}\"\n"),
        None => format!("{session} has no title\n"),
    })?;
    Ok(Exit::Done)
}

pub async fn close(client: &Client, session: &str) -> anyhow::Result<Exit> {
    let now = client.close(session, None).await?;
    say(&format!("{session} is {}\n", state(now.state)))?;
    Ok(Exit::Done)
}

/// Removes sessions by their names or ids.
pub async fn remove(client: &Client, sessions: &[String]) -> anyhow::Result<Exit> {
    remove_all(client, sessions.iter().map(|name| (&**name, &**name))).await
}

/// Removes sessions, each given by its id and the name with which its removal is reported. A session
/// that the node refuses to remove does not keep the others from being removed. The first refusal is
/// returned, and the others are printed.
pub async fn remove_all<'a>(
    client: &Client,
    sessions: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> anyhow::Result<Exit> {
    let mut first: Option<anyhow::Error> = None;
    for (id, name) in sessions {
        let removed = match client.delete(id, None).await {
            Ok(deleted) => deleted.removed,
            Err(error @ ClientError::Refused(_)) => {
                let error = anyhow::Error::new(error).context(format!("cannot remove {name}"));
                match &first {
                    None => first = Some(error),
                    Some(_) => warn(&format!("planck: {error:#}")),
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let counts = [
            (removed.agents, "agent"),
            (removed.events, "event"),
            (removed.inputs, "input"),
        ];
        let what = counts
            .map(|(number, noun)| counted(number as usize, noun))
            .join(", ");
        say(&format!("removed {name}: {what}\n"))?;
    }
    first.map_or(Ok(Exit::Done), Err)
}
