//! `planck chat`

use std::io::{self, BufRead as _};

use clap::Args;
use tokio::{
    signal::unix::Signal,
    sync::mpsc::{self, Receiver},
};

use super::{
    exit::Exit,
    log::Logs,
    output::{Stream, draw, say},
    place::Place,
    render::{Style, consumed, style::Paint},
    watch::{Sink, interrupts, watch},
    which::{Talk, Which},
};
use planck_common::message::Part;

use crate::client::Client;

#[derive(Debug, Args)]
pub struct Chat {
    #[command(flatten)]
    which: Which,
}

impl Chat {
    pub async fn perform(self, place: &Place) -> anyhow::Result<Exit> {
        let config = self.which.admit(place.config_to_act(self.which.model.as_ref())?);
        let logs = Logs::start_if_asked(&config)?;
        let link = self.which.link(&config).await?;
        let done = talk(&link.client, &self.which).await;
        link.close().await;
        logs.end().await;
        done
    }
}

/// A prompt, its turn, and the next prompt, until the input ends.
async fn talk(client: &Client, which: &Which) -> anyhow::Result<Exit> {
    let mut lines = typed()?;
    let (mut interrupted, mut sink) = (interrupts()?, Sink::screen(Some(Stream::Out)));
    let mut talk: Option<Talk> = None;
    while let Some(text) = next(&mut lines, &mut interrupted).await? {
        let sent = match &talk {
            Some(talk) => talk.prompt(client, vec![Part::text(text)]).await?,
            None => {
                let (begun, sent) = which.send(client, text).await?;
                say(&format!("{}\n", begun.title()))?;
                talk = Some(begun);
                sent
            }
        };
        let watched = watch(client, &sent, &mut interrupted, &mut sink).await?;
        if watched.was_left() {
            return Ok(Exit::Interrupted);
        }
    }
    if let Some(Talk { name, .. }) = talk {
        say(&format!("{}\n", consumed(&sink.usage())))?;
        say(&format!("go on with `planck chat --session {name}`\n"))?;
    }
    Ok(Exit::Done)
}

/// Lines as they are typed. A read from a terminal cannot be cancelled, so its thread ends with the process.
fn typed() -> io::Result<Receiver<String>> {
    let (send, lines) = mpsc::channel(1);
    let read = move || {
        let lines = io::stdin().lock().lines().map_while(Result::ok);
        lines.map(|line| send.blocking_send(line)).take_while(Result::is_ok).for_each(drop);
    };
    std::thread::Builder::new().name("keyboard".into()).spawn(read)?;
    Ok(lines)
}

/// The next line that says something; `None` at the end, or where the person is done.
async fn next(lines: &mut Receiver<String>, interrupted: &mut Signal) -> anyhow::Result<Option<String>> {
    let style = Style::of_stdout();
    loop {
        if style.in_place {
            draw(&style.paint(Paint::Strong, "› "))?;
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = interrupted.recv() => None,
        };
        match line.as_deref().map(str::trim) {
            None | Some("/quit" | "/exit") => return Ok(None),
            Some("") => {}
            Some(text) => return Ok(Some(text.into())),
        }
    }
}
