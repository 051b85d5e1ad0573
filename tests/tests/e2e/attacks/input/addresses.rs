//! An attacker uses `base_url` to make a node send requests to an internal service, and error
//! bodies to read the service's replies.

use anyhow::{Context as _, Result};
use planck_common::{
    command::{AgentVerb, SessionsVerb},
    event::Event,
    reply::Code,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::{agent_at, sessions},
    eventually::eventually,
    machine::{PersonalMachine, run},
    world::{Backend, World},
};
use serde_json::json;

use super::hostile::{Behaviour, Hostile};
use crate::teams::scene::{Scene, by, lead, member};

const SECRET: &str = "db_password=hunter2-INTERNAL";

/// Starts an internal service that must get no request.
async fn internal() -> Result<Hostile> {
    let body = json!({"error": {"message": SECRET, "type": "x"}}).to_string();
    Hostile::start(Behaviour::Whole {
        status: 400,
        kind: "application/json",
        body,
    })
    .await
}

/// Returns spellings of an address that is not the configured one. Some begin like the configured
/// one.
fn disguises(internal: &Hostile, configured: &str) -> Vec<String> {
    let host = internal.url.trim_start_matches("http://");
    vec![
        internal.url.clone(),
        format!("{}/admin?x=", internal.url),
        format!("{configured}@{host}/v1"),
        host.to_owned(),
        format!("{}/v1/../admin", internal.url),
    ]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn agent_cannot_make_its_node_ask_an_internal_service() -> Result<()> {
    let internal = internal().await?;
    for (allowed, told) in [
        (None, "base_url"),
        (
            Some("http://127.0.0.1:9/v1"),
            "not an address that this node may ask",
        ),
    ] {
        let spawn = |url: &str| json!({"type": "w", "name": "w", "base_url": url, "task": "go"});
        let world = World::start(Backend::Sqlite, Script::new()).await?;
        let mut reply = Reply::new();
        for url in disguises(&internal, "http://127.0.0.1:9") {
            reply = reply.and_call("spawn_agent", spawn(&url));
        }
        world.model.set_script(
            Script::new()
                .without_auth()
                .rounds(by("lead"), [reply, Reply::text("ended")]),
        );
        let environment: Vec<_> = allowed
            .iter()
            .map(|url| ("PLANCK_MODELS_ALLOWED_BASE_URLS", *url))
            .collect();
        let (node, recorder) = (world.node_with(&environment).await?, world.record().await?);
        let members = [lead(&[])];
        let started = world
            .caller
            .start(&json!({"dir": world.dir(), "members": members, "prompt": "go"}))
            .await?;
        let scene = Scene {
            world,
            node: Some(node),
            recorder,
            started,
        };
        assert_eq!(scene.answer().await?, "ended");
        let results = scene.results("lead", "spawn_agent").await?;
        assert!(
            results.len() == 5
                && results
                    .iter()
                    .all(|end| end.error && end.result.contains(told)),
            "{results:?}"
        );
        scene.end().await?;
    }
    assert_eq!(internal.asked(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn client_cannot_make_a_node_ask_an_internal_service() -> Result<()> {
    let internal = internal().await?;
    let world = World::start(Backend::Sqlite, Script::new().always("hi")).await?;
    let node = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    for url in disguises(&internal, &world.model.url()) {
        let member = json!({"type": "a", "tools": [], "base_url": url});
        let start = json!({"dir": world.dir(), "members": [member], "prompt": "go"});
        let refused = world
            .caller
            .refusal(&sessions(SessionsVerb::Start), &start)
            .await?;
        assert!(
            refused.message.contains("models.allowed_base_urls"),
            "{url}: {refused}"
        );
        let change = json!({"provider": "scripted", "model_id": "m", "base_url": url});
        let refused = world
            .caller
            .refusal(
                &agent_at(&started.orchestrator, AgentVerb::ChangeModel),
                &change,
            )
            .await?;
        assert!(
            refused.code == Code::Denied && refused.message.contains("models.allowed_base_urls"),
            "{url}: {refused}"
        );
    }
    let own =
        json!({"provider": "scripted", "model_id": "m", "base_url": world.model.openai_url()});
    let _changed: serde_json::Value = world
        .caller
        .ask(
            &agent_at(&started.orchestrator, AgentVerb::ChangeModel),
            &own,
        )
        .await?;
    assert_eq!(internal.asked(), 0);
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn typed_team_may_name_an_address_in_one_process_and_not_for_other_peoples_nodes()
-> Result<()> {
    let machine = PersonalMachine::start(Script::new().without_auth().always("hi")).await?;
    let team = |url: &str| {
        json!([{"type": "a", "provider": "scripted", "model_id": "m", "tools": [], "base_url": url}]).to_string()
    };
    let url = machine.model.openai_url();
    machine.write("team/TEAM.json", &team(&url))?;
    let mut alone = machine.planck(&["run", "--team", "team", "go"])?;
    alone
        .env_remove("PLANCK_PROVIDERS_SCRIPTED_BASE_URL")
        .env_remove("OPENAI_BASE_URL")
        .env_remove("PLANCK_PROVIDERS_LLAMA_CPP_BASE_URL");
    for name in ["ANTHROPIC", "GOOGLE", "OLLAMA"] {
        alone.env_remove(format!("PLANCK_PROVIDERS_{name}_BASE_URL"));
    }
    let ran = run(alone).await?;
    assert!(ran.code == 0 && ran.out.contains("hi"), "{ran:?}");

    let internal = internal().await?;
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world.node().await?;
    std::fs::create_dir(world.folder().join("team"))?;
    std::fs::write(world.folder().join("team/TEAM.json"), team(&internal.url))?;
    let mut over_nats = world.planck()?;
    over_nats.args(["run", "--team", "team", "--dir", "work", "go"]);
    let ran = run(over_nats).await?;
    assert!(
        ran.code == 2 && ran.err.contains("models.allowed_base_urls"),
        "{ran:?}"
    );
    assert_eq!(internal.asked(), 0);
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn text_of_a_foreign_error_reaches_no_model() -> Result<()> {
    let internal = internal().await?;
    let ask = Reply::call("ask_agent", json!({"agent": "worker", "question": "well?"}));
    let delegate = Reply::call("delegate_task", json!({"agent": "worker", "task": "do it"}));
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    world.model.set_script(
        Script::new()
            .without_auth()
            .rounds(by("lead"), [ask, delegate, Reply::text("ended")]),
    );
    let (node, recorder) = (
        world
            .node_with(&[("PLANCK_MODELS_ALLOWED_BASE_URLS", &internal.url)])
            .await?,
        world.record().await?,
    );
    let mut worker = member("worker", &[]);
    worker["base_url"] = internal.url.clone().into();
    let members = [lead(&[]), worker];
    let started = world
        .caller
        .start(&json!({"dir": world.dir(), "members": members, "prompt": "go"}))
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    assert_eq!(scene.answer().await?, "ended");
    let answer = scene.result("lead", "ask_agent").await?;
    assert!(
        answer.result.contains("status 400") && !answer.result.contains("hunter2"),
        "{answer:?}"
    );
    eventually("the lead is told that its task has no answer", async || {
        let requests = scene.world.model.requests();
        requests
            .iter()
            .any(|request| request.body.to_string().contains("task_unanswered"))
            .then_some(())
    })
    .await?;
    assert!(internal.asked() >= 2);
    let requests = scene.world.model.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.body.to_string().contains("hunter2"))
    );
    let log = scene.log_of("worker").await?;
    let error = log.into_iter().find_map(|event| match event {
        Event::Error(error) => Some(error),
        _ => None,
    });
    let error = error.context("the worker's turn failed")?;
    assert!(
        error.reason.contains(SECRET),
        "people see what a configured server said: {error:?}"
    );
    scene.end().await
}
