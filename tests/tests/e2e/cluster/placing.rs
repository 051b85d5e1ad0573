//! Where agents are placed: on nodes that fit, in balance, and on the node that the caller asks
//! for.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use planck_common::{
    NodeId,
    command::{AgentVerb, NodeVerb, SessionsVerb},
    envelope::Envelope,
    event::Event,
    subject::Address,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::{agent_at, sessions},
    eventually::within,
    world::Backend,
};
use serde_json::{Value, json};

use super::field::{PLACES, Team, ThreeNodes, lead_at, placed};
use crate::teams::scene::by;

fn worker(more: Value) -> Value {
    let mut all = json!({ "type": "worker", "system_prompt": "You are worker." });
    all.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    all
}

fn spawning(workers: impl IntoIterator<Item = Value>) -> Reply {
    workers.into_iter().fold(Reply::new(), |reply, worker| {
        reply.and_call("spawn_agent", worker)
    })
}

/// Returns how many agents of the team the node of each place hosts.
async fn spread(team: &Team) -> Result<BTreeMap<&'static str, usize>> {
    let info = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?;
    let mut spread: BTreeMap<_, _> = PLACES.iter().map(|place| (*place, 0)).collect();
    for agent in info.agents {
        *spread
            .entry(team.place(&agent.node_id.unwrap())?)
            .or_default() += 1;
    }
    Ok(spread)
}

