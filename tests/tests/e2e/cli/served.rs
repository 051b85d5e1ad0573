//! Commands to a running node, and their exit codes.

use anyhow::{Context as _, Result};
use planck_common::{command::Started, envelope::Envelope};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    machine::{Ran, run},
    watch::Watch,
    world::{Backend, World},
};
use serde_json::{Value, json};

fn script() -> Script {
    let slow = Reply::text("word ".repeat(600))
        .pace(planck_scripted_model::Pace::per_second(20.0).chunk(10));
    let call = Reply::text("I look.").and_call("bash", json!({ "command": "echo seen" }));
    Script::new()
        .rule(When::any().last("slow"), slow)
        .rule(When::any().last("look"), call)
        .always("There it is.")
}

async fn planck(world: &World, arguments: &[&str]) -> Result<Ran> {
    let mut command = world.planck()?;
    command.args(arguments);
    run(command).await
}

/// Returns the output of a command that must succeed.
async fn said(world: &World, arguments: &[&str]) -> Result<String> {
    let ran = planck(world, arguments).await?;
    assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    Ok(ran.out)
}

async fn state(world: &World, agent: &str, wanted: &str) -> Result<()> {
    eventually(&format!("the agent is {wanted}"), async || {
        let shown = said(world, &["agent", "show", agent, "-o", "json"])
            .await
            .ok()?;
        let shown: Value = serde_json::from_str(&shown).ok()?;
        (shown["state"] == wanted).then_some(())
    })
    .await
}

