//! The examples of `planck-client`, and its follower, against a real node.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use planck_client::{
    Client, ClientError, ConnectOptions, FollowEvent,
    protocol::{command::Start, event::EventKind, reply::Code},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    example::root,
    node::fresh,
    world::{Backend, World},
};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn examples_of_the_client_print_the_answer() -> Result<()> {
    let script = Script::new().always(Reply::text("A name with dots."));
    let world = World::start(Backend::Sqlite, script).await?;
    let _node = world.node().await?;
    let examples = std::env::current_exe()?
        .parent()
        .and_then(|deps| deps.parent())
        .context("no target folder")?
        .join("examples");
    for name in ["ask", "turn"] {
        let example = fresh(
            examples.join(name),
            "cargo build -p planck-client --examples",
        )?;
        let mut ask = Command::new(example);
        ask.arg("What is a subject?")
            .current_dir(world.dir())
            .env("NATS_URL", world.nats.url());
        let output = timeout(SOON, tokio::process::Command::from(ask).output()).await??;
        let said = String::from_utf8(output.stdout)?;
        ensure!(
            said == "A name with dots.\n",
            "{name}: {said:?}; {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[test]
fn docs_show_the_examples_that_are_run() -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(root().join(path));
    for name in ["ask", "turn"] {
        let example = read(&format!("client/examples/{name}.rs"))?;
        let (_title, program) = example.split_once("\n\n").context("no title")?;
        let shown = format!("```rust\n{program}```");
        ensure!(read("docs/clients.md")?.contains(&shown), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn follower_that_joins_late_gets_the_log_in_order_and_once() -> Result<()> {
    let script = Script::new().always(Reply::text("Done."));
    let world = World::start(Backend::Sqlite, script).await?;
    let _node = world.node().await?;
    let client = ConnectOptions::new(world.nats.url())
        .request_timeout(Duration::from_secs(5))
        .connect()
        .await?;
    let dir = Some(world.dir().display().to_string());
    let start = Start {
        dir,
        ..Start::default()
    };
    let session = client.start(start).await?.session_id;
    let mut last = 0;
    for text in ["one", "two"] {
        let prompt = client.prompt(&session, text).await?;
        let mut events = client.follow(&session, 1).await?;
        let mut next = 1;
        loop {
            let event = timeout(SOON, events.next()).await??;
            let FollowEvent::Durable(event) = event else {
                continue;
            };
            assert_eq!(event.seq, Some(next), "after {text}");
            next += 1;
            if event.kind == EventKind::TurnEnd.name() && next > prompt.seq + 1 {
                break;
            }
        }
        assert!(next > last, "{text} adds to the log");
        last = next;
    }
    client.delete(&session, None).await?;
    let Err(ClientError::Refused(refusal)) = client.session(&session).await else {
        anyhow::bail!("a deleted session is still described");
    };
    assert_eq!(refusal.code, Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn connecting_to_no_server_names_it_and_ends() -> Result<()> {
    let options =
        ConnectOptions::new("nats://127.0.0.1:1").connect_timeout(Duration::from_millis(700));
    let error = timeout(SOON, options.connect()).await?.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("nats://127.0.0.1:1"), "{text}");
    let error = Client::connect("not a url").await.unwrap_err();
    assert!(error.to_string().contains("nats://host:port"), "{error}");
    Ok(())
}
