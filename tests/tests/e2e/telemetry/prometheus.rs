//! Prometheus reads the metrics, and the files of `deploy/` for it and for Grafana query only
//! metrics that exist.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::within,
    prometheus::{Programs, Prometheus},
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::listener::Probe;
use crate::teams::scene::{by, lead};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn deployed(path: &str) -> Result<String> {
    fs::read_to_string(Path::new(ROOT).join("deploy").join(path)).with_context(|| path.to_owned())
}

/// Returns every expression of the dashboard, with its variables replaced.
fn dashboard() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(&deployed("grafana/planck.json")?)?;
    let panels = dashboard
        .get("panels")
        .and_then(Value::as_array)
        .context("no panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel.get("targets")?.as_array())
        .flatten();
    let filled = |text: &str| {
        text.replace("$__rate_interval", "1m")
            .replace("$job", ".*")
            .replace("$instance", ".*")
    };
    targets
        .map(|target| {
            target
                .get("expr")
                .and_then(Value::as_str)
                .map(filled)
                .context("a target without an expression")
        })
        .collect()
}

/// Returns the names of Planck's metrics that occur in a text.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("planck_"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: make test-all"]
async fn dashboard_and_alerts_query_only_existing_metrics() -> Result<()> {
    let (world, probe) = (
        World::start(Backend::Sqlite, Script::new()).await?,
        Probe::new()?,
    );
    let node = probe.node(&world).await?;
    let (_, text) = probe.get("/metrics").await?;
    let types = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let there: BTreeSet<String> = types
        .flat_map(|(name, kind)| match kind {
            "histogram" => ["_bucket", "_sum", "_count"]
                .map(|end| format!("{name}{end}"))
                .to_vec(),
            _ => vec![name.to_owned()],
        })
        .collect();
    let expressions = dashboard()?;
    ensure!(
        expressions.len() > 20,
        "the dashboard has {} expressions",
        expressions.len()
    );
    let asked: BTreeSet<String> = expressions
        .iter()
        .chain([&deployed("prometheus/alerts.yml")?])
        .flat_map(|text| named(text))
        .collect();
    let missing: Vec<_> = asked.difference(&there).collect();
    ensure!(missing.is_empty(), "no such metrics: {missing:?}");
    let family = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name)
            .to_owned()
    };
    let shown: BTreeSet<String> = expressions
        .iter()
        .flat_map(|text| named(text))
        .map(|name| family(&name))
        .collect();
    let hidden: Vec<_> = there
        .iter()
        .map(|name| family(name))
        .filter(|name| !shown.contains(name))
        .collect();
    ensure!(hidden.is_empty(), "the dashboard does not show {hidden:?}");
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: make test-all"]
async fn prometheus_reads_the_metrics() -> Result<()> {
    let Some(programs) = Programs::find() else {
        return Ok(());
    };
    let script = Script::new().rounds(by("lead"), [Reply::text("done")]);
    let (world, probe) = (World::start(Backend::Sqlite, script).await?, Probe::new()?);
    let (node, recorder) = (probe.node(&world).await?, world.record().await?);
    let prometheus = Prometheus::start(&programs, probe.address()).await?;
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": [lead(&[])], "prompt": "go" }))
        .await?;
    recorder
        .answered(&started.prompt_id.context("no prompt")?)
        .await?;
    let turns = "sum(planck_turns_total{outcome=\"completed\"})";
    within(
        Duration::from_secs(10),
        "Prometheus knows of the turn",
        async || {
            let found = prometheus.query(turns).await.ok()?;
            (found[0]["value"][1] == "1").then_some(())
        },
    )
    .await?;
    for expression in dashboard()? {
        prometheus.query(&expression).await?;
    }
    let agents = prometheus.query("sum(planck_agents)").await?;
    ensure!(agents[0]["value"][1] == "1", "{agents}");
    programs
        .check(&["check", "metrics"], &probe.get("/metrics").await?.1)
        .await?;
    let config = format!("{ROOT}/deploy/prometheus/prometheus.yml");
    programs.check(&["check", "config", &config], "").await?;
    node.leave().await
}