async fn finished(world: &World) -> Result<Started> {
    let recorder = world.record().await?;
    let mut start = world.solo();
    (start["name"], start["prompt"]) = ("bold-oak".into(), "look".into());
    let started = world.caller.start(&start).await?;
    recorder
        .answered(started.prompt_id.as_ref().context("a prompt")?)
        .await?;
    Ok(started)
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_listed_prompted_aborted_and_stopped() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let started = finished(&world).await?;
    let agent = started.orchestrator.as_str();

    let listed = said(&world, &["agent", "ls", "bold-oak"]).await?;
    for told in ["NAME", "agent", "idle", agent, node.id().as_str()] {
        assert!(listed.contains(told), "{told}: {listed}");
    }
    let listed: Value =
        serde_json::from_str(&said(&world, &["agent", "ls", "bold-oak", "-o", "json"]).await?)?;
    assert_eq!(
        (&listed[0]["id"], &listed[0]["state"]),
        (&agent.into(), &"idle".into())
    );
    let shown = said(&world, &["agent", "show", agent]).await?;
    for told in [
        "idle, turn 1, 0 waiting",
        "scripted:test",
        "bash read write",
        "tokens in",
        started.session_id.as_str(),
    ] {
        assert!(shown.contains(told), "{told}: {shown}");
    }

    let prompted = said(&world, &["agent", "prompt", agent, "slow"]).await?;
    assert!(prompted.contains("accepted as "), "{prompted}");
    state(&world, agent, "streaming").await?;
    let busy = planck(
        &world,
        &["agent", "prompt", agent, "and this?", "--mode", "reject"],
    )
    .await?;
    assert!(busy.code == 1 && busy.err.contains("busy"), "{busy:?}");
    let aborted = said(&world, &["agent", "abort", agent]).await?;
    assert!(aborted.contains(&format!("{agent} is ")), "{aborted}");
    state(&world, agent, "idle").await?;
    said(&world, &["session", "prompt", "bold-oak", "slow"]).await?;
    state(&world, agent, "streaming").await?;
    assert!(
        said(&world, &["session", "abort", "bold-oak"])
            .await?
            .contains("aborted 1 agent\n")
    );
    state(&world, agent, "idle").await?;

    let stopped = said(&world, &["agent", "stop", agent]).await?;
    assert!(
        stopped.contains(&format!("{agent} is stopped")),
        "{stopped}"
    );
    assert!(
        said(&world, &["session", "show", "bold-oak"])
            .await?
            .contains("closed"),
        "its session is closed with it"
    );
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn teams_are_listed_checked_and_started() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let write = |name: &str, team: &Value| -> Result<()> {
        let folder = world.folder().join(".planck/teams").join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join("TEAM.json"), team.to_string())?)
    };
    let members = json!([{ "type": "lead", "tools": ["spawn_agent", "delegate_task"] }, { "type": "hand", "tools": ["read"] }]);
    write(
        "pair",
        &json!({ "name": "pair", "description": "two at work", "members": members }),
    )?;
    let node = world.node().await?;

    let listed = said(&world, &["team", "ls"]).await?;
    assert!(
        listed.contains("pair") && listed.contains("two at work"),
        "{listed}"
    );
    let valid = said(&world, &["team", "validate", "pair"]).await?;
    assert!(valid.contains("2 members, no errors"), "{valid}");
    let started = said(
        &world,
        &[
            "team",
            "start",
            "pair",
            "--session",
            "two-oaks",
            "--dir",
            "work",
        ],
    )
    .await?;
    assert!(
        started.contains(&format!("two-oaks is open on {}", node.id())),
        "{started}"
    );
    let agents: Value =
        serde_json::from_str(&said(&world, &["agent", "ls", "two-oaks", "-o", "json"]).await?)?;
    let names: Vec<&str> = agents
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|agent| agent["name"].as_str())
        .collect();
    assert_eq!(names, ["lead", "hand"]);
    assert!(
        said(&world, &["run", "--session", "two-oaks", "hello"])
            .await?
            .contains("There it is.")
    );
    let again = planck(
        &world,
        &[
            "team",
            "start",
            "pair",
            "--session",
            "two-oaks",
            "--dir",
            "work",
        ],
    )
    .await?;
    assert!(
        again.code == 1 && again.err.contains("two-oaks"),
        "{again:?}"
    );
    let unknown = planck(&world, &["team", "start", "trio", "--dir", "work"]).await?;
    assert!(
        unknown.code == 3 && unknown.err.contains("trio"),
        "{unknown:?}"
    );

    let bad = |lead: Value, hand: Value| json!({ "name": "bad", "description": "x", "members": [lead, hand] });
    let lead = json!({ "type": "lead", "tools": ["spawn_agent"] });
    write(
        "odd",
        &bad(
            json!({ "type": "lead", "colour": 1 }),
            json!({ "type": "hand", "tools": "read", "skills": ["sing"] }),
        ),
    )?;
    write(
        "bad",
        &bad(
            lead,
            json!({ "type": "hand", "tools": ["fly"], "skills": ["sing"] }),
        ),
    )?;
    for (name, words) in [
        ("odd", ["colour", "`tools`", "sing"]),
        ("bad", ["fly", "sing", "skills"]),
    ] {
        let found = planck(&world, &["team", "validate", name]).await?;
        assert_eq!(found.code, 2, "{found:?}");
        for word in words.iter().chain(&["TEAM.json", "hand"]) {
            assert!(found.out.contains(word), "{word}: {found:?}");
        }
    }
    write(
        "kind",
        &bad(
            json!({ "type": "lead", "tools": ["spawn_agent", "ask_user"] }),
            json!({ "type": "hand", "tools": ["count_words"] }),
        ),
    )?;
    let kind = planck(&world, &["team", "validate", "kind"]).await?;
    assert!(
        kind.code == 0
            && kind.out.contains("no errors")
            && kind
                .out
                .contains("a client can have the tool `count_words`")
            && !kind.out.contains("ask_user"),
        "{kind:?}"
    );
    let every = planck(&world, &["team", "validate"]).await?;
    assert!(
        every.code == 2 && every.out.contains("2 members, no errors") && every.out.contains("fly"),
        "{every:?}"
    );
    let none = planck(&world, &["team", "validate", "trio"]).await?;
    assert!(
        none.code == 3 && none.err.contains("planck team ls"),
        "{none:?}"
    );
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_session_is_shown_from_its_beginning() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let started = finished(&world).await?;
    let attach = |more: &[&str], file: &str| -> Result<Watch> {
        let mut command = world.planck()?;
        command
            .args(["session", "attach", "bold-oak", "--from", "1"])
            .args(more);
        Watch::start(command, world.folder().join(file))
    };
    let screen = attach(&[], "screen.txt")?;
    let told = screen
        .says(&["› look", "I look.", "✓ bash echo seen", "There it is."])
        .await?;
    assert_eq!(told.matches("There it is.").count(), 1, "{told}");
    screen.leave().await?;
    let log = world.caller.log(&started.session_id, 1).await?;
    let raw = attach(&["-o", "jsonl"], "raw.jsonl")?;
    let told = eventually("the whole log is printed", async || {
        let text = raw.text();
        (text.lines().count() >= log.len() && text.ends_with('\n')).then_some(text)
    });
    let told = told
        .await?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Envelope>, _>>()?;
    let value = |events: &[Envelope]| {
        events
            .iter()
            .map(serde_json::to_value)
            .collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(value(&told)?, value(&log)?);
    raw.leave().await?;

    // A closed session is shown without opening it.
    said(&world, &["session", "close", "bold-oak"]).await?;
    let closed = attach(&[], "closed.txt")?;
    closed.says(&["There it is."]).await?;
    closed.leave().await?;
    assert!(
        said(&world, &["session", "show", "bold-oak"])
            .await?
            .contains("closed")
    );
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn published_events_are_shown() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    let watch = |arguments: &[&str], file: &str| -> Result<Watch> {
        let mut command = world.planck()?;
        command.arg("events").args(arguments);
        Watch::start(command, world.folder().join(file))
    };
    let own = format!("agent.{}", started.orchestrator);
    let (all, agent, other) = (
        watch(&[], "all.txt")?,
        watch(&[&own, "-o", "jsonl"], "agent.jsonl")?,
        watch(&["agent.nobody"], "other.txt")?,
    );
    eventually("all three are subscribed", async || {
        let connections = world.nats.monitor("/connz?subs=true").ok()?;
        let connections = connections["connections"].as_array()?.clone();
        let watching = connections.iter().filter(|one| {
            one["name"] == "planck events" && one["subscriptions"].as_u64() > Some(0)
        });
        (watching.count() == 3).then_some(())
    })
    .await?;
    world.caller.prompt(&started.session_id, "look").await?;

    let readable = all
        .says_in_lines(&[
            " turn_start #",
            " tool_start #",
            " turn_end #",
            "There it is.",
        ])
        .await?;
    assert!(
        readable.lines().all(
            |line| line.contains(started.orchestrator.as_str()) || line.starts_with("session.")
        ),
        "{readable}"
    );
    let raw = agent.says_in_lines(&["\"turn_end\""]).await?;
    let raw = raw
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Envelope>, _>>()?;
    assert!(
        raw.iter()
            .all(|event| event.agent_id == started.orchestrator),
        "{raw:?}"
    );
    let end = raw
        .iter()
        .find(|event| event.kind == "turn_end")
        .context("an end")?;
    assert!(end.data.get().contains("There it is."), "{end:?}");
    assert_eq!(other.text(), "", "nothing is published there");
    for watch in [all, agent, other] {
        watch.leave().await?;
    }
    let mut alone = world.planck()?;
    alone.arg("events").env_remove("NATS_URL");
    let alone = run(alone).await?;
    assert!(
        alone.code == 2 && alone.err.contains("NATS_URL"),
        "{alone:?}"
    );
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_are_the_same_as_in_one_process() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let nobody_serves = planck(&world, &["session", "ls"]).await?;
    assert!(
        nobody_serves.code == 4 && nobody_serves.err.contains("planck node"),
        "{nobody_serves:?}"
    );
    let node = world.node().await?;
    finished(&world).await?;
    for (command, code, told) in [
        (&["session", "ls"][..], 0, ""),
        (&["session", "close", "bold-oak"], 0, ""),
        (&["session", "rewind", "bold-oak", "--to", "1"], 2, "1"),
        (&["run", "--session", "bold-oak", " "], 2, "no prompt"),
        (&["agent", "prompt", "a.b", "go"], 2, "planck agent ls"),
        (&["events", "a..b"], 2, "a..b"),
        (&["session", "show", "nobody"], 3, "nobody"),
        (&["session", "attach", "nobody"], 3, "nobody"),
        (&["session", "prompt", "nobody", "go"], 3, "nobody"),
        (&["session", "rm", "nobody"], 3, "nobody"),
        (&["agent", "ls", "nobody"], 3, "nobody"),
        (&["agent", "show", "nobody"], 3, "nobody"),
        (&["agent", "prompt", "nobody", "go"], 3, "nobody"),
        (&["agent", "abort", "nobody"], 3, "nobody"),
        (&["agent", "stop", "nobody"], 3, "nobody"),
        (&["nodes", "show", "nobody"], 3, "nobody"),
        (
            &["agent", "ls", "bold-oak", "--nats", "nats://127.0.0.1:1"],
            4,
            "nats-server -js",
        ),
        (
            &["events", "--nats", "nats://127.0.0.1:1"],
            4,
            "nats-server -js",
        ),
        (
            &["team", "start", "x", "--nats", "nats://127.0.0.1:1"],
            4,
            "nats-server -js",
        ),
    ] {
        let ran = planck(&world, command).await?;
        assert!(
            ran.code == code && ran.err.contains(told),
            "{command:?} is to end with {code} and say {told:?}: {ran:?}"
        );
    }
    node.leave().await
}
