//! Answers in a shape: through the wire, between agents, and over the death of a node.

use anyhow::{Context as _, Result};
use planck_common::{
    command::{Outcome, SessionVerb, WorkOutcome},
    event::{Event, TurnEnd},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::session_at,
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::scene::{Scene, by, lead, member, never};

fn schema() -> Value {
    json!({
        "type": "object", "properties": { "sum": { "type": "integer" } },
        "required": ["sum"], "additionalProperties": false,
    })
}

fn submit(args: Value) -> Reply {
    Reply::call("submit_output", args)
}

/// Starts a team whose first prompt has the shape.
async fn start(world: World, members: &[Value]) -> Result<Scene> {
    let node = world.node().await?;
    let body = json!({
        "dir": world.dir(), "members": members, "prompt": "go", "output": { "schema": schema() },
    });
    Scene::start_as(world, node, &body).await
}

/// Waits until the work of the first prompt is over.
async fn outcome(scene: &Scene) -> Result<Outcome> {
    let to = session_at(&scene.started.session_id, SessionVerb::Outcome);
    let body = json!({ "prompt_id": scene.started.prompt_id });
    eventually("the work is over", async || {
        let outcome: Outcome = scene.world.caller.read(&to, &body).await.ok()?;
        outcome.outcome.is_some().then_some(outcome)
    })
    .await
}

async fn end_of_lead(scene: &Scene) -> Result<TurnEnd> {
    let log = scene.log_of("lead").await?;
    let ends = log.into_iter().filter_map(|event| match event {
        Event::TurnEnd(end) => Some(end),
        _ => None,
    });
    ends.last().context("no turn has ended")
}

fn object(outcome: &Outcome) -> Option<&str> {
    outcome.output.as_deref().map(|output| output.get())
}

/// The node is killed when the answer is in the log, and another call of the reply still runs.
async fn killed_after_the_answer(backend: Backend) -> Result<()> {
    let slow = json!({ "command": "touch begun; sleep 600" });
    let script = Script::new().rule(
        by("lead"),
        submit(json!({ "sum": 3 })).and_call("bash", slow),
    );
    let world = World::start(backend, script).await?;
    let begun = world.dir().join("begun");
    let mut scene = start(world, &[lead(&["bash"])]).await?;
    eventually("the answer is saved", async || {
        let taken = scene.results("lead", "submit_output").await.ok()?;
        (begun.exists() && !taken.is_empty()).then_some(())
    })
    .await?;
    scene.again().await?;
    let outcome = outcome(&scene).await?;
    assert_eq!(
        (outcome.outcome, object(&outcome)),
        (Some(WorkOutcome::Completed), Some(r#"{"sum":3}"#))
    );
    assert_eq!(scene.results("lead", "submit_output").await?.len(), 1);
    assert_eq!(
        scene.world.model.requests().len(),
        1,
        "nothing more was asked"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_a_shape_outlives_its_node() -> Result<()> {
    killed_after_the_answer(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_a_shape_outlives_its_node_on_postgres() -> Result<()> {
    killed_after_the_answer(Backend::Postgres).await
}

/// The node is killed after a wrong answer. The repairs before it count.
#[tokio::test(flavor = "multi_thread")]
async fn repairs_are_counted_over_the_death_of_a_node() -> Result<()> {
    let wrong = |sum: &str| submit(json!({ "sum": sum }));
    let script = Script::new()
        .limited(1, by("lead").round(0), wrong("one"))
        .limited(1, by("lead").round(1), never())
        .limited(1, by("lead").round(1), wrong("two"))
        .rule(by("lead").round(2), wrong("three"));
    let world = World::start(Backend::Sqlite, script).await?;
    let mut scene = start(world, &[lead(&[])]).await?;
    scene.is_asked("lead", "`sum` must be an integer").await?;
    scene.again().await?;
    let outcome = outcome(&scene).await?;
    let error = outcome.error.as_ref().context("no error")?;
    assert_eq!(
        (outcome.outcome, object(&outcome), error.code.as_str()),
        (Some(WorkOutcome::Error), None, "output_invalid")
    );
    assert!(
        error.reason.contains("after 2 repairs")
            && error.reason.contains("`sum` must be an integer"),
        "{error:?}"
    );
    scene.end().await
}

/// A model that ends its turn in prose is told to give the answer, in a request that names the tool.
#[tokio::test(flavor = "multi_thread")]
async fn prose_is_followed_by_one_demand() -> Result<()> {
    let script = Script::new()
        .rule(
            by("lead").user("Call submit_output now"),
            submit(json!({ "sum": 5 })),
        )
        .always(Reply::text("It is five."));
    let world = World::start(Backend::Sqlite, script).await?;
    let scene = start(world, &[lead(&[])]).await?;
    assert_eq!(object(&outcome(&scene).await?), Some(r#"{"sum":5}"#));
    let end = end_of_lead(&scene).await?;
    assert_eq!((end.output_repairs, end.output_due.is_some()), (0, false));
    let requests = scene.world.model.requests();
    let forced: Vec<bool> = requests
        .iter()
        .map(|request| request.body.get("tool_choice").is_some())
        .collect();
    assert_eq!(forced, [false, true]);
    scene.end().await
}

/// A team's answer has the shape although the orchestrator's first turn ends while its worker works.
#[tokio::test(flavor = "multi_thread")]
async fn shape_is_that_of_the_last_turn_of_the_orchestrator() -> Result<()> {
    let task = json!({ "agent": "one", "task": "add" });
    let script = Script::new()
        .rule(
            by("lead").last("[response to task"),
            submit(json!({ "sum": 7 })),
        )
        .rule(by("lead").result_of("delegate_task"), Reply::text("I wait"))
        .rule(by("lead"), Reply::call("delegate_task", task))
        .rule(by("one").result_of("send_response"), Reply::text("told"))
        .rule(
            by("one"),
            Reply::call("send_response", json!({ "response": "seven" })),
        );
    let world = World::start(Backend::Sqlite, script).await?;
    let scene = start(world, &[lead(&[]), member("one", &[])]).await?;
    let outcome = outcome(&scene).await?;
    assert_eq!(
        (outcome.turns.len(), object(&outcome)),
        (2, Some(r#"{"sum":7}"#))
    );
    scene.end().await
}

/// The asker of a question gets the object, and the giver of a task gets it as the response.
#[tokio::test(flavor = "multi_thread")]
async fn agents_answer_one_another_in_a_shape() -> Result<()> {
    let ask = json!({ "agent": "one", "question": "how much?", "output_schema": schema() });
    let task = json!({ "agent": "one", "task": "add", "output_schema": schema() });
    let bad = json!({ "agent": "one", "task": "add", "output_schema": { "type": "array" } });
    let script = Script::new()
        .rule(by("lead").last("[response to task"), Reply::text("thanks"))
        .rounds(
            by("lead"),
            [
                Reply::call("ask_agent", ask).and_call("delegate_task", bad),
                Reply::call("delegate_task", task),
                Reply::text("given"),
            ],
        )
        .rule(by("one"), submit(json!({ "sum": 9 })));
    let scene = Scene::start(script, &[lead(&[]), member("one", &[])], "go").await?;
    scene.is_asked("lead", "[response to task").await?;
    let asked = scene.result("lead", "ask_agent").await?;
    assert_eq!(
        (asked.error, asked.result.as_str()),
        (false, "{\"sum\":9}\n[this satisfies the output schema]")
    );
    let given = scene.results("lead", "delegate_task").await?;
    let refused = given.first().context("nothing was refused")?;
    assert_eq!(
        (refused.error, refused.result.as_str()),
        (true, "`output_schema`: its `type` must be \"object\"")
    );
    let told = scene.requests_text("lead");
    assert!(told.contains(r#"{\"sum\":9}"#), "{told}");
    assert!(!told.contains("task_unanswered"), "{told}");
    scene.end().await
}

/// A shape that cannot be kept is refused before anything is stored.
#[tokio::test(flavor = "multi_thread")]
async fn shapes_that_cannot_be_kept_are_refused() -> Result<()> {
    let script = Script::new().always(Reply::text("ready"));
    let scene = Scene::start(script, &[lead(&[])], "go").await?;
    scene.answer().await?;
    let head = scene.log().await?.len();
    let long = json!({ "type": "object", "description": "x".repeat(70_000) });
    let double = |n: usize| json!({ "properties": { "a": { "$ref": format!("#/$defs/d{n}") }, "b": { "$ref": format!("#/$defs/d{n}") } } });
    let defs: serde_json::Map<String, Value> =
        (0..20).map(|n| (format!("d{n}"), double(n + 1))).collect();
    let mut grows = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d0" } } });
    grows["$defs"] = Value::Object(defs);
    grows["$defs"]["d20"] = json!({});
    for (output, said) in [
        (
            json!({ "schema": { "type": "array" } }),
            "`output.schema`: its `type` must be \"object\"",
        ),
        (
            json!({ "schema": { "type": "objekt" } }),
            "`output.schema`: its `type` must be \"object\"",
        ),
        (json!({ "schema": long }), "over the limit of 65536"),
        (
            json!({ "schema": { "type": "object", "properties": { "a": { "$ref": "https://example.com/a.json" } } } }),
            "names no part of it",
        ),
        (json!({ "schema": grows }), "has more than 10000 parts"),
        (
            json!({ "schema": { "type": "object", "properties": { "a": { "type": 7 } } } }),
            "/properties/a/type",
        ),
        (
            json!({ "schema": { "type": "object" }, "name": "a b" }),
            "`output.name`",
        ),
        (json!({ "shape": {} }), "unknown field `shape`"),
    ] {
        let to = session_at(&scene.started.session_id, SessionVerb::Prompt);
        let body = json!({ "text": "more", "output": output });
        let refused = scene.world.caller.ask::<Value>(&to, &body).await;
        let refused = refused.err().context("it was taken")?.to_string();
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let start = json!({ "dir": scene.world.dir(), "output": { "schema": schema() } });
    let refused = scene.world.caller.start(&start).await;
    let refused = refused.err().context("it was started")?.to_string();
    assert!(refused.contains("there is no `prompt`"), "{refused}");
    assert_eq!(scene.log().await?.len(), head, "nothing was stored");
    scene.end().await
}
