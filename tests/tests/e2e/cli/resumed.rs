//! `planck session resume`, `session prompt` and `agent prompt` without NATS, where the process of the
//! command is the only node.

use std::process::Stdio;

use anyhow::Result;
use planck_common::event::EventKind;
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    machine::{PersonalMachine, Ran, of_kind},
};
use serde_json::json;

/// A model that thinks for minutes at its first request. At the next one it thinks for a moment,
/// writes a file, and says that it is written.
fn script() -> Script {
    let pace = Pace::per_second(10.0).chunk(4);
    let write = Reply::text("Let me think. ".repeat(4))
        .and_call("write", json!({ "path": "out.txt", "content": "hello\n" }))
        .pace(pace);
    let endless = Reply::text("Let me think. ".repeat(400)).pace(pace);
    Script::new()
        .limited(1, When::any(), endless)
        .rule(When::any().result_of("write"), "It is written.")
        .always(write)
}

/// Kills a run of `bold-oak` while the model thinks, and resumes the session.
async fn resumed(machine: &PersonalMachine, permissions: &str) -> Result<Ran> {
    let mut command = machine.planck(&[
        "run",
        "--model",
        "openai:gpt-5",
        "--permissions",
        permissions,
        "--session",
        "bold-oak",
        "write it",
    ])?;
    let mut run = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    eventually("the model is asked", async || {
        (!machine.model.requests().is_empty()).then_some(())
    })
    .await?;
    run.kill().await?;
    assert!(machine.read("out.txt").is_err());
    machine.run(&["session", "resume", "bold-oak"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_without_nats_stays_until_the_work_has_ended() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = resumed(&machine, "auto").await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.starts_with("bold-oak is open on "), "{ran:?}");
    assert!(ran.out.contains("It is written."), "{ran:?}");
    assert_eq!(machine.read("out.txt")?, "hello\n");
    let log = machine.run(&["session", "export", "bold-oak"]).await?;
    let ends = of_kind(&log.events()?, EventKind::TurnEnd);
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["outcome"], "completed");
    // Without work the command ends at once.
    let again = machine.run(&["session", "resume", "bold-oak"]).await?;
    assert_eq!(again.code, 0, "{again:?}");
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_of_work_that_waits_says_how_to_answer() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = resumed(&machine, "careful").await?;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.err.contains("allow|deny"), "{ran:?}");
    assert!(machine.read("out.txt").is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_without_nats_stays_until_the_work_has_ended() -> Result<()> {
    let args = |path: &str| json!({ "path": path, "content": "hello\n" });
    let write = |path: &str| {
        Reply::text("Let me think. ".repeat(4))
            .and_call("write", args(path))
            .pace(Pace::per_second(10.0).chunk(4))
    };
    let script = Script::new()
        .rule(When::any().result_of("write"), "It is written.")
        .limited(1, When::any().user("first"), write("first.txt"))
        .limited(1, When::any().user("second"), write("second.txt"))
        .always("Hello.");
    let machine = PersonalMachine::start(script).await?;
    let hello = [
        "run",
        "--model",
        "openai:gpt-5",
        "--session",
        "bold-oak",
        "hello",
    ];
    assert_eq!(machine.run(&hello).await?.code, 0);
    let log = machine
        .run(&["session", "export", "bold-oak"])
        .await?
        .events()?;
    let agent = log[0].agent_id.to_string();
    for (command, path) in [
        (["session", "prompt", "bold-oak", "first"], "first.txt"),
        (["agent", "prompt", &agent, "second"], "second.txt"),
    ] {
        let ran = machine.run(&command).await?;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("It is written."), "{ran:?}");
        assert_eq!(machine.read(path)?, "hello\n");
    }
    machine.check_model()
}
