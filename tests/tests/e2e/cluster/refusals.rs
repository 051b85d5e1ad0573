//! A node that is refused by a cluster gets an error that says why, and what to do.

use anyhow::Result;
use planck_common::command::SessionState;
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    node::Node,
    world::{Backend, World},
};

const TAKEN_OVER: &str = "takes the cluster over";

/// Checks that a node with the store `own` is refused by a cluster whose nodes use the store
/// `theirs`.
async fn is_refused_for_its_store(world: &World, own: &str, theirs: &str) -> Result<()> {
    let mut command = world.planck()?;
    command.arg("node").env("PLANCK_STORE_URL", own);
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    let named = [
        format!("this node's store is {own} (id "),
        format!("shares store {theirs} (id "),
    ];
    for named in named.iter().map(String::as_str).chain([
        "store.url",
        "nats.subject_prefix",
        "takes it over",
    ]) {
        assert!(said.contains(named), "{said}");
    }
    Ok(())
}

/// A frozen node counts as present, because it would continue with its own store.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_store_is_refused_until_no_node_is_there() -> Result<()> {
    let world = World::start(
        Backend::Sqlite,
        Script::new().always(Reply::text("all well")),
    )
    .await?;
    let (own, other) = (
        world.store_url(),
        format!("sqlite:{}", world.folder().join("elsewhere").display()),
    );
    let mut first = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    is_refused_for_its_store(&world, &other, &own).await?;
    first.pause()?;
    is_refused_for_its_store(&world, &other, &own).await?;
    first.kill().await?;

    let second = world.node_with(&[("PLANCK_STORE_URL", &other)]).await?;
    let elsewhere = world.caller.start(&world.solo()).await?;
    assert_eq!(
        world.caller.session(&elsewhere.session_id).await?.state,
        SessionState::Open
    );
    is_refused_for_its_store(&world, &own, &other).await?;
    second.leave_despite(&[TAKEN_OVER]).await?;

    let third = world.node().await?;
    let now = world.caller.session(&started.session_id).await?;
    assert_eq!(now.name, started.name, "the former store has what it had");
    third.leave_despite(&[TAKEN_OVER]).await
}

/// A node that died but is not declared dead yet does not cause a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_other_times_is_refused_while_one_lives() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let mut first = world.node().await?;
    let other = [
        ("PLANCK_CLUSTER_SUSPICION", "3s"),
        ("PLANCK_CLUSTER_SWEEP", "9s"),
    ];
    let mut command = world.planck()?;
    command.arg("node").envs(other);
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    for named in [
        "suspicion is 3s here and 2500ms there",
        "sweep is 9s here and 10s there",
        "stop all of them",
    ] {
        assert!(said.contains(named), "{said}");
    }
    first.kill().await?;
    world
        .node_with(&other)
        .await?
        .leave_despite(&["has other times"])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_other_settings_is_refused() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let jetstream = async_nats::jetstream::new(world.caller.nats.clone());
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "planck_registry".into(),
        ..Default::default()
    };
    jetstream.create_key_value(bucket).await?;
    let mut command = world.planck()?;
    command.arg("node");
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    for named in [
        "allow_atomic is null, not true",
        "nats kv del planck_registry",
    ] {
        assert!(said.contains(named), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_copies_than_servers_are_refused() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let mut command = world.planck()?;
    command.arg("node").env("PLANCK_NATS_REPLICAS", "3");
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nats.replicas"), "{said}");
    Ok(())
}
