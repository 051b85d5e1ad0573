//! Attacks through reply subjects. A program that may send requests to a node or a sidecar chooses
//! the subject of the reply, and the reply is published with the node's or sidecar's rights.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use planck_common::registry::Key;
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::{PATIENCE, eventually},
    example::Example,
    registry::{record, value},
    world::{Backend, World},
};
use serde_json::json;
use tokio::time::timeout;

use crate::sidecars::serving::{Ledger, Serving, echo, found};

const REFUSED: &str = "its reply would go to a subject that is no inbox";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn user_who_may_only_list_deletes_nothing_by_a_reply_subject() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("hello"))).await?;
    let node = world.node().await?;
    let mut start = world.solo();
    start["name"] = "vic".into();
    let started = world.caller.start(&start).await?;
    let before = (
        record(&world.caller, node.id()).await?,
        value(&world.caller, &Key::Store).await?,
    );
    let nats = &world.caller.nats;
    // The session publishes under its id, so every message under its name is a forged one.
    let mut heard = nats.subscribe("session.vic").await?;
    let own = format!("$KV.planck_registry.node.{}", node.id());
    for to in [
        "cmd.session.vic.delete",
        "_GR_.abcdef.ghijkl.cmd.session.vic.delete",
        own.as_str(),
        "$KV.planck_registry.store",
        "session.vic",
        "agent.a1",
        "$JS.API.STREAM.DELETE.KV_planck_registry",
    ] {
        for asked in [
            "cmd.sessions.list",
            "cmd.nodes.list",
            "cmd.session.vic.info",
            "$SRV.INFO",
        ] {
            nats.publish_with_reply(asked, to.to_owned(), "{}".into())
                .await?;
        }
    }
    // Endpoints handle requests in order, so the replies to these requests show that the earlier
    // ones were handled.
    world.caller.session(&started.session_id).await?;
    world.caller.raw("cmd.sessions.list", "{}").await?;
    world.caller.raw("cmd.nodes.list", "{}").await?;
    world
        .caller
        .raw(&format!("$SRV.INFO.planck-node.{}", node.id()), "")
        .await?;
    assert_eq!(
        world
            .caller
            .session(&started.session_id)
            .await?
            .name
            .as_str(),
        "vic",
        "the session is there still"
    );
    let after = (
        record(&world.caller, node.id()).await?,
        value(&world.caller, &Key::Store).await?,
    );
    assert_eq!(after, before, "the registry is as it was");
    let told = timeout(Duration::from_millis(200), heard.next()).await;
    assert!(
        told.is_err(),
        "something was published on a session's subject: {told:?}"
    );
    let warned = node.log().matches(REFUSED).count();
    assert_eq!(warned, 1, "a flood is logged once");
    node.leave_despite(&[REFUSED]).await
}

/// Checks that a sidecar answers no call and no discovery request whose reply subject would make
/// the answer an event of a session, a command, a record of the registry or a call of another
/// sidecar.
async fn is_no_deputy(world: &World, sidecar: &str, tool: &str) -> Result<()> {
    let nats = &world.caller.nats;
    let targets = [
        "session.vic",
        "cmd.session.vic.delete",
        "$KV.planck_registry.store",
        "tool.other.call",
    ];
    let mut heard = Vec::new();
    for target in targets {
        heard.push(nats.subscribe(target).await?);
    }
    let mut heard = futures_util::stream::select_all(heard);
    let call = |id: &str| {
        json!({"v": 1, "call_id": id, "tool": tool, "args": {"text": "ab", "times": 2}, "agent_id": "a", "session_id": "s",
            "team_id": "t", "epoch": 1, "deadline_ms": 10_000})
        .to_string()
    };
    let subject = format!("tool.{sidecar}.{tool}");
    for (n, to) in targets.iter().enumerate() {
        nats.publish_with_reply(
            subject.clone(),
            (*to).to_owned(),
            call(&format!("forged-{n}")).into(),
        )
        .await?;
        nats.publish_with_reply(format!("$SRV.INFO.{sidecar}"), (*to).to_owned(), "".into())
            .await?;
    }
    let honest = timeout(PATIENCE, nats.request(subject, call("honest").into()))
        .await
        .context("no answer")??;
    assert!(
        String::from_utf8_lossy(&honest.payload).contains("\"ok\""),
        "{honest:?}"
    );
    let told = timeout(Duration::from_millis(500), heard.next()).await;
    assert!(
        told.is_err(),
        "{sidecar} answered on {:?}",
        told.ok().flatten().map(|message| message.subject)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn sidecar_in_rust_publishes_nothing_with_its_rights_for_callers() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world.node().await?;
    let ledger = Ledger::default();
    let serving = Serving::start(&world, echo("mirror", &ledger));
    found(&world, "mirror", 1).await?;
    is_no_deputy(&world, "mirror", "echo").await?;
    let called: Vec<String> = ledger.entries().into_iter().map(|(call, _)| call).collect();
    assert_eq!(
        called,
        ["honest"],
        "a call whose answer goes nowhere is not made"
    );
    serving.end().await?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn sidecar_in_python_publishes_nothing_with_its_rights_for_callers() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world.node().await?;
    let example = Example::python()?;
    let _running = example.start(&world.nats.url())?;
    found(&world, example.name, 1).await?;
    is_no_deputy(&world, example.name, "repeat").await?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn inboxes_of_another_prefix_are_answered_if_configured() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world
        .node_with(&[("PLANCK_NATS_REPLY_PREFIXES", "replies.team")])
        .await?;
    let nats = &world.caller.nats;
    let mut replies = nats.subscribe("replies.team.1").await?;
    eventually("it is answered", async || {
        nats.publish_with_reply("cmd.sessions.list", "replies.team.1", "{}".into())
            .await
            .ok()?;
        timeout(Duration::from_secs(1), replies.next()).await.ok()?
    })
    .await?;
    node.leave().await
}
