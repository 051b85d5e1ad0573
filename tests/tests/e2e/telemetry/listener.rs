//! The HTTP listener of a node: what its probes and its metrics report while the node works, and
//! while it cannot work.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::{
    eventually::within,
    nats::free_port,
    node::Node,
    prometheus,
    world::{Backend, World},
};
use serde_json::json;
use sqlx::Connection as _;
use tokio::time::timeout;

use crate::teams::scene::{by, lead, member};

/// How long a probe may take to change.
const SOON: Duration = Duration::from_secs(5);

/// The HTTP listener of a node, by its address.
pub struct Probe(String);

impl Probe {
    pub fn new() -> Result<Self> {
        Ok(Self(format!("127.0.0.1:{}", free_port()?)))
    }

    pub async fn node(&self, world: &World) -> Result<Node> {
        world
            .node_with(&[("PLANCK_TELEMETRY_LISTEN", &self.0)])
            .await
    }

    pub fn address(&self) -> &str {
        &self.0
    }

    /// Requests a path, and returns the status and the body.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        timeout(Duration::from_secs(2), prometheus::get(&self.0, path))
            .await
            .context("no answer within two seconds")?
    }

    /// Requests the metrics, and returns every sample by its series.
    pub async fn samples(&self) -> Result<BTreeMap<String, f64>> {
        let (200, text) = self.get("/metrics").await? else {
            bail!("no metrics")
        };
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| {
                line.rsplit_once(' ')
                    .context("no value")
                    .and_then(|(name, value)| Ok((name.into(), value.parse()?)))
            })
            .collect()
    }

    /// Waits until readiness has this status, and returns the body.
    async fn turns(&self, status: u16) -> Result<String> {
        within(SOON, &format!("/readyz says {status}"), async || {
            self.get("/readyz")
                .await
                .ok()
                .filter(|(found, _)| *found == status)
                .map(|(_, body)| body)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_a_team_did() -> Result<()> {
    let script = Script::new()
        .limited(1, by("lead"), Reply::fault(ScriptedFault::status(503)))
        .rounds(
            by("lead"),
            [
                Reply::call(
                    "ask_agent",
                    json!({ "agent": "helper", "question": "how?" }),
                ),
                Reply::text("done"),
            ],
        )
        .rounds(
            by("helper"),
            [
                Reply::call("bash", json!({ "command": "false" })),
                Reply::text("so"),
            ],
        );
    let (world, probe) = (World::start(Backend::Sqlite, script).await?, Probe::new()?);
    let (node, recorder) = (probe.node(&world).await?, world.record().await?);
    let before = probe.samples().await?;
    assert_eq!(
        before["planck_turns_total{outcome=\"completed\"}"], 0.0,
        "families are there from the start"
    );
    let members = [lead(&[]), member("helper", &["bash"])];
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": members, "prompt": "go" }))
        .await?;
    recorder
        .answered(&started.prompt_id.context("no prompt")?)
        .await?;
    let samples = probe.samples().await?;
    let model = |name: &str, more: &str| {
        let found: Vec<_> = samples
            .iter()
            .filter(|(series, _)| series.starts_with(name) && series.contains(more))
            .collect();
        found.iter().map(|(_, value)| **value).sum::<f64>()
    };
    assert_eq!(samples["planck_turns_total{outcome=\"completed\"}"], 2.0);
    assert_eq!(samples["planck_turn_duration_seconds_count"], 2.0);
    assert_eq!(model("planck_model_requests_total", "outcome=\"ok\""), 4.0);
    assert_eq!(
        model("planck_model_requests_total", "outcome=\"transient\""),
        1.0
    );
    assert_eq!(samples["planck_model_retries_total"], 1.0);
    assert_eq!(samples["planck_model_request_duration_seconds_count"], 5.0);
    assert_eq!(samples["planck_time_to_first_token_seconds_count"], 4.0);
    assert!(model("planck_tokens_total", "kind=\"output\"") > 0.0);
    assert_eq!(
        samples["planck_tool_calls_total{outcome=\"error\",tool=\"bash\"}"],
        1.0
    );
    assert_eq!(
        samples["planck_tool_calls_total{outcome=\"ok\",tool=\"ask_agent\"}"],
        1.0
    );
    assert!(samples["planck_save_duration_seconds_count"] > 4.0);
    assert!(samples["planck_publish_lag_seconds_count"] > 0.0);
    assert_eq!(model("planck_agents", ""), 2.0);
    assert_eq!(model("planck_sessions", ""), 1.0);
    assert!(
        (0.0..2.5).contains(&samples["planck_heartbeat_age_seconds"])
            && samples["planck_heartbeat_age_seconds"] > 0.0
    );
    assert_eq!(samples["planck_inbox_depth"], 0.0);
    assert_eq!(probe.get("/nothing").await?.0, 404);
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_a_node_is_counted_by_the_nodes_that_declare_it_and_take_over() -> Result<()> {
    let script = Script::new().rounds(by("lead"), [Reply::text("done")]);
    let (world, probes) = (
        World::start(Backend::Postgres, script).await?,
        [Probe::new()?, Probe::new()?],
    );
    let mut nodes = [probes[0].node(&world).await?, probes[1].node(&world).await?];
    let recorder = world.record().await?;
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": [lead(&[])], "prompt": "go" }))
        .await?;
    recorder
        .answered(&started.prompt_id.context("no prompt")?)
        .await?;
    let info = world.caller.session(&started.session_id).await?;
    let host = info
        .agents
        .first()
        .and_then(|agent| agent.node_id.clone())
        .context("nobody hosts the lead")?;
    let dead = usize::from(nodes[1].id() == &host);
    let survivor = &probes[1 - dead];
    assert_eq!(survivor.samples().await?["planck_verdicts_total"], 0.0);
    nodes[dead].kill().await?;
    within(
        Duration::from_secs(30),
        "the death is counted",
        async || {
            let samples = survivor.samples().await.ok()?;
            let counted =
                ["planck_verdicts_total", "planck_failovers_total"].map(|name| samples[name]);
            (counted == [1.0, 1.0]).then_some(())
        },
    )
    .await
}

/// Takes over the agents of a session, as the first statement of another node's claim does.
async fn claim_for_another(world: &World, session: &str) -> Result<()> {
    let mut connection = sqlx::PgConnection::connect(&world.store_url()).await?;
    let claimed = sqlx::query("UPDATE agents SET epoch = epoch + 1 WHERE session_id = $1")
        .bind(session)
        .execute(&mut connection)
        .await?;
    assert_eq!(claimed.rows_affected(), 1);
    Ok(connection.close().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_without_the_lease_is_counted() -> Result<()> {
    let wait = json!({ "command": "touch begun; while [ ! -e go ]; do sleep 0.05; done" });
    let script = Script::new().rounds(by("lead"), [Reply::call("bash", wait), Reply::text("done")]);
    let (world, probe) = (
        World::start(Backend::Postgres, script).await?,
        Probe::new()?,
    );
    let node = probe.node(&world).await?;
    let members = [lead(&["bash"])];
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": members, "prompt": "go" }))
        .await?;
    within(Duration::from_secs(30), "the tool runs", async || {
        world.dir().join("begun").exists().then_some(())
    })
    .await?;
    assert_eq!(probe.samples().await?["planck_fenced_writes_total"], 0.0);
    claim_for_another(&world, started.session_id.as_str()).await?;
    std::fs::write(world.dir().join("go"), "")?;
    within(
        Duration::from_secs(30),
        "the refused save is counted",
        async || {
            let fenced = probe.samples().await.ok()?["planck_fenced_writes_total"];
            (fenced == 1.0).then_some(())
        },
    )
    .await?;
    node.leave_despite(&["another node holds the lease"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_changes_with_its_cause_and_liveness_does_not() -> Result<()> {
    let probe = Probe::new()?;
    let world = World::start_alone(Script::new()).await?;
    let node = probe.node(&world).await?;
    assert_eq!(probe.turns(200).await?, "ok\n");
    world.nats.pause()?;
    let why = probe.turns(503).await?;
    assert!(why.contains("suspended") || why.contains("NATS"), "{why}");
    assert_eq!(
        probe.get("/livez").await?.0,
        200,
        "a new process would not bring NATS back"
    );
    world.nats.resume()?;
    within(Duration::from_secs(20), "it is ready again", async || {
        probe.turns(200).await.ok()
    })
    .await?;
    let paused = world.pause_database()?;
    let why = probe.turns(503).await?;
    assert!(why.contains("session store"), "{why}");
    assert_eq!(probe.get("/livez").await?.0, 200);
    drop(paused);
    within(Duration::from_secs(20), "it is ready again", async || {
        probe.turns(200).await.ok()
    })
    .await?;
    drop(node);
    Ok(())
}
