//! Text that a database cannot hold, and batches that it refuses for their data. No agent or input
//! may be lost because of them.

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use planck_common::{
    command::{AgentState, SessionVerb},
    event::Event,
    reply::Code,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    caller::session_at,
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::json;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, sqlite::SqliteConnectOptions};

use crate::teams::scene::{Scene, by, lead, member};

const BACKENDS: [Backend; 2] = [Backend::Sqlite, Backend::Postgres];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_nul_in_a_workers_answer_reaches_its_asker_after_one_model_call() -> Result<()> {
    for backend in BACKENDS {
        let ask = Reply::call(
            "ask_agent",
            json!({ "agent": "helper", "question": "what\0is it?" }),
        );
        let look = Reply::call("bash", json!({ "command": "printf 'x\\000y'" }));
        let script = Script::new()
            .rounds(
                by("lead"),
                [
                    ask,
                    look,
                    Reply::text("It says: {{result:ask_agent}}, {{result:bash}}"),
                ],
            )
            .rounds(by("helper"), [Reply::text("nul\0answer")]);
        let members = [lead(&["bash"]), member("helper", &[])];
        let scene = Scene::start_on(World::start(backend, script).await?, &members, "go").await?;
        let said = scene
            .answer()
            .await
            .with_context(|| format!("on {backend:?}"))?;
        assert_eq!(
            said, "It says: nul\u{fffd}answer, x\u{fffd}y",
            "on {backend:?}"
        );
        assert!(
            scene.requests_text("helper").contains("what\u{fffd}is it?"),
            "{}",
            scene.requests_text("helper")
        );
        assert_eq!(scene.world.model.request_count(), 4, "on {backend:?}");
        scene.end().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_nul_on_the_wire_is_replaced_or_refused_with_an_error() -> Result<()> {
    for backend in BACKENDS {
        let world = World::start(backend, Script::new().always("Yes.")).await?;
        let (node, recorder) = (world.node().await?, world.record().await?);
        let started = world.caller.start(&world.solo()).await?;
        let session = started.session_id.to_string();
        let prompted = world.caller.prompt(&session, "hel\0lo").await?;
        recorder.answered(&prompted.prompt_id).await?;
        let messages = world.caller.messages(&session, None).await?;
        assert!(
            format!("{messages:?}").contains("hel\u{fffd}lo"),
            "on {backend:?}: {messages:?}"
        );

        let prompt = session_at(&session, SessionVerb::Prompt);
        let refusal = world
            .caller
            .refusal(&prompt, &json!({ "text": "hello", "agent": "no\0body" }))
            .await?;
        assert_eq!(refusal.code, Code::NotFound, "on {backend:?}: {refusal}");
        let mut large = world.solo();
        large["limits"] = json!({ "max_agents": 3_000_000_000_u32 });
        // The number would not fit into the column of a database. The configuration's is lower.
        let started = world.caller.start(&large).await?;
        let info = world.caller.session(&started.session_id).await?;
        assert_eq!(info.limits.max_agents, Some(1_000), "on {backend:?}");
        node.leave().await?;
    }
    Ok(())
}

/// Makes the database refuse rows of the log that contain `POISON` and, if `ends` is set, also the
/// `error` events that end turns.
async fn poison(world: &World, backend: Backend, session: (&str, &str), ends: bool) -> Result<()> {
    match (backend, ends) {
        (Backend::Postgres, false) => {
            world.sql("ALTER TABLE log ADD CONSTRAINT no_poison CHECK (position('POISON' in body) = 0)").await?;
        }
        (Backend::Postgres, true) => {
            let check = "ALTER TABLE log ADD CONSTRAINT no_poison CHECK (position('POISON' in body) = 0 AND kind <> 'error')";
            world.sql(check).await?;
        }
        (Backend::Sqlite, ends) => {
            let (id, name) = session;
            let file = world
                .folder()
                .join("sessions")
                .join(format!("{id}_{name}.db"));
            let mut database = SqliteConnectOptions::new().filename(file).connect().await?;
            database
                .execute("CREATE TABLE poison (body TEXT CONSTRAINT unfit CHECK (instr(body, 'POISON') = 0), kind TEXT)")
                .await?;
            database
                .execute("CREATE TRIGGER poisoned AFTER INSERT ON log BEGIN INSERT INTO poison VALUES (NEW.body, NEW.kind); END")
                .await?;
            if ends {
                database
                    .execute(
                        "CREATE TABLE ended (kind TEXT CONSTRAINT unfit CHECK (kind <> 'error'))",
                    )
                    .await?;
                database
                    .execute("CREATE TRIGGER ends AFTER INSERT ON log BEGIN INSERT INTO ended VALUES (NEW.kind); END")
                    .await?;
            }
            database.close().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_batch_that_is_refused_for_its_data_ends_its_turn_with_an_error() -> Result<()> {
    for backend in BACKENDS {
        let script = Script::new()
            .rule(When::any().last("again"), "Fine.")
            .always("This is POISON.");
        let world = World::start(backend, script).await?;
        let (node, recorder) = (world.node().await?, world.record().await?);
        let started = world.caller.start(&world.solo()).await?;
        poison(
            &world,
            backend,
            (started.session_id.as_str(), started.name.as_str()),
            false,
        )
        .await?;
        let prompted = world.caller.prompt(&started.session_id, "go").await?;
        let end = recorder
            .answered(&prompted.prompt_id)
            .await
            .with_context(|| format!("on {backend:?}:\n{}", node.log()))?;
        let Some(Ok(Event::Error(error))) = end.event() else {
            panic!("on {backend:?}: {end:?}")
        };
        assert_eq!(
            (error.code.as_str(), error.retryable),
            ("not_storable", false),
            "{error:?}"
        );
        assert!(error.reason.contains("cannot be stored"), "{error:?}");
        assert_eq!(world.model.request_count(), 1, "on {backend:?}");
        let again = world.caller.prompt(&started.session_id, "again").await?;
        let end = recorder.answered(&again.prompt_id).await?;
        assert!(
            matches!(end.event(), Some(Ok(Event::TurnEnd(_)))),
            "the agent goes on on {backend:?}: {end:?}"
        );
        assert_eq!(world.model.request_count(), 2, "on {backend:?}");
        node.leave_despite(&["the store refuses its data"]).await?;
    }
    Ok(())
}

/// Three prompts arrive at once, and the text of one of them cannot be stored.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn prompt_that_cannot_be_stored_is_refused_alone() -> Result<()> {
    for backend in BACKENDS {
        let world = World::start(backend, Script::new().always("Fine.")).await?;
        let (node, recorder) = (world.node().await?, world.record().await?);
        let started = world.caller.start(&world.solo()).await?;
        poison(
            &world,
            backend,
            (started.session_id.as_str(), started.name.as_str()),
            false,
        )
        .await?;
        let mut ends = Vec::new();
        for prompt in join_all(
            ["first", "POISON", "after"].map(|text| world.caller.prompt(&started.session_id, text)),
        )
        .await
        {
            let end = recorder
                .answered(&prompt?.prompt_id)
                .await
                .with_context(|| format!("on {backend:?}:\n{}", node.log()))?;
            ends.push(match end.event() {
                Some(Ok(Event::Error(error))) => error.code,
                other => {
                    assert!(matches!(other, Some(Ok(Event::TurnEnd(_)))), "{other:?}");
                    "done".into()
                }
            });
        }
        assert_eq!(ends, ["done", "not_storable", "done"], "on {backend:?}");
        let again = world.caller.prompt(&started.session_id, "POISON").await?;
        let end = recorder.answered(&again.prompt_id).await?;
        assert!(
            matches!(end.event(), Some(Ok(Event::Error(_)))),
            "a second one on {backend:?}: {end:?}"
        );
        let good = world.caller.prompt(&started.session_id, "good").await?;
        let end = recorder.answered(&good.prompt_id).await?;
        assert!(
            matches!(end.event(), Some(Ok(Event::TurnEnd(_)))),
            "the agent goes on on {backend:?}: {end:?}"
        );
        node.leave_despite(&["the store refuses its data"]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn an_agent_whose_data_is_refused_twice_stops_and_its_asker_is_notified() -> Result<()> {
    for backend in BACKENDS {
        let ask = Reply::call(
            "ask_agent",
            json!({ "agent": "helper", "question": "well?" }),
        );
        let script = Script::new()
            .rounds(
                by("lead"),
                [ask, Reply::text("I go on: {{result:ask_agent}}")],
            )
            .rule(by("helper"), "This is POISON.");
        let world = World::start(backend, script).await?;
        let (node, recorder) = (world.node().await?, world.record().await?);
        let members = [lead(&[]), member("helper", &[])];
        let started = world
            .caller
            .start(&json!({ "dir": world.dir(), "members": members }))
            .await?;
        poison(
            &world,
            backend,
            (started.session_id.as_str(), started.name.as_str()),
            true,
        )
        .await?;
        let prompted = world.caller.prompt(&started.session_id, "go").await?;
        let end = recorder
            .answered(&prompted.prompt_id)
            .await
            .with_context(|| format!("on {backend:?}:\n{}", node.log()))?;
        let Some(Ok(Event::TurnEnd(end))) = end.event() else {
            panic!("on {backend:?}: {end:?}")
        };
        assert!(
            end.message
                .as_deref()
                .is_some_and(|said| said.contains("stopped")),
            "on {backend:?}: {end:?}"
        );
        eventually("the helper is stopped", async || {
            let session = world.caller.session(&started.session_id).await.ok()?;
            session
                .agents
                .iter()
                .any(|agent| agent.name == "helper" && agent.state == AgentState::Stopped)
                .then_some(())
        })
        .await?;
        recorder
            .until("the lead's log tells of the end", |envelope| {
                envelope.kind == "worker_exit"
            })
            .await?;
        assert_eq!(world.model.request_count(), 3, "on {backend:?}");
        node.leave_despite(&["the store refuse"]).await?;
    }
    Ok(())
}
