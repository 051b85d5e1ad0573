//! Who is not let into a cluster is told why, and what to do.

use anyhow::Result;
use planck_scripted_model::Script;
use planck_tests::{
    node::Node,
    world::{Backend, World},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_store_is_refused_and_told_which() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let first = world.node().await?;
    let mut command = world.planck()?;
    let other = format!("sqlite:{}", world.folder().join("elsewhere").display());
    command.arg("node").env("PLANCK_STORE_URL", other);
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    for named in ["this node's store is", "share store", "store.url", "nats.subject_prefix"] {
        assert!(said.contains(named), "{said}");
    }
    first.leave_despite(&["suspended"]).await
}

/// A node that is dead without anybody saying so yet holds nobody up.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_other_times_is_refused_while_one_lives() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let mut first = world.node().await?;
    let other = [("PLANCK_CLUSTER_SUSPICION", "3s"), ("PLANCK_CLUSTER_TOOL_GRACE", "9s")];
    let mut command = world.planck()?;
    command.arg("node").envs(other);
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    for named in ["suspicion is 3s here and 2500ms there", "tool_grace is 9s here and 4500ms there", "stop all of them"] {
        assert!(said.contains(named), "{said}");
    }
    first.kill().await?;
    world.node_with(&other).await?.leave_despite(&["has other times"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_other_settings_is_refused() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let jetstream = async_nats::jetstream::new(world.caller.nats.clone());
    let bucket = async_nats::jetstream::kv::Config { bucket: "planck_registry".into(), ..Default::default() };
    jetstream.create_key_value(bucket).await?;
    let mut command = world.planck()?;
    command.arg("node");
    let (code, said) = Node::refused(command).await?;
    assert_eq!(code, Some(1), "{said}");
    for named in ["allow_atomic is null, not true", "nats kv del planck_registry"] {
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
