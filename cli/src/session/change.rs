//! The commands `planck session prompt`, `abort`, `rename`, `resume`, `close`, `rm`, `rewind`,
//! `adopt` and `prune`.

use std::{
    io::{BufRead as _, IsTerminal as _, stdin},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use futures_util::TryStreamExt as _;
use planck_client::{Client, ClientError};
use planck_common::{
    NodeId, Seq, SessionId, Timestamp,
    command::{InputMode, ListSessions, Prompt, SessionState},
    envelope::Envelope,
    event::Event,
    message::{MessageRole, text_of},
};
use planck_node::{
    config::{Config, Period, StoreKind},
    node,
};
use planck_store::sqlite::{SqliteStore, StraySession, stray_sessions};

use super::state;
use crate::{
    choose::every_session,
    connect::ConnectedClient,
    exit::{Exit, NotFound, UsageError},
    output::{say, table, warn},
    render::style::{counted, one_line},
    waits::own_name,
    watch::{WatchedWork, follow_work},
};

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
            output: None,
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
async fn remove_all<'a>(
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

/// The number of messages that are listed, counted from the latest one.
const SHOWN: usize = 50;
/// The number of characters of each message that are shown.
const OF_A_MESSAGE: usize = 72;

pub async fn rewind(client: &Client, session: &str, message: Option<Seq>) -> anyhow::Result<Exit> {
    let id = client.session(session).await?.id;
    match message {
        Some(message) => rewind_to(client, &id, message).await?,
        None => {
            list_messages(client, &id).await?;
            say(&format!(
                "go back with `planck session rewind {session} --to MESSAGE`\n"
            ))?;
        }
    }
    Ok(Exit::Done)
}

/// Hides a message and everything after it.
pub async fn rewind_to(client: &Client, session: &SessionId, message: Seq) -> anyhow::Result<()> {
    let head = client.rewind(session, message, own_name()).await?.head;
    Ok(say(&format!(
        "message {message} and all after it are hidden; the log ends at {head}\n"
    ))?)
}

/// Prints the latest messages to which a session can be rewound, which are its visible prompts.
pub async fn list_messages(client: &Client, session: &SessionId) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let head = client.session(session).await?.head;
    let mut pages = client.pages(session, 1, head);
    while let Some(page) = pages.try_next().await? {
        let events = page.iter();
        rows.extend(events.filter_map(|event| row(&serde_json::from_str(event.get()).ok()?)));
        rows.drain(..rows.len().saturating_sub(SHOWN));
    }
    Ok(say(&table(&["message", "at", "text"], &rows))?)
}

fn row(event: &Envelope) -> Option<Vec<String>> {
    let seq = event.seq.filter(|_| event.hidden_by.is_none())?;
    let Event::Message(saved) = event.event()?.ok()? else {
        return None;
    };
    let is_prompt = saved.message.role == MessageRole::User && !saved.message.is_from_runtime();
    is_prompt.then(|| {
        vec![
            seq.to_string(),
            event.at.to_string(),
            one_line(&text_of(&saved.message.content), OF_A_MESSAGE),
        ]
    })
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck session adopt ~/backup/sessions")]
pub struct Adopt {
    /// The folder of session files
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

impl Adopt {
    pub async fn perform(self, config: &Config) -> anyhow::Result<Exit> {
        if config.store.kind() != Some(StoreKind::Sqlite) {
            return Err(
                UsageError("only a folder of session files takes others over; name one with `--store sqlite:DIR`".into()).into()
            );
        }
        let options = node::sqlite_options(config)?;
        let folder = self.folder.display();
        if !self.folder.exists() {
            return Err(NotFound(format!("there is no folder {folder}")).into());
        }
        if is_same(&self.folder, &options.folder) {
            return Err(UsageError(format!("{folder} is the store itself")).into());
        }
        let strays = stray_sessions(&self.folder)?;
        if strays.is_empty() {
            say(&format!("{folder} holds no session files\n"))?;
            return Ok(Exit::Done);
        }
        say(&shown(&strays))?;
        say(&format!(
            "They move to {}, closed: nothing of them runs until you resume one. Resume only what you started yourself.\n",
            options.folder.display()
        ))?;
        if !self.yes && !confirmed()? {
            say("nothing was moved\n")?;
            return Ok(Exit::Failed);
        }
        let store = SqliteStore::open(options, &NodeId::mint()).await?;
        adopt_all(&store, &self.folder, &strays).await
    }
}

async fn adopt_all(
    store: &SqliteStore,
    folder: &Path,
    strays: &[StraySession],
) -> anyhow::Result<Exit> {
    let mut exit = Exit::Done;
    for stray in strays {
        match store.adopt(folder, stray).await {
            Ok(()) => say(&format!(
                "{} is here, closed; `planck session resume {}` takes it up\n",
                stray.name, stray.name
            ))?,
            Err(error) => {
                exit = Exit::Failed;
                warn(&format!(
                    "planck: {} stays where it is: {error}",
                    stray.name
                ));
            }
        }
    }
    Ok(exit)
}

fn shown(strays: &[StraySession]) -> String {
    let row = |stray: &StraySession| {
        vec![
            stray.name.to_string(),
            format!("{} KiB", stray.bytes.div_ceil(1024)),
            stray.problem.clone().unwrap_or_default(),
        ]
    };
    table(
        &["session", "size", "trouble"],
        &strays.iter().map(row).collect::<Vec<_>>(),
    )
}

/// Asks the user at the terminal for confirmation. Fails without a terminal.
fn confirmed() -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        return Err(UsageError(
            "cannot ask without a terminal; look at the list above, and pass --yes".into(),
        )
        .into());
    }
    say("Move them? [y/N] ")?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}

fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize()
        .ok()
        .zip(other.canonicalize().ok())
        .is_some_and(|(one, other)| one == other)
}

/// Removes the closed sessions whose last write is older than `older_than`, and lists them. If
/// `dry_run` is true, only lists them.
pub async fn prune(client: &Client, older_than: Period, dry_run: bool) -> anyhow::Result<Exit> {
    let age = u64::try_from(older_than.0.as_millis()).unwrap_or(u64::MAX);
    let now = Timestamp::now();
    let filter = ListSessions {
        state: Some(SessionState::Closed),
        limit: None,
        after: None,
    };
    let closed = every_session(client, &filter).await?;
    let old: Vec<_> = closed
        .into_iter()
        .filter(|session| now.millis_since(session.updated_at) > age)
        .collect();
    if old.is_empty() {
        say(&format!("no closed session is older than {older_than}\n"))?;
    }
    if !dry_run {
        let old = old.iter();
        let old = old.map(|session| (session.id.as_str(), session.name.as_str()));
        return remove_all(client, old).await;
    }
    for session in old {
        say(&format!(
            "would remove {}, closed {}\n",
            session.name, session.updated_at
        ))?;
    }
    Ok(Exit::Done)
}
