//! Members that join and leave a team: `spawn_agent`, `destroy_agent`, `interrupt_agent`,
//! `list_team`, `list_models`.

use anyhow::{Context as _, Result};
use planck_common::{command::AgentVerb, event::Event};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::world::{Backend, World};
use serde_json::{Value, json};

use super::scene::{Scene, by, lead, member};

fn spawn(args: Value) -> Reply {
    Reply::call("spawn_agent", args)
}

fn worker(args: Value) -> Value {
    let mut all = json!({ "type": "worker", "system_prompt": "You are worker." });
    all.as_object_mut()
        .unwrap()
        .extend(args.as_object().unwrap().clone());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spawned_worker_gets_only_granted_tools_and_its_task() -> Result<()> {
    let world = World::start(
        Backend::Sqlite,
        Script::new()
            .rule(by("worker").result_of("send_response"), Reply::text("told"))
            .rule(
                by("worker"),
                Reply::call("send_response", json!({ "response": "done" })),
            )
            .rule(by("lead").user("[response to task"), Reply::text("thanks"))
            .rule(by("lead").result_of("spawn_agent"), Reply::text("made"))
            .rule(
                by("lead"),
                spawn(worker(
                    json!({ "tools": ["read", "bash", "fly", "spawn_agent"], "task": "do it" }),
                )),
            ),
    )
    .await?;
    std::fs::create_dir(world.dir().join(".git"))?;
    std::fs::write(world.dir().join("AGENTS.md"), "Always be brief.")?;
    let scene = Scene::start_on(world, &[lead(&["read"])], "go").await?;
    assert_eq!(scene.answer().await?, "made");
    scene.is_asked("lead", "[response to task").await?;

    let born: Value = serde_json::from_str(&scene.result("lead", "spawn_agent").await?.result)?;
    let id = scene.id("worker").await?;
    assert_eq!(
        (&born["id"], &born["name"], &born["node_id"]),
        (&json!(id), &json!("worker"), &json!(scene.started.node_id))
    );
    assert_eq!(
        *id,
        *scene.result("lead", "spawn_agent").await?.call_id,
        "it is found by the call that made it"
    );
    let info = scene.world.caller.agent(&id).await?;
    assert_eq!(
        info.tools,
        [
            "ask_agent",
            "delegate_task",
            "list_team",
            "read",
            "send_response"
        ]
    );
    assert_eq!(
        info.model,
        scene
            .world
            .caller
            .agent(&scene.started.orchestrator)
            .await?
            .model
    );
    let system = scene
        .world
        .model
        .requests()
        .into_iter()
        .filter_map(|request| request.asked)
        .map(|asked| asked.system);
    assert!(
        system
            .filter(|text| text.contains("You are worker."))
            .all(|text| text.contains("Always be brief."))
    );

    let told: Vec<_> = scene
        .log_of("lead")
        .await?
        .into_iter()
        .filter_map(|event| match event {
            Event::WorkerSpawned(spawned) => Some(format!("spawned {}", spawned.name)),
            Event::Warning(warning) => Some(format!("{}: {}", warning.code, warning.message)),
            _ => None,
        })
        .collect();
    let left_out = "not_granted: worker was started without bash, fly, spawn_agent: unknown, or not yours to grant";
    assert_eq!(told, ["spawned worker", left_out]);
    scene.end().await
}

/// The session's log must have the warning that instructions were left out, because a person who
/// starts a session over NATS does not see the node's log.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_log_says_which_instructions_are_left_out() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always("Yes.")).await?;
    std::fs::write(world.dir().join("secret"), "of somebody else")?;
    std::os::unix::fs::symlink(world.dir().join("secret"), world.dir().join("AGENTS.md"))?;
    let mut scene = Scene::start_on(world, &[lead(&["read"])], "go").await?;
    assert_eq!(scene.answer().await?, "Yes.");
    let warnings: Vec<_> = scene
        .log_of("lead")
        .await?
        .into_iter()
        .filter_map(|event| match event {
            Event::Warning(warning) => Some(warning),
            _ => None,
        })
        .collect();
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    assert!(
        warning.code == "instructions_left_out" && warning.message.contains("AGENTS.md"),
        "{warning:?}"
    );
    scene
        .node
        .take()
        .context("the node is gone")?
        .leave_despite(&["agents go without"])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_has_its_limit_and_unique_names() -> Result<()> {
    let three = spawn(worker(json!({})))
        .and_call("spawn_agent", worker(json!({})))
        .and_call("spawn_agent", worker(json!({})));
    let script = Script::new()
        .rounds(by("lead"), [three, Reply::text("made")])
        .always(Reply::text("ready"));
    let world = World::start(Backend::Sqlite, script).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let start = json!({ "dir": world.dir(), "members": [lead(&[])], "prompt": "go", "limits": { "max_agents": 3 } });
    let started = world.caller.start(&start).await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    scene.answer().await?;
    let results = scene.results("lead", "spawn_agent").await?;
    let refused: Vec<_> = results
        .iter()
        .filter(|end| end.error)
        .map(|end| end.result.lines().next())
        .collect();
    assert_eq!(
        refused,
        [Some("the session has had its 3 agents (max_agents)")]
    );
    let mut names: Vec<String> = scene
        .world
        .caller
        .session(&scene.started.session_id)
        .await?
        .agents
        .into_iter()
        .map(|agent| agent.name)
        .collect();
    names.sort();
    assert_eq!(names, ["lead", "worker", "worker-2"]);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn list_team_shows_members_and_their_states() -> Result<()> {
    let script = Script::new()
        .rule(by("busy"), Reply::fault(ScriptedFault::HangBeforeHead))
        .rule(by("lead").result_of("list_team"), Reply::text("seen"))
        .rule(
            by("lead").user("all"),
            Reply::call("list_team", json!({ "verbose": true })),
        )
        .rule(
            by("lead").user("list"),
            Reply::call("list_team", json!({})).and_call("list_models", json!({})),
        )
        .always(Reply::text("ready"));
    let scene = Scene::start(
        script,
        &[lead(&["list_models"]), member("busy", &["read"])],
        "hello",
    )
    .await?;
    scene.answer().await?;
    scene
        .tell("busy", AgentVerb::Prompt, json!({ "text": "work" }))
        .await?;
    scene.is_asked("busy", "work").await?;
    for prompt in ["list", "all"] {
        let accepted = scene
            .world
            .caller
            .prompt(&scene.started.session_id, prompt)
            .await?;
        scene.recorder.answered(&accepted.prompt_id).await?;
    }
    let lists = scene.results("lead", "list_team").await?;
    let rows: Vec<Value> = serde_json::from_str(&lists[0].result)?;
    let keys: Vec<&String> = rows[0].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "description",
            "id",
            "name",
            "node_id",
            "role",
            "state",
            "turn",
            "type",
            "usage"
        ]
    );
    let seen: Vec<Value> = rows
        .iter()
        .map(|row| json!([row["name"], row["role"], row["state"], row["turn"]]))
        .collect();
    assert_eq!(
        seen,
        [
            json!(["lead", "orchestrator", "executing_tools", 2]),
            json!(["busy", "worker", "streaming", 1])
        ]
    );
    let rows: Vec<Value> = serde_json::from_str(&lists[1].result)?;
    assert_eq!(
        (&rows[1]["model"]["id"], &rows[1]["tools"][3]),
        (&json!("test"), &json!("read"))
    );
    assert!(!scene.result("lead", "list_models").await?.error);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_oneself_or_the_orchestrator_is_refused() -> Result<()> {
    let mut boss = lead(&["destroy_agent", "interrupt_agent"]);
    boss["grant"] = json!({ "tools": ["destroy_agent", "interrupt_agent"] });
    let on = |tool: &str, agent: &str| (tool.to_owned(), json!({ "agent": agent }));
    let calls = |calls: [(String, Value); 4]| {
        calls.into_iter().fold(Reply::new(), |reply, (tool, args)| {
            reply.and_call(&tool, args)
        })
    };
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                calls([
                    on("destroy_agent", "lead"),
                    on("interrupt_agent", "lead"),
                    on("destroy_agent", "no"),
                    on("interrupt_agent", "no"),
                ]),
                Reply::text("no"),
            ],
        )
        .rounds(
            by("one"),
            [
                calls([
                    on("destroy_agent", "lead"),
                    on("interrupt_agent", "lead"),
                    on("destroy_agent", "one"),
                    on("interrupt_agent", "one"),
                ]),
                Reply::text("no"),
            ],
        );
    let members = [boss, member("one", &["destroy_agent", "interrupt_agent"])];
    let scene = Scene::start(script, &members, "go").await?;
    scene.answer().await?;
    scene
        .tell("one", AgentVerb::Prompt, json!({ "text": "go" }))
        .await?;
    scene.is_asked("one", "cannot").await?;
    for name in ["lead", "one"] {
        for tool in ["destroy_agent", "interrupt_agent"] {
            assert!(
                scene.results(name, tool).await?.iter().all(|end| end.error),
                "{name} {tool}"
            );
        }
    }
    assert_eq!(
        scene
            .world
            .caller
            .session(&scene.started.session_id)
            .await?
            .agents
            .len(),
        2
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_interrupted_and_then_destroyed() -> Result<()> {
    let script = Script::new()
        .rule(by("one"), Reply::fault(ScriptedFault::HangBeforeHead))
        .rule(
            by("lead").result_of("interrupt_agent"),
            Reply::text("stopped short"),
        )
        .rule(
            by("lead").result_of("destroy_agent"),
            Reply::text("gone: {{result:destroy_agent}}"),
        )
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
    let scene = Scene::start(
        script,
        &[
            lead(&["interrupt_agent", "destroy_agent"]),
            member("one", &[]),
        ],
        "hello",
    )
    .await?;
    scene.answer().await?;
    let prompt = async |text: &str| -> Result<Event> {
        let accepted = scene
            .world
            .caller
            .prompt(&scene.started.session_id, text)
            .await?;
        Ok(scene
            .recorder
            .answered(&accepted.prompt_id)
            .await?
            .event()
            .unwrap()?)
    };
    scene
        .tell("one", AgentVerb::Prompt, json!({ "text": "work" }))
        .await?;
    scene.is_asked("one", "work").await?;
    prompt("interrupt").await?;
    assert_eq!(
        scene.tell("one", AgentVerb::Info, json!({})).await?["state"],
        "idle"
    );
    let id = scene.id("one").await?;
    for said in ["gone: one is stopped", "gone: one was stopped before"] {
        let Event::TurnEnd(end) = prompt("end").await? else {
            panic!()
        };
        assert_eq!(end.message.as_deref(), Some(said));
    }
    let refused = scene
        .world
        .caller
        .refusal(
            &planck_tests::caller::agent_at(&id, AgentVerb::Prompt),
            &json!({ "text": "x" }),
        )
        .await?;
    assert_eq!(refused.code, planck_common::reply::Code::NotFound);
    let exits: Vec<_> = scene
        .log_of("lead")
        .await?
        .into_iter()
        .filter(|event| matches!(event, Event::WorkerExit(_)))
        .collect();
    assert!(
        matches!(exits.as_slice(), [Event::WorkerExit(exit)] if exit.reason == "enough"),
        "{exits:?}"
    );
    scene.end().await
}
