//! The command `planck chat`.

mod keyboard;
pub mod slash;

use std::{
    io::{self, BufRead as _, stdin},
    path::PathBuf,
    time::Instant,
};

use clap::Args;
use keyboard::{EditorSources, Keyboard};
use planck_client::Client;
use planck_common::{
    Timestamp,
    command::{AgentState, SessionInfo, SessionRow},
    usage::Usage,
};
use planck_node::config::Config;
use slash::SlashCommand;
use tokio::{signal::unix::Signal, sync::oneshot};

use crate::{
    args::GlobalArgs,
    ask::{Asker, can_ask},
    attachment,
    choose::{PromptedSession, SessionChoice},
    connect::ConnectedClient,
    exit::{Exit, until_terminated},
    log::Logs,
    output::{Stream, draw, question, say, table, warn},
    render::{
        Style, consumed,
        style::{self, Paint},
    },
    session::list::{SessionDescription, ago},
    waits::{left_open, open_waits},
    watch::{EventDisplay, OnWait, WatchOutcome, WatchedWork, interrupts, watch},
};

#[derive(Debug, Default, Args)]
#[command(after_help = "\
Tab completes commands after / and files after @, Up brings earlier prompts back, /help lists the commands.

Examples:
  planck chat
  planck chat --continue
  planck chat --team examples/teams/build-a-cli --session word-tool")]
pub struct ChatArgs {
    #[command(flatten)]
    which: SessionChoice,
}

/// The user's conversation with a session.
struct ChatSession<'a> {
    client: &'a Client,
    talk: PromptedSession,
    /// When the node in this process began to start, if the session runs there.
    alone_since: Option<Timestamp>,
    /// Whether this chat created the session and has not sent a prompt yet.
    is_blank: bool,
    keyboard: Keyboard,
    interrupted: Signal,
    /// The directory that relative paths after `@` start from.
    dir: PathBuf,
    usage: Usage,
}

/// The chat's next step after a line.
enum ChatStep {
    Prompt,
    Leave(Exit),
}

impl ChatArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let config = self
            .which
            .admit(global.config_to_act(self.which.model.as_ref())?);
        let logs = Logs::start_if_asked(&config)?;
        let history = global.history()?;
        let link = self.which.link(&config).await?;
        let done = until_terminated(Box::pin(talk(&link, &config, &self.which, history))).await;
        link.close().await;
        logs.end().await;
        done
    }
}

/// Alternates prompts and turns until the user leaves.
async fn talk(
    link: &ConnectedClient,
    config: &Config,
    which: &SessionChoice,
    history: Option<PathBuf>,
) -> anyhow::Result<Exit> {
    let (client, mut interrupted) = (&link.client, interrupts()?);
    let there = match which.go_on {
        true => match pick_session(client, which, &mut interrupted).await? {
            Picked::Session(session) => Some(session),
            Picked::Nothing(exit) => return Ok(exit),
        },
        false => which.there(client).await?,
    };
    let (talk, is_blank) = begin(client, config, which, there).await?;
    let dir = which.files_dir();
    // Without the list, `/model` completes nothing.
    let models = client.models().await.map(|list| list.models);
    let models = models.unwrap_or_default().into_iter();
    let keyboard = Keyboard::start(EditorSources {
        history,
        dir: dir.clone(),
        models: models.map(|model| model.id).collect(),
    })?;
    let help = if keyboard.has_editor { " · /help" } else { "" };
    dim(&format!("{}{help}", talk.title()))?;
    talk.say_if_offline(link).await?;
    let mut chat = ChatSession {
        client,
        talk,
        alone_since: link.alone_since(),
        is_blank,
        keyboard,
        interrupted,
        dir,
        usage: Usage::default(),
    };
    let mut next = Box::pin(chat.catch_up()).await;
    let done = loop {
        match next {
            Ok(ChatStep::Prompt) => next = Box::pin(chat.turn()).await,
            Ok(ChatStep::Leave(exit)) => break Ok(exit),
            Err(error) => break Err(error),
        }
    };
    chat.leave().await?;
    done
}

/// Returns the session to talk to, which is `there` or is created, and whether it is new. A new
/// session is created before the first prompt, so that commands can already refer to it.
async fn begin(
    client: &Client,
    config: &Config,
    which: &SessionChoice,
    there: Option<String>,
) -> anyhow::Result<(PromptedSession, bool)> {
    if let Some(session) = there {
        return Ok((which.go_on_with(client, &session).await?, false));
    }
    which.check_keys(config)?;
    Ok((which.start(client).await?, true))
}