async fn spreads(backend: Backend) -> Result<()> {
    let labelled = |place: &str| {
        worker(json!({ "name": format!("at-{place}"), "labels": { "place": place } }))
    };
    let asked = [
        labelled("c"),
        labelled("b"),
        labelled("z"),
        worker(json!({ "name": "close", "near": "orchestrator" })),
    ];
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                spawning((0..15).map(|n| worker(json!({ "name": format!("w{n}") })))),
                spawning(asked),
                Reply::text("made"),
            ],
        )
        .always(Reply::text("ready"));
    let team = ThreeNodes::start(backend, script)
        .await?
        .team(&[lead_at("b", &[])], "go")
        .await?;
    assert_eq!(team.scene.answer().await?, "made");
    assert_eq!(team.place_of("lead").await?, "b");
    let spread = spread(&team).await?;
    assert!(
        spread.values().all(|agents| *agents >= 3),
        "19 agents over three nodes: {spread:?}"
    );
    for (name, place) in [("at-c", "c"), ("at-b", "b"), ("close", "b")] {
        assert_eq!(team.place_of(name).await?, place, "{name}");
    }
    let results = team.scene.results("lead", "spawn_agent").await?;
    let refused: Vec<_> = results
        .iter()
        .filter(|end| end.error)
        .map(|end| end.result.as_str())
        .collect();
    assert_eq!(refused, [r#"no node with labels {"place":"z"}"#]);
    let info = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?;
    for born in results.iter().filter(|end| !end.error) {
        let born: Value = serde_json::from_str(&born.result)?;
        let agent = info
            .agents
            .iter()
            .find(|agent| born["id"] == json!(agent.id))
            .unwrap();
        assert_eq!(
            born["node_id"],
            json!(agent.node_id),
            "the answer tells the node"
        );
    }
    let spawned = team
        .scene
        .log_of("lead")
        .await?
        .into_iter()
        .filter(|event| matches!(event, Event::WorkerSpawned(_)));
    assert_eq!(spawned.count(), 18);
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_spread_over_nodes_on_postgres() -> Result<()> {
    spreads(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn workers_spread_over_nodes_on_sqlite() -> Result<()> {
    spreads(Backend::Sqlite).await
}

/// Checks that each member of a new session is placed on the node with its label, whichever node
/// gets the request, that a repeated start returns the same session, and that a session is refused
/// if no node has a member's label.
async fn template(backend: Backend) -> Result<()> {
    let script = Script::new().always(Reply::text("ready"));
    let field = ThreeNodes::start(backend, script).await?;
    let members = [
        lead_at("c", &[]),
        placed("one", "a", &[]),
        placed("two", "b", &[]),
        placed("three", "c", &[]),
    ];
    for n in 0..6 {
        let body =
            json!({ "dir": field.world.dir(), "members": members, "name": format!("session-{n}") });
        let started = field.world.caller.start(&body).await?;
        assert_eq!(started.node_id, *field.id("c"), "whoever was asked");
        let again = json!({ "session_id": started.session_id, "dir": field.world.dir(), "members": members });
        assert_eq!(
            field.world.caller.start(&again).await?.orchestrator,
            started.orchestrator
        );
        let info = field.world.caller.session(&started.session_id).await?;
        let places: Vec<(&str, Option<&NodeId>)> = info
            .agents
            .iter()
            .map(|agent| (agent.name.as_str(), agent.node_id.as_ref()))
            .collect();
        let (a, b, c) = (
            Some(field.id("a")),
            Some(field.id("b")),
            Some(field.id("c")),
        );
        assert_eq!(places, [("lead", c), ("one", a), ("two", b), ("three", c)]);
    }
    let nowhere = json!({ "dir": field.world.dir(), "members": [lead_at("a", &[]), placed("one", "z", &[])] });
    let refusal = field
        .world
        .caller
        .refusal(&sessions(SessionsVerb::Start), &nowhere)
        .await?;
    assert_eq!(refusal.message, r#"no node with labels {"place":"z"}"#);
    field.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_template_are_placed_on_postgres() -> Result<()> {
    template(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn members_of_a_template_are_placed_on_sqlite() -> Result<()> {
    template(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_needs_a_workspace_is_placed_where_it_is_visible() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                spawning((0..3).map(|n| worker(json!({ "name": format!("w{n}") })))),
                Reply::text("made"),
            ],
        )
        .always(Reply::text("ready"));
    let folder = tempfile::TempDir::new()?;
    let field = ThreeNodes::start_with(Backend::Postgres, script, |place| match place {
        "b" => vec![(
            "PLANCK_WORKSPACES_DEEP",
            folder.path().display().to_string(),
        )],
        _ => Vec::new(),
    })
    .await?;
    let members = [crate::teams::scene::lead(&[])];
    for _ in 0..6 {
        let body = json!({ "workspace": "deep", "members": members });
        assert_eq!(
            field.world.caller.start(&body).await?.node_id,
            *field.id("b")
        );
    }
    let unknown = json!({ "workspace": "nowhere", "members": members });
    let refusal = field
        .world
        .caller
        .refusal(&sessions(SessionsVerb::Start), &unknown)
        .await?;
    assert_eq!(refusal.message, "no node has workspace `nowhere`");
    let team = field
        .started(json!({ "workspace": "deep", "members": members, "prompt": "go" }))
        .await?;
    team.scene.answer().await?;
    for name in ["w0", "w1", "w2"] {
        assert_eq!(team.place_of(name).await?, "b");
    }
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn full_nodes_take_no_agent() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                spawning((0..9).map(|n| worker(json!({ "name": format!("w{n}") })))),
                spawning([worker(json!({ "name": "one too many" }))]),
                Reply::text("made"),
            ],
        )
        .always(Reply::text("ready"));
    let capacity = |place: &str| {
        vec![(
            "PLANCK_NODE_CAPACITY",
            if place == "c" { "6" } else { "2" }.to_owned(),
        )]
    };
    let team = ThreeNodes::start_with(Backend::Postgres, script, capacity)
        .await?
        .team(&[lead_at("a", &[])], "go")
        .await?;
    team.scene.answer().await?;
    assert_eq!(
        spread(&team).await?,
        BTreeMap::from([("a", 2), ("b", 2), ("c", 6)])
    );
    let refused = team.scene.result("lead", "spawn_agent").await?;
    assert_eq!(
        (refused.error, refused.result.as_str()),
        (true, "all nodes that fit are full")
    );
    team.end().await
}

/// A node that does not answer is skipped, and its later actions change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_is_skipped() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead").user("go"),
            [
                spawning((0..6).map(|n| worker(json!({ "name": format!("w{n}") })))),
                Reply::text("made"),
            ],
        )
        .always(Reply::text("ready"));
    let mut team = ThreeNodes::start(Backend::Postgres, script)
        .await?
        .team(&[lead_at("a", &[])], "hello")
        .await?;
    team.scene.answer().await?;
    let lead = agent_at(&team.scene.started.orchestrator, AgentVerb::Prompt);
    let go = json!({ "subject": lead.to_string(), "body": { "text": "go" } });
    team.node("c").pause()?;
    let _: Value = team
        .scene
        .world
        .caller
        .ask(
            &Address::node(team.node("a").id(), NodeVerb::Relay.name()),
            &go,
        )
        .await?;
    let made = |event: &Envelope| event.data.get().contains(r#""message":"made""#);
    within(Duration::from_secs(60), "all are made", async || {
        let heard = team
            .scene
            .recorder
            .events(&format!("session.{}", team.scene.started.session_id));
        heard.iter().any(made).then_some(())
    })
    .await?;
    let spread = spread(&team).await?;
    assert_eq!(
        (spread["c"], spread["a"] + spread["b"]),
        (0, 7),
        "{spread:?}"
    );
    let mut names: Vec<String> = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?
        .agents
        .into_iter()
        .map(|agent| agent.name)
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["lead", "w0", "w1", "w2", "w3", "w4", "w5"],
        "nobody was born twice"
    );
    // By now the node was declared dead. When it continues, it finds its death record, and ends.
    let mut silent = team.nodes.remove(2);
    silent.resume()?;
    silent.ended().await?;
    assert_eq!(
        team.scene
            .world
            .caller
            .session(&team.scene.started.session_id)
            .await?
            .agents
            .len(),
        7,
        "and it bore nobody"
    );
    team.end().await
}
