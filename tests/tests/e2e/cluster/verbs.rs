//! Tests that every verb works on each node that may get it. Each request is sent often enough that
//! nodes that host no agent of the team answer too.

use std::time::Duration;

use anyhow::Result;
use planck_common::{
    command::{AgentState, AgentVerb, SessionState, SessionVerb},
    reply::Code,
};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::{
    caller::{agent_at, session_at},
    eventually::{eventually, within},
    world::Backend,
};
use serde_json::{Value, json};

use super::field::{Team, ThreeNodes, lead_at, placed};
use crate::{flows::events::assert_dense, teams::scene::by};

/// How often each request is sent. One of three nodes gets each request, at random. The chance that
/// the same node gets all of them is about 1 in 2,000.
const OFTEN: usize = 8;

async fn team(backend: Backend) -> Result<Team> {
    let script = Script::new()
        // An aborted prompt without an answer goes to the model together with the next one.
        .rule(by("one").user("forget"), Reply::text("ready"))
        .rule(by("one").user("hello"), Reply::text("ready"))
        .rule(
            by("one").user("hang"),
            Reply::fault(ScriptedFault::HangBeforeHead),
        )
        .rule(
            by("two").user("hang"),
            Reply::fault(ScriptedFault::HangBeforeHead),
        )
        .always(Reply::text("ready"));
    let field = ThreeNodes::start(backend, script).await?;
    let team = field
        .team(
            &[
                lead_at("a", &[]),
                placed("one", "b", &["read"]),
                placed("two", "b", &[]),
            ],
            "hello",
        )
        .await?;
    team.scene.answer().await?;
    Ok(team)
}

