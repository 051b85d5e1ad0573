//! Two versions side by side: nodes of this version and of the next, with a changed event and a
//! newer schema.

use anyhow::{Context as _, Result};
use planck_common::{SessionId, command::Started, envelope::Envelope};
use planck_scripted_model::Script;
use planck_tests::{
    attached::Attached,
    eventually::within,
    node::{Build, Node},
    recorder::{Recorder, ends},
    world::{Backend, World},
};
use std::time::Duration;

use crate::flows::events::assert_dense;

/// How long a session may take to continue elsewhere.
const GOES_ON: Duration = Duration::from_secs(40);

/// Starts sessions until one is on this node, because any node may take a session.
async fn session_on(world: &World, node: &Node) -> Result<SessionId> {
    for _ in 0..100 {
        let Started {
            session_id,
            node_id,
            ..
        } = world.caller.start(&world.solo()).await?;
        if node_id == *node.id() {
            return Ok(session_id);
        }
    }
    anyhow::bail!("none of 100 sessions was started on node {}", node.id())
}

async fn answered(
    world: &World,
    recorder: &Recorder,
    session: &SessionId,
) -> Result<Vec<Envelope>> {
    let prompt = within(GOES_ON, "a prompt is accepted", async || {
        world.caller.prompt(session, "hello").await.ok()
    })
    .await?;
    let log = within(GOES_ON, "the prompt is answered", async || {
        let log = world.caller.log(session, 1).await.ok()?;
        log.iter()
            .any(|event| ends(event, &prompt.prompt_id))
            .then_some(log)
    });
    let log = log.await?;
    assert_dense(&log);
    recorder.answered(&prompt.prompt_id).await?;
    Ok(log)
}

fn heralded(log: &[Envelope]) -> bool {
    log.iter()
        .filter(|event| event.kind == "agent_started")
        .any(|event| event.data.get().contains("herald"))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_move_from_this_version_to_the_next_and_back() -> Result<()> {
    let world = World::start(Backend::Postgres, Script::new()).await?;
    let recorder = world.record().await?;
    let (mut old, other_old) = (world.node().await?, world.node().await?);
    let of_this = session_on(&world, &old).await?;
    assert!(!heralded(&answered(&world, &recorder, &of_this).await?));

    let mut next = world.node_of(Build::Next).await?;
    let of_next = session_on(&world, &next).await?;
    assert!(
        heralded(&answered(&world, &recorder, &of_next).await?),
        "the next version says more"
    );
    answered(&world, &recorder, &of_this).await?;

    old.kill().await?;
    answered(&world, &recorder, &of_this).await?;
    next.kill().await?;
    for session in [&of_this, &of_next] {
        let log = answered(&world, &recorder, session).await?;
        assert_eq!(
            heralded(&log),
            session == &of_next,
            "what the next version said stays as it was"
        );
    }
    world.check_model()?;
    other_old.leave_despite(&[""]).await
}

/// Migrations go forward only, so an older node cannot use a newer schema.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_a_schema_that_is_newer_than_its_own() -> Result<()> {
    let world = World::start(Backend::Postgres, Script::new()).await?;
    let next = world.node_of(Build::Next).await?;
    let refused = world
        .node()
        .await
        .err()
        .context("it was not refused")?
        .to_string();
    assert!(
        refused.contains("schema version 6") && refused.contains("run a newer planck"),
        "{refused}"
    );
    next.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_an_unknown_kind_keeps_its_place_and_causes_no_failure() -> Result<()> {
    let world = World::start(Backend::Postgres, Script::new()).await?;
    let recorder = world.record().await?;
    let mut node = world.node().await?;
    let session = session_on(&world, &node).await?;
    answered(&world, &recorder, &session).await?;
    assert_eq!(
        world
            .sql("UPDATE log SET kind = 'heralded' WHERE kind = 'agent_started'")
            .await?,
        1
    );
    node.kill().await?;
    let node = world.node().await?;
    let log = answered(&world, &recorder, &session).await?;
    assert!(log.iter().any(|event| event.kind == "heralded"));
    let attached = Attached::start(&world, &session)?;
    attached.caught_up(i64::try_from(log.len())?).await?;
    attached.leave().await?;
    node.leave().await
}
