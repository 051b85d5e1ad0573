//! Calls of sidecars: success, sharing between instances, cancellation, denial by NATS, and tools with a
//! configured subject.

use std::{convert::Infallible, time::Duration};

use anyhow::Result;
use planck_common::{command::AgentVerb, event::Event};
use planck_scripted_model::{Reply, Script};
use planck_sidecar::{Context, Sidecar, Tool};
use planck_tests::{
    eventually::eventually,
    nats::{NatsServer, find_cli},
    world::{Backend, World},
};
use serde_json::json;
use tokio::process::Command;

use super::serving::{Args, Ledger, Serving, echo, found, team_with};
use crate::teams::scene::{Scene, by, lead, member};

#[tokio::test(flavor = "multi_thread")]
async fn a_team_uses_a_sidecars_tool() -> Result<()> {
    let call = Reply::call("echo", json!({"word": "hi", "timeout_ms": 30_000}));
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                Reply::call(
                    "ask_agent",
                    json!({"agent": "helper", "question": "say hi"}),
                ),
                Reply::text("{{result:ask_agent}}"),
            ],
        )
        .rounds(by("helper"), [call, Reply::text("it said {{result:echo}}")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let ledger = Ledger::default();
    let serving = Serving::start(&world, echo("mirror", &ledger));
    let members = [lead(&[]), member("helper", &["echo"])];
    let scene = team_with(world, "mirror", &members, "go").await?;
    assert_eq!(scene.answer().await?, r#"it said {"word":"hi"}"#);
    let log = scene.log_of("helper").await?;
    let start = log
        .iter()
        .find_map(|event| {
            if let Event::ToolStart(start) = event {
                Some(start)
            } else {
                None
            }
        })
        .unwrap();
    let asked: Vec<_> = ledger
        .entries()
        .into_iter()
        .map(|(id, args)| (id, json!(args)))
        .collect();
    assert_eq!(
        asked,
        [(start.call_id.to_string(), json!({"word": "hi"}))],
        "the time-out is not the sidecar's"
    );
    scene.end().await?;
    serving.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_the_calls() -> Result<()> {
    let calls = (1..30).fold(Reply::call("echo", json!({"n": 0})), |calls, n| {
        calls.and_call("echo", json!({"n": n}))
    });
    let script = Script::new().rounds(by("talker"), [calls, Reply::text("done")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let ledgers = [Ledger::default(), Ledger::default()];
    let serving = ledgers
        .iter()
        .map(|ledger| Serving::start(&world, echo("mirror", ledger)))
        .collect::<Vec<_>>();
    let node = world.node().await?;
    found(&world, "mirror", 2).await?;
    let recorder = world.record().await?;
    let started = world
        .caller
        .start(
            &json!({"dir": world.dir(), "members": [member("talker", &["echo"])], "prompt": "go"}),
        )
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    assert_eq!(scene.answer().await?, "done");
    let shares = ledgers.map(|ledger| ledger.entries().len());
    assert!(
        shares.iter().sum::<usize>() == 30 && shares.iter().all(|share| *share > 0),
        "{shares:?}"
    );
    drop(serving);
    scene.end().await
}

/// Returns a sidecar whose tool runs until it is cancelled, and then records its call.
fn endless(cancelled: &Ledger) -> Sidecar {
    let cancelled = cancelled.clone();
    let run = move |context: Context, args: Args| {
        let cancelled = cancelled.clone();
        async move {
            context.progress("begun", None);
            context.cancelled().await;
            cancelled.note(&context, &args);
            Ok::<_, Infallible>("cancelled".to_owned())
        }
    };
    Sidecar::new("endless", "1.0.0")
        .unwrap()
        .tool(Tool::new("wait", "Waits.", run))
        .drain_timeout(Duration::from_millis(100))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_cancels_the_call() -> Result<()> {
    let script = Script::new().rounds(
        by("talker"),
        [Reply::call("wait", json!({})), Reply::text("done")],
    );
    let world = World::start(Backend::Sqlite, script).await?;
    let cancelled = Ledger::default();
    let serving = Serving::start(&world, endless(&cancelled));
    let scene = team_with(world, "endless", &[member("talker", &["wait"])], "go").await?;
    scene
        .recorder
        .until("it reports", |envelope| {
            matches!(envelope.event(), Some(Ok(Event::ToolProgress(_))))
        })
        .await?;
    scene.tell("talker", AgentVerb::Abort, json!({})).await?;
    eventually("the sidecar is told to cancel", async || {
        (cancelled.entries().len() == 1).then_some(())
    })
    .await?;
    let end = scene.result("talker", "wait").await?;
    assert!(
        end.error && end.result.starts_with("aborted by request"),
        "{end:?}"
    );
    assert!(
        end.result.ends_with("may or may not have taken effect"),
        "{end:?}"
    );
    scene.end().await?;
    serving.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_is_reported() -> Result<()> {
    let denied = "permissions: { publish: { deny: [\"tool.>\"] } }";
    let users = format!("{{ user: node, password: p, {denied} }}, {{ user: any, password: p }}");
    let server = NatsServer::start_with(&format!(
        "no_auth_user: any\nauthorization {{ users: [{users}] }}\n"
    ))?;
    let node_url = server.url().replace("//", "//node:p@");
    let script = Script::new().rounds(
        by("talker"),
        [Reply::call("echo", json!({})), Reply::text("done")],
    );
    let world = World::start_on(server, Backend::Sqlite, script).await?;
    let serving = Serving::start(&world, echo("mirror", &Ledger::default()));
    let node = world.node_with(&[("NATS_URL", &node_url)]).await?;
    found(&world, "mirror", 1).await?;
    let recorder = world.record().await?;
    let started = world
        .caller
        .start(
            &json!({"dir": world.dir(), "members": [member("talker", &["echo"])], "prompt": "go"}),
        )
        .await?;
    let scene = Scene {
        world,
        node: None,
        recorder,
        started,
    };
    assert_eq!(scene.answer().await?, "done");
    let end = scene.result("talker", "echo").await?;
    assert!(
        end.error
            && end
                .result
                .starts_with("denied: this node may not call `tool.mirror.echo`"),
        "{end:?}"
    );
    assert!(end.result.ends_with("Nothing was done"), "{end:?}");
    node.leave_despite(&["permission denied for publish to `tool.mirror.echo`"])
        .await?;
    serving.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_subject_is_a_tool() -> Result<()> {
    let Ok(nats) = find_cli() else {
        println!("NOT TESTED: there is no nats CLI");
        return Ok(());
    };
    let calls = Reply::call("shout", json!({"text": "hi"})).and_call("nobody", json!({}));
    let script = Script::new().rounds(by("talker"), [calls, Reply::text("done")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let mut reply = Command::new(nats);
    reply
        .env("HOME", world.folder())
        .env("XDG_CONFIG_HOME", world.folder())
        .args(["--server", &world.nats.url()]);
    let _answers = reply
        .args(["reply", "tools.shout", "HI THERE"])
        .stdin(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    crate::flows::nats_cli::subscribed(&world, "tools.shout").await?;
    let node = world
        .node_with(&[
            ("PLANCK_SIDECARS_TOOLS_SHOUT_SUBJECT", "tools.shout"),
            ("PLANCK_SIDECARS_TOOLS_SHOUT_DESCRIPTION", "Shouts."),
            (
                "PLANCK_SIDECARS_TOOLS_SHOUT_PARAMETERS",
                r#"{"type":"object","required":["text"]}"#,
            ),
            ("PLANCK_SIDECARS_TOOLS_NOBODY_SUBJECT", "tools.nobody"),
        ])
        .await?;
    let recorder = world.record().await?;
    let members = [member("talker", &["shout", "nobody"])];
    let started = world
        .caller
        .start(&json!({"dir": world.dir(), "members": members, "prompt": "go"}))
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    assert_eq!(scene.answer().await?, "done");
    let end = scene.result("talker", "shout").await?;
    assert!(!end.error && end.result.trim() == "HI THERE", "{end:?}");
    let end = scene.result("talker", "nobody").await?;
    assert!(
        end.error && end.result.starts_with("nobody is there"),
        "{end:?}"
    );
    scene.end().await
}
