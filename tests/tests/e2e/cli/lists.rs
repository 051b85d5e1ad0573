//! `planck session ls` with its filters, and `rewind` without a message.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures_util::StreamExt as _;
use planck_scripted_model::{Script, When};
use planck_tests::{
    machine::{PersonalMachine, run},
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::time::timeout;

fn names(out: &str) -> Result<Vec<String>> {
    let rows: Vec<Value> = serde_json::from_str(out)?;
    let mut names: Vec<String> = rows
        .iter()
        .filter_map(|row| row["name"].as_str())
        .map(str::to_owned)
        .collect();
    names.sort();
    Ok(names)
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_filtered_and_a_failed_one_is_marked() -> Result<()> {
    let machine = PersonalMachine::start(
        Script::new()
            .rule(When::any().last("go"), "Done.")
            .always("Well."),
    )
    .await?;
    for name in ["bold-oak", "bold-elm", "grey-fern"] {
        assert_eq!(
            machine
                .run(&["run", "--model", "openai:m", "--session", name, "go"])
                .await?
                .code,
            0
        );
    }
    let mut fails = machine.planck(&[
        "run",
        "--model",
        "openai:m",
        "--session",
        "grey-fern",
        "more",
    ])?;
    fails
        .env("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
        .env("PLANCK_PROVIDERS_OPENAI_MAX_ATTEMPTS", "1");
    assert_eq!(run(fails).await?.code, 1);
    assert_eq!(
        machine.run(&["session", "close", "bold-elm"]).await?.code,
        0
    );

    for (filter, expected) in [
        (
            &["--limit", "50"][..],
            &["bold-elm", "bold-oak", "grey-fern"][..],
        ),
        (&["--state", "open"], &["bold-oak", "grey-fern"]),
        (&["--state", "closed"], &["bold-elm"]),
        (&["--state", "failed"], &["grey-fern"]),
        (&["--state", "working"], &[]),
        (&["--state", "waiting"], &[]),
        (&["--name", "bold-*"], &["bold-elm", "bold-oak"]),
        (&["--since", "1h", "--name", "grey-fern"], &["grey-fern"]),
        (&["--since", "2999-01-01"], &[]),
    ] {
        let ran = machine
            .run(&[&["session", "ls", "-o", "json"][..], filter].concat())
            .await?;
        assert_eq!(
            (ran.code, names(&ran.out)?),
            (0, expected.iter().map(|name| (*name).to_owned()).collect()),
            "{filter:?}: {ran:?}"
        );
    }
    let table = machine.run(&["session", "ls"]).await?;
    assert!(
        table.out.contains("open, failed") && table.err.is_empty(),
        "{table:?}"
    );
    let table = machine.run(&["session", "ls", "--limit", "2"]).await?;
    assert!(
        table.out.lines().count() == 3 && table.err.contains("1 older ones are not listed"),
        "{table:?}"
    );
    let wrong = machine.run(&["session", "ls", "--since", "soon"]).await?;
    assert!(
        wrong.code == 2 && wrong.err.contains("2h, 30d"),
        "{wrong:?}"
    );

    // A session that failed once and succeeded since does not count as failed.
    assert_eq!(
        machine
            .run(&["run", "--session", "grey-fern", "go"])
            .await?
            .code,
        0
    );
    assert_eq!(
        machine
            .run(&["session", "ls", "--state", "failed", "-o", "json"])
            .await?
            .out
            .trim(),
        "[]"
    );
    Ok(())
}

/// Checks that a list of many sessions takes a single request. On a busy machine the client may send
/// the same one again.
async fn list_asks_once_for_a_page(backend: Backend) -> Result<()> {
    const SESSIONS: usize = 200;
    let world = World::start(backend, Script::new().always("Done.")).await?;
    let node = world.node().await?;
    let caller = &world.caller;
    let start = async |number: usize| {
        let mut body = world.solo();
        body["name"] = json!(format!("session-{number}"));
        if number < 20 {
            body["prompt"] = json!("go");
        }
        caller.start(&body).await
    };
    let started: Vec<_> = futures_util::stream::iter((0..SESSIONS).map(start))
        .buffer_unordered(8)
        .collect()
        .await;
    for started in started {
        started?;
    }
    let mut asked = caller.nats.subscribe("cmd.>").await?;
    caller.nats.flush().await?;
    for format in ["json", "table"] {
        let began = Instant::now();
        let mut command = world.planck()?;
        command.args(["session", "ls", "--limit", "200", "-o", format]);
        let listed = run(command).await?;
        let took = began.elapsed();
        if format == "json" {
            assert_eq!(names(&listed.out)?.len(), SESSIONS, "{listed:?}");
        } else {
            assert_eq!(listed.out.lines().count(), SESSIONS + 1, "{listed:?}");
            let row = listed.out.lines().find(|row| row.starts_with("session-7 "));
            assert!(row.is_some_and(|row| row.contains("go")), "{listed:?}");
        }
        let mut requests = BTreeSet::new();
        while let Ok(Some(request)) = timeout(Duration::from_millis(300), asked.next()).await {
            requests.insert((request.subject.to_string(), request.payload.to_vec()));
        }
        eprintln!(
            "{SESSIONS} sessions as {format}, {backend:?}: {} requests, {took:?}",
            requests.len()
        );
        let subjects: Vec<&str> = requests.iter().map(|(subject, _)| &**subject).collect();
        assert_eq!(subjects, ["cmd.sessions.list"]);
    }
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn list_of_many_sessions_asks_once_for_a_page_on_sqlite() -> Result<()> {
    list_asks_once_for_a_page(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn list_of_many_sessions_asks_once_for_a_page_on_postgres() -> Result<()> {
    list_asks_once_for_a_page(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rewind_without_a_message_lists_the_messages() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Well.")).await?;
    for prompt in ["first prompt", "second prompt"] {
        assert_eq!(
            machine
                .run(&[
                    "run",
                    "--model",
                    "openai:m",
                    "--session",
                    "bold-oak",
                    prompt
                ])
                .await?
                .code,
            0
        );
    }
    machine.write("shape.json", r#"{"type": "object"}"#)?;
    let shape = ["--session", "bold-oak", "--output-schema", "shape.json"];
    let shaped = [&["run"], &shape[..], &["third prompt"]].concat();
    assert_eq!(machine.run(&shaped).await?.code, 6);
    let listed = machine.run(&["session", "rewind", "bold-oak"]).await?;
    assert!(
        listed.code == 0
            && listed.out.contains("first prompt")
            && listed.out.contains("third prompt")
            && listed.out.contains("--to MESSAGE"),
        "{listed:?}"
    );
    // The runtime demanded the answer in the shape. This message is no prompt.
    assert!(!listed.out.contains("submit_output"), "{listed:?}");
    let row = listed
        .out
        .lines()
        .find(|line| line.contains("second prompt"))
        .unwrap_or_default()
        .to_owned();
    let message = row.split_whitespace().next().unwrap_or_default();
    let rewound = machine
        .run(&["session", "rewind", "bold-oak", "--to", message])
        .await?;
    assert_eq!(rewound.code, 0, "{row}: {rewound:?}");
    let listed = machine.run(&["session", "rewind", "bold-oak"]).await?;
    assert!(
        listed.out.contains("first prompt") && !listed.out.contains("second prompt"),
        "{listed:?}"
    );
    Ok(())
}
