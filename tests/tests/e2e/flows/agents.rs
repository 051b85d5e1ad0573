//! Every verb of an agent.

use anyhow::Result;
use planck_common::{
    command::{
        AgentState, AgentStateNow, AgentVerb, Model, SavedAt, SessionState, Snapshot, Tools,
    },
    event::{Event, TurnOutcome},
    message::{Custom, Part},
    reply::Code,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    caller::agent_at,
    eventually::eventually,
    node::runs,
    world::{Backend, World},
};
use serde_json::json;

use super::events::assert_dense;

async fn all(backend: Backend) -> Result<()> {
    let world = World::start(backend, Script::new().always(Reply::text("Quick."))).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let mut start = world.solo();
    start["prompt"] = "one".into();
    let started = world.caller.start(&start).await?;
    let lead = started.orchestrator.as_str();
    recorder
        .answered(started.prompt_id.as_ref().unwrap())
        .await?;

    let info = world.caller.agent(lead).await?;
    assert_eq!(
        (info.state, info.turn, info.queued, info.epoch),
        (AgentState::Idle, 1, 0, 1)
    );
    assert_eq!(
        (info.node_id.as_ref(), info.tools),
        (
            Some(node.id()),
            vec!["bash".to_owned(), "read".into(), "write".into()]
        )
    );
    assert!(info.usage.input_tokens > 0 && info.context_tokens > 0 && info.context_window > 0);
    let Snapshot { head, running, .. } = world.caller.snapshot(lead).await?;
    assert!(running.is_none());
    assert_eq!(head, world.caller.session(&started.session_id).await?.head);

    let nudged: AgentStateNow = world
        .caller
        .ask(&agent_at(lead, AgentVerb::Nudge), &json!({}))
        .await?;
    assert_ne!(nudged.state, AgentState::Stopped);
    let end = recorder
        .until("the nudge's turn ends", |event| {
            event.kind == "turn_end" && event.turn == 2
        })
        .await?;
    let Some(Ok(Event::TurnEnd(end))) = end.event() else {
        panic!("{end:?}")
    };
    assert_eq!((end.outcome, end.inputs), (TurnOutcome::Completed, vec![]));

    let tools = |verb| agent_at(lead, verb);
    let with: Tools = world
        .caller
        .ask(&tools(AgentVerb::AddTool), &json!({ "name": "edit" }))
        .await?;
    assert_eq!(with.tools, ["bash", "edit", "read", "write"]);
    let refusal = world
        .caller
        .refusal(&tools(AgentVerb::AddTool), &json!({ "name": "edit" }))
        .await?;
    assert_eq!(refusal.code, Code::Exists);
    assert_eq!(
        world
            .caller
            .refusal(&tools(AgentVerb::AddTool), &json!({ "name": "fly" }))
            .await?
            .code,
        Code::NotFound
    );
    let without: Tools = world
        .caller
        .ask(&tools(AgentVerb::RemoveTool), &json!({ "name": "write" }))
        .await?;
    assert_eq!(without.tools, ["bash", "edit", "read"]);
    assert_eq!(
        world
            .caller
            .refusal(&tools(AgentVerb::RemoveTool), &json!({ "name": "write" }))
            .await?
            .code,
        Code::NotFound
    );

    let model: Model = world
        .caller
        .ask(
            &agent_at(lead, AgentVerb::ChangeModel),
            &json!({ "model_id": "other" }),
        )
        .await?;
    assert_eq!(
        (model.model.provider.as_str(), model.model.id.as_str()),
        ("scripted", "other")
    );
    let saved: SavedAt = world
        .caller
        .ask(
            &agent_at(lead, AgentVerb::Checkpoint),
            &json!({ "summary": "We said one." }),
        )
        .await?;
    let messages = world.caller.messages(&started.session_id, None).await?;
    assert_eq!(
        (messages.len(), &messages[0].custom),
        (1, &Some(Custom::Summary))
    );
    assert!(messages[0].id <= saved.seq);
    let prompted = world.caller.prompt(&started.session_id, "two").await?;
    recorder.answered(&prompted.prompt_id).await?;
    let asked = world
        .model
        .requests()
        .pop()
        .and_then(|request| request.asked)
        .expect("a request");
    assert_eq!(asked.model, "other");
    assert!(
        asked.tools.iter().all(|tool| tool != "write"),
        "{:?}",
        asked.tools
    );
    assert!(
        format!("{:?}", asked.messages).contains("We said one."),
        "{:?}",
        asked.messages
    );

    let log = world.caller.log(&started.session_id, 1).await?;
    assert_dense(&log);
    for kind in [
        "tools_changed",
        "model_changed",
        "checkpoint",
        "usage_delta",
    ] {
        assert!(log.iter().any(|event| event.kind == kind), "{kind}");
    }
    let stopped: AgentStateNow = world
        .caller
        .ask(
            &agent_at(lead, AgentVerb::Stop),
            &json!({ "reason": "enough" }),
        )
        .await?;
    assert_eq!(stopped.state, AgentState::Stopped);
    assert_eq!(
        world.caller.session(&started.session_id).await?.state,
        SessionState::Closed,
        "a lead's stop closes"
    );
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_of_agents_do_what_they_say_on_sqlite() -> Result<()> {
    all(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn verbs_of_agents_do_what_they_say_on_postgres() -> Result<()> {
    all(Backend::Postgres).await
}

/// The reply to an abort, a stop or a close arrives only after the ended processes are dead.
#[tokio::test(flavor = "multi_thread")]
async fn ended_work_is_dead_when_the_reply_arrives() -> Result<()> {
    // A number of seconds that no other `sleep` on this machine has.
    let long = format!("100.{}3", std::process::id());
    let command = format!("(setsid sleep {long} &); sleep {long}");
    let script = Script::new()
        .rule(When::any().result_of("bash"), Reply::text("Ended."))
        .always(
            Reply::new()
                .say("I run it.")
                .and_call("bash", json!({ "command": command })),
        );
    let world = World::start(Backend::Sqlite, script).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = world.caller.start(&world.solo()).await?;
    let (lead, session) = (started.orchestrator.as_str(), started.session_id.as_str());
    for end in [
        format!("cmd.agent.{lead}.abort"),
        format!("cmd.session.{session}.abort"),
        format!("cmd.session.{session}.close"),
    ] {
        let prompted = world
            .caller
            .prompt(session, &format!("run it until {end}"))
            .await?;
        eventually("the processes run", async || runs(&long).then_some(())).await?;
        world.caller.raw(&end, "{}").await?;
        assert!(!runs(&long), "{end}: processes live on");
        let event = recorder.answered(&prompted.prompt_id).await?;
        let Some(Ok(Event::TurnEnd(turn))) = event.event() else {
            panic!("{event:?}")
        };
        assert_eq!(turn.outcome, TurnOutcome::Aborted, "{end}");
    }
    let messages = world.caller.messages(session, None).await?;
    let results = messages
        .iter()
        .flat_map(|message| &message.content)
        .filter_map(|part| match part {
            Part::ToolResult { text, error, .. } => Some((text.as_str(), *error)),
            _ => None,
        });
    let results: Vec<_> = results.collect();
    assert_eq!(results.len(), 3, "each call is answered");
    assert!(results.iter().all(|(_, error)| *error), "{results:?}");
    world.check_model()?;
    node.leave().await
}

/// A stopped member is gone permanently. Its unread inputs get their outcome, and its orchestrator
/// is notified.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_member_is_gone_and_its_unread_inputs_have_an_outcome() -> Result<()> {
    let script = Script::new()
        .rule(When::any().user("slow"), super::prompts::endless_words())
        .always(Reply::text("Quick."));
    let world = World::start(Backend::Sqlite, script).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let members = json!([{ "type": "lead", "tools": ["spawn_agent"] }, { "type": "hand", "tools": ["read"] }]);
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": members }))
        .await?;
    let info = world.caller.session(&started.session_id).await?;
    let hand = info
        .agents
        .iter()
        .find(|agent| agent.name == "hand")
        .unwrap()
        .id
        .clone();
    let slow: planck_common::command::Accepted = world
        .caller
        .ask(
            &agent_at(&hand, AgentVerb::Prompt),
            &json!({ "text": "slow" }),
        )
        .await?;
    super::prompts::streaming(&world, &hand).await?;
    let _: planck_common::command::Accepted = world
        .caller
        .ask(
            &agent_at(&hand, AgentVerb::Prompt),
            &json!({ "text": "unread" }),
        )
        .await?;
    let stopped: AgentStateNow = world
        .caller
        .ask(&agent_at(&hand, AgentVerb::Stop), &json!({}))
        .await?;
    assert_eq!(stopped.state, AgentState::Stopped);
    let said = world
        .caller
        .messages(&started.session_id, Some(&hand))
        .await?;
    assert!(
        !said.is_empty() && said.iter().all(|message| message.agent_id == hand),
        "what it said stays: {said:?}"
    );
    recorder.answered(&slow.prompt_id).await?;
    recorder
        .until("the lead hears of it", |event| {
            event.kind == "worker_exit" && event.agent_id == started.orchestrator
        })
        .await?;
    assert_eq!(
        world
            .caller
            .refusal(&agent_at(&hand, AgentVerb::Info), &json!({}))
            .await?
            .code,
        Code::NotFound
    );
    let refusal = world
        .caller
        .refusal(
            &agent_at(&hand, AgentVerb::Prompt),
            &json!({ "text": "hello?" }),
        )
        .await?;
    assert_eq!(refusal.code, Code::NotFound);
    assert_eq!(
        world.caller.session(&started.session_id).await?.state,
        SessionState::Open
    );
    let prompted = world.caller.prompt(&started.session_id, "go on").await?;
    recorder.answered(&prompted.prompt_id).await?;
    node.leave().await
}

/// After a change to an unknown model, a warning says what is assumed of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_to_an_unknown_model_comes_with_a_warning() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("Quick."))).await?;
    let openai = world.model.openai_url();
    let node = world
        .node_with(&[("OPENAI_API_KEY", "none"), ("OPENAI_BASE_URL", &openai)])
        .await?;
    let recorder = world.record().await?;
    let started = world.caller.start(&world.solo()).await?;
    let change = agent_at(&started.orchestrator, AgentVerb::ChangeModel);
    for (model, warned) in [("gpt-5", false), ("mystery-1", true)] {
        let from = world.caller.session(&started.session_id).await?.head + 1;
        let _: Model = world
            .caller
            .ask(&change, &json!({ "provider": "openai", "model_id": model }))
            .await?;
        let prompted = world.caller.prompt(&started.session_id, "hello").await?;
        recorder.answered(&prompted.prompt_id).await?;
        let log = world.caller.log(&started.session_id, from).await?;
        assert_eq!(
            log.iter()
                .filter(|event| event.kind == "model_changed")
                .count(),
            1
        );
        let warnings: Vec<_> = log
            .iter()
            .filter(|event| event.kind == "warning")
            .map(|event| event.data.get())
            .collect();
        assert_eq!(warnings.len(), usize::from(warned), "{model}: {warnings:?}");
        assert!(
            warnings
                .iter()
                .all(|text| text.contains("unknown_model") && text.contains(model)),
            "{warnings:?}"
        );
        assert_eq!(
            world
                .model
                .requests()
                .pop()
                .and_then(|request| request.asked)
                .unwrap()
                .model,
            model
        );
    }
    assert_dense(&world.caller.log(&started.session_id, 1).await?);
    world.check_model()?;
    node.leave().await
}
