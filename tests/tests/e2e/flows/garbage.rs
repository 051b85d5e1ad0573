//! Any bytes that are sent to a command's subject get a reply with the right code, and the node
//! stays healthy.

use anyhow::Result;
use planck_common::{
    command::{AgentVerb, NodeVerb, Nodes, SessionVerb, SessionsVerb},
    reply::{self, Code, Refusal, ReplyError},
    subject::Target,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::list_of,
    world::{Backend, World},
};
use serde_json::{Value, json};

async fn refused(world: &World, subject: &str, body: impl Into<bytes::Bytes>) -> Result<Refusal> {
    let answer = world.caller.raw(subject, body).await?;
    let refusal = match reply::decode::<Value>(&answer.payload) {
        Err(ReplyError::Refused(refusal)) => refusal,
        other => panic!("{subject}: {other:?}"),
    };
    let headers = answer.headers.expect("a refusal has headers");
    let code = headers
        .get("Nats-Service-Error-Code")
        .map(|code| code.as_str().to_owned());
    assert_eq!(code, Some(refusal.code.number().to_string()), "{subject}");
    assert!(headers.get("Nats-Service-Error").is_some(), "{subject}");
    Ok(refusal)
}

/// Returns a subject for every verb, with this agent and session.
fn subjects(agent: &str, session: &str, node: &str) -> Vec<String> {
    let agents = AgentVerb::ALL
        .iter()
        .map(|verb| format!("cmd.agent.{agent}.{}", verb.name()));
    let sessions = SessionVerb::ALL
        .iter()
        .map(|verb| format!("cmd.session.{session}.{}", verb.name()));
    let all = SessionsVerb::ALL
        .iter()
        .map(|verb| format!("cmd.sessions.{}", verb.name()));
    let nodes = NodeVerb::ALL
        .iter()
        .map(|verb| format!("cmd.node.{node}.{}", verb.name()));
    let lists = ["nodes", "teams", "models", "sidecars"]
        .iter()
        .map(|list| format!("cmd.{list}.list"));
    agents
        .chain(sessions)
        .chain(all)
        .chain(nodes)
        .chain(lists)
        .collect()
}

