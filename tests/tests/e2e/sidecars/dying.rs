//! A node that dies between a call and its answer. A call that may run again does so under the same
//! id; any other is reported as interrupted.

use std::{convert::Infallible, time::Duration};

use anyhow::Result;
use planck_common::event::ToolEffect;
use planck_scripted_model::{Reply, Script};
use planck_sidecar::{Context, Sidecar, Tool};
use planck_tests::{
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::json;

use super::serving::{Args, Ledger, Serving, team_with};
use crate::teams::scene::{by, member};

fn slow(ledger: &Ledger, effect: ToolEffect) -> Sidecar {
    let ledger = ledger.clone();
    let run = move |context: Context, args: Args| {
        ledger.note(&context, &args);
        async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok::<_, Infallible>("done".to_owned())
        }
    };
    let sidecar = Sidecar::new("slow", "1.0.0")
        .unwrap()
        .drain_timeout(Duration::from_millis(100));
    sidecar.tool(Tool::new("work", "Works.", run).effect(effect))
}

async fn died(effect: ToolEffect) -> Result<(Vec<(String, Args)>, String)> {
    let script = Script::new().rounds(
        by("talker"),
        [
            Reply::call("work", json!({})),
            Reply::text("{{result:work}}"),
        ],
    );
    let world = World::start(Backend::Sqlite, script).await?;
    let ledger = Ledger::default();
    let serving = Serving::start(&world, slow(&ledger, effect));
    let mut scene = team_with(world, "slow", &[member("talker", &["work"])], "go").await?;
    eventually("the sidecar is called", async || {
        (!ledger.entries().is_empty()).then_some(())
    })
    .await?;
    scene.node.take().unwrap().kill().await?;
    scene.node = Some(scene.world.node().await?);
    let answer = scene.answer().await?;
    scene.world.check_model()?;
    // The node's sweep may be about to take the session up once more.
    scene
        .node
        .take()
        .unwrap()
        .leave_despite(&["is draining"])
        .await?;
    serving.end().await?;
    Ok((ledger.entries(), answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_call_is_sent_again() -> Result<()> {
    let (calls, answer) = died(ToolEffect::Idempotent).await?;
    assert_eq!(answer, "done");
    assert!(
        calls.iter().all(|(id, _)| *id == calls[0].0),
        "it is the same call: {calls:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutating_call_is_not_sent_again() -> Result<()> {
    let (calls, answer) = died(ToolEffect::Mutating).await?;
    assert_eq!(
        answer,
        "error: interrupted; it may or may not have taken effect"
    );
    assert_eq!(calls.len(), 1, "it was sent once");
    Ok(())
}
