//! The outcome of a prompt: it is open until everything that the prompt caused has ended.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use planck_client::{
    Client, ClientError,
    protocol::{
        InputId,
        command::{Answer, WorkOutcome, WorkState},
        reply::Code,
        wait::WaitDecision,
    },
};
use planck_scripted_model::{Reply, Script};
use planck_tests::eventually::eventually;
use serde_json::json;

use super::scene::{Scene, by, lead, member, never};

const PATIENCE: Duration = Duration::from_secs(60);

async fn client(scene: &Scene) -> Result<(Client, InputId)> {
    let client = Client::connect(&scene.world.nats.url()).await?;
    let prompt = scene.started.prompt_id.clone();
    Ok((client, prompt.context("it was started without a prompt")?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_that_delegates_delivers_its_last_answer() -> Result<()> {
    let delegate = json!({ "agent": "one", "task": "count" });
    let script = Script::new()
        .rule(
            by("lead").user("[response to task"),
            Reply::text("Seven, says one."),
        )
        .rounds(
            by("lead"),
            [
                Reply::call("delegate_task", delegate),
                Reply::text("One is at work."),
            ],
        )
        .rounds(
            by("one"),
            [
                Reply::call("send_response", json!({ "response": "seven" })),
                Reply::text("told"),
            ],
        );
    let scene = Scene::start(script, &[lead(&[]), member("one", &[])], "go").await?;
    let (client, prompt) = client(&scene).await?;
    let session = &scene.started.session_id;
    let wait = client.wait_for_outcome(session, &prompt);
    let found = tokio::time::timeout(PATIENCE, wait).await??;
    ensure!(
        (found.state, found.outcome) == (WorkState::Over, Some(WorkOutcome::Completed)),
        "{found:?}"
    );
    ensure!(
        found.message.as_deref() == Some("Seven, says one."),
        "{found:?}"
    );
    ensure!(found.turns == [1, 2], "{found:?}");
    let log = scene.log().await?;
    let end = log.iter().find(|event| event.seq == found.seq);
    ensure!(end.is_some_and(|end| end.kind == "turn_end"), "{found:?}");

    // The outcome stays, and that of the whole session is about what is open.
    let later = client.outcome(session, &prompt, Duration::ZERO).await?;
    ensure!((later.message, later.seq) == (found.message, found.seq));
    let all = client.outcome(session, None, Duration::ZERO).await?;
    ensure!(all.state == WorkState::Over && all.outcome.is_none());
    let unknown = client
        .outcome(session, &InputId::mint(), Duration::ZERO)
        .await;
    ensure!(
        matches!(&unknown, Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound),
        "{unknown:?}"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn work_waits_while_an_agent_that_was_asked_waits_for_a_person() -> Result<()> {
    let ask = json!({ "agent": "one", "question": "what is here?" });
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                Reply::call("ask_agent", ask),
                Reply::text("One says: {{result:ask_agent}}"),
            ],
        )
        .rounds(
            by("one"),
            [
                Reply::call("bash", json!({ "command": "echo x" })),
                Reply::text("nothing"),
            ],
        );
    let mut one = member("one", &["bash"]);
    one["permissions"] = json!([{ "tool": "bash", "action": "ask" }]);
    let scene = Scene::start(script, &[lead(&[]), one], "go").await?;
    let (client, prompt) = client(&scene).await?;
    let session = &scene.started.session_id;
    let wait = client.wait_for_outcome(session, &prompt);
    let found = tokio::time::timeout(PATIENCE, wait).await??;
    ensure!(found.state == WorkState::Waiting, "{found:?}");
    ensure!((found.waits.len(), found.outcome) == (1, None), "{found:?}");

    let answer = Answer {
        wait: found.waits[0].clone(),
        decision: WaitDecision::Deny,
        args: None,
        value: None,
        reason: None,
        scope: None,
        digest: None,
        by: None,
    };
    client.answer(session, &answer).await?;
    let over = eventually("the work is over", async || {
        let found = client.wait_for_outcome(session, &prompt).await.ok()?;
        (found.state == WorkState::Over).then_some(found)
    });
    let over = over.await?;
    ensure!(
        over.message.as_deref() == Some("One says: nothing"),
        "{over:?}"
    );
    scene.end().await
}

/// The abort of a worker's turn is told to the orchestrator, which begins another turn.
#[tokio::test(flavor = "multi_thread")]
async fn abort_of_a_session_ends_a_teams_work_and_leaves_the_next_prompt() -> Result<()> {
    let delegate = json!({ "agent": "one", "task": "count" });
    let script = Script::new()
        .rule(by("lead").user("and now?"), Reply::text("Now this."))
        .rule(by("lead").user("task_unanswered"), never())
        .rounds(
            by("lead"),
            [
                Reply::call("delegate_task", delegate),
                Reply::text("One is at work."),
            ],
        )
        .rule(by("one"), never());
    let scene = Scene::start(script, &[lead(&[]), member("one", &[])], "go").await?;
    let (client, prompt) = client(&scene).await?;
    let session = &scene.started.session_id;
    scene.answer().await?;
    scene.is_asked("one", "count").await?;

    let aborted = client.abort_session(session, None, None).await?.aborted;
    ensure!(aborted == [scene.id("one").await?], "{aborted:?}");
    let found = client.outcome(session, &prompt, Duration::ZERO).await?;
    ensure!(
        (found.state, found.outcome) == (WorkState::Over, Some(WorkOutcome::Aborted)),
        "{found:?}"
    );
    let next = tokio::time::timeout(PATIENCE, client.run(session, "and now?")).await??;
    ensure!(next.message.as_deref() == Some("Now this."), "{next:?}");
    scene.end().await
}
