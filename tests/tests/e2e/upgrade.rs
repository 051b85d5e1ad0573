//! Two versions side by side: nodes of this version and of the next, with a changed event and a
//! newer schema.

use anyhow::{Context as _, Result};
use planck_common::{
    SessionId,
    command::{Answered, SessionVerb, SessionsVerb, Started, WaitRow, Waits},
    envelope::Envelope,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    attached::Attached,
    caller::{session_at, sessions},
    eventually::within,
    node::{Build, Node},
    recorder::{Recorder, ends},
    world::{Backend, World},
};
use serde_json::json;
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

/// A call that waits since before a rolling upgrade is answered by the next version, and after a step
/// back by this version.
#[tokio::test(flavor = "multi_thread")]
async fn wait_of_one_version_is_answered_by_the_other() -> Result<()> {
    let script = Script::new()
        .rule(When::any().result_of("write"), "Written.")
        .always(Reply::call(
            "write",
            json!({ "path": "out.txt", "content": "hello" }),
        ));
    for is_upgrade in [true, false] {
        let world = World::start(Backend::Postgres, script.clone()).await?;
        // This version's node is there first, because it refuses to start with a newer schema.
        let old = world.node().await?;
        let next = world.node_of(Build::Next).await?;
        let (mut from, to) = if is_upgrade { (old, next) } else { (next, old) };
        let (started, wait) = waiting_on(&world, &from).await?;
        from.kill().await?;
        within(GOES_ON, "the other version has the session", async || {
            let info = world.caller.session(&started.session_id).await.ok()?;
            (info.owner.as_ref() == Some(to.id())).then_some(())
        })
        .await?;
        let answer = session_at(&started.session_id, SessionVerb::Answer);
        let allow = json!({ "wait": wait.id, "decision": "allow", "digest": wait.digest });
        let _answered: Answered = world.caller.read(&answer, &allow).await?;
        let prompt = started.prompt_id.context("a prompt")?;
        within(GOES_ON, "the turn has ended", async || {
            let log = world.caller.log(&started.session_id, 1).await.ok()?;
            log.iter().any(|event| ends(event, &prompt)).then_some(())
        })
        .await?;
        let written = std::fs::read_to_string(world.dir().join("out.txt"))?;
        assert_eq!(written, "hello");
        world.check_model()?;
        to.leave_despite(&[""]).await?;
    }
    Ok(())
}

/// Starts sessions whose agent asks until one is on this node, and returns it with its wait.
async fn waiting_on(world: &World, node: &Node) -> Result<(Started, WaitRow)> {
    for _ in 0..100 {
        let body = json!({
            "dir": world.dir(),
            "members": [{ "type": "agent", "tools": ["write"] }],
            "permissions": "careful",
            "prompt": "write it",
        });
        let started = world.caller.start(&body).await?;
        if started.node_id != *node.id() {
            continue;
        }
        let filter = json!({ "session": started.session_id });
        let wait = within(GOES_ON, "the agent waits", async || {
            let list = sessions(SessionsVerb::Waits);
            let page: Waits = world.caller.read(&list, &filter).await.ok()?;
            page.waits.into_iter().next()
        });
        return Ok((started, wait.await?));
    }
    anyhow::bail!("none of 100 sessions was started on node {}", node.id())
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
