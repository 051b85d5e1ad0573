//! Many workers over three nodes.

use std::time::{Duration, Instant};

use anyhow::Result;
use planck_scripted_model::{Reply, Script};
use planck_tests::{eventually::within, world::Backend};
use serde_json::json;

use super::field::{Field, PLACES, lead_at};
use crate::teams::scene::by;

const WORKERS: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_workers_are_spawned_over_three_nodes() -> Result<()> {
    let worker = |n| json!({ "type": "worker", "name": format!("w{n}"), "system_prompt": "You are worker.", "tools": [], "task": "be there" });
    let all = (0..WORKERS).fold(Reply::new(), |reply, n| reply.and_call("spawn_agent", worker(n)));
    let script = Script::new()
        .rounds(by("lead").user("go"), [all, Reply::text("made")])
        .rounds(by("worker"), [Reply::call("send_response", json!({ "response": "here" })), Reply::text("done")])
        .always(Reply::text("thanks"))
        .keep(10);
    let field = Field::start(Backend::Postgres, script).await?;
    let since = Instant::now();
    let team = field.team(&[lead_at("a", &[])], "go").await?;
    let prompt = team.scene.started.prompt_id.clone().unwrap();
    let patience = Duration::from_secs(240);
    within(patience, "all are made", async || {
        let log = team.scene.log_of("lead").await.ok()?;
        let ends = |event: &planck_common::event::Event| {
            matches!(event, planck_common::event::Event::TurnEnd(end) if end.inputs.contains(&prompt))
        };
        log.iter().any(ends).then_some(())
    })
    .await?;
    let made = since.elapsed();
    let info = team.scene.world.caller.session(&team.scene.started.session_id).await?;
    assert_eq!(info.agents.len(), WORKERS + 1);
    let on = |place: &str| info.agents.iter().filter(|agent| agent.node_id.as_ref() == Some(team.node(place).id())).count();
    let spread = PLACES.map(on);
    println!("{WORKERS} workers over three nodes: spawned in {made:?}, spread {spread:?}");
    assert!(spread.iter().all(|agents| *agents >= WORKERS / 6), "{spread:?}");
    within(patience, "all have responded", async || {
        let log = team.scene.log().await.ok()?;
        let responded = log.iter().filter(|event| event.kind == "tool_end" && event.data.get().contains("send_response"));
        (responded.count() == WORKERS).then_some(())
    })
    .await?;
    println!("all responded after {:?}", since.elapsed());
    team.end().await
}
