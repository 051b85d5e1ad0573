//! `cmd.sessions.start` in all its forms.

use anyhow::Result;
use planck_common::{command::Sessions, command::SessionsVerb, reply::Code};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::sessions,
    world::{Backend, World},
};
use serde_json::{Value, json};

fn quick() -> Script {
    Script::new().always(Reply::text("Done."))
}

async fn forms(backend: Backend) -> Result<()> {
    let world = World::start(backend, quick()).await?;
    let team = world.folder().join(".planck/teams/pair");
    std::fs::create_dir_all(&team)?;
    let members = json!([
        { "type": "lead", "tools": ["spawn_agent", "read"] },
        { "type": "worker", "name": "w", "tools": ["read"] },
    ]);
    std::fs::write(
        team.join("TEAM.json"),
        json!({ "name": "pair", "description": "two", "members": members }).to_string(),
    )?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let dir = world.dir();

    let alone = world.caller.start(&json!({ "dir": dir })).await?;
    assert_eq!(
        world.caller.session(&alone.session_id).await?.agents.len(),
        1
    );
    let team = world
        .caller
        .start(&json!({ "dir": dir, "team": "pair", "name": "a-pair" }))
        .await?;
    let info = world.caller.session("a-pair").await?;
    assert_eq!(
        (info.agents.len(), info.id, info.team_id),
        (2, team.session_id, team.team_id)
    );
    assert_eq!(&info.agents[0].id, &team.orchestrator);

    let body =
        json!({ "dir": dir, "session_id": "s-1", "prompt": "hello", "metadata": { "for": "me" } });
    let first = world.caller.start(&body).await?;
    recorder.answered(first.prompt_id.as_ref().unwrap()).await?;
    let again = world.caller.start(&body).await?;
    let told = |started: &planck_common::command::Started| serde_json::to_value(started).unwrap();
    assert_eq!(
        told(&first),
        told(&again),
        "the same session again is the same reply"
    );
    let log = world.caller.log("s-1", first.seq + 1).await?;
    assert_eq!(
        log.iter()
            .filter(|event| event.kind == "turn_start")
            .count(),
        1
    );
    assert_eq!(log[0].kind, "session_started");
    assert_eq!(world.caller.session("s-1").await?.metadata["for"], "me");

    let start = sessions(SessionsVerb::Start);
    for (body, code, said) in [
        (
            json!({ "dir": dir, "team": "pair", "members": members }),
            Code::BadRequest,
            "not both",
        ),
        (
            json!({ "dir": dir, "team": "trio" }),
            Code::NotFound,
            "there are pair",
        ),
        (
            json!({ "dir": dir, "team": "../../etc" }),
            Code::NotFound,
            "no team",
        ),
        (
            json!({ "dir": dir.join("none") }),
            Code::BadRequest,
            "is no directory",
        ),
        (
            json!({ "dir": "relative" }),
            Code::BadRequest,
            "absolute path",
        ),
        (json!({}), Code::BadRequest, "name a workspace"),
        (
            json!({ "workspace": "moon" }),
            Code::NotFound,
            "no node has workspace `moon`",
        ),
        (
            json!({ "dir": dir, "name": "a-pair" }),
            Code::Exists,
            "a-pair",
        ),
        (
            json!({ "dir": dir, "name": "A Name" }),
            Code::BadRequest,
            "malformed session name",
        ),
        (
            json!({ "dir": dir, "name": "" }),
            Code::BadRequest,
            "malformed session name",
        ),
        (
            json!({ "dir": dir, "session_id": "a.b" }),
            Code::BadRequest,
            "malformed session id",
        ),
        (
            json!({ "dir": dir, "prompt": "  " }),
            Code::BadRequest,
            "the prompt is empty",
        ),
        (
            json!({ "dir": dir, "members": [{ "type": "a", "tools": ["spawn_agent"] }, {}] }),
            Code::BadRequest,
            "type",
        ),
        (
            json!({ "dir": dir, "members": [{ "type": "a" }, { "type": "b" }] }),
            Code::BadRequest,
            "orchestrator",
        ),
        (
            json!({ "dir": dir, "members": [{ "type": "a", "colour": 1 }] }),
            Code::BadRequest,
            "colour",
        ),
        (
            json!({ "dir": dir, "members": [{ "type": "a", "provider": "psychic", "model_id": "x" }] }),
            Code::BadRequest,
            "psychic",
        ),
        (
            json!({ "dir": dir, "members": "two" }),
            Code::BadRequest,
            "cannot be read",
        ),
        (
            json!({ "dir": dir, "on_node_death": "weep" }),
            Code::BadRequest,
            "weep",
        ),
        (
            json!({ "dir": dir, "team": "pair", "limits": { "max_agents": 1 } }),
            Code::Limit,
            "1",
        ),
    ] {
        let refusal = world.caller.refusal(&start, &body).await?;
        assert_eq!(refusal.code, code, "{body}: {refusal}");
        assert!(refusal.message.contains(said), "{body}: {refusal}");
    }
    let listed: Sessions = world
        .caller
        .ask(&sessions(SessionsVerb::List), &json!({}))
        .await?;
    assert_eq!(
        listed.sessions.len(),
        3,
        "what was refused left nothing behind"
    );
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_start_works_on_sqlite() -> Result<()> {
    forms(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn every_form_of_start_works_on_postgres() -> Result<()> {
    forms(Backend::Postgres).await
}

async fn pages(backend: Backend) -> Result<()> {
    let world = World::start(backend, quick()).await?;
    let node = world.node().await?;
    let mut names = Vec::new();
    for n in 0..7 {
        names.push(format!("s-{n}"));
        world
            .caller
            .start(&json!({ "dir": world.dir(), "name": names[n] }))
            .await?;
    }
    let list = sessions(SessionsVerb::List);
    let (mut listed, mut after) = (Vec::new(), Value::Null);
    loop {
        let page: Sessions = world
            .caller
            .ask(&list, &json!({ "limit": 3, "after": after }))
            .await?;
        assert!(page.sessions.len() <= 3);
        listed.extend(page.sessions.iter().map(|session| session.name.to_string()));
        let Some(next) = page.next else { break };
        after = next.into();
    }
    names.reverse();
    assert_eq!(listed, names, "newest first, each once");
    let closed: Sessions = world
        .caller
        .ask(&list, &json!({ "state": "closed" }))
        .await?;
    assert!(closed.sessions.is_empty());
    for body in [
        json!({ "after": "nonsense" }),
        json!({ "state": "ajar" }),
        json!({ "limit": -1 }),
    ] {
        assert_eq!(
            world.caller.refusal(&list, &body).await?.code,
            Code::BadRequest,
            "{body}"
        );
    }
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages_on_sqlite() -> Result<()> {
    pages(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn lists_come_in_pages_on_postgres() -> Result<()> {
    pages(Backend::Postgres).await
}
