//! Old closed sessions are removed, by a command and by the retention setting. No other session is
//! removed.

use anyhow::Result;
use planck_common::{
    command::{SessionState, SessionStateNow, SessionVerb, Started},
    reply::Code,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::session_at,
    eventually::within,
    machine::{Ran, run},
    recorder::Recorder,
    world::{Backend, World},
};
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::prompts::streaming;

/// How long a node may take to remove an old session: longer than two of its sweeps.
const SWEPT: std::time::Duration = std::time::Duration::from_secs(60);

async fn planck(world: &World, arguments: &[&str]) -> Result<Ran> {
    let mut command = world.planck()?;
    command.args(arguments);
    run(command).await
}

/// Creates a session that had a turn and was closed.
async fn closed(world: &World, recorder: &Recorder, name: &str) -> Result<Started> {
    let mut start = world.solo();
    (start["name"], start["prompt"]) = (name.into(), "hello".into());
    let started = world.caller.start(&start).await?;
    recorder
        .answered(started.prompt_id.as_ref().unwrap())
        .await?;
    let _: SessionStateNow = world
        .caller
        .ask(&session_at(name, SessionVerb::Close), &json!({}))
        .await?;
    Ok(started)
}

async fn is_gone(world: &World, session: &str) -> Result<bool> {
    let info: Result<serde_json::Value, _> = world
        .caller
        .try_request(&session_at(session, SessionVerb::Info), &json!({}))
        .await?;
    Ok(info.is_err_and(|refusal| refusal.code == Code::NotFound))
}

/// Makes a session's last write forty days old.
async fn age(world: &World, session: &str) -> Result<()> {
    let mut connection = sqlx::PgConnection::connect(&world.store_url()).await?;
    let statement =
        "UPDATE sessions SET updated_at = updated_at - 40 * 86400000::bigint WHERE id = $1";
    let aged = sqlx::query(statement)
        .bind(session)
        .execute(&mut connection)
        .await?;
    assert_eq!(aged.rows_affected(), 1);
    Ok(connection.close().await?)
}

/// Returns how many rows a session has in the tables `sessions`, `agents` and `log`.
async fn rows(world: &World, session: &str) -> Result<i64> {
    let mut connection = sqlx::PgConnection::connect(&world.store_url()).await?;
    let mut count = sqlx::query_scalar("SELECT count(*) FROM sessions WHERE id = $1")
        .bind(session)
        .fetch_one(&mut connection)
        .await?;
    for statement in [
        "SELECT count(*) FROM agents WHERE session_id = $1",
        "SELECT count(*) FROM log WHERE session_id = $1",
    ] {
        let more: i64 = sqlx::query_scalar(statement)
            .bind(session)
            .fetch_one(&mut connection)
            .await?;
        count += more;
    }
    connection.close().await?;
    Ok(count)
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_removes_old_closed_sessions_and_lists_them() -> Result<()> {
    let world = World::start(Backend::Postgres, super::prompts::script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let old = closed(&world, &recorder, "old").await?;
    let young = closed(&world, &recorder, "young").await?;
    let mut start = world.solo();
    (start["name"], start["prompt"]) = ("running".into(), "slow".into());
    let running = world.caller.start(&start).await?;
    streaming(&world, &running.orchestrator).await?;
    age(&world, &old.session_id).await?;
    age(&world, &running.session_id).await?;

    let none = planck(&world, &["session", "prune", "--older-than", "90d"]).await?;
    assert!(
        none.code == 0 && none.out.contains("no closed session is older than 90d"),
        "{none:?}"
    );
    let dry = planck(
        &world,
        &["session", "prune", "--older-than", "30d", "--dry-run"],
    )
    .await?;
    assert!(
        dry.code == 0 && dry.out.contains("would remove old, "),
        "{dry:?}"
    );
    assert!(!is_gone(&world, "old").await?, "a dry run removes nothing");
    let done = planck(&world, &["session", "prune", "--older-than", "30d"]).await?;
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.out.contains("removed old: 1 agent, "),
        "it says which: {done:?}"
    );
    assert!(
        !done.out.contains("young") && !done.out.contains("running"),
        "{done:?}"
    );
    assert!(is_gone(&world, &old.session_id).await?);
    assert_eq!(rows(&world, &old.session_id).await?, 0);
    assert!(rows(&world, &young.session_id).await? > 3);
    assert_eq!(
        world.caller.session("young").await?.state,
        SessionState::Closed
    );
    let _: Value = world
        .caller
        .ask(
            &session_at(&running.session_id, SessionVerb::Abort),
            &json!({}),
        )
        .await?;
    recorder
        .answered(running.prompt_id.as_ref().unwrap())
        .await?;
    let wrong = planck(&world, &["session", "prune", "--older-than", "soon"]).await?;
    assert!(wrong.code == 2 && wrong.err.contains("30d"), "{wrong:?}");
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_removes_a_sessions_file() -> Result<()> {
    let world = World::start(Backend::Sqlite, super::prompts::script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = closed(&world, &recorder, "old").await?;
    let mut start = world.solo();
    start["prompt"] = "slow".into();
    let running = world.caller.start(&start).await?;
    streaming(&world, &running.orchestrator).await?;
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(world.folder().join("sessions"))
            .unwrap()
            .flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    };
    let of = |id: &str| files().iter().filter(|file| file.contains(id)).count();
    assert!(
        of(&started.session_id) > 0 && of(&running.session_id) > 0,
        "{:?}",
        files()
    );
    let done = planck(&world, &["session", "prune", "--older-than", "1ms"]).await?;
    assert!(
        done.code == 0 && done.out.contains("removed old: "),
        "{done:?}"
    );
    assert_eq!(of(&started.session_id), 0, "{:?}", files());
    let _: Value = world
        .caller
        .ask(
            &session_at(&running.session_id, SessionVerb::Abort),
            &json!({}),
        )
        .await?;
    recorder
        .answered(running.prompt_id.as_ref().unwrap())
        .await?;
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_over_the_configured_age_are_removed_by_a_sweep() -> Result<()> {
    let world = World::start(
        Backend::Postgres,
        Script::new().always(Reply::text("Quick.")),
    )
    .await?;
    let (node, recorder) = (
        world
            .node_with(&[("PLANCK_STORE_RETENTION", "30d")])
            .await?,
        world.record().await?,
    );
    let old = closed(&world, &recorder, "old").await?;
    let young = closed(&world, &recorder, "young").await?;
    let open = world.caller.start(&world.solo()).await?;
    age(&world, &open.session_id).await?;
    age(&world, &old.session_id).await?;
    within(SWEPT, "the old session is gone", async || {
        is_gone(&world, "old").await.ok()?.then_some(())
    })
    .await?;
    assert_eq!(rows(&world, &old.session_id).await?, 0);
    assert!(
        !is_gone(&world, &young.session_id).await? && !is_gone(&world, &open.session_id).await?
    );
    assert!(
        node.log().contains("removed an old session"),
        "{}",
        node.log()
    );
    node.leave().await
}
