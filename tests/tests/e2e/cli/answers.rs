//! What `planck run` writes to which output: the answer, the transcript, the session; and its exit
//! codes.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{eventually::eventually, machine::PersonalMachine};
use serde_json::{Value, json};
use tokio::time::timeout;

fn script() -> Script {
    let slow = Reply::text("word ".repeat(600)).pace(Pace::per_second(20.0).chunk(10));
    let call = Reply::text("I look.").and_call("bash", json!({"command": "echo seen"}));
    Script::new()
        .rule(When::any().last("slow"), slow)
        .rule(When::any().result_of("bash"), "There it is.")
        .always(call)
}

fn run<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--model", "openai:gpt-5"][..], more].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_alone_is_on_standard_output() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    for arguments in [
        &["--session", "bold-oak", "look"][..],
        &["-p", "--session", "grey-elm", "look"],
    ] {
        let ran = machine.run(&run(arguments)).await?;
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (0, "There it is.\n"),
            "{ran:?}"
        );
        let name = arguments
            .iter()
            .find(|word| word.contains('-') && word.len() > 4 && !word.starts_with('-'))
            .context("a name")?;
        let session = format!("session {name} · model openai:gpt-5");
        let (first, last) = (ran.err.lines().next(), ran.err.lines().last());
        assert_eq!(first, Some(session.as_str()), "{ran:?}");
        assert!(
            last.is_some_and(|line| line.starts_with(&session) && line.contains("tokens in")),
            "{ran:?}"
        );
        assert_eq!(
            ran.err.matches("tokens in").count(),
            1,
            "the cost is told once: {ran:?}"
        );
        for told in ["› look", "I look.", "✓ bash echo seen"] {
            assert!(ran.err.contains(told), "{told}: {ran:?}");
        }
    }
    // A telemetry collector, here one that cannot be reached, must not cause log output.
    for collector in [None, Some("http://127.0.0.1:9")] {
        let mut command = machine.planck(&run(&["-q", "look"]))?;
        command.envs(collector.map(|url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url)));
        let quiet = planck_tests::machine::run(command).await?;
        assert_eq!(
            (quiet.code, quiet.out.as_str(), quiet.err.as_str()),
            (0, "There it is.\n", ""),
            "{quiet:?}"
        );
    }
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_both_outputs_has_the_answer_once() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let log = std::fs::File::create(machine.work().join("log"))?;
    let mut command = machine.planck(&run(&["look"]))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    let status = timeout(Duration::from_secs(60), command.status()).await??;
    let log = machine.read("log")?;
    assert!(status.success(), "{log}");
    assert_eq!(log.matches("There it is.").count(), 1, "{log}");
    assert!(log.contains("✓ bash echo seen"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn json_output_is_one_object() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = machine
        .run(&run(&["-o", "json", "--session", "bold-oak", "look"]))
        .await?;
    let told: Value = serde_json::from_str(&ran.out).with_context(|| format!("{ran:?}"))?;
    assert_eq!(
        (
            &told["session"],
            &told["model"],
            &told["answer"],
            &told["outcome"]
        ),
        (
            &"bold-oak".into(),
            &"openai:gpt-5".into(),
            &"There it is.".into(),
            &"completed".into()
        ),
        "{told}"
    );
    assert!(
        told["usage"]["output_tokens"].as_u64() > Some(0) && told["duration_ms"].as_u64() > Some(0),
        "{told}"
    );
    assert!(told.get("error").is_none(), "{told}");

    let mut command = machine.planck(&run(&["-o", "json", "-q", "look"]))?;
    command
        .env("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
        .env("PLANCK_PROVIDERS_OPENAI_MAX_ATTEMPTS", "1");
    let failed = planck_tests::machine::run(command).await?;
    let told: Value = serde_json::from_str(&failed.out).with_context(|| format!("{failed:?}"))?;
    assert_eq!(
        (failed.code, &told["outcome"], &told["answer"]),
        (1, &"error".into(), &Value::Null),
        "{told}"
    );
    assert!(
        told["error"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("127.0.0.1:1")),
        "{told}"
    );
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn continue_uses_the_last_session_of_the_directory() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let none = machine.run(&["run", "--continue", "more"]).await?;
    assert!(
        none.code == 3 && none.err.contains("start one with `planck run"),
        "{none:?}"
    );
    for name in ["bold-oak", "grey-elm"] {
        assert_eq!(
            machine.run(&run(&["--session", name, "look"])).await?.code,
            0
        );
    }
    assert_eq!(
        machine
            .run(&["run", "--session", "bold-oak", "look"])
            .await?
            .code,
        0
    );
    for (arguments, name) in [
        (&["run", "--continue", "more"][..], "bold-oak"),
        (&["run", "-c", "-p", "more"], "bold-oak"),
    ] {
        let ran = machine.run(arguments).await?;
        assert!(
            ran.code == 0 && ran.err.starts_with(&format!("session {name} ")),
            "{ran:?}"
        );
    }
    // With `--store`, sessions of several directories are in one store.
    let store = format!("sqlite:{}", machine.folder().join("shared").display());
    std::fs::create_dir(machine.folder().join("work/below"))?;
    let below = run(&[
        "--store",
        &store,
        "--dir",
        "below",
        "--session",
        "low-fern",
        "look",
    ]);
    assert_eq!(machine.run(&below).await?.code, 0);
    let here = machine
        .run(&["run", "--store", &store, "-c", "more"])
        .await?;
    assert_eq!(here.code, 3, "{here:?}");
    let below = machine
        .run(&["run", "--store", &store, "-c", "--dir", "below", "more"])
        .await?;
    assert!(
        below.code == 0 && below.err.starts_with("session low-fern "),
        "{below:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_run_ends_with_130() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let log = machine.folder().join("log");
    let mut command = machine.planck(&run(&["--session", "bold-oak", "slow"]))?;
    command
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log)?);
    let mut child = command.spawn()?;
    let told = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the model speaks", async || {
        told().contains("word word").then_some(())
    })
    .await?;
    kill(
        Pid::from_raw(i32::try_from(child.id().context("it has ended")?)?),
        Signal::SIGINT,
    )?;
    let ended = timeout(Duration::from_secs(20), child.wait()).await??;
    assert_eq!(ended.code(), Some(130), "{}", told());
    assert!(
        told().contains("■ aborted"),
        "the turn was ended in order: {}",
        told()
    );
    Ok(())
}

