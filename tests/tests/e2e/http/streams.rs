//! Streams of events while nodes, fronts and NATS are killed.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use futures_util::future::try_join_all;
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    front::Front,
    stream_client::StreamClient,
    world::{Backend, World},
};
use serde_json::json;

use crate::flows::{events::assert_dense, prompts::streaming};

/// How long the clients may take to get everything.
const PATIENCE: Duration = Duration::from_secs(150);

/// The number of clients. By hand a thousand were tried; docs/performance.md has the figures.
fn clients() -> usize {
    let count = std::env::var("PLANCK_STREAM_CLIENTS");
    count
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(60)
}

fn words(count: u32) -> String {
    (0..count).map(|n| format!("wörd-{n} ")).collect()
}

/// A turn of several slow replies with tool calls between them.
fn script() -> Script {
    let slow = Pace::per_second(40.0).chunk(8);
    let call = || json!({ "command": "echo x >> ledger" });
    let round = || Reply::text(words(60)).pace(slow).and_call("bash", call());
    let last = Reply::text(words(60)).pace(slow);
    Script::new().rounds(When::any(), [round(), round(), round(), round(), last])
}

async fn front(world: &World) -> Result<Front> {
    Front::start(world.planck()?, world.folder(), &["--front-only"]).await
}

/// Checks that every client got every durable event once, and the same as the log has.
async fn all_got_everything(world: &World, session: &str, clients: &[StreamClient]) -> Result<()> {
    let log = world.caller.log(session, 1).await?;
    assert_dense(&log);
    let json = |event| serde_json::to_string(event).unwrap();
    let log: Vec<String> = log.iter().map(json).collect();
    for client in clients {
        let got: Vec<String> = client.events.iter().map(json).collect();
        assert_eq!(
            got,
            log[..got.len()],
            "after {} connections",
            client.connections
        );
        assert!(client.connections > 1);
    }
    let joined: u32 = clients.iter().map(|client| client.joined).sum();
    assert!(joined > 0, "no client put a message together from deltas");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_lose_nothing_when_nodes_fronts_and_nats_are_killed() -> Result<()> {
    let mut world = World::start(Backend::Postgres, script()).await?;
    let mut nodes = [world.node().await?, world.node().await?];
    let mut fronts = [front(&world).await?, front(&world).await?];
    let mut body = world.solo();
    body["prompt"] = "go on".into();
    let started = fronts[0].post("/v1/sessions", &body).await?;
    let session = started["session_id"].as_str().unwrap().to_owned();
    let lead = started["orchestrator"].as_str().unwrap().to_owned();
    let prompt = started["prompt_id"].as_str().unwrap().to_owned();

    let addresses: Vec<SocketAddr> = fronts.iter().map(Front::address).collect();
    // Both fronts are of one user, so they have the same key.
    let key = fronts[0].key().to_owned();
    assert_eq!(fronts[1].key(), key);
    let following = (0..clients()).map(|_| {
        let (addresses, session, prompt) = (addresses.clone(), session.clone(), prompt.clone());
        let client = StreamClient::with_key(&key);
        tokio::spawn(async move {
            let is_last = |event: &planck_common::envelope::Envelope| {
                event.kind == "turn_end" && event.data.get().contains(&prompt)
            };
            let lifetime = || Duration::from_millis(fastrand::u64(50..4_000));
            client
                .follow(&addresses, &session, is_last, PATIENCE, lifetime)
                .await
        })
    });
    let following: Vec<_> = following.collect();

    streaming(&world, &lead).await?;
    fronts[0].kill().await?;
    let host = eventually("the agent has a host", async || {
        world.caller.agent(&lead).await.ok()?.node_id
    });
    let host = host.await?;
    let at = nodes.iter().position(|node| *node.id() == host).unwrap();
    nodes[at].kill().await?;
    let again = world.planck()?;
    fronts[0] = Front::start_at(addresses[0], again, world.folder(), &["--front-only"]).await?;
    eventually("the other node goes on", async || {
        let agent = world.caller.agent(&lead).await.ok()?;
        (agent.node_id.as_ref() == Some(nodes[1 - at].id())).then_some(())
    })
    .await?;
    world.nats.kill()?;
    world.nats.restart()?;

    let clients = try_join_all(following).await?;
    let clients = clients.into_iter().collect::<Result<Vec<_>>>()?;
    all_got_everything(&world, &session, &clients).await?;
    Ok(())
}
