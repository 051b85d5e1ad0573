//! NATS is unavailable, or has lost its data: no node ends because of it, and no new work begins
//! meanwhile.

use std::time::Duration;

use anyhow::Result;
use planck_common::{decision::DecisionKind, registry::NodeStanding};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::json;
use tokio::time::sleep;

use super::scene::{Decisions, record, until_all_see, until_recorded};

/// Texts that a node may log while NATS is unavailable.
const EXCUSED: &[&str] = &["NATS", "nats", "suspended", "registry"];

#[tokio::test(flavor = "multi_thread")]
async fn no_node_is_declared_dead_in_an_outage_of_five_seconds() -> Result<()> {
    let mut world = World::start(Backend::Sqlite, Script::new()).await?;
    let decisions = Decisions::hear(&world.caller).await?;
    let (one, two) = (world.node().await?, world.node().await?);
    until_all_see(&world, &[&one, &two]).await?;
    world.nats.kill()?;
    sleep(Duration::from_secs(5)).await;
    world.nats.restart()?;
    until_all_see(&world, &[&one, &two]).await?;
    // This is long enough for a wrong death record to appear.
    sleep(Duration::from_secs(8)).await;
    until_all_see(&world, &[&one, &two]).await?;
    assert!(decisions.of(DecisionKind::NodeDead).is_empty());
    for node in [one, two] {
        assert_eq!(
            record(&world.caller, node.id())
                .await?
                .map(|record| record.state),
            Some(NodeStanding::Alive)
        );
        assert!(
            node.log().contains("this node is suspended"),
            "it noticed: {}",
            node.log()
        );
        node.leave_despite(EXCUSED).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_jetstream_lost_are_written_again() -> Result<()> {
    let mut world = World::start(Backend::Sqlite, Script::new()).await?;
    let (one, two) = (world.node().await?, world.node().await?);
    until_all_see(&world, &[&one, &two]).await?;
    let before = record(&world.caller, one.id()).await?.unwrap();
    world.nats.restart_empty()?;
    for node in [&one, &two] {
        let after = until_recorded(&world.caller, node.id(), NodeStanding::Alive).await?;
        assert_eq!(after.name, before.name);
    }
    until_all_see(&world, &[&one, &two]).await?;
    let started = eventually("a session starts", async || {
        world.caller.start(&world.solo()).await.ok()
    })
    .await?;
    world.caller.session(&started.session_id).await?;
    one.leave_despite(EXCUSED).await?;
    two.leave_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_node_starts_no_model_call_and_continues_afterwards() -> Result<()> {
    let wait = json!({ "command": "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo x >> ledger" });
    let script = Script::new()
        .rule(When::any().result_of("bash"), Reply::text("Done."))
        .always(Reply::call("bash", wait));
    let mut world = World::start(Backend::Sqlite, script).await?;
    let node = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    let prompt = world
        .caller
        .prompt(&started.session_id, "go")
        .await?
        .prompt_id;
    eventually("the tool runs", async || {
        world.dir().join("begun").exists().then_some(())
    })
    .await?;
    let calls = world.model.request_count();

    world.nats.kill()?;
    eventually("the node is suspended", async || {
        node.log().contains("this node is suspended").then_some(())
    })
    .await?;
    std::fs::write(world.dir().join("go"), "")?;
    eventually("the interrupted work continues", async || {
        world.dir().join("ledger").exists().then_some(())
    })
    .await?;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.model.request_count(), calls, "no model call is begun");

    world.nats.restart()?;
    let ended = eventually("the turn has ended", async || {
        let log = world.caller.log(&started.session_id, 1).await.ok()?;
        log.iter()
            .any(|event| planck_tests::recorder::ends(event, &prompt))
            .then_some(())
    });
    ended.await?;
    assert_eq!(
        std::fs::read_to_string(world.dir().join("ledger"))?
            .lines()
            .count(),
        1
    );
    world.check_model()?;
    node.leave_despite(EXCUSED).await
}