async fn is_well(world: &World, session: &str) -> Result<()> {
    let nodes: Nodes = world
        .caller
        .read(&list_of(Target::Nodes), &json!({}))
        .await?;
    assert_eq!(nodes.nodes.len(), 1);
    let recorder = world.record().await?;
    let prompted = world.caller.prompt(session, "are you well?").await?;
    recorder.answered(&prompted.prompt_id).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_subject_answers_garbage() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("Yes."))).await?;
    let node = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    let (agent, session) = (
        started.orchestrator.to_string(),
        started.session_id.to_string(),
    );
    let deep = "[".repeat(100_000);
    for subject in subjects(&agent, &session, node.id()) {
        for body in [
            "nonsense",
            "[1]",
            "\"text\"",
            "null",
            "{",
            "{\"text\":",
            "\u{0}",
            "{}{}",
            deep.as_str(),
        ] {
            let refusal = refused(&world, &subject, body.to_owned()).await?;
            assert_eq!(
                refusal.code,
                Code::BadRequest,
                "{subject} {}: {refusal}",
                &body[..body.len().min(20)]
            );
        }
        let refusal = refused(&world, &subject, vec![0xff, 0xfe, b'{']).await?;
        assert_eq!(refusal.code, Code::BadRequest, "{subject}");
    }
    for (subject, body) in [
        (format!("cmd.agent.{agent}.prompt"), json!({ "text": 5 })),
        (format!("cmd.agent.{agent}.checkpoint"), json!({})),
        (
            format!("cmd.agent.{agent}.checkpoint"),
            json!({ "summary": " " }),
        ),
        (format!("cmd.agent.{agent}.add_tool"), json!({})),
        (
            format!("cmd.agent.{agent}.change_model"),
            json!({ "provider": "scripted" }),
        ),
        (
            format!("cmd.agent.{agent}.change_model"),
            json!({ "provider": "psychic", "model_id": "x" }),
        ),
        (format!("cmd.agent.{agent}.stop"), json!({ "reason": 5 })),
        (format!("cmd.session.{session}.rewind"), json!({})),
        (
            format!("cmd.session.{session}.rewind"),
            json!({ "to": "first" }),
        ),
        (
            format!("cmd.session.{session}.rewind"),
            json!({ "to": 1_000_000 }),
        ),
        (format!("cmd.session.{session}.rewind"), json!({ "to": -1 })),
        (
            format!("cmd.session.{session}.rename"),
            json!({ "title": 5 }),
        ),
        (
            format!("cmd.session.{session}.rename"),
            json!({ "title": "x".repeat(201) }),
        ),
        (
            format!("cmd.session.{session}.events"),
            json!({ "from": "x" }),
        ),
        (
            format!("cmd.session.{session}.messages"),
            json!({ "before": {} }),
        ),
        (
            format!("cmd.node.{}.relay", node.id()),
            json!({ "subject": "agent.a", "body": {} }),
        ),
        (
            format!("cmd.node.{}.relay", node.id()),
            json!({ "subject": "cmd.nodes.list", "body": {} }),
        ),
        (
            format!("cmd.node.{}.wake", node.id()),
            json!({ "session_id": "a b", "agent_id": "x" }),
        ),
    ] {
        let refusal = refused(&world, &subject, body.to_string()).await?;
        assert_eq!(
            refusal.code,
            Code::BadRequest,
            "{subject} {body}: {refusal}"
        );
    }
    for subject in [
        format!("cmd.agent.{agent}.dance"),
        format!("cmd.session.{session}.dance"),
        format!("cmd.node.{}.dance", node.id()),
        "cmd.sessions.dance".into(),
        "cmd.nodes.dance".into(),
        "cmd.teams.dance".into(),
        "cmd.models.dance".into(),
        "cmd.sidecars.dance".into(),
    ] {
        let refusal = refused(&world, &subject, "{}").await?;
        assert_eq!(refusal.code, Code::BadRequest, "{subject}");
        assert!(
            refusal.message.contains("unknown verb `dance`; known are "),
            "{refusal}"
        );
    }
    is_well(&world, &session).await?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_ids_are_refused() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("Yes."))).await?;
    let node = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    let (long, huge) = ("x".repeat(65), "y".repeat(4_000));
    for id in [
        "*",
        ">",
        "a*b",
        "ä",
        "a%20b",
        "/etc",
        long.as_str(),
        huge.as_str(),
    ] {
        for verb in ["prompt", "info", "stop", "snapshot"] {
            let refusal =
                refused(&world, &format!("cmd.agent.{id}.{verb}"), r#"{"text":"x"}"#).await?;
            assert_eq!(
                refusal.code,
                Code::BadRequest,
                "agent {id} {verb}: {refusal}"
            );
            assert!(refusal.message.len() < 400, "{}", refusal.message.len());
        }
        for verb in ["prompt", "info", "delete", "events"] {
            let refusal = refused(
                &world,
                &format!("cmd.session.{id}.{verb}"),
                r#"{"text":"x"}"#,
            )
            .await?;
            assert_eq!(
                refusal.code,
                Code::BadRequest,
                "session {id} {verb}: {refusal}"
            );
        }
    }
    for subject in [
        "cmd.agent.nobody.info",
        "cmd.agent.nobody.prompt",
        "cmd.session.nowhere.info",
        "cmd.session.nowhere.close",
    ] {
        assert_eq!(
            refused(&world, subject, "{\"text\":\"x\"}").await?.code,
            Code::NotFound,
            "{subject}"
        );
    }
    // No node subscribes to these subjects, so the server replies at once. All but the last are not
    // shaped like a command, and the last names a node that does not exist.
    for subject in [
        "cmd.agent.a.b.info",
        "cmd.agent.info",
        "cmd.agent.>",
        "cmd.other.list",
        "cmd.node.nobody.info",
    ] {
        let error = world.caller.raw(subject, "{}").await.unwrap_err();
        assert!(
            format!("{error:#}").contains("no responders"),
            "{subject}: {error:#}"
        );
    }
    is_well(&world, &started.session_id).await?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_many_megabytes_are_refused_or_stored_whole() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("Yes."))).await?;
    let node = world.node().await?;
    let started = world.caller.start(&world.solo()).await?;
    let prompt = format!("cmd.session.{}.prompt", started.session_id);
    let error = world
        .caller
        .raw(&prompt, json!({ "text": "x".repeat(9 << 20) }).to_string())
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("payload"),
        "the client library refuses it: {error:#}"
    );

    let recorder = world.record().await?;
    let large = json!({ "text": "y".repeat(6 << 20) }).to_string();
    let accepted: planck_common::command::Accepted =
        reply::decode(&world.caller.raw(&prompt, large).await?.payload)?;
    recorder.answered(&accepted.prompt_id).await?;
    let published = recorder.on(&format!("session.{}", started.session_id));
    assert!(
        published.iter().all(|payload| payload.len() <= 256 << 10),
        "what is published is cut"
    );
    let log = world.caller.log(&started.session_id, 1).await?;
    super::events::assert_dense(&log);
    assert!(
        log.iter().any(|event| event.data.get().len() > 6 << 20),
        "the log has it whole"
    );

    // Nested relays must not cause deep recursion.
    let relay = format!("cmd.node.{}.relay", node.id());
    let (open, close) = (format!("{{\"subject\":\"{relay}\",\"body\":"), "}");
    let nest = open.repeat(40_000) + "{}" + &close.repeat(40_000);
    assert_eq!(refused(&world, &relay, nest).await?.code, Code::BadRequest);
    is_well(&world, &started.session_id).await?;
    node.leave().await
}
