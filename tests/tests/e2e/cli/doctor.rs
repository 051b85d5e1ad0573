//! `planck doctor`: what it checks, and that it leaves nothing behind.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::Script;
use planck_tests::{
    machine::{PersonalMachine, Ran, run},
    postgres::Database,
    world::{Backend, World},
};
use serde::Deserialize;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _, SqliteConnection,
    sqlite::SqliteConnectOptions,
};

fn script() -> Script {
    Script::new().always("Hello.")
}

#[derive(Debug, Deserialize)]
struct Finding {
    name: String,
    state: String,
    what: String,
}

/// Returns doctor's findings by the names of its checks.
fn findings(ran: &Ran) -> Result<BTreeMap<String, Finding>> {
    let found: Vec<Finding> = serde_json::from_str(&ran.out).with_context(|| format!("{ran:?}"))?;
    let by_name = |finding: Finding| (finding.name.clone(), finding);
    Ok(found.into_iter().map(by_name).collect())
}

async fn doctor(world: &World) -> Result<(i32, BTreeMap<String, Finding>)> {
    let mut command = world.planck()?;
    command.args(["doctor", "-o", "json"]);
    let ran = run(command).await?;
    Ok((ran.code, findings(&ran)?))
}

fn expect(found: &BTreeMap<String, Finding>, name: &str, state: &str, what: &str) -> Result<()> {
    let finding = found
        .get(name)
        .with_context(|| format!("no {name} in {found:?}"))?;
    ensure!(
        finding.state == state && finding.what.contains(what),
        "{finding:?} is not {state}: {what}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_a_store_and_a_server_that_cannot_be_reached() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let alone = machine.run(&["doctor"]).await?;
    assert!(
        alone.code == 0 && alone.out.contains("made with the first session"),
        "{alone:?}"
    );
    let gone = machine
        .run(&[
            "doctor",
            "--nats",
            "nats://127.0.0.1:1",
            "--store",
            "postgres://127.0.0.1:1/x",
        ])
        .await?;
    assert!(
        gone.code == 1 && gone.out.contains("✗ nats") && gone.out.contains("✗ store"),
        "{gone:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reaches_postgres_and_nats() -> Result<()> {
    let world = World::start(Backend::Postgres, script()).await?;
    let mut command = world.planck()?;
    command.arg("doctor");
    let before = run(command).await?;
    assert!(
        before.out.contains("without tables yet") && before.out.contains("✓ nats"),
        "{before:?}"
    );
    let node = world.node().await?;
    let mut command = world.planck()?;
    command.arg("doctor");
    let after = run(command).await?;
    assert!(
        after.code == 0 && after.out.contains("reached, schema "),
        "{after:?}"
    );
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_writes_to_what_a_node_writes_to_and_keeps_nothing() -> Result<()> {
    let world = World::start(Backend::Postgres, script()).await?;
    let (_, found) = doctor(&world).await?;
    expect(&found, "store", "good", "without tables yet")?;
    expect(&found, "store write", "good", "made a table and a row")?;
    expect(&found, "nats pub/sub", "good", "came back after")?;
    expect(
        &found,
        "jetstream",
        "good",
        "the first node makes the registry",
    )?;
    let mut database = PgConnection::connect(&world.store_url()).await?;
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    assert_eq!(number(&mut database, tables).await?, 0);

    let node = world.node().await?;
    let jetstream = async_nats::jetstream::new(world.caller.nats.clone());
    let registry = jetstream.get_key_value("planck_registry").await?;
    let kept = "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM agents) + (SELECT count(*) FROM log)
        + (SELECT count(*) FROM inputs) + (SELECT is_called::int FROM agents_born_seq) + (SELECT is_called::int FROM inputs_accepted_seq)";
    assert_eq!(number(&mut database, kept).await?, 0);
    let (code, found) = doctor(&world).await?;
    assert_eq!(code, 0, "{found:?}");
    expect(&found, "store", "good", "reached, schema ")?;
    expect(&found, "store write", "good", "wrote to every table")?;
    expect(&found, "jetstream", "good", "read the registry")?;
    // Everything runs on this machine, which has one clock.
    expect(&found, "store clock", "good", "this machine")?;
    expect(&found, "nats clock", "good", "this machine")?;
    assert_eq!(
        number(&mut database, kept).await?,
        0,
        "rows, or numbers of a sequence"
    );
    assert!(registry.entry("trial").await?.is_none());
    node.leave().await
}

async fn number(database: &mut PgConnection, sql: &'static str) -> Result<i64> {
    Ok(database.fetch_one(sql).await?.try_get(0)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_database_that_takes_no_writes() -> Result<()> {
    let (machine, database) = (
        PersonalMachine::start(script()).await?,
        Database::create().await?,
    );
    let url = database.url();
    let first = machine
        .run(&["run", "--model", "openai:gpt-5", "--store", &url, "hello"])
        .await?;
    assert_eq!(first.code, 0, "{first:?}");

    // Creates a database user who may read all tables, and may insert into only two of them.
    let reader = format!("planck_reader_{}", std::process::id());
    let mut admin = database.connect().await?;
    admin
        .execute(AssertSqlSafe(format!(
            "CREATE ROLE {reader} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}; GRANT INSERT ON sessions, log TO {reader}"
        )))
        .await?;
    let joint = if url.contains('?') { '&' } else { '?' };
    let as_reader = format!("{url}{joint}user={reader}");
    let ran = machine
        .run(&["doctor", "-o", "json", "--store", &as_reader])
        .await?;
    admin
        .execute(AssertSqlSafe(format!(
            "DROP OWNED BY {reader}; DROP ROLE {reader}"
        )))
        .await?;
    assert_eq!(ran.code, 1, "{ran:?}");
    let found = findings(&ran)?;
    expect(&found, "store", "good", "reached, schema ")?;
    expect(
        &found,
        "store write",
        "bad",
        "permission denied for table agents",
    )?;

    // A standby server is read-only in the same way.
    let set = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$";
    admin.execute(set).await?;
    let ran = machine
        .run(&["doctor", "-o", "json", "--store", &url])
        .await?;
    assert_eq!(ran.code, 1, "{ran:?}");
    expect(
        &findings(&ran)?,
        "store write",
        "bad",
        "read-only transaction",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_tells_how_far_the_databases_clock_is_off() -> Result<()> {
    let (machine, database) = (
        PersonalMachine::start(script()).await?,
        Database::create().await?,
    );
    let url = database.url();
    let mut admin = database.connect().await?;
    for (off, state, code) in [("30 seconds", "note", 0), ("-2 hours", "bad", 1)] {
        // The server has only the machine's clock, so a function of the same name hides
        // `clock_timestamp`.
        admin
            .execute(AssertSqlSafe(format!(
                "CREATE SCHEMA IF NOT EXISTS off;
                 CREATE OR REPLACE FUNCTION off.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
                   $$ SELECT pg_catalog.clock_timestamp() + interval '{off}' $$;
                 DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = off, pg_catalog, public', current_database()); END $do$"
            )))
            .await?;
        let ran = machine
            .run(&["doctor", "-o", "json", "--store", &url])
            .await?;
        assert_eq!(ran.code, code, "{ran:?}");
        expect(&findings(&ran)?, "store clock", state, "this machine")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_writes_to_a_folder_beside_the_node_that_uses_it() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let (_, found) = doctor(&world).await?;
    expect(&found, "store", "good", "made with the first session")?;
    expect(&found, "store write", "good", "can be written")?;
    let folder = world.folder().join("sessions");
    assert!(!folder.exists(), "doctor made the store");

    let node = world.node().await?;
    let (code, found) = doctor(&world).await?;
    assert_eq!(code, 0, "{found:?}");
    expect(
        &found,
        "store write",
        "good",
        "beside the node that uses it",
    )?;

    let index = SqliteConnectOptions::new().filename(folder.join("index.db"));
    let mut other = SqliteConnection::connect_with(&index).await?;
    let held = other.begin_with("BEGIN IMMEDIATE").await?;
    let began = Instant::now();
    let (code, found) = doctor(&world).await?;
    assert_eq!(code, 1, "{found:?}");
    expect(&found, "store write", "bad", "locked")?;
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    held.rollback().await?;
    let (code, found) = doctor(&world).await?;
    assert_eq!(code, 0, "{found:?}");
    node.leave_despite(&["index.db"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_folders_that_cannot_be_made_or_written() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = machine
        .run(&[
            "doctor",
            "-o",
            "json",
            "--store",
            "sqlite:/proc/planck/sessions",
        ])
        .await?;
    assert_eq!(ran.code, 1, "{ran:?}");
    expect(&findings(&ran)?, "store", "bad", "cannot use /proc")?;
    machine.configure("[workspaces]\nkernel = \"/proc\"\n")?;
    let ran = machine.run(&["doctor", "-o", "json"]).await?;
    assert_eq!(ran.code, 1, "{ran:?}");
    expect(&findings(&ran)?, "workspace", "bad", "kernel = /proc")
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_asks_providers_only_if_it_may() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = machine.run(&["doctor"]).await?;
    assert!(ran.code == 0 && !ran.out.contains("online"), "{ran:?}");
    assert_eq!(machine.model.request_count(), 0);

    let ran = machine.run(&["doctor", "--online"]).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    for provider in ["anthropic", "google", "openai"] {
        let answered = |line: &str| {
            line.contains(&format!("✓ online       {provider}:"))
                && line.contains(" answered after ")
        };
        assert!(ran.out.lines().any(answered), "{provider}: {ran:?}");
    }
    machine.check_model()?;

    machine.model.set_script(script().key("another"));
    let ran = machine.run(&["doctor", "--online"]).await?;
    assert!(
        ran.code == 1
            && ran.out.contains("✗ online       anthropic:")
            && ran.out.contains("→ correct the key of the provider"),
        "{ran:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_of_a_client_checks_no_node_that_is_not_here() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let doctor = async |arguments: &[&str]| {
        let mut command = world.planck()?;
        command.args(["doctor", "-o", "json"]).args(arguments);
        command.env_remove("PLANCK_STORE_URL");
        findings(&run(command).await?)
    };
    let found = doctor(&[]).await?;
    expect(&found, "nodes", "note", "no node answers")?;
    expect(&found, "node", "note", "a client of the cluster")?;
    for name in ["store", "sandbox", "workspace", "model"] {
        assert!(!found.contains_key(name), "{name}: {found:?}");
    }
    let node = world.node().await?;
    let found = doctor(&["--node"]).await?;
    expect(&found, "nodes", "good", "1 node: ")?;
    for name in ["store", "sandbox", "model"] {
        assert!(found.contains_key(name), "{name}: {found:?}");
    }
    node.leave().await
}
