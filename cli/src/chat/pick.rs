//! Lets a person choose among the sessions of a folder.

use std::io::{self, BufRead as _, stdin};

use planck_common::command::{SessionInfo, SessionRow};
use tokio::{signal::unix::Signal, sync::oneshot};

use crate::{
    ask::can_ask,
    choose::SessionChoice,
    exit::Exit,
    output::{Stream, question, say, table, warn},
    render::Style,
    session::preview::{SessionPreview, ago},
};
use planck_client::Client;

/// The number of sessions that are offered. Older ones are named with `--session`.
const OFFERED: usize = 9;

/// The choice of a person, or how the chat ends without one.
pub enum Picked {
    Session(String),
    Nothing(Exit),
}

/// Returns the session with which `--continue` goes on. If there are several at a terminal, the
/// person is asked; Enter means the one that was used last.
pub async fn session(
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
        .map(|(row, _)| SessionPreview::of(row))
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
