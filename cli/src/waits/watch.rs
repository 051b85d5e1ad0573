//! `planck waits --watch`: prints each wait when it opens and when it is over.

use std::{collections::BTreeMap, time::Duration};

use planck_common::{CallId, command::WaitRow};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{WaiterNames, every_wait, open, short};
use crate::{
    connect::ConnectedClient,
    exit::Exit,
    output::{Format, json_text, say, warn},
    render::style::one_line,
    watch::interrupts,
};
use planck_node::config::Config;

/// The shortest pause between two lists.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause is at least this many times as long as the last list took, so that a long list does not
/// keep the nodes busy.
const TIMES: u32 = 10;

/// What has happened to a wait between two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Opened,
    /// The wait was answered, has expired or was withdrawn.
    Over,
}

/// The object that `-o json` writes on a line for each change.
#[derive(Debug, Serialize)]
struct WaitChange<'a> {
    change: Change,
    wait: &'a WaitRow,
}

/// Prints changes until the user interrupts. Lists that fail are repeated, with one warning for
/// several failures in a row.
pub async fn watch(
    config: &Config,
    session: Option<String>,
    format: Format,
) -> anyhow::Result<Exit> {
    let mut interrupted = interrupts()?;
    let mut link = ConnectedClient::look(config).await?;
    let (mut known, mut has_listed, mut has_failed) = (BTreeMap::new(), false, false);
    let mut names = WaiterNames::default();
    let done = loop {
        let began = Instant::now();
        let listed = tokio::select! {
            listed = every_wait(&link.client, open(session.clone())) => listed,
            _ = interrupted.recv() => break Ok(Exit::Done),
        };
        match listed {
            Ok(waits) => {
                (has_listed, has_failed) = (true, false);
                if format == Format::Table {
                    names.learn(&link.client, &waits).await;
                    names.keep(&waits);
                }
                show(&changes(&mut known, waits), format, &names)?;
            }
            // The first list fails also if there is no such session.
            Err(error) if !has_listed => break Err(error),
            Err(error) if !has_failed => {
                has_failed = true;
                warn(&format!("planck: {error:#}; trying again"));
            }
            Err(_) => {}
        }
        tokio::select! {
            () = sleep(PAUSE.max(began.elapsed() * TIMES)) => {}
            _ = interrupted.recv() => break Ok(Exit::Done),
        }
        if link.is_of_store() {
            // A store that is only read may not show what was written after it was opened.
            link.close().await;
            link = ConnectedClient::look(config).await?;
        }
    };
    link.close().await;
    done
}

/// Returns what has changed since the last list, and remembers the new one. A wait with another
/// digest was opened again.
fn changes(known: &mut BTreeMap<CallId, WaitRow>, now: Vec<WaitRow>) -> Vec<(Change, WaitRow)> {
    let is_new = |wait: &&WaitRow| {
        let before = known.get(&wait.id);
        before.is_none_or(|before| before.digest != wait.digest)
    };
    let opened: Vec<WaitRow> = now.iter().filter(is_new).cloned().collect();
    let now: BTreeMap<CallId, WaitRow> = now
        .into_iter()
        .map(|wait| (wait.id.clone(), wait))
        .collect();
    let before = std::mem::take(known);
    let over = before
        .into_values()
        .filter(|wait| !now.contains_key(&wait.id));
    let over = over.map(|wait| (Change::Over, wait)).collect::<Vec<_>>();
    *known = now;
    let opened = opened.into_iter().map(|wait| (Change::Opened, wait));
    over.into_iter().chain(opened).collect()
}

fn show(changes: &[(Change, WaitRow)], format: Format, names: &WaiterNames) -> anyhow::Result<()> {
    let waits: Vec<WaitRow> = changes.iter().map(|(_, wait)| wait.clone()).collect();
    let length = short(&waits);
    for (change, wait) in changes {
        match format {
            Format::Table => say(&line(*change, wait, length, names))?,
            Format::Json => {
                let change = *change;
                json_text(&(serde_json::to_string(&WaitChange { change, wait })? + "\n"))?;
            }
        }
    }
    Ok(())
}

fn line(change: Change, wait: &WaitRow, length: usize, names: &WaiterNames) -> String {
    let id: String = wait.id.chars().take(length).collect();
    let title = one_line(&wait.title, 120);
    match change {
        Change::Opened => {
            let who = names.of(wait);
            format!("+ {id}  {}  {who}  {title}\n", wait.kind.name())
        }
        Change::Over => format!("- {id}  over: {title}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(id: &str, digest: &str) -> WaitRow {
        let row = serde_json::json!({
            "id": id, "session_id": "session-1", "agent_id": "a1", "seq": 1, "kind": "approval", "state": "open",
            "title": "bash: ls", "request": {}, "digest": digest, "opened_at": "2026-01-01T00:00:00.000Z",
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn each_wait_is_shown_when_it_opens_and_when_it_is_over() {
        let (mut known, names) = (BTreeMap::new(), WaiterNames::default());
        for (now, lines) in [
            (
                vec![wait("w1", "d")],
                "+ w1  approval  session-1  bash: ls\n",
            ),
            (vec![wait("w1", "d")], ""),
            (
                vec![wait("w1", "d"), wait("w2", "d")],
                "+ w2  approval  session-1  bash: ls\n",
            ),
            (
                vec![wait("w2", "other"), wait("w3", "d")],
                "- w1  over: bash: ls\n+ w2  approval  session-1  bash: ls\n+ w3  approval  session-1  bash: ls\n",
            ),
            (vec![], "- w2  over: bash: ls\n- w3  over: bash: ls\n"),
        ] {
            let changes = changes(&mut known, now);
            let shown = changes
                .iter()
                .map(|(change, wait)| line(*change, wait, 8, &names));
            assert_eq!(shown.collect::<String>(), lines);
        }
    }
}