fn dim(text: &str) -> std::io::Result<()> {
    draw(&(Style::of_stdout().paint(Paint::Dim, text) + "\n"))
}

impl ChatSession<'_> {
    /// If agents of the session wait for answers already, asks the user about them first. Without a
    /// cluster this process also continues work that was interrupted, for example by an answer that
    /// was given meanwhile. The user sees that work, even if it has ended already.
    async fn catch_up(&mut self) -> anyhow::Result<ChatStep> {
        if self.is_blank || !can_ask() {
            return Ok(ChatStep::Prompt);
        }
        let info = self.client.session(&self.talk.id).await?;
        let continued = match self.alone_since {
            Some(since) => WatchedWork::since(self.client, &info, since).await?,
            None => None,
        };
        let is_of_interest = |state| match state {
            AgentState::Waiting => true,
            AgentState::Streaming | AgentState::ExecutingTools | AgentState::Compacting => {
                self.alone_since.is_some()
            }
            AgentState::Idle | AgentState::Stopped => false,
        };
        if let Some(work) = continued {
            return self.watch(&work).await;
        }
        let mut states = info.agents.iter().map(|agent| agent.state);
        match states.any(is_of_interest) {
            true => self.watch(&WatchedWork::from_now(&info)).await,
            false => Ok(ChatStep::Prompt),
        }
    }

    /// Reads one line from the user, and sends it as a prompt or performs it as a command.
    async fn turn(&mut self) -> anyhow::Result<ChatStep> {
        let typed = tokio::select! {
            typed = self.keyboard.next() => typed?,
            _ = self.interrupted.recv() => None,
        };
        let Some(text) = typed else {
            return self.end_of_input().await;
        };
        if text.trim().is_empty() {
            return Ok(ChatStep::Prompt);
        }
        let done = match SlashCommand::of(&text) {
            Some(slash) => slash
                .perform(self.client, &mut self.talk, &self.dir)
                .await
                .map(|is_over| match is_over {
                    true => ChatStep::Leave(Exit::Done),
                    false => ChatStep::Prompt,
                }),
            None => self.prompt(text.trim()).await,
        };
        match done {
            // With an interactive editor, an error does not end the chat. Without one, the input
            // may be a script, so the error ends the program and sets its exit code.
            Err(error) if self.keyboard.has_editor => {
                warn(&format!("planck: {error:#}"));
                Ok(ChatStep::Prompt)
            }
            done => done,
        }
    }

    /// Leaves at the end of the input. If no person could be asked and agents wait for answers, says
    /// how to answer.
    async fn end_of_input(&self) -> anyhow::Result<ChatStep> {
        if self.is_blank || can_ask() {
            return Ok(ChatStep::Leave(Exit::Done));
        }
        let waits = open_waits(self.client, &self.talk.id).await?;
        if waits.is_empty() {
            return Ok(ChatStep::Leave(Exit::Done));
        }
        warn(&left_open(
            &self.talk.name,
            &waits,
            self.alone_since.is_some(),
        ));
        Ok(ChatStep::Leave(Exit::Waiting))
    }

    async fn prompt(&mut self, text: &str) -> anyhow::Result<ChatStep> {
        let parts = attachment::parts(&self.dir, text)?;
        let work = self.talk.prompt(self.client, parts).await?;
        self.is_blank = false;
        self.watch(&work).await
    }

    /// Shows the work on a prompt until it has ended, and asks the user about what waits meanwhile.
    async fn watch(&mut self, work: &WatchedWork) -> anyhow::Result<ChatStep> {
        let (hush, began) = (self.keyboard.hush()?, Instant::now());
        let mut display = EventDisplay::screen(Some(Stream::Out));
        if let Some(prompt) = work.prompt.as_ref().filter(|_| self.keyboard.has_editor) {
            display.hide_echo(prompt);
        }
        let mut on_wait = match Stream::Out.is_terminal() && can_ask() {
            true => {
                let is_hushed = hush.is_some();
                let asker = Asker::new(self.client, &work.session, Stream::Out, is_hushed);
                OnWait::Ask(Box::new(asker))
            }
            false => OnWait::Leave,
        };
        let interrupted = &mut self.interrupted;
        let watching = watch(self.client, work, interrupted, &mut display, &mut on_wait);
        let watched = Box::pin(watching).await?;
        if let OnWait::Ask(asker) = on_wait {
            self.keyboard.put_back(asker.type_ahead());
        }
        self.usage += display.usage();
        let took = style::duration(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        dim(&format!("{took} · {}", consumed(&display.usage())))?;
        if watched.ended.outcome == WatchOutcome::Waiting {
            let waits = open_waits(self.client, &work.session).await?;
            warn(&left_open(
                &self.talk.name,
                &waits,
                self.alone_since.is_some(),
            ));
            return Ok(ChatStep::Leave(Exit::Waiting));
        }
        Ok(if watched.was_left() {
            ChatStep::Leave(Exit::Interrupted)
        } else {
            ChatStep::Prompt
        })
    }

    /// Prints how to continue the session. Removes the session instead if this chat created it and
    /// sent no prompt.
    async fn leave(self) -> anyhow::Result<()> {
        drop(self.keyboard);
        if self.is_blank {
            if let Err(error) = self.client.delete(&self.talk.id, None).await {
                warn(&format!(
                    "planck: the empty session {} stays: {error}",
                    self.talk.name
                ));
            }
            return Ok(());
        }
        let PromptedSession { name, model, .. } = &self.talk;
        dim(&format!(
            "session {name} · model {model} · {}",
            consumed(&self.usage)
        ))?;
        Ok(say(&format!(
            "go on with `planck chat --session {name}`\n"
        ))?)
    }
}

