//! `delegate_task` and `send_response`: tasks by their ids, and tasks that are not answered.

use anyhow::Result;
use planck_common::{
    command::AgentVerb,
    event::{Event, InputKind},
};
use planck_scripted_model::{Reply, Script};
use serde_json::{Value, json};

use super::scene::{Scene, by, lead, member};

fn delegate(agent: &str, task: &str) -> Reply {
    Reply::call("delegate_task", json!({ "agent": agent, "task": task }))
}

fn respond(response: &str) -> Reply {
    Reply::call("send_response", json!({ "response": response }))
}

/// Returns the kinds of the inputs that opened each turn of an agent.
async fn openings(scene: &Scene, name: &str) -> Result<Vec<Vec<InputKind>>> {
    let turns = scene
        .log_of(name)
        .await?
        .into_iter()
        .filter_map(|event| match event {
            Event::TurnStart(start) => {
                Some(start.inputs.into_iter().map(|input| input.kind).collect())
            }
            _ => None,
        });
    Ok(turns.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_reaches_the_agent_that_gave_the_task() -> Result<()> {
    let script = Script::new()
        .rule(by("lead").user("[response to task"), Reply::text("thanks"))
        // The worker's first turn ends without a response: the lead must not delegate once more.
        .rule(by("lead").user("task_unanswered"), Reply::text("I wait"))
        .rounds(
            by("lead"),
            [delegate("one", "count"), Reply::text("I wait")],
        )
        .rounds(
            by("one").user("[response to task"),
            [respond("seven, says two"), Reply::text("done")],
        )
        .rounds(
            by("one").user("count"),
            [delegate("two", "count for me"), Reply::text("passed on")],
        )
        .rounds(by("two"), [respond("seven"), Reply::text("told")]);
    let scene = Scene::start(
        script,
        &[lead(&[]), member("one", &[]), member("two", &[])],
        "go",
    )
    .await?;
    scene.answer().await?;
    scene.is_asked("lead", "seven, says two").await?;
    let task: Value = serde_json::from_str(&scene.result("lead", "delegate_task").await?.result)?;
    let given = format!(
        "[task {} from lead (agent ",
        task["task_id"].as_str().unwrap()
    );
    assert!(
        scene.requests_text("one").contains(&given),
        "{given} in {}",
        scene.requests_text("one")
    );
    assert_eq!(
        scene.result("two", "send_response").await?.result,
        "sent to one"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_without_a_response_is_reported_as_unanswered() -> Result<()> {
    let script = Script::new()
        .rule(by("lead").user("task_unanswered"), Reply::text("so be it"))
        .rounds(
            by("lead"),
            [delegate("one", "count"), Reply::text("I wait")],
        )
        .rule(by("one"), Reply::text("I have counted 7"));
    let scene = Scene::start(script, &[lead(&[]), member("one", &[])], "go").await?;
    scene.is_asked("lead", "I have counted 7").await?;
    let task: Value = serde_json::from_str(&scene.result("lead", "delegate_task").await?.result)?;
    let note = format!(
        "task_unanswered {}: the turn ended (completed) without a response",
        task["task_id"].as_str().unwrap()
    );
    assert!(
        scene.requests_text("lead").contains(&note),
        "{}",
        scene.requests_text("lead")
    );
    assert_eq!(
        openings(&scene, "lead").await?,
        [vec![InputKind::Prompt], vec![InputKind::Note]]
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn send_response_without_a_task_is_refused() -> Result<()> {
    let script = Script::new()
        .rule(
            by("one").result_of("send_response"),
            Reply::text("told: {{result:send_response}}"),
        )
        .rule(
            by("one").user("again"),
            Reply::call(
                "send_response",
                json!({ "response": "x", "task_id": "t-1" }),
            ),
        )
        .rule(by("one").user("go"), respond("x"))
        .always(Reply::text("ready"));
    let scene = Scene::start(script, &[lead(&[]), member("one", &[])], "hello").await?;
    scene.answer().await?;
    for (prompt, said) in [
        ("go", "there is no task to respond to"),
        ("again", "no task `t-1`: there is no task to respond to"),
    ] {
        scene
            .tell("one", AgentVerb::Prompt, json!({ "text": prompt }))
            .await?;
        scene.is_asked("one", said).await?;
        assert!(scene.result("one", "send_response").await?.error);
        scene
            .recorder
            .until("it is idle", |event| event.kind == "turn_end")
            .await?;
    }
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_agent_gets_neither_a_response_nor_a_task() -> Result<()> {
    let script = Script::new()
        .rule(by("one").result_of("send_response"), Reply::text("lost"))
        .rule(by("one").user("count"), respond("seven").delay_ms(1500))
        .rule(
            by("two").result_of("delegate_task"),
            Reply::text("told: {{result:delegate_task}}"),
        )
        .rule(by("two").user("go"), delegate("one", "count"))
        .rule(
            by("lead").result_of("delegate_task"),
            Reply::text("{{result:delegate_task}}"),
        )
        .rule(by("lead").user("more"), delegate("two", "count"))
        .always(Reply::text("ready"));
    let scene = Scene::start(
        script,
        &[lead(&[]), member("one", &[]), member("two", &[])],
        "hello",
    )
    .await?;
    scene.answer().await?;
    scene
        .tell("two", AgentVerb::Prompt, json!({ "text": "go" }))
        .await?;
    scene.is_asked("one", "count").await?;
    scene
        .tell("two", AgentVerb::Stop, json!({ "reason": "not needed" }))
        .await?;
    scene
        .is_asked("one", "two, who gave the task, is stopped")
        .await?;
    let more = scene
        .world
        .caller
        .prompt(&scene.started.session_id, "more")
        .await?;
    scene.recorder.answered(&more.prompt_id).await?;
    let refused = scene.result("lead", "delegate_task").await?;
    assert!(
        refused.error && refused.result.starts_with("no agent `two` in this team"),
        "{}",
        refused.result
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_task_begins_with_an_empty_context() -> Result<()> {
    let fresh = Reply::call(
        "delegate_task",
        json!({ "agent": "one", "task": "the second task", "fresh": true }),
    );
    let script = Script::new()
        .rule(by("lead").result_of("delegate_task"), Reply::text("given"))
        .rule(by("lead").user("first"), delegate("one", "the first task"))
        .rule(by("lead").user("second"), fresh)
        .rule(by("one").result_of("send_response"), Reply::text("told"))
        .rule(by("one"), respond("done"))
        .always(Reply::text("thanks"));
    let scene = Scene::start(script, &[lead(&[]), member("one", &[])], "first").await?;
    scene.is_asked("lead", "[response to task").await?;
    scene
        .world
        .caller
        .prompt(&scene.started.session_id, "second")
        .await?;
    scene.is_asked("one", "the second task").await?;
    let requests = scene
        .world
        .model
        .requests()
        .into_iter()
        .filter_map(|request| request.asked);
    let last = requests
        .filter(|asked| asked.system.contains("You are one."))
        .find(|asked| asked.last_user().contains("second"));
    assert_eq!(
        last.unwrap().messages.len(),
        1,
        "the context is empty but for the task"
    );
    scene.end().await
}
