//! Agents of one team work together over several nodes.

use anyhow::Result;
use planck_common::{
    command::AgentVerb,
    event::{Event, TurnOutcome},
};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::{attached::Attached, eventually::eventually, world::Backend};
use serde_json::{Value, json};

use super::field::{ThreeNodes, lead_at, placed};
use crate::{flows::events::assert_dense, teams::scene::by};

fn ask(agent: &str, question: &str) -> Reply {
    Reply::call("ask_agent", json!({ "agent": agent, "question": question }))
}

/// Has agents on three nodes ask each other. Checks that the question that would close a circle is
/// refused, and that every other question is answered.
async fn asking(backend: Backend) -> Result<()> {
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
    let field = ThreeNodes::start(backend, script).await?;
    let members = [
        lead_at("a", &[]),
        placed("one", "b", &[]),
        placed("two", "c", &[]),
    ];
    let team = field.team(&members, "go").await?;
    let attached = Attached::start(&team.scene.world, &team.scene.started.name)?;
    assert_eq!(
        team.scene.answer().await?,
        "one says two says I decide alone"
    );
    for (name, place) in [("lead", "a"), ("one", "b"), ("two", "c")] {
        assert_eq!(team.place_of(name).await?, place);
    }
    let refused = team.scene.result("two", "ask_agent").await?;
    let said = "asking would never end: two -> lead -> one -> two wait for each other";
    assert_eq!((refused.error, refused.result.as_str()), (true, said));

    let log = team.scene.log().await?;
    assert_dense(&log);
    let told = attached
        .caught_up(log.last().and_then(|event| event.seq).unwrap())
        .await?;
    let values = |events: &[planck_common::envelope::Envelope]| -> Vec<Value> {
        events
            .iter()
            .map(|event| serde_json::to_value(event).unwrap())
            .collect()
    };
    assert_eq!(
        values(&told),
        values(&log),
        "an attached client sees one stream of three nodes"
    );
    let subject = format!("session.{}", team.scene.started.session_id);
    let heard = eventually("every subscriber has received the whole log", async || {
        let mut heard = team.scene.recorder.events(&subject);
        heard.retain(|event| event.seq.is_some());
        heard.sort_by_key(|event| event.seq);
        (heard.len() >= log.len()).then_some(heard)
    })
    .await?;
    assert_eq!(values(&heard), values(&log), "and so does who listens");
    attached.leave().await?;
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circle_over_three_nodes_is_refused_on_postgres() -> Result<()> {
    asking(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn a_circle_over_three_nodes_is_refused_on_sqlite() -> Result<()> {
    asking(Backend::Sqlite).await
}

/// Checks that a task goes from the lead through one worker to another, and that its response comes
/// back. Also checks that the lead gets the text of a worker that sends no response.
async fn delegating(backend: Backend) -> Result<()> {
    let delegate = |agent: &str, task: &str| {
        Reply::call("delegate_task", json!({ "agent": agent, "task": task }))
    };
    let respond = |response: &str| Reply::call("send_response", json!({ "response": response }));
    let script = Script::new()
        .rule(by("lead").user("[response to task"), Reply::text("thanks"))
        .rule(by("lead").user("task_unanswered"), Reply::text("a pity"))
        .rounds(
            by("lead").user("idle"),
            [delegate("two", "nothing"), Reply::text("I wait")],
        )
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
        .rule(by("two").user("nothing"), Reply::text("I do not answer"))
        .rounds(by("two"), [respond("seven"), Reply::text("told")]);
    let field = ThreeNodes::start(backend, script).await?;
    let members = [
        lead_at("a", &[]),
        placed("one", "b", &[]),
        placed("two", "c", &[]),
    ];
    let team = field.team(&members, "go").await?;
    team.scene.answer().await?;
    team.scene.is_asked("lead", "seven, says two").await?;
    assert_eq!(
        team.scene.result("two", "send_response").await?.result,
        "sent to one"
    );
    team.scene
        .world
        .caller
        .prompt(&team.scene.started.session_id, "idle")
        .await?;
    team.scene.is_asked("lead", "I do not answer").await?;
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_reaches_its_task_over_nodes_on_postgres() -> Result<()> {
    delegating(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn a_response_reaches_its_task_over_nodes_on_sqlite() -> Result<()> {
    delegating(Backend::Sqlite).await
}

/// Has a lead list, interrupt and end workers on other nodes. Checks that the lead is notified when
/// they end.
async fn commanding(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rule(by("one"), Reply::fault(ScriptedFault::HangBeforeHead))
        .rule(by("lead").result_of("list_team"), Reply::text("seen"))
        .rule(
            by("lead").result_of("interrupt_agent"),
            Reply::text("stopped short"),
        )
        .rule(
            by("lead").result_of("destroy_agent"),
            Reply::text("gone: {{result:destroy_agent}}"),
        )
        .rule(by("lead").user("list"), Reply::call("list_team", json!({})))
        .rule(
            by("lead").user("interrupt"),
            Reply::call(
                "interrupt_agent",
                json!({ "agent": "one", "reason": "wrong way" }),
            ),
        )
        .rule(
            by("lead").user("end"),
            Reply::call(
                "destroy_agent",
                json!({ "agent": "one", "reason": "enough" }),
            ),
        )
        .always(Reply::text("ready"));
    let field = ThreeNodes::start(backend, script).await?;
    let (a, b) = (field.id("a").clone(), field.id("b").clone());
    let team = field
        .team(
            &[
                lead_at("a", &["interrupt_agent", "destroy_agent"]),
                placed("one", "b", &[]),
            ],
            "hello",
        )
        .await?;
    team.scene.answer().await?;
    let prompt = async |text: &str| -> Result<Option<String>> {
        let accepted = team
            .scene
            .world
            .caller
            .prompt(&team.scene.started.session_id, text)
            .await?;
        let ended = team.scene.recorder.answered(&accepted.prompt_id).await?;
        let Some(Ok(Event::TurnEnd(end))) = ended.event() else {
            panic!("{ended:?}")
        };
        Ok(end.message)
    };
    team.scene
        .tell("one", AgentVerb::Prompt, json!({ "text": "work" }))
        .await?;
    team.scene.is_asked("one", "work").await?;
    prompt("list").await?;
    let rows: Vec<Value> =
        serde_json::from_str(&team.scene.result("lead", "list_team").await?.result)?;
    let seen: Vec<Value> = rows
        .iter()
        .map(|row| json!([row["name"], row["node_id"], row["state"], row["turn"]]))
        .collect();
    assert_eq!(
        seen,
        [
            json!(["lead", a, "executing_tools", 2]),
            json!(["one", b, "streaming", 1])
        ]
    );

    prompt("interrupt").await?;
    assert_eq!(
        team.scene.tell("one", AgentVerb::Info, json!({})).await?["state"],
        "idle"
    );
    let ends = team
        .scene
        .log_of("one")
        .await?
        .into_iter()
        .filter_map(|event| match event {
            Event::TurnEnd(end) => Some(end.outcome),
            _ => None,
        });
    assert_eq!(ends.collect::<Vec<_>>(), [TurnOutcome::Aborted]);

    for said in ["gone: one is stopped", "gone: one was stopped before"] {
        assert_eq!(prompt("end").await?.as_deref(), Some(said));
    }
    let exits: Vec<Event> = eventually("the lead is told", async || {
        let log = team.scene.log_of("lead").await.ok()?;
        let exits: Vec<Event> = log
            .into_iter()
            .filter(|event| matches!(event, Event::WorkerExit(_)))
            .collect();
        (!exits.is_empty()).then_some(exits)
    })
    .await?;
    assert!(
        matches!(exits.as_slice(), [Event::WorkerExit(exit)] if exit.reason == "enough"),
        "{exits:?}"
    );
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_commands_workers_of_other_nodes_on_postgres() -> Result<()> {
    commanding(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn a_lead_commands_workers_of_other_nodes_on_sqlite() -> Result<()> {
    commanding(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_question_on_another_node_is_withdrawn() -> Result<()> {
    let script = Script::new()
        .limited(
            1,
            by("helper").user("keep busy"),
            Reply::fault(ScriptedFault::HangBeforeHead),
        )
        .rule(by("helper"), Reply::text("free again"))
        .rule(by("lead").user("go"), ask("helper", "are you there?"))
        .always(Reply::text("ready"));
    let field = ThreeNodes::start(Backend::Postgres, script).await?;
    let team = field
        .team(&[lead_at("a", &[]), placed("helper", "c", &[])], "wait")
        .await?;
    team.scene.answer().await?;
    team.scene
        .tell("helper", AgentVerb::Prompt, json!({ "text": "keep busy" }))
        .await?;
    team.scene.is_asked("helper", "keep busy").await?;
    team.scene
        .tell("lead", AgentVerb::Prompt, json!({ "text": "go" }))
        .await?;
    team.scene
        .recorder
        .until("the question waits", |event| event.kind == "message_queued")
        .await?;
    team.scene.tell("lead", AgentVerb::Abort, json!({})).await?;
    assert_eq!(
        team.scene.result("lead", "ask_agent").await?.result,
        "aborted by request"
    );
    assert_eq!(
        team.scene
            .world
            .caller
            .agent(&team.scene.id("helper").await?)
            .await?
            .queued,
        0
    );
    team.scene
        .tell("helper", AgentVerb::Abort, json!({}))
        .await?;
    team.end().await
}
