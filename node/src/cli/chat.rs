//! The command `planck chat`.

mod attachment;
mod complete;
mod keyboard;
mod slash;

use std::{path::PathBuf, time::Instant};

use clap::Args;
use planck_common::{command::Start, message::Part, usage::Usage};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    keyboard::{EditorSources, Keyboard},
    slash::SlashCommand,
};
use super::{
    exit::Exit,
    log::Logs,
    output::{Stream, draw, say, warn},
    place::ConfigPlace,
    render::{Style, consumed, style, style::Paint},
    watch::{Sink, interrupts, watch},
    which::{PromptTarget, SessionChoice},
};
use crate::client::Client;

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
    talk: PromptTarget,
    /// Whether this chat created the session and has not sent a prompt yet.
    is_blank: bool,
    keyboard: Keyboard,
    interrupted: Signal,
    /// The directory that relative paths after `@` start from.
    dir: PathBuf,
    usage: Usage,
}

/// The chat's next step after a line.
enum Next {
    Prompt,
    Leave(Exit),
}

impl ChatArgs {
    pub async fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        let config = self
            .which
            .admit(place.config_to_act(self.which.model.as_ref())?);
        let logs = Logs::start_if_asked(&config)?;
        let history = place.history()?;
        let link = self.which.link(&config).await?;
        let mut terminated = signal(SignalKind::terminate())?;
        // The chat handles SIGTERM itself, because the terminal must be restored before the process
        // ends.
        let done = tokio::select! {
            done = Box::pin(talk(&link.client, &self.which, history)) => done,
            _ = terminated.recv() => Err(anyhow::anyhow!("terminated")),
        };
        link.close().await;
        logs.end().await;
        done
    }
}

/// Alternates prompts and turns until the user leaves.
async fn talk(
    client: &Client,
    which: &SessionChoice,
    history: Option<PathBuf>,
) -> anyhow::Result<Exit> {
    let interrupted = interrupts()?;
    let (talk, is_blank) = begin(client, which).await?;
    // The directory of a workspace may be on another machine, but attached files are read on this
    // one.
    let dir = which
        .dir
        .clone()
        .filter(|_| which.workspace.is_none())
        .unwrap_or_else(|| ".".into());
    let keyboard = Keyboard::start(EditorSources {
        history,
        dir: dir.clone(),
    })?;
    let help = if keyboard.has_editor { " · /help" } else { "" };
    dim(&format!("{}{help}", talk.title()))?;
    let mut chat = ChatSession {
        client,
        talk,
        is_blank,
        keyboard,
        interrupted,
        dir,
        usage: Usage::default(),
    };
    let done = loop {
        match Box::pin(chat.turn()).await {
            Ok(Next::Prompt) => {}
            Ok(Next::Leave(exit)) => break Ok(exit),
            Err(error) => break Err(error),
        }
    };
    chat.leave().await?;
    done
}

/// Finds or creates the session to talk to. Returns the session, and whether it is new. A new
/// session is created before the first prompt, so that commands can already refer to it.
async fn begin(client: &Client, which: &SessionChoice) -> anyhow::Result<(PromptTarget, bool)> {
    if let Some(session) = which.there(client).await? {
        return Ok((PromptTarget::with(client, &session).await?, false));
    }
    let started = client
        .start(Start {
            prompt: None,
            ..which.request()?
        })
        .await?;
    Ok((PromptTarget::with(client, &started.session_id).await?, true))
}

fn dim(text: &str) -> std::io::Result<()> {
    draw(&(Style::of_stdout().paint(Paint::Dim, text) + "\n"))
}

impl ChatSession<'_> {
    /// Reads one line from the user, and sends it as a prompt or performs it as a command.
    async fn turn(&mut self) -> anyhow::Result<Next> {
        let typed = tokio::select! {
            typed = self.keyboard.next() => typed?,
            _ = self.interrupted.recv() => None,
        };
        let Some(text) = typed else {
            return Ok(Next::Leave(Exit::Done));
        };
        if text.trim().is_empty() {
            return Ok(Next::Prompt);
        }
        let done = match SlashCommand::of(&text) {
            Some(slash) => slash
                .perform(self.client, &mut self.talk)
                .await
                .map(|is_over| match is_over {
                    true => Next::Leave(Exit::Done),
                    false => Next::Prompt,
                }),
            None => self.prompt(text.trim()).await,
        };
        match done {
            // With an interactive editor, an error does not end the chat. Without one, the input
            // may be a script, so the error ends the program and sets its exit code.
            Err(error) if self.keyboard.has_editor => {
                warn(&format!("planck: {error:#}"));
                Ok(Next::Prompt)
            }
            done => done,
        }
    }

    async fn prompt(&mut self, text: &str) -> anyhow::Result<Next> {
        let content: Vec<Part> = attachment::content(&self.dir, text)?;
        let (_hush, began) = (self.keyboard.hush()?, Instant::now());
        let mut sink = Sink::screen(Some(Stream::Out));
        let sent = self.talk.prompt(self.client, content).await?;
        self.is_blank = false;
        if self.keyboard.has_editor {
            sink.hide_echo(&sent.prompt);
        }
        let watched = watch(self.client, &sent, &mut self.interrupted, &mut sink).await?;
        self.usage += sink.usage();
        let took = style::duration(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        dim(&format!("{took} · {}", consumed(&sink.usage())))?;
        Ok(if watched.was_left() {
            Next::Leave(Exit::Interrupted)
        } else {
            Next::Prompt
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
        let PromptTarget { name, model, .. } = &self.talk;
        dim(&format!(
            "session {name} · model {model} · {}",
            consumed(&self.usage)
        ))?;
        Ok(say(&format!(
            "go on with `planck chat --session {name}`\n"
        ))?)
    }
}
