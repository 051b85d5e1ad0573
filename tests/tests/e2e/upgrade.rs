//! A rolling upgrade, seen by nodes of this version: the schema and the rows change under them as
//! the next version's nodes would change them.

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
    node::Node,
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

/// Changes the schema as the first node of the next version does when it starts. The nodes that run
/// keep statements that they prepared for the old tables.
async fn migrate_as_next(world: &World) -> Result<()> {
    world
        .sql("ALTER TABLE agents ADD COLUMN herald text")
        .await?;
    world
        .sql("INSERT INTO planck_schema (version) SELECT max(version) + 1 FROM planck_schema")
        .await?;
    Ok(())
}

/// Writes what this version does not know into the new column and into the `agent_started` events, as
/// nodes of the next version would.
async fn write_as_next(world: &World) -> Result<()> {
    let changed = world
        .sql(
            "UPDATE log SET body = (body::jsonb || '{\"herald\": \"the next version\"}')::text
             WHERE kind = 'agent_started'",
        )
        .await?;
    assert!(changed > 0, "no agent has started");
    world
        .sql("UPDATE agents SET herald = 'the next version'")
        .await?;
    Ok(())
}

fn heralded(log: &[Envelope]) -> bool {
    log.iter()
        .filter(|event| event.kind == "agent_started")
        .any(|event| event.data.get().contains("herald"))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_continue_on_this_version_after_the_next_one_wrote_them() -> Result<()> {
    let world = World::start(Backend::Postgres, Script::new()).await?;
    let recorder = world.record().await?;
    // A node of this version refuses to start with a newer schema, so all start before the upgrade.
    let (mut first, mut second) = (world.node().await?, world.node().await?);
    let last = world.node().await?;
    let before = session_on(&world, &first).await?;
    answered(&world, &recorder, &before).await?;

    migrate_as_next(&world).await?;
    let after = session_on(&world, &second).await?;
    answered(&world, &recorder, &after).await?;
    write_as_next(&world).await?;
    for session in [&before, &after] {
        answered(&world, &recorder, session).await?;
    }

    for node in [&mut first, &mut second] {
        node.kill().await?;
        for session in [&before, &after] {
            let log = answered(&world, &recorder, session).await?;
            assert!(heralded(&log), "what the next version said stays as it was");
        }
    }
    let head = answered(&world, &recorder, &after).await?.len();
    let attached = Attached::start(&world, &after)?;
    assert!(heralded(&attached.caught_up(i64::try_from(head)?).await?));
    attached.leave().await?;
    world.check_model()?;
    last.leave_despite(&[""]).await
}

/// A call that has waited since before the schema changed is answered on another node after it.
#[tokio::test(flavor = "multi_thread")]
async fn wait_is_answered_after_the_schema_changed() -> Result<()> {
    let script = Script::new()
        .rule(When::any().result_of("write"), "Written.")
        .always(Reply::call(
            "write",
            json!({ "path": "out.txt", "content": "hello" }),
        ));
    let world = World::start(Backend::Postgres, script).await?;
    let (mut from, to) = (world.node().await?, world.node().await?);
    let (started, wait) = waiting_on(&world, &from).await?;
    migrate_as_next(&world).await?;
    write_as_next(&world).await?;
    from.kill().await?;
    within(GOES_ON, "the other node has the session", async || {
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
    to.leave_despite(&[""]).await
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
    let node = world.node().await?;
    migrate_as_next(&world).await?;
    let refused = world
        .node()
        .await
        .err()
        .context("it was not refused")?
        .to_string();
    assert!(
        refused.contains("the database has schema version")
            && refused.contains("run a newer planck"),
        "{refused}"
    );
    node.leave().await
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
