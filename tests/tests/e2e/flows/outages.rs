//! NATS is unavailable, at the start and in the middle of a turn. Work pauses or continues, nothing
//! is lost, and readers catch up. `PLANCK_TEST_OUTAGE_MS` sets the length of the outage; the
//! default is 5 s.

use std::time::Duration;

use anyhow::Result;
use planck_common::{
    InputId,
    command::{Accepted, SessionVerb},
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    attached::Attached,
    caller::session_at,
    eventually::eventually,
    nats::free_port,
    recorder::ends,
    world::{Backend, World},
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{events::assert_dense, prompts::streaming};

fn outage() -> Duration {
    let asked = std::env::var("PLANCK_TEST_OUTAGE_MS")
        .ok()
        .and_then(|text| text.parse().ok());
    let outage = Duration::from_millis(asked.unwrap_or(5_000));
    println!("NATS is away for {outage:?}");
    outage
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_a_node_without_nats_says_so() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let url = format!("nats://127.0.0.1:{}", free_port()?);
    for command in [vec!["node"], vec!["session", "ls"]] {
        let mut planck = world.planck()?;
        let output = timeout(
            Duration::from_secs(20),
            planck.args(&command).env("NATS_URL", &url).output(),
        )
        .await??;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{command:?}: {said}");
        assert!(
            said.contains(&url.replace("nats://", "")),
            "{command:?} names the address: {said}"
        );
        assert!(
            said.contains("planck:") && !said.contains("panicked"),
            "{said}"
        );
    }
    Ok(())
}

/// Returns a script of a turn with a reply, a tool call and another reply. The first reply takes
/// longer than the outage.
fn long_turn(outage: Duration) -> Script {
    let words = u32::try_from(outage.as_millis() / 20).unwrap_or(u32::MAX) + 50;
    let text = |count: u32| {
        (0..count)
            .map(|n| format!("word-{n:04} "))
            .collect::<String>()
    };
    let slowly = |count: u32| Reply::text(text(count)).pace(Pace::per_second(50.0).chunk(10));
    Script::new()
        .rule(When::any().result_of("bash"), slowly(100))
        .rule(When::any().user("again"), Reply::text("Again."))
        .always(slowly(words).and_call("bash", json!({ "command": "echo x >> ledger" })))
}

async fn goes_away_in_the_middle(backend: Backend, killed: bool) -> Result<()> {
    let outage = outage();
    let mut world = World::start(backend, long_turn(outage)).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let mut start = world.solo();
    start["prompt"] = "go on".into();
    let started = world.caller.start(&start).await?;
    let (session, prompt) = (
        started.session_id.clone(),
        started.prompt_id.clone().unwrap(),
    );
    streaming(&world, &started.orchestrator).await?;
    let attached = Attached::start(&world, &session)?;
    attached
        .caught_up(world.caller.session(&session).await?.head)
        .await?;

    if killed {
        world.nats.kill()?
    } else {
        world.nats.stop()?
    }
    sleep(outage).await;
    world.nats.restart()?;

    let log = eventually("the turn has ended", async || {
        let log = world.caller.log(&session, 1).await.ok()?;
        log.iter().any(|event| ends(event, &prompt)).then_some(log)
    });
    let log = log.await?;
    assert_dense(&log);
    assert_eq!(
        std::fs::read_to_string(world.dir().join("ledger"))?
            .lines()
            .count(),
        1
    );
    let again = eventually("a prompt is taken again", async || {
        world.caller.prompt(&session, "again").await.ok()
    })
    .await?;
    recorder.answered(&again.prompt_id).await?;

    let log = world.caller.log(&session, 1).await?;
    let told = attached
        .caught_up(log.last().and_then(|event| event.seq).unwrap())
        .await?;
    assert_dense(&told);
    eventually("a head announces the end", async || {
        let heads = recorder.on(&format!("session.{session}"));
        let last = format!("\"seq\":{}", log.last()?.seq?);
        heads
            .iter()
            .any(|payload| {
                let text = String::from_utf8_lossy(payload);
                text.contains("\"head\"") && text.contains(&last)
            })
            .then_some(())
    })
    .await?;
    world.check_model()?;
    attached.leave().await?;
    node.leave_despite(&["NATS", "nats", "suspended"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_server_stops_and_starts_on_sqlite() -> Result<()> {
    goes_away_in_the_middle(Backend::Sqlite, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_server_is_killed_and_starts_on_postgres() -> Result<()> {
    goes_away_in_the_middle(Backend::Postgres, true).await
}

/// NATS returns without the registry, so that the node takes requests and stays suspended. The agent
/// is loaded if it is idle for less than 5 s, and parked otherwise.
async fn prompt_to_a_suspended_node_runs(backend: Backend, is_parked: bool) -> Result<()> {
    let mut world = World::start(backend, Script::new().always(Reply::text("ready"))).await?;
    let node = world
        .node_with(&[("RUST_LOG", "info,planck=debug")])
        .await?;
    let said =
        async |what: &str| eventually(what, async || node.log().contains(what).then_some(())).await;
    let started = world.caller.start(&world.solo()).await?;
    if is_parked {
        said("\"parked\"").await?;
    }
    world.nats.kill()?;
    said("this node is suspended").await?;
    world.nats.restart_without_jetstream()?;

    let (prompt, at) = (
        InputId::mint(),
        session_at(&started.session_id, SessionVerb::Prompt),
    );
    let body = json!({ "text": "go", "prompt_id": prompt });
    eventually("the prompt is accepted", async || {
        world.caller.read::<Accepted>(&at, &body).await.ok()
    })
    .await?;
    let times = node.log().matches("may work").count();
    assert_eq!(times, 1, "the node is still suspended");

    world.nats.restart()?;
    eventually("the prompt has run", async || {
        let log = world.caller.log(&started.session_id, 1).await.ok()?;
        log.iter().any(|event| ends(event, &prompt)).then_some(())
    })
    .await?;
    world.check_model()?;
    node.leave_despite(&["NATS", "nats", "suspended", "registry", "JetStream"])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_to_a_suspended_node_runs_on_sqlite() -> Result<()> {
    prompt_to_a_suspended_node_runs(Backend::Sqlite, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_to_a_suspended_node_runs_on_postgres() -> Result<()> {
    prompt_to_a_suspended_node_runs(Backend::Postgres, false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_to_a_parked_agent_of_a_suspended_node_runs_on_sqlite() -> Result<()> {
    prompt_to_a_suspended_node_runs(Backend::Sqlite, true).await
}
