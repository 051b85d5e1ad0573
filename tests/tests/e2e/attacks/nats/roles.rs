//! The roles of `deploy/nats-cluster.conf` in use: a real node, real sidecars and real clients do
//! their work with these rights, and errors name the rights that they lack.

use std::fs;

use anyhow::{Context as _, Result};
use planck_scripted_model::{Reply, Script, Server};
use planck_tests::{
    eventually::{PATIENCE, eventually, within},
    example::Example,
    machine::{Ran, run},
    node::Node,
    watch::Watch,
};
use serde_json::{Value, json};
use tokio::{process::Child, sync::oneshot, task::JoinHandle};

use super::gate::{Form, SecuredServer};
use crate::sidecars::serving::{Ledger, echo};

/// A cluster in which every program uses its role's user.
struct Cluster {
    gate: SecuredServer,
    _model: Server,
    node: Node,
    stop: oneshot::Sender<()>,
    in_rust: JoinHandle<Result<(), planck_sidecar::Error>>,
    _in_a_process: Child,
}

fn script() -> Script {
    let calls = Reply::call("echo", json!({"word": "hi"}))
        .and_call("repeat", json!({"text": "ab", "times": 2}));
    Script::new().rounds(
        planck_scripted_model::When::any(),
        [
            calls,
            Reply::text("it is {{result:echo}} {{result:repeat}}"),
        ],
    )
}

impl Cluster {
    async fn start(form: Form) -> Result<Self> {
        let (gate, model) = (
            SecuredServer::start(form)?,
            Server::start(script().without_auth()).await?,
        );
        let node = gate.node(&model).await?;
        let (stop, stopped) = oneshot::channel();
        let sidecar = echo("mirror", &Ledger::default());
        let in_rust = tokio::spawn(sidecar.run_until(gate.connection("sidecar"), async move {
            drop(stopped.await)
        }));
        let environment = gate.environment("sidecar");
        // The Python client library needs one more package for nkeys.
        let example = if form == Form::Nkeys {
            Example::rust()?
        } else {
            Example::python()?
        };
        let in_a_process = example.start_with(&environment[0].1, &environment)?;
        fs::create_dir(gate.folder.path().join("work"))?;
        let cluster = Self {
            gate,
            _model: model,
            node,
            stop,
            in_rust,
            _in_a_process: in_a_process,
        };
        cluster.finds("mirror").await?;
        cluster.finds(example.name).await?;
        Ok(cluster)
    }

    async fn run(&self, role: &str, arguments: &[&str]) -> Result<Ran> {
        run(self.gate.planck(role, arguments)?).await
    }

    /// Waits until a client's list shows that the node has found a sidecar.
    async fn finds(&self, sidecar: &str) -> Result<()> {
        within(PATIENCE * 2, sidecar, async || {
            let listed = self.run("client", &["sidecar", "ls"]).await.ok()?;
            (listed.code == 0 && listed.out.contains(sidecar)).then_some(())
        })
        .await
    }

    async fn succeeds(&self, role: &str, arguments: &[&str]) -> Result<String> {
        let ran = self.run(role, arguments).await?;
        assert_eq!(ran.code, 0, "{role} {arguments:?}: {ran:?}");
        Ok(ran.out)
    }

    /// Checks that a command fails and says which permission is missing.
    async fn is_denied(&self, role: &str, arguments: &[&str], what: &str) -> Result<()> {
        let Ran { code, out, err } = self.run(role, arguments).await?;
        let words = format!("permission denied for {what}");
        assert!(
            code != 0 && err.contains(&words),
            "{role} {arguments:?} wants {words:?}: {code} {out} {err}"
        );
        Ok(())
    }

    async fn end(self) -> Result<()> {
        drop(self.stop);
        self.in_rust.await??;
        self.node
            .leave_despite(&["its reply would go to a subject that is no inbox"])
            .await
    }
}

/// Has a client start a session that uses sidecars' tools, an observer watch it, and an answerer
/// continue it. Then checks that a command fails if its role lacks a right that it needs.
async fn roles_work(form: Form) -> Result<()> {
    let cluster = Cluster::start(form).await?;
    let folder = cluster.gate.folder.path();
    let team = folder.join("team.json");
    let member = json!({ "type": "talker", "tools": ["echo", "repeat"] });
    fs::write(
        &team,
        json!({ "name": "talkers", "members": [member] }).to_string(),
    )?;
    let observer = Watch::start(
        cluster
            .gate
            .planck("observer", &["events", "-o", "jsonl"])?,
        folder.join("events.jsonl"),
    )?;
    let (team, work) = (team.to_str().context("a path")?, folder.join("work"));
    let start = [
        "run",
        "--session",
        "bold-oak",
        "--team",
        team,
        "--dir",
        work.to_str().context("a path")?,
        "go",
    ];
    let answer = cluster.succeeds("client", &start).await?;
    assert!(answer.contains(r#"it is {"word":"hi"} abab"#), "{answer}");
    assert!(
        cluster
            .succeeds("client", &["nodes", "ls"])
            .await?
            .contains(cluster.node.id().as_str())
    );

    let further = cluster
        .succeeds("answerer", &["run", "--session", "bold-oak", "more"])
        .await?;
    assert!(further.contains("it is"), "{further}");
    observer.says(&["turn_end", "it is", "abab"]).await?;
    observer.leave().await?;

    for (role, arguments, what) in [
        (
            "answerer",
            &["session", "close", "bold-oak"][..],
            "publish to `cmd.session.bold-oak.close`",
        ),
        (
            "observer",
            &["session", "ls"],
            "subscribe to `_INBOX_observer.",
        ),
        (
            "observer",
            &["events", "sidecar.*"],
            "subscribe to `sidecar.*`",
        ),
        (
            "sidecar",
            &["session", "ls"],
            "publish to `cmd.sessions.list`",
        ),
        ("client", &["node"], "publish to `$JS.API.INFO`"),
        ("observer", &["node"], "subscribe to `_INBOX_observer."),
    ] {
        cluster.is_denied(role, arguments, what).await?;
    }
    deputy_is_no_way_around(&cluster).await?;
    assert!(
        cluster
            .succeeds("client", &["session", "ls"])
            .await?
            .contains("bold-oak"),
        "the session is there still"
    );
    cluster.end().await
}

/// Has an answerer send requests whose reply subjects would delete the session, overwrite the
/// registry or publish an event. Checks that the session still exists.
async fn deputy_is_no_way_around(cluster: &Cluster) -> Result<()> {
    let attacker = cluster.gate.attacker("answerer").await?;
    for to in [
        "cmd.session.bold-oak.delete",
        "$KV.planck_registry.store",
        "session.bold-oak",
    ] {
        attacker
            .nats
            .publish_with_reply("cmd.sessions.list", to, "{}".into())
            .await?;
    }
    let listed = eventually("an honest request is answered", async || {
        let answer = attacker
            .nats
            .request("cmd.sessions.list", "{}".into())
            .await
            .ok()?;
        serde_json::from_slice::<Value>(&answer.payload).ok()
    });
    assert_eq!(listed.await?["ok"]["sessions"][0]["name"], "bold-oak");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn roles_work_by_password() -> Result<()> {
    roles_work(Form::Passwords).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn roles_work_by_nkey() -> Result<()> {
    roles_work(Form::Nkeys).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn roles_work_by_certificate() -> Result<()> {
    roles_work(Form::Certificates).await
}
