//! A node is stopped by SIGSTOP in the middle of a write, when it holds SQLite's lock on the file
//! of its session.

use std::{os::unix::process::ExitStatusExt as _, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use planck_common::event::Event;
use planck_scripted_model::{Reply, Script};
use planck_tests::{eventually::within, node::Node, world::Backend};
use serde_json::json;
use sqlx::{ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};
use tokio::time::{Instant, sleep};

use super::field::{PLACES, ThreeNodes, far};
use crate::teams::scene::lead;

const LONG: Duration = Duration::from_secs(120);
/// How long the node runs between two attempts to stop it in a transaction. It has to renew its
/// leases meanwhile.
const RUNS: Duration = Duration::from_millis(10);
/// Texts that the surviving nodes may log.
const EXCUSED: &[&str] = &[
    "does not say that it stopped",
    "cannot take session",
    "another node holds the lease",
    "killed the stopped process",
];

/// Stops the node again and again until the stop hits a transaction on the file. Leaves the node
/// stopped.
async fn stop_in_transaction(node: &Node, file: &Path) -> Result<()> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(false)
        .busy_timeout(Duration::ZERO);
    let mut connection = options.connect().await?;
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        node.pause()?;
        match connection.begin_with("BEGIN IMMEDIATE").await {
            Ok(transaction) => transaction.rollback().await?,
            Err(error) if error.to_string().contains("locked") => return Ok(()),
            Err(error) => return Err(error).context("the attempt to write"),
        }
        node.resume()?;
        sleep(RUNS).await;
    }
    bail!("the node was never in a transaction")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_from_a_process_that_was_stopped_in_a_transaction() -> Result<()> {
    let echo = json!({ "command": "echo on" });
    let calls = (0..20).fold(Reply::new(), |reply, _| {
        reply.and_call("bash", echo.clone())
    });
    let script = Script::new().always(calls);
    // A transaction takes longer if it also waits for the disk.
    let settings = |_: &str| {
        vec![
            ("PLANCK_STORE_SYNCHRONOUS", "full".to_owned()),
            ("PLANCK_LIMITS_MAX_REQUESTS_PER_TURN", "1000000".to_owned()),
        ]
    };
    let nodes = ThreeNodes::start_with(Backend::Sqlite, script, settings).await?;
    let mut team = nodes.team(&[far(lead(&["bash"]))], "go").await?;
    let place = team.place_of("lead").await?;
    let started = &team.scene.started;
    let file = format!("{}_{}.db", started.session_id, started.name);
    let file = team.scene.world.folder().join("sessions").join(file);

    let at = PLACES.iter().position(|known| *known == place).unwrap();
    let mut stopped = team.nodes.remove(at);
    stop_in_transaction(&stopped, &file).await?;

    let resumed = within(LONG, "the session continues elsewhere", async || {
        let log = team.scene.log_of("lead").await.ok()?;
        let resumed = log
            .iter()
            .position(|event| matches!(event, Event::SessionResumed(_)))?;
        let goes_on = log[resumed..]
            .iter()
            .any(|event| matches!(event, Event::ToolEnd(_)));
        goes_on.then_some(())
    });
    resumed.await?;
    let status = stopped.ended().await?;
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    team.end_despite(EXCUSED).await
}
