//! Records of the registry that an attacker overwrote: their owners write them again, and other
//! nodes ignore them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::{self, kv::Store};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use planck_common::registry::{
    Key, NodeRecord, NodeStanding, StoreRecord, TeamRecord, TeamStanding,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::within,
    node::Node,
    registry::{record, value},
    world::{Backend, World},
};
use serde_json::Value;

/// How long a node may take to write its record again. Its next proof or sweep finds the wrong
/// record, and the node asks SQL before it writes.
const HEALED: Duration = Duration::from_secs(40);
const COMPLAINTS: &[&str] = &[
    "cannot be read and counts as lost",
    "this node's record in the registry is another's",
    "the record of the store is wrong",
];

const LARGE: usize = 1024 * 1024;

async fn bucket(world: &World) -> Result<Store> {
    Ok(jetstream::new(world.caller.nats.clone())
        .get_key_value("planck_registry")
        .await?)
}

/// Returns the values that an attacker writes: invalid JSON, JSON of other types, an empty value,
/// and another node's record.
async fn forms(world: &World, other: &Node) -> Result<Vec<Bytes>> {
    let others = serde_json::to_vec(&record(&world.caller, other.id()).await?)?;
    let texts = [
        "not json {",
        r#"{"v":1,"ok":{"sessions":[]}}"#,
        "[1,2,3]",
        "null",
        "\"x\"",
        "",
        "\u{0}\u{1}",
        r#"{"id":7}"#,
    ];
    Ok(texts
        .iter()
        .map(|text| Bytes::from_static(text.as_bytes()))
        .chain([others.into()])
        .collect())
}

async fn nodes(world: &World) -> Result<(Node, Node)> {
    let a = world.node_with(&[("PLANCK_NODE_NAME", "a")]).await?;
    Ok((a, world.node_with(&[("PLANCK_NODE_NAME", "b")]).await?))
}

async fn is_healed(world: &World, node: &Node, name: &str) -> Result<NodeRecord> {
    within(HEALED, "the node's record is its own again", async || {
        let found = record(&world.caller, node.id()).await.ok().flatten()?;
        (found.name == name && found.state == NodeStanding::Alive).then_some(found)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn node_writes_its_garbled_record_again() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let (a, b) = nodes(&world).await?;
    let (bucket, key) = (bucket(&world).await?, Key::Node(a.id().clone()).to_string());
    for form in forms(&world, &b).await? {
        bucket.put(key.clone(), form).await?;
        is_healed(&world, &a, "a").await?;
    }
    for node in [&a, &b] {
        assert!(
            !node.log().contains("this node is out of its cluster"),
            "{}",
            node.log()
        );
        assert!(!node.log().contains("a peer is dead"), "{}", node.log());
    }
    world.caller.raw("cmd.sessions.list", "{}").await?;
    a.leave_despite(COMPLAINTS).await?;
    b.leave_despite(COMPLAINTS).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn nodes_start_beside_garbled_records_and_name_the_store_again() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let a = world.node().await?;
    let (bucket, own) = (
        bucket(&world).await?,
        value(&world.caller, &Key::Store).await?,
    );
    for form in ["not json", "", "[]", r#"{"v":1,"ok":{}}"#] {
        bucket.put("store", form.into()).await?;
        bucket.put("node.stranger", form.into()).await?;
        bucket.put("team.stranger.1", form.into()).await?;
        let other = world.node().await?;
        let named: StoreRecord = serde_json::from_value(
            value(&world.caller, &Key::Store)
                .await?
                .unwrap_or(Value::Null),
        )?;
        assert_eq!(
            Some(named),
            own.clone().map(serde_json::from_value).transpose()?
        );
        other.leave_despite(COMPLAINTS).await?;
    }
    bucket.put("store", "garbled once more".into()).await?;
    let again = within(HEALED, "a node that runs names the store", async || {
        value(&world.caller, &Key::Store).await.ok().flatten()
    });
    assert_eq!(Some(again.await?), own);
    a.leave_despite(COMPLAINTS).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn record_of_a_megabyte_is_refused_by_the_bucket() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let a = world.node().await?;
    let bucket = bucket(&world).await?;
    for key in [
        "store".to_owned(),
        Key::Node(a.id().clone()).to_string(),
        "node.stranger".to_owned(),
    ] {
        bucket
            .put(key, vec![b'x'; LARGE].into())
            .await
            .expect_err("the bucket took it");
    }
    a.leave().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn node_with_a_garbled_record_is_still_declared_dead() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let (a, mut b) = nodes(&world).await?;
    is_healed(&world, &b, "b").await?;
    let key = Key::Node(b.id().clone()).to_string();
    b.kill().await?;
    bucket(&world).await?.put(key, "not json".into()).await?;
    within(HEALED, "its peer declares it dead", async || {
        let found = record(&world.caller, b.id()).await.ok().flatten()?;
        (found.state == NodeStanding::Dead).then_some(())
    })
    .await?;
    a.leave_despite(COMPLAINTS).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn garbled_record_of_a_team_is_written_again_and_its_session_continues() -> Result<()> {
    let world = World::start(
        Backend::Sqlite,
        Script::new().always(Reply::text("still here")),
    )
    .await?;
    let a = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    let bucket = bucket(&world).await?;
    let found: Vec<String> = bucket.keys().await?.try_collect().await?;
    let of_team = format!("team.{}.", started.team_id);
    let text = found
        .into_iter()
        .find(|key| key.starts_with(&of_team))
        .context("the team has a record")?;
    let key = Key::parse(&text).context("a key")?;
    for form in ["not json", "", r#"{"state":"asleep"}"#] {
        bucket.put(text.clone(), form.into()).await?;
        within(HEALED, "the team's record is written again", async || {
            let found: TeamRecord =
                serde_json::from_value(value(&world.caller, &key).await.ok().flatten()?).ok()?;
            (found.state == TeamStanding::Alive).then_some(())
        })
        .await?;
    }
    let recorder = world.record().await?;
    let accepted = world
        .caller
        .prompt(&started.session_id, "are you there?")
        .await?;
    recorder.answered(&accepted.prompt_id).await?;
    a.leave_despite(COMPLAINTS).await
}