/// The lead is told that the worker was aborted, and begins a turn that would take minutes.
#[tokio::test(flavor = "multi_thread")]
async fn one_interrupt_ends_the_work_of_a_team() -> Result<()> {
    let by = |name: &str| When::any().system(&format!("You are {name}."));
    let slow = || Reply::text("word ".repeat(600)).pace(Pace::per_second(5.0).chunk(5));
    let delegate = json!({ "agent": "one", "task": "count" });
    let script = Script::new()
        .rule(by("lead").user("task_unanswered"), slow())
        .rounds(
            by("lead"),
            [
                Reply::call("delegate_task", delegate),
                Reply::text("One is at work."),
            ],
        )
        .rule(by("one"), slow());
    let machine = PersonalMachine::start(script).await?;
    let team = json!([
        {"type": "lead", "system_prompt": "You are lead.", "tools": ["spawn_agent"]},
        {"type": "one", "system_prompt": "You are one."},
    ]);
    machine.write("team/TEAM.json", &team.to_string())?;
    let mut command = machine.planck(&run(&["--team", "team", "-o", "json", "go"]))?;
    let child = command.stdout(Stdio::piped()).spawn()?;
    eventually("the lead has delegated, and the worker works", async || {
        (machine.model.request_count() == 3).then_some(())
    })
    .await?;
    let pid = child.id().context("it has ended")?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGINT)?;
    let ended = timeout(Duration::from_secs(20), child.wait_with_output()).await;
    let output = ended.context("it goes on")??;
    let said: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        (output.status.code(), &said["outcome"]),
        (Some(130), &json!("aborted")),
        "{said}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_files_of_the_user_end_with_2() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    for (text, wrong) in [("{", "line 1"), (r#"[{"type": "a", "tols": []}]"#, "tols")] {
        machine.write("team/TEAM.json", text)?;
        let ran = machine.run(&run(&["--team", "team", "go"])).await?;
        assert!(ran.code == 2 && ran.err.contains(wrong), "{text}: {ran:?}");
    }
    machine.configure("[nodes]\n")?;
    let ran = machine.run(&run(&["go"])).await?;
    assert!(ran.code == 2 && ran.err.contains("config.toml"), "{ran:?}");
    Ok(())
}

const SCHEMA: &str =
    r#"{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn answer_in_a_shape_is_json_alone_or_the_exit_code_is_6() -> Result<()> {
    let submit = |sum: Value| Reply::call("submit_output", json!({ "sum": sum }));
    let script = Script::new()
        .rule(
            When::any().user("mend").result_of("submit_output"),
            submit(4.into()),
        )
        .rule(When::any().user("mend"), submit("four".into()))
        .rule(When::any().user("wrong"), submit("x".into()))
        .always(Reply::text("Prose."));
    let machine = PersonalMachine::start(script).await?;
    machine.write("sum.json", SCHEMA)?;
    let shaped = |more: &[&'static str]| run(&[&["--output-schema", "sum.json"], more].concat());
    let ran = machine.run(&shaped(&["mend"])).await?;
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "{\"sum\":4}\n"),
        "{ran:?}"
    );
    let ran = machine.run(&shaped(&["-o", "json", "mend"])).await?;
    let told: Value = serde_json::from_str(&ran.out).with_context(|| format!("{ran:?}"))?;
    assert_eq!((ran.code, &told["output"]), (0, &json!({ "sum": 4 })));
    for (prompt, said) in [
        ("wrong", "did not satisfy the output schema after 2 repairs"),
        (
            "talk",
            "without an answer in the shape of the output schema",
        ),
    ] {
        let ran = machine.run(&shaped(&[prompt])).await?;
        assert_eq!((ran.code, ran.out.trim()), (6, ""), "{ran:?}");
        assert!(ran.err.contains(said), "{ran:?}");
    }
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn schema_that_cannot_be_kept_is_refused_by_its_file() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    machine.write("list.json", r#"{"type": "array"}"#)?;
    machine.write("broken.json", "{")?;
    for (file, said) in [
        ("list.json", "list.json: its `type` must be \"object\""),
        ("broken.json", "broken.json: not JSON"),
        ("absent.json", "absent.json: No such file"),
    ] {
        let ran = machine
            .run(&run(&["--output-schema", file, "look"]))
            .await?;
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        assert!(ran.err.contains(said), "{ran:?}");
    }
    Ok(())
}
