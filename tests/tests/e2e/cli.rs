//! Tests of the command line. This file has a session from its first prompt to its removal, exit
//! codes, errors without a model, `planck chat` without a terminal, and a store of a newer Planck.

mod answers;
mod asked;
mod binary;
mod chat;
mod doctor;
mod first;
mod lists;
mod resumed;
mod screen;
mod served;
mod unsandboxed;

use anyhow::Result;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    machine::{PersonalMachine, run},
    postgres::Database,
};
use serde_json::json;

fn script() -> Script {
    let call = Reply::text("I look.").and_call("bash", json!({"command": "echo seen"}));
    Script::new()
        .rule(When::any().result_of("bash"), "There it is.")
        .always(call)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_listed_and_shown_from_first_prompt_to_removal() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = machine
        .run(&[
            "run",
            "--model",
            "openai:gpt-5",
            "--session",
            "bold-oak",
            "look",
        ])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    for told in [
        "› look",
        "I look.",
        "✓ bash echo seen",
        "There it is.",
        "tokens in",
        " out",
    ] {
        assert!(ran.err.contains(told), "{told}: {}", ran.err);
    }
    assert_eq!(ran.out, "There it is.\n");
    for (command, told) in [
        (&["session", "ls"][..], "bold-oak"),
        (&["session", "show", "bold-oak"], "bold-oak"),
        (&["agent", "ls", "bold-oak"], "idle"),
        (&["session", "export", "bold-oak"], "There it is."),
        (
            &["run", "--session", "bold-oak", "once more"],
            "There it is.",
        ),
        (&["session", "close", "bold-oak"], "closed"),
        (&["session", "prune", "--older-than", "30d"], ""),
        (&["model", "ls"], "claude"),
        (&["config", "show", "--origin"], "OPENAI_API_KEY"),
        (&["team", "ls"], ""),
    ] {
        let ran = machine.run(command).await?;
        assert!(
            ran.code == 0 && ran.out.contains(told),
            "{command:?}: {ran:?}"
        );
        assert!(
            !ran.out.contains("key-0123456789"),
            "{command:?} shows a key"
        );
    }
    let mistyped = machine.run(&["session", "attach", "bold-oka"]).await?;
    assert!(
        mistyped.code == 3 && mistyped.err.contains("did you mean `bold-oak`?"),
        "{mistyped:?}"
    );
    // A session that cannot be removed does not keep the others.
    let removed = machine
        .run(&["session", "rm", "unknown", "bold-oak"])
        .await?;
    assert!(
        removed.code == 3
            && removed.err.contains("cannot remove unknown")
            && removed.out.contains("removed bold-oak"),
        "{removed:?}"
    );
    let gone = machine.run(&["session", "show", "bold-oak"]).await?;
    assert!(gone.code == 3 && gone.err.contains("bold-oak"), "{gone:?}");
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_attaches_the_files_that_its_argument_names() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    machine.write("notes.txt", "seven swans\n")?;
    let new = ["run", "--session", "bold-oak", "sum up @notes.txt"];
    let old = ["run", "--session", "bold-oak", "again @notes.txt"];
    for (times, command) in [(1, new), (2, old)] {
        let ran = machine.run(&command).await?;
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (0, "There it is.\n"),
            "{ran:?}"
        );
        let asked = machine.model.requests();
        let last = asked.last().map(|asked| asked.body.to_string());
        let attached = last.unwrap_or_default().matches("seven swans").count();
        assert_eq!(attached, times);
    }
    let ran = machine.run(&["run", "look at @\"gone.txt\""]).await?;
    assert!(ran.code == 2 && ran.err.contains("no such file"), "{ran:?}");
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_the_kinds_of_failure_apart() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    for (command, code, told) in [
        (&["run"][..], 2, "no prompt"),
        (&["run", "--bogus"], 2, "--bogus"),
        (&["run", "--model", "nobody:x", "go"], 2, "nobody"),
        (&["session", "show", "nobody"], 3, "nobody"),
        (&["run", "--team", "nobody", "go"], 3, "nobody"),
        (&["agent", "show", "nobody"], 3, "nobody"),
        (
            &["session", "ls", "--nats", "nats://127.0.0.1:1"],
            4,
            "nats-server -js",
        ),
        (
            &["node", "--nats", "nats://127.0.0.1:1"],
            4,
            "nats-server -js",
        ),
        (
            &["session", "ls", "--store", "postgres://127.0.0.1:1/x"],
            4,
            "postgres://127.0.0.1:1/x",
        ),
        (
            &[
                "run",
                "--model",
                "openai:gpt-5",
                "--store",
                "postgres://u:hidden@127.0.0.1:1/x",
                "go",
            ],
            4,
            "DATABASE_URL",
        ),
        (&["session", "ls", "--store", "mysql://x"], 2, "sqlite:DIR"),
    ] {
        let ran = machine.run(command).await?;
        assert!(
            ran.code == code && ran.err.contains(told),
            "{command:?}: {ran:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn error_without_a_model_names_the_ways_out() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut command = machine.planck(&["run", "go"])?;
    for name in ["ANTHROPIC", "OPENAI", "GOOGLE"] {
        command.env_remove(format!("{name}_API_KEY"));
    }
    let ran = run(command).await?;
    assert_eq!(ran.code, 2, "{ran:?}");
    for way in ["--model", "models.default", "ANTHROPIC_API_KEY", "ollama"] {
        assert!(ran.err.contains(way), "{way}: {}", ran.err);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_without_a_terminal_reads_one_prompt_per_line() -> Result<()> {
    let machine = PersonalMachine::start(
        Script::new()
            .rule(When::any().last("two"), "Second.")
            .always("First."),
    )
    .await?;
    std::fs::write(machine.folder().join("lines"), "one\n\ntwo\n/quit\nthree\n")?;
    let mut command = machine.planck(&["chat", "--model", "openai:gpt-5"])?;
    command.stdin(std::fs::File::open(machine.folder().join("lines"))?);
    let ran = run(command).await?;
    assert!(
        ran.code == 0 && ran.out.contains("First.") && ran.out.contains("Second."),
        "{ran:?}"
    );
    assert!(ran.out.contains("planck chat --session "), "{ran:?}");
    assert_eq!(machine.model.request_count(), 2);
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_of_a_newer_planck_is_refused() -> Result<()> {
    let (machine, database) = (
        PersonalMachine::start(script()).await?,
        Database::create().await?,
    );
    let url = database.url();
    let looked = machine.run(&["session", "ls", "--store", &url]).await?;
    assert!(
        looked.code == 0,
        "a database without tables has no sessions: {looked:?}"
    );
    let first = machine
        .run(&["run", "--model", "openai:gpt-5", "--store", &url, "look"])
        .await?;
    assert_eq!(first.code, 0, "{first:?}");
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await?;
    sqlx::query("INSERT INTO planck_schema (version) VALUES (999)")
        .execute(&mut connection)
        .await?;
    for command in [&["session", "ls"][..], &["doctor"]] {
        let ran = machine.run(&[command, &["--store", &url]].concat()).await?;
        assert!(
            ran.code == 1 && format!("{}{}", ran.out, ran.err).contains("run a newer planck"),
            "{ran:?}"
        );
    }
    Ok(())
}
