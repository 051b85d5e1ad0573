//! Prompts in all modes, repeated prompts, and prompts to a closed session.

use anyhow::Result;
use planck_common::{
    InputId,
    command::{
        Accepted, AgentState, AgentStateNow, AgentVerb, SessionState, SessionStateNow, SessionVerb,
    },
    event::{Event, TurnOutcome},
    reply::Code,
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    caller::{agent_at, session_at},
    eventually::eventually,
    node::Node,
    world::{Backend, World},
};
use serde_json::json;

/// Returns a reply that is sent slowly, which leaves time to act in the middle of it.
pub fn slow_words() -> Reply {
    words(400)
}

/// Returns a reply that takes longer than any test runs.
pub fn endless_words() -> Reply {
    words(10_000)
}

fn words(count: usize) -> Reply {
    Reply::text("word ".repeat(count)).pace(Pace::per_second(50.0).chunk(10))
}

pub fn script() -> Script {
    Script::new()
        .rule(When::any().user("slow"), endless_words())
        .always(Reply::text("Quick."))
}

async fn session(world: &World) -> Result<planck_common::command::Started> {
    world.caller.start(&world.solo()).await
}

pub async fn streaming(world: &World, agent: &str) -> Result<()> {
    eventually("the agent streams some words", async || {
        let running = world.caller.snapshot(agent).await.ok()?.running?;
        running
            .parts
            .iter()
            .any(|part| part.text.len() > 20)
            .then_some(())
    })
    .await
}

async fn ended(world: &World, session: &str, input: &InputId) -> Result<Event> {
    let found = eventually("the input's turn has ended", async || {
        let log = world.caller.log(session, 1).await.ok()?;
        log.into_iter()
            .find(|event| planck_tests::recorder::ends(event, input))
    });
    Ok(found.await?.event().unwrap()?)
}

async fn prompt(world: &World, session: &str, text: &str, mode: &str) -> Result<Accepted> {
    world
        .caller
        .ask(
            &session_at(session, SessionVerb::Prompt),
            &json!({ "text": text, "mode": mode }),
        )
        .await
}

