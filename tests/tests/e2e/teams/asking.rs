//! `ask_agent`: which agents can be asked, and what the asker gets as the answer.

use std::time::{Duration, Instant};

use anyhow::Result;
use planck_common::{
    command::AgentVerb,
    event::{Event, InputKind},
};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use serde_json::json;

use super::scene::{Scene, by, lead, member, never};

fn ask(agent: &str, question: &str) -> Reply {
    Reply::call("ask_agent", json!({ "agent": agent, "question": question }))
}

/// Returns a reply that does not arrive while a test runs.
#[tokio::test(flavor = "multi_thread")]
async fn the_turn_that_read_the_question_answers_it() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                ask("helper", "what is in the file?"),
                Reply::text("It says: {{result:ask_agent}}"),
            ],
        )
        .rounds(
            by("helper"),
            [
                Reply::text("I look.").and_call("read", json!({ "path": "a.txt" })),
                Reply::text("it is empty"),
            ],
        );
    let scene = Scene::start(script, &[lead(&[]), member("helper", &["read"])], "go").await?;
    assert_eq!(scene.answer().await?, "It says: it is empty");
    let question = scene.result("lead", "ask_agent").await?;
    let helper = scene.log_of("helper").await?;
    let inputs = helper.iter().find_map(|event| {
        if let Event::TurnStart(start) = event {
            Some(&start.inputs)
        } else {
            None
        }
    });
    let input = &inputs.unwrap()[0];
    assert_eq!(
        (input.kind, input.id.as_str()),
        (InputKind::Question, question.call_id.as_str())
    );
    let said = format!(
        "[question {} from lead (agent {}); the text that ends your turn is the answer]",
        input.id,
        scene.id("lead").await?
    );
    assert!(
        scene.requests_text("helper").contains(&said),
        "{}",
        scene.requests_text("helper")
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ask_agent_refuses_ambiguous_own_and_unknown_names() -> Result<()> {
    let calls =
        ask("lead", "me?").and_call("ask_agent", json!({ "agent": "nobody", "question": "?" }));
    let calls = calls.and_call(
        "ask_agent",
        json!({ "agent": "helper", "question": "which?" }),
    );
    let script = Script::new().rounds(by("lead"), [calls, Reply::text("done")]);
    let mut twin = member("helper", &[]);
    twin["name"] = "second".into();
    let mut first = member("helper", &[]);
    first["name"] = "first".into();
    let scene = Scene::start(script, &[lead(&[]), first, twin], "go").await?;
    scene.answer().await?;
    let mut said: Vec<String> = scene
        .results("lead", "ask_agent")
        .await?
        .into_iter()
        .map(|end| end.result)
        .collect();
    said.sort();
    assert!(
        said[0].starts_with("`helper` means 2 agents; use one of their ids"),
        "{said:?}"
    );
    assert_eq!(said[1], "an agent cannot ask itself");
    assert!(
        said[2].starts_with("no agent `nobody` in this team; there are lead"),
        "{said:?}"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circle_of_questions_is_refused_at_once() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                ask("one", "q1"),
                Reply::text("one says {{result:ask_agent}}"),
            ],
        )
        .rounds(
            by("one"),
            [
                ask("two", "q2"),
                Reply::text("two says {{result:ask_agent}}"),
            ],
        )
        .rounds(
            by("two"),
            [ask("lead", "q3"), Reply::text("I decide alone")],
        );
    let scene = Scene::start(
        script,
        &[lead(&[]), member("one", &[]), member("two", &[])],
        "go",
    )
    .await?;
    assert_eq!(scene.answer().await?, "one says two says I decide alone");
    let refused = scene.result("two", "ask_agent").await?;
    assert_eq!(
        (refused.error, refused.result.as_str()),
        (
            true,
            "asking would never end: two -> lead -> one -> two wait for each other"
        )
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asker_continues_after_its_time_out() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                Reply::call(
                    "ask_agent",
                    json!({ "agent": "helper", "question": "q", "timeout_ms": 200 }),
                ),
                Reply::text("never mind"),
            ],
        )
        .rule(by("helper"), never());
    let scene = Scene::start(script, &[lead(&[]), member("helper", &[])], "go").await?;
    assert_eq!(scene.answer().await?, "never mind");
    let late = scene.result("lead", "ask_agent").await?;
    assert_eq!(
        (late.error, late.result.as_str()),
        (true, "helper has not answered in time")
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_asker_withdraws_its_unread_question() -> Result<()> {
    let script = Script::new()
        .limited(1, by("helper").user("keep busy"), never())
        .rule(by("helper"), Reply::text("free again"))
        .rule(by("lead").user("go"), ask("helper", "are you there?"));
    let scene = Scene::start(script, &[lead(&[]), member("helper", &[])], "wait").await?;
    scene.answer().await?;
    scene
        .tell("helper", AgentVerb::Prompt, json!({ "text": "keep busy" }))
        .await?;
    scene.is_asked("helper", "keep busy").await?;
    scene
        .tell("lead", AgentVerb::Prompt, json!({ "text": "go" }))
        .await?;
    scene
        .recorder
        .until("the question waits", |event| event.kind == "message_queued")
        .await?;
    scene.tell("lead", AgentVerb::Abort, json!({})).await?;
    assert_eq!(
        scene.result("lead", "ask_agent").await?.result,
        "aborted by request"
    );
    assert_eq!(
        scene
            .world
            .caller
            .agent(&scene.id("helper").await?)
            .await?
            .queued,
        0
    );
    scene.tell("helper", AgentVerb::Abort, json!({})).await?;
    assert_eq!(
        scene.tell("helper", AgentVerb::Info, json!({})).await?["turn"],
        1
    );
    scene.end().await
}

/// Has the lead ask a helper that does not answer, and sends `verb` to the helper. Returns the
/// scene, and the lead's answer, which contains the result of its call.
async fn outcome_when_helper_gets(verb: AgentVerb) -> Result<(Scene, String)> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                ask("helper", "are you well?"),
                Reply::text("told: {{result:ask_agent}}"),
            ],
        )
        .rule(by("helper"), never());
    let scene = Scene::start(script, &[lead(&[]), member("helper", &[])], "go").await?;
    scene.is_asked("helper", "are you well?").await?;
    let since = Instant::now();
    scene.tell("helper", verb, json!({})).await?;
    let answer = scene.answer().await?;
    assert!(
        since.elapsed() < Duration::from_millis(1500),
        "the asker is told at once: {:?}",
        since.elapsed()
    );
    Ok((scene, answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_of_the_asked_agent_is_reported() -> Result<()> {
    let (scene, answer) = outcome_when_helper_gets(AgentVerb::Abort).await?;
    assert_eq!(
        answer,
        "told: error: helper did not answer: its turn ended with `aborted`"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_asked_agent_is_reported() -> Result<()> {
    let (scene, answer) = outcome_when_helper_gets(AgentVerb::Stop).await?;
    assert_eq!(
        answer,
        "told: error: helper did not answer: its turn ended with `aborted`"
    );
    let exits = scene
        .log_of("lead")
        .await?
        .into_iter()
        .filter_map(|event| match event {
            Event::WorkerExit(exit) => Some((exit.name, exit.reason)),
            _ => None,
        });
    assert_eq!(
        exits.collect::<Vec<_>>(),
        [("helper".to_owned(), "stopped".to_owned())]
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_asked_agent_is_reported() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                ask("helper", "q"),
                Reply::text("told: {{result:ask_agent}}"),
            ],
        )
        .rule(by("helper"), Reply::fault(ScriptedFault::status(400)));
    let scene = Scene::start(script, &[lead(&[]), member("helper", &[])], "go").await?;
    let answer = scene.answer().await?;
    assert!(
        answer.starts_with("told: error: helper did not answer: its turn ended with `error`: "),
        "{answer}"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_wait_together_are_answered_together() -> Result<()> {
    let two = ask("helper", "how many?").and_call(
        "ask_agent",
        json!({ "agent": "helper", "question": "how much?" }),
    );
    let script = Script::new()
        .rule(
            by("helper").user("keep busy"),
            Reply {
                delay_ms: 1500,
                ..Reply::text("was busy")
            },
        )
        .rule(by("helper"), Reply::text("three, and a lot"))
        .rule(by("lead").user("wait"), Reply::text("ready"))
        .rounds(by("lead"), [two, Reply::text("done")]);
    let scene = Scene::start(script, &[lead(&[]), member("helper", &[])], "wait").await?;
    scene.answer().await?;
    scene
        .tell("helper", AgentVerb::Prompt, json!({ "text": "keep busy" }))
        .await?;
    scene.is_asked("helper", "keep busy").await?;
    let go = scene
        .world
        .caller
        .prompt(&scene.started.session_id, "go")
        .await?;
    scene.recorder.answered(&go.prompt_id).await?;
    let answers: Vec<_> = scene
        .results("lead", "ask_agent")
        .await?
        .into_iter()
        .map(|end| end.result)
        .collect();
    assert_eq!(answers, ["three, and a lot", "three, and a lot"]);
    let turns = scene
        .log_of("helper")
        .await?
        .into_iter()
        .filter_map(|event| match event {
            Event::TurnStart(start) => Some(start.inputs.len()),
            _ => None,
        });
    assert_eq!(turns.collect::<Vec<_>>(), [1, 2]);
    scene.end().await
}