/// The number of sessions that are offered. Older ones are named with `--session`.
const OFFERED: usize = 9;

/// The choice of a person, or how the chat ends without one.
enum Picked {
    Session(String),
    Nothing(Exit),
}

/// Returns the session with which `--continue` goes on. If there are several at a terminal, the
/// person is asked; Enter means the one that was used last.
async fn pick_session(
    client: &Client,
    which: &SessionChoice,
    interrupted: &mut Signal,
) -> anyhow::Result<Picked> {
    let is_asked = can_ask() && Stream::Out.is_terminal();
    let most = if is_asked { OFFERED } else { 1 };
    let found = which.used_here(client, most).await?;
    let (first, is_only) = match found.as_slice() {
        [] => return Err(which.none_here()?.into()),
        [(_, first), others @ ..] => (first, others.is_empty()),
    };
    if is_only {
        return Ok(Picked::Session(first.id.to_string()));
    }
    say(&offer(&found))?;
    loop {
        question("session [1] › ")?;
        let line = tokio::select! {
            line = line()? => line?,
            _ = interrupted.recv() => return Ok(Picked::Nothing(Exit::Interrupted)),
        };
        let Some(line) = line else {
            return Ok(Picked::Nothing(Exit::Done));
        };
        match chosen(line.trim(), &found) {
            Some(info) => return Ok(Picked::Session(info.id.to_string())),
            None => warn("write the number or the name of a session, or Ctrl-D to leave"),
        }
    }
}

fn offer(found: &[(SessionRow, SessionInfo)]) -> String {
    let previews: Vec<_> = found
        .iter()
        .map(|(row, _)| SessionDescription::of(row))
        .collect();
    let name = found.iter().map(|(row, _)| row.name.chars().count()).max();
    let columns = Style::of_stdout()
        .width
        .saturating_sub(name.unwrap_or(0) + 24)
        .max(20);
    let rows = found.iter().zip(&previews).enumerate();
    let rows: Vec<_> = rows
        .map(|(at, ((row, _), preview))| {
            vec![
                (at + 1).to_string(),
                row.name.to_string(),
                ago(row.updated_at),
                preview.cost(),
                preview.words(columns),
            ]
        })
        .collect();
    table(
        &["", "name", "used", "cost", "first prompt → last line"],
        &rows,
    )
}

fn chosen<'a>(line: &str, found: &'a [(SessionRow, SessionInfo)]) -> Option<&'a SessionInfo> {
    let number = match line {
        "" => Some(1),
        line => line.parse::<usize>().ok(),
    };
    let by_number = number.and_then(|number| found.get(number.checked_sub(1)?));
    let chosen = by_number.or_else(|| found.iter().find(|(row, _)| *row.name == *line));
    chosen.map(|(_, info)| info)
}

/// Reads a line on a thread of its own, which is never joined, because a read from a terminal cannot
/// be cancelled. Returns `None` at the end of the input.
fn line() -> io::Result<impl Future<Output = io::Result<Option<String>>>> {
    let (send, read) = oneshot::channel();
    std::thread::Builder::new()
        .name("picker".into())
        .spawn(move || {
            let mut line = String::new();
            let read = stdin().lock().read_line(&mut line);
            let _is_gone = send.send(read.map(|read| (read > 0).then_some(line)));
        })?;
    Ok(async { read.await.unwrap_or(Ok(None)) })
}