async fn agents(backend: Backend) -> Result<()> {
    let team = team(backend).await?;
    let (scene, caller) = (&team.scene, &team.scene.world.caller);
    let one = scene.id("one").await?;
    for n in 0..OFTEN {
        let prompted = scene
            .tell(
                "one",
                AgentVerb::Prompt,
                json!({ "text": format!("hello {n}") }),
            )
            .await?;
        scene
            .recorder
            .answered(&serde_json::from_value(prompted["prompt_id"].clone())?)
            .await?;
        let info = caller.agent(&one).await?;
        assert_eq!(
            (info.turn as usize, info.state, info.node_id.as_ref()),
            (2 * n + 1, AgentState::Idle, Some(team.node("b").id()))
        );
        let snapshot = caller.snapshot(&one).await?;
        assert!(snapshot.running.is_none() && snapshot.info.turn == info.turn);
        scene
            .tell("one", AgentVerb::Prompt, json!({ "text": "hang" }))
            .await?;
        let busy = || async { Some(caller.snapshot(&one).await.ok()?.running?.turn) };
        assert_eq!(
            eventually("it streams", async || busy().await).await?,
            info.turn + 1
        );
        let refusal = caller
            .refusal(
                &agent_at(&one, AgentVerb::Prompt),
                &json!({ "text": "now", "mode": "reject" }),
            )
            .await?;
        assert_eq!(refusal.code, Code::Busy);
        assert_eq!(
            scene.tell("one", AgentVerb::Abort, json!({})).await?,
            json!({ "state": "idle" })
        );
        assert_eq!(
            scene
                .tell("one", AgentVerb::RemoveTool, json!({ "name": "read" }))
                .await?["tools"]
                .as_array()
                .map(Vec::len),
            Some(4)
        );
        assert_eq!(
            scene
                .tell("one", AgentVerb::AddTool, json!({ "name": "read" }))
                .await?["tools"]
                .as_array()
                .map(Vec::len),
            Some(5)
        );
        let model = format!("other-{n}");
        assert_eq!(
            scene
                .tell("one", AgentVerb::ChangeModel, json!({ "model_id": model }))
                .await?["model"]["id"],
            json!(model)
        );
        assert!(
            scene
                .tell(
                    "one",
                    AgentVerb::Checkpoint,
                    json!({ "summary": "so far so good" })
                )
                .await?["seq"]
                .as_i64()
                > Some(0)
        );
    }
    let nudged = scene.tell("one", AgentVerb::Nudge, json!({})).await?;
    assert!(nudged["state"].is_string(), "{nudged}");
    eventually("the nudge's turn has ended", async || {
        let info = caller.agent(&one).await.ok()?;
        (info.turn as usize == 2 * OFTEN + 1 && info.state == AgentState::Idle).then_some(())
    })
    .await?;
    for _ in 0..OFTEN {
        let foreign = caller
            .refusal(&agent_at("nobody", AgentVerb::Info), &json!({}))
            .await?;
        assert_eq!(foreign.code, Code::NotFound);
    }
    assert_eq!(
        scene
            .tell("one", AgentVerb::Stop, json!({ "reason": "enough" }))
            .await?,
        json!({ "state": "stopped" })
    );
    assert_eq!(
        caller
            .refusal(&agent_at(&one, AgentVerb::Nudge), &json!({}))
            .await?
            .code,
        Code::NotFound
    );
    assert_dense(&scene.log().await?);
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_of_agents_work_on_any_node_on_postgres() -> Result<()> {
    agents(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn verbs_of_agents_work_on_any_node_on_sqlite() -> Result<()> {
    agents(Backend::Sqlite).await
}

async fn sessions(backend: Backend) -> Result<()> {
    let team = team(backend).await?;
    let (scene, caller) = (&team.scene, &team.scene.world.caller);
    let session = scene.started.session_id.clone();
    let ask = async |verb, body: Value| -> Result<Value> {
        caller.ask(&session_at(&session, verb), &body).await
    };
    for n in 0..OFTEN {
        for worker in ["one", "two"] {
            scene
                .tell(worker, AgentVerb::Prompt, json!({ "text": "hang" }))
                .await?;
            let id = scene.id(worker).await?;
            eventually("it streams", async || {
                caller.snapshot(&id).await.ok()?.running
            })
            .await?;
        }
        let aborted = ask(SessionVerb::Abort, json!({})).await?;
        assert_eq!(
            aborted["aborted"].as_array().map(Vec::len),
            Some(2),
            "{aborted}"
        );

        let before = caller.session(&session).await?;
        let prompted = scene
            .tell(
                "one",
                AgentVerb::Prompt,
                json!({ "text": format!("forget {n}") }),
            )
            .await?;
        scene
            .recorder
            .answered(&serde_json::from_value(prompted["prompt_id"].clone())?)
            .await?;
        let messages = caller.messages(&session, Some("one")).await?;
        let forgotten = messages
            .iter()
            .find(|message| format!("{:?}", message.content).contains("forget"))
            .unwrap()
            .id;
        assert!(
            ask(SessionVerb::Rewind, json!({ "to": forgotten })).await?["head"].as_i64()
                > Some(before.head)
        );
        let messages = caller.messages(&session, Some("one")).await?;
        assert!(!format!("{messages:?}").contains("forget"), "{messages:?}");
        let again = scene
            .tell("one", AgentVerb::Prompt, json!({ "text": "hello" }))
            .await?;
        scene
            .recorder
            .answered(&serde_json::from_value(again["prompt_id"].clone())?)
            .await?;
        let after = caller.session(&session).await?;
        let epochs = |info: &planck_common::command::SessionInfo| {
            info.agents
                .iter()
                .map(|agent| agent.epoch)
                .collect::<Vec<_>>()
        };
        assert!(
            epochs(&before)
                .iter()
                .zip(epochs(&after))
                .all(|(before, after)| *before < after),
            "every agent is fenced"
        );
        let places = |info: &planck_common::command::SessionInfo| {
            info.agents
                .iter()
                .map(|agent| agent.node_id.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(places(&before), places(&after), "and stays where it is");

        let resumed = ask(SessionVerb::Resume, json!({})).await?;
        assert_eq!(resumed["node_id"], json!(team.node("a").id()));
    }
    let asked = scene.requests_text("one");
    assert!(!asked.lines().last().unwrap().contains("forget"), "{asked}");
    assert_dense(&scene.log().await?);
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_of_sessions_work_on_any_node_on_postgres() -> Result<()> {
    sessions(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn verbs_of_sessions_work_on_any_node_on_sqlite() -> Result<()> {
    sessions(Backend::Sqlite).await
}

async fn closing(backend: Backend) -> Result<()> {
    let team = team(backend).await?;
    let (scene, caller) = (&team.scene, &team.scene.world.caller);
    let session = scene.started.session_id.clone();
    for _ in 0..OFTEN {
        scene
            .tell("two", AgentVerb::Prompt, json!({ "text": "hang" }))
            .await?;
        let closed: Value = caller
            .ask(&session_at(&session, SessionVerb::Close), &json!({}))
            .await?;
        assert_eq!(closed, json!({ "state": "closed" }));
        let info = caller.session(&session).await?;
        assert_eq!(info.state, SessionState::Closed);
        assert!(
            info.agents
                .iter()
                .all(|agent| agent.node_id.is_none() && agent.state == AgentState::Idle),
            "{:?}",
            info.agents
        );
        let again = caller.prompt(&session, "hello again").await?;
        scene.recorder.answered(&again.prompt_id).await?;
        let info = caller.session(&session).await?;
        assert_eq!(info.state, SessionState::Open);
        assert!(
            info.agents.iter().all(|agent| agent.node_id.is_some()),
            "{:?}",
            info.agents
        );
    }
    let removed: Value = caller
        .ask(&session_at(&session, SessionVerb::Delete), &json!({}))
        .await?;
    assert_eq!(removed["removed"]["agents"], 3);
    within(
        Duration::from_secs(10),
        "the streams are closed",
        async || (scene.world.model.streams() == 0).then_some(()),
    )
    .await?;
    for _ in 0..OFTEN {
        assert_eq!(
            caller
                .refusal(&session_at(&session, SessionVerb::Info), &json!({}))
                .await?
                .code,
            Code::NotFound
        );
    }
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_that_end_sessions_work_on_any_node_on_postgres() -> Result<()> {
    closing(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn verbs_that_end_sessions_work_on_any_node_on_sqlite() -> Result<()> {
    closing(Backend::Sqlite).await
}