async fn modes(backend: Backend) -> Result<()> {
    let world = World::start(backend, script()).await?;
    let node = world.node().await?;
    let started = session(&world).await?;
    let (session, lead) = (started.session_id.as_str(), started.orchestrator.as_str());
    let first = prompt(&world, session, "slow", "queue").await?;
    streaming(&world, lead).await?;

    let refused = world
        .caller
        .refusal(
            &session_at(session, SessionVerb::Prompt),
            &json!({ "text": "no", "mode": "reject" }),
        )
        .await?;
    assert_eq!(refused.code, Code::Busy);
    let second = prompt(&world, session, "two", "queue").await?;
    let third = prompt(&world, session, "three", "queue").await?;
    assert_eq!(world.caller.agent(lead).await?.queued, 2);
    let state: AgentStateNow = world
        .caller
        .ask(
            &agent_at(lead, AgentVerb::Abort),
            &json!({ "reason": "enough" }),
        )
        .await?;
    assert_ne!(state.state, AgentState::Stopped);

    let Event::TurnEnd(end) = ended(&world, session, &first.prompt_id).await? else {
        panic!("the aborted turn ended otherwise")
    };
    assert_eq!(end.outcome, TurnOutcome::Aborted);
    assert!(
        end.message
            .is_some_and(|text| text.starts_with("word word")),
        "the partial text is kept"
    );
    let Event::TurnEnd(end) = ended(&world, session, &second.prompt_id).await? else {
        panic!("the inbox did not go on")
    };
    assert_eq!(
        (end.outcome, end.message.as_deref()),
        (TurnOutcome::Completed, Some("Quick."))
    );
    assert_eq!(
        end.inputs,
        [second.prompt_id, third.prompt_id],
        "one turn for all that waited, in order"
    );
    let messages = world.caller.messages(session, None).await?;
    let partial = messages.iter().find(|message| message.metadata.interrupted);
    assert!(partial.is_some(), "{messages:?}");

    let again = prompt(&world, session, "now", "reject").await?;
    ended(&world, session, &again.prompt_id).await?;
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_is_honoured_and_an_abort_keeps_the_inbox_on_sqlite() -> Result<()> {
    modes(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn each_mode_is_honoured_and_an_abort_keeps_the_inbox_on_postgres() -> Result<()> {
    modes(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steered_prompt_joins_the_running_turn() -> Result<()> {
    let script = Script::new()
        .rule(When::any().last("by the way"), Reply::text("Both done."))
        .rule(When::any().result_of("bash"), Reply::text("Alone."))
        .always(Reply::call(
            "bash",
            json!({ "command": "until [ -e go ]; do sleep 0.05; done" }),
        ));
    let world = World::start(Backend::Sqlite, script).await?;
    let node = world.node().await?;
    let started = session(&world).await?;
    let session = started.session_id.as_str();
    let first = prompt(&world, session, "wait", "queue").await?;
    eventually("the tool runs", async || {
        (world.caller.agent(&started.orchestrator).await.ok()?.state == AgentState::ExecutingTools)
            .then_some(())
    })
    .await?;
    let steered = prompt(&world, session, "by the way", "steer").await?;
    std::fs::write(world.dir().join("go"), "")?;
    let Event::TurnEnd(end) = ended(&world, session, &steered.prompt_id).await? else {
        panic!("an error")
    };
    assert_eq!(end.message.as_deref(), Some("Both done."));
    assert_eq!(end.inputs, [first.prompt_id, steered.prompt_id]);
    world.check_model()?;
    node.leave().await
}

async fn same_reply(world: &World, node: Node) -> Result<()> {
    let started = session(world).await?;
    let to = session_at(&started.session_id, SessionVerb::Prompt);
    let body = json!({ "text": "hello", "prompt_id": "p-1" });
    let first: Accepted = world.caller.ask(&to, &body).await?;
    ended(world, &started.session_id, &first.prompt_id).await?;
    let again: Accepted = world.caller.ask(&to, &body).await?;
    assert_eq!(
        (&again.prompt_id, again.seq, &again.agent_id),
        (&first.prompt_id, first.seq, &first.agent_id)
    );
    let log = world.caller.log(&started.session_id, 1).await?;
    assert_eq!(
        log.iter()
            .filter(|event| event.kind == "turn_start")
            .count(),
        1,
        "done once"
    );

    for (body, said) in [
        (json!({}), "one of `text` and `content`"),
        (
            json!({ "text": "a", "content": [] }),
            "one of `text` and `content`",
        ),
        (json!({ "text": " " }), "empty"),
        (json!({ "content": [] }), "empty"),
        (
            json!({ "content": [{ "type": "thinking", "text": "x" }] }),
            "text, image or file",
        ),
        (json!({ "text": "x", "mode": "later" }), "unknown variant"),
        (
            json!({ "text": "x", "prompt_id": "a.b" }),
            "malformed input id",
        ),
    ] {
        let refusal = world.caller.refusal(&to, &body).await?;
        assert_eq!(refusal.code, Code::BadRequest, "{body}: {refusal}");
        assert!(refusal.message.contains(said), "{body}: {refusal}");
    }
    let refusal = world
        .caller
        .refusal(&to, &json!({ "text": "x", "agent": "nobody" }))
        .await?;
    assert_eq!(refusal.code, Code::NotFound);
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_prompt_gets_the_same_reply() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    same_reply(&world, node).await
}

async fn closed_then_prompted(backend: Backend) -> Result<()> {
    let world = World::start(backend, script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = session(&world).await?;
    let session = started.session_id.as_str();
    let slow = prompt(&world, session, "slow", "queue").await?;
    streaming(&world, &started.orchestrator).await?;
    let waiting = prompt(&world, session, "two", "queue").await?;
    let close = session_at(session, SessionVerb::Close);
    let closed: SessionStateNow = world
        .caller
        .ask(&close, &json!({ "reason": "the day is over" }))
        .await?;
    assert_eq!(closed.state, SessionState::Closed);
    recorder.answered(&slow.prompt_id).await?;
    assert_eq!(
        world.caller.session(session).await?.state,
        SessionState::Closed
    );
    assert_eq!(world.caller.session(session).await?.owner, None);
    assert_eq!(
        world.caller.agent(&started.orchestrator).await?.node_id,
        None
    );

    // A snapshot or an abort of one of its agents does not open a closed session.
    world.caller.snapshot(&started.orchestrator).await?;
    let _: AgentStateNow = world
        .caller
        .ask(
            &agent_at(&started.orchestrator, AgentVerb::Abort),
            &json!({}),
        )
        .await?;
    let again: SessionStateNow = world.caller.ask(&close, &json!({})).await?;
    assert_eq!(
        (again.state, world.caller.session(session).await?.state),
        (SessionState::Closed, SessionState::Closed)
    );

    let prompted = prompt(&world, session, "hello again", "queue").await?;
    recorder.answered(&prompted.prompt_id).await?;
    assert_eq!(
        world.caller.session(session).await?.state,
        SessionState::Open
    );
    let log = world.caller.log(session, 1).await?;
    super::events::assert_dense(&log);
    let kinds: Vec<&str> = log.iter().map(|event| event.kind.as_str()).collect();
    let at = |kind: &str| {
        kinds
            .iter()
            .position(|known| *known == kind)
            .unwrap_or_else(|| panic!("no {kind} in {kinds:?}"))
    };
    assert!(
        at("agent_stopped") < at("session_closed") && at("session_closed") < at("session_resumed"),
        "{kinds:?}"
    );
    let consumed = log
        .iter()
        .filter(|event| planck_tests::recorder::ends(event, &waiting.prompt_id))
        .count();
    assert_eq!(
        consumed, 0,
        "what was unread when the session closed had its outcome then"
    );
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_opens_a_closed_session_of_sqlite() -> Result<()> {
    closed_then_prompted(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn a_prompt_opens_a_closed_session_of_postgres() -> Result<()> {
    closed_then_prompted(Backend::Postgres).await
}

/// The close is answered when every agent is released, so a prompt right after it can take up the
/// session.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_right_after_a_close_is_answered() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = session(&world).await?;
    for n in 0..25 {
        let _: SessionStateNow = world
            .caller
            .ask(
                &session_at(&started.session_id, SessionVerb::Close),
                &json!({}),
            )
            .await?;
        let prompted = world
            .caller
            .prompt(&started.session_id, &format!("hello {n}"))
            .await?;
        recorder.answered(&prompted.prompt_id).await?;
    }
    super::events::assert_dense(&world.caller.log(&started.session_id, 1).await?);
    node.leave().await
}

/// Sends many prompts to a closed session at the same time. Checks that the session is taken up
/// once, and that each prompt is answered.
async fn many_open_it_at_once(backend: Backend) -> Result<()> {
    let world = World::start(backend, script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = session(&world).await?;
    for round in 0..5 {
        let _: SessionStateNow = world
            .caller
            .ask(
                &session_at(&started.session_id, SessionVerb::Close),
                &json!({}),
            )
            .await?;
        let prompts = (0..8).map(|n| {
            world.caller.prompt(
                &started.session_id,
                ["a", "b", "c", "d", "e", "f", "g", "h"][n],
            )
        });
        for accepted in futures_util::future::try_join_all(prompts).await? {
            recorder.answered(&accepted.prompt_id).await?;
        }
        let log = world.caller.log(&started.session_id, 1).await?;
        let resumed = log
            .iter()
            .filter(|event| event.kind == "session_resumed")
            .count();
        assert_eq!(resumed, round + 1, "taken up once each time");
        super::events::assert_dense(&log);
    }
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_prompts_open_a_closed_session_of_sqlite_once() -> Result<()> {
    many_open_it_at_once(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_prompts_open_a_closed_session_of_postgres_once() -> Result<()> {
    many_open_it_at_once(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_without_a_node_with_the_workspace_warns_and_runs_later() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let deep = world.dir().display().to_string();
    let with_workspace = [("PLANCK_WORKSPACES_DEEP", deep.as_str())];
    let (one, two) = (world.node_with(&with_workspace).await?, world.node().await?);
    let mut start = world.solo();
    (start["workspace"], start["dir"]) = ("deep".into(), ".".into());
    let started = world.caller.start(&start).await?;
    one.leave().await?;
    let accepted = world.caller.prompt(&started.session_id, "go").await?;
    let warning = accepted.warning.unwrap_or_default();
    assert!(
        warning.starts_with("no node has workspace `deep`"),
        "{warning}"
    );
    let three = world.node_with(&with_workspace).await?;
    ended(&world, &started.session_id, &accepted.prompt_id).await?;
    three.leave().await?;
    two.leave().await
}
