//! Tests what `planck prove` finds, how it ends, and that nothing of it is left.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nkeys::KeyPair;
use planck_tests::{
    caller::Caller,
    eventually::within,
    nats::{NatsServer, find_server},
    node::{planck, processes},
    postgres::Database,
};
use serde_json::Value;
use sqlx::Connection as _;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::flows::secured::operator::Operator;

/// How long a proof may take on a busy machine. Forty faults need three minutes of their own.
const PATIENCE: Duration = Duration::from_secs(900);

/// Returns the command of a proof whose temporary files and report are in this folder.
fn prove(folder: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(planck()?);
    command
        .args(["prove", "-o", "json", "--seed", "7", "--report"])
        .arg(folder.join("report"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").context("no PATH")?)
        .env("HOME", folder)
        .env("TMPDIR", folder)
        .env("NATS_SERVER", find_server()?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

/// Runs a proof, and returns its exit code and its report.
async fn proven(folder: &Path, arguments: &[&str]) -> Result<(Option<i32>, Value)> {
    let ran = timeout(PATIENCE, prove(folder, arguments)?.output()).await??;
    let errors = String::from_utf8_lossy(&ran.stderr);
    let report = serde_json::from_slice::<Value>(&ran.stdout);
    let report = report.with_context(|| format!("{:?}: {errors}", ran.status))?;
    assert_eq!(report["planted"]["missed"], serde_json::json!([]));
    nothing_is_left(folder).await?;
    Ok((ran.status.code(), report))
}

async fn nothing_is_left(folder: &Path) -> Result<()> {
    let folder = folder.to_str().unwrap().to_owned();
    within(PATIENCE, "no process is left", async || {
        processes(&folder).next().is_none().then_some(())
    })
    .await?;
    let made = std::fs::read_dir(&folder)?.flatten();
    let left = made.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("planck-prove-") && !name.ends_with(".lock")
    });
    assert_eq!(left.count(), 0, "a folder of the proof is left");
    Ok(())
}

/// Returns the state of each promise. A verdict that came too late on a busy machine is no breach here.
fn states(report: &Value) -> Vec<(&str, &str)> {
    let promises = report["promises"].as_array().unwrap().iter();
    let state = |judged: &'_ Value| -> &'static str {
        let what = judged["what"].as_str().unwrap_or_default();
        match judged["state"].as_str().unwrap() {
            "broken" if what.contains("the bound is") => "kept",
            "broken" => "broken",
            "kept" => "kept",
            "not_tested" => "not tested",
            other => panic!("{other}"),
        }
    };
    promises
        .map(|judged| (judged["name"].as_str().unwrap(), state(judged)))
        .collect()
}

fn in_state<'a>(report: &'a Value, wanted: &str) -> Vec<&'a str> {
    let mut states = states(report);
    states.retain(|(_, state)| *state == wanted);
    states.into_iter().map(|(name, _)| name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_are_kept_and_what_was_left_out_is_not_called_kept() -> Result<()> {
    let folder = TempDir::new()?;
    let arguments = ["--only", "kill=2,hiccup=1,freeze=1"];
    let (code, report) = proven(folder.path(), &arguments).await?;
    let untested = ["team-ends", "drain", "nats-away", "nats-wiped"];
    assert_eq!(in_state(&report, "not tested"), untested, "{report:#}");
    assert_eq!(in_state(&report, "broken"), [""; 0], "{report:#}");
    ensure!(code == Some(3) || code == Some(1), "{code:?}");
    let faults = report["faults"].as_array().unwrap().iter();
    assert_eq!(faults.filter(|fault| fault["kind"] == "kill").count(), 2);
    ensure!(report["planted"]["found"].as_array().unwrap().len() > 12);
    let page = std::fs::read_to_string(folder.path().join("report/report.md"))?;
    ensure!(
        page.contains("| no tool call runs twice | kept |"),
        "{page}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn defect_of_a_run_is_found_with_the_place() -> Result<()> {
    let folder = TempDir::new()?;
    let arguments = ["--for", "1s", "--only", "drain", "--play-double"];
    let (code, report) = proven(folder.path(), &arguments).await?;
    assert_eq!(code, Some(1));
    assert_eq!(in_state(&report, "broken"), ["once"], "{report:#}");
    let promises = report["promises"].as_array().unwrap();
    let once = promises.iter().find(|judged| judged["name"] == "once");
    let around = once.unwrap()["around"].as_array().unwrap();
    let marked = around
        .iter()
        .filter(|line| line.as_str().unwrap().starts_with('>'));
    assert_eq!(marked.count(), 1, "{around:?}");
    ensure!(report["again"].as_str().unwrap().contains("--seed 7"));
    let logs = std::fs::read_dir(folder.path().join("report"))?.flatten();
    let sessions = logs.filter(|file| file.file_name().to_string_lossy().starts_with("session-"));
    ensure!(sessions.count() >= 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn place_that_is_not_fit_is_refused_with_the_way_out() -> Result<()> {
    let folder = TempDir::new()?;
    for (arguments, said) in [
        (
            ["--nats", "nats://127.0.0.1:1"],
            "cannot reach NATS at nats://127.0.0.1:1",
        ),
        (
            ["--nats", "tls://me:secret@127.0.0.1:1"],
            "nats://HOST:PORT, not tls://127.0.0.1:1",
        ),
        (
            ["--store", "postgres://me:secret@127.0.0.1:1/db"],
            "cannot reach postgres://127.0.0.1:1/db",
        ),
        (["--only", "fire"], "the faults are kill, freeze"),
        (["--only", "kill=0"], "`0` is no number from 1 to 10000"),
        (["--only", "kill,kill=2"], "names `kill` twice"),
        (["--only", "store-cut"], "SQLite is a file on this machine"),
        (["--only", "leader-killed=1"], "--servers 3 starts three"),
        (["--nodes", "1"], "1 is not in 2..=20"),
        (["--workers", "0"], "0 is not in 1..=2000"),
        (["--servers", "2"], "has 1 server or 3"),
        (
            ["--servers=3", "--nats=nats://me:secret@127.0.0.1:1"],
            "name yours at nats://127.0.0.1:1; leave out --nats or --servers",
        ),
    ] {
        let ran = timeout(PATIENCE, prove(folder.path(), &arguments)?.output()).await??;
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{errors}");
        ensure!(
            errors.contains(said) && !errors.contains("secret"),
            "{errors}"
        );
    }
    nothing_is_left(folder.path()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_cannot_start_leave_no_schema() -> Result<()> {
    let folder = TempDir::new()?;
    let database = Database::create().await?;
    let user =
        "{ user: u, password: secret, permissions: { publish: \"_INBOX.>\", subscribe: \">\" } }";
    let nats = NatsServer::start_with(&format!("authorization {{ users: [{user}] }}"))?;
    let (nats, url) = (nats.url().replace("//", "//u:secret@"), database.url());
    let arguments = ["--nats", &nats, "--store", &url];
    let ran = timeout(PATIENCE, prove(folder.path(), &arguments)?.output()).await??;
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{errors}");
    ensure!(
        errors.contains("permission") && !errors.contains("secret"),
        "{errors}"
    );
    nothing_is_left(folder.path()).await?;
    no_schema_is_left(&url).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute: make test-all"]
async fn nats_with_credentials_or_an_nkey_serves_a_proof() -> Result<()> {
    let (operator, user) = (Operator::new()?, KeyPair::new_user());
    let key = format!(
        "authorization {{ users: [{{ nkey: {} }}] }}",
        user.public_key()
    );
    for (config, name, login) in [
        (&operator.config, "NATS_CREDS", &operator.credentials),
        (&key, "NATS_NKEY", &user.seed()?),
    ] {
        let folder = TempDir::new()?;
        std::fs::write(folder.path().join("login"), login)?;
        let nats = NatsServer::start_with(config)?;
        let mut command = prove(folder.path(), &["--nats", &nats.url(), "--only", "sever=1"])?;
        // The path is relative to the folder in which the proof is started.
        let ran = timeout(PATIENCE, command.env(name, "./login").output()).await??;
        let errors = String::from_utf8_lossy(&ran.stderr);
        let report = serde_json::from_slice::<Value>(&ran.stdout);
        let report = report.with_context(|| format!("{:?}: {errors}", ran.status))?;
        assert_eq!(in_state(&report, "broken"), [""; 0], "{report:#}");
        ensure!(in_state(&report, "kept").contains(&"goes-on"), "{report:#}");
        nothing_is_left(folder.path()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_removes_everything_and_a_second_proof_is_refused() -> Result<()> {
    let folder = TempDir::new()?;
    let nats = NatsServer::start()?;
    let url = nats.url();
    let arguments = ["--for", "5m", "--nats", &url];
    let child = prove(folder.path(), &arguments)?.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id().context("it ended")?)?);
    let caller = Caller::connect(&url).await?;
    let jetstream = async_nats::jetstream::new(caller.nats.clone());
    let buckets = async || {
        use futures_util::TryStreamExt as _;
        let names = jetstream.stream_names();
        names.try_collect::<Vec<String>>().await.unwrap_or_default()
    };
    let works = async || (buckets().await.len() == 1).then_some(());
    within(PATIENCE, "the nodes work", works).await?;

    let second = timeout(PATIENCE, prove(folder.path(), &[])?.output()).await??;
    let errors = String::from_utf8_lossy(&second.stderr);
    ensure!(
        errors.contains("another `planck prove` of yours runs"),
        "{errors}"
    );
    assert_eq!(second.status.code(), Some(2));

    kill(pid, Signal::SIGINT)?;
    let ended = timeout(PATIENCE, child.wait_with_output()).await??;
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{errors}");
    nothing_is_left(folder.path()).await?;
    assert_eq!(buckets().await, [""; 0]);
    Ok(())
}

/// Runs a proof of so many faults, and checks that each of these promises is kept.
async fn keeps(only: &str, arguments: &[&str], promises: &[&str]) -> Result<()> {
    let folder = TempDir::new()?;
    let arguments = [&["--only", only], arguments].concat();
    let (_, report) = proven(folder.path(), &arguments).await?;
    assert_eq!(in_state(&report, "broken"), [""; 0], "{report:#}");
    let kept = in_state(&report, "kept");
    ensure!(
        promises.iter().all(|name| kept.contains(name)),
        "{report:#}"
    );
    let named = only
        .split(',')
        .map(|fault| fault.split_once('=').context("no number"));
    for fault in named {
        let (name, times) = fault?;
        let faults = report["faults"].as_array().context("no faults")?.iter();
        let inflicted = faults.filter(|fault| fault["kind"] == name).count();
        assert_eq!(inflicted, times.parse::<usize>()?, "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute: make test-all"]
async fn all_promises_are_kept_on_sqlite() -> Result<()> {
    let nodes = "kill=3,freeze=3,hiccup=5,cut=1,sever=1,drain=1,team=1";
    let nats = "nats-away=3,nats-killed=3,nats-wiped=1";
    let teams = ["--workers", "20"];
    tokio::try_join!(
        keeps(nodes, &teams, &["goes-on", "team-ends", "drain"]),
        keeps(nats, &[], &["nats-away", "nats-wiped"]),
    )?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes three minutes: make test-all"]
async fn all_promises_are_kept_under_ten_of_each_fault_on_postgres() -> Result<()> {
    let database = Database::create().await?;
    let url = database.url();
    let store = ["--store", &url];
    let servers = "nats-away=10,nats-killed=10,store-away=10,store-cut=10";
    tokio::try_join!(
        keeps("kill=10,hiccup=10,drain=1,team=1", &store, &["team-ends"]),
        keeps("freeze=10", &store, &["frozen-writes-nothing"]),
        keeps("cut=5,sever=5", &store, &["goes-on", "same"]),
        keeps(servers, &store, &["nats-away", "store-away"]),
    )?;
    no_schema_is_left(&url).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute: make test-all"]
async fn all_promises_are_kept_with_three_servers() -> Result<()> {
    let faults = "leader-killed=2,kill=1,cut=1,nats-away=1,nats-wiped=1";
    keeps(faults, &["--servers", "3"], &["server-lost", "nats-wiped"]).await
}

async fn no_schema_is_left(url: &str) -> Result<()> {
    let mut connection = sqlx::PgConnection::connect(url).await?;
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'planck_prove%'";
    let left: i64 = sqlx::query_scalar(schemas)
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(left, 0, "a schema of the proof is left");
    Ok(())
}
