//! Questions about waits: in place at a pseudo-terminal, and with exit code 5 without one.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    eventually::within,
    machine::{PersonalMachine, run},
    terminal::Terminal,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

const LONG: Duration = Duration::from_secs(60);
/// The end of the prompt of an approval.
const ASKS: &str = "? help › ";
const CTRL_D: &str = "\x04";

fn script() -> Script {
    let arguments = json!({ "path": "out.txt", "content": "hello\n" });
    let write = || Reply::text("I write it.").and_call("write", arguments.clone());
    let slowly = Reply::text("Let me think. ".repeat(8))
        .and_call("write", json!({ "path": "out.txt", "content": "hello\n" }))
        .pace(Pace::per_second(10.0).chunk(4));
    Script::new()
        .rule(When::any().result("not run"), "Then I leave it.")
        .rule(
            When::any().result_of("ask_user"),
            "You say {{result:ask_user}}.",
        )
        .rule(When::any().result_of("write"), "It is written.")
        .rule(When::any().last("slowly"), slowly)
        .rule(When::any().last("write it"), write())
        .rule(
            When::any().last("ask me"),
            Reply::call(
                "ask_user",
                json!({ "question": "Which colour?", "options": ["blue", "red"] }),
            ),
        )
        .always("Quick.")
}

/// A command at a terminal.
pub(super) struct AtTerminal {
    child: Child,
    pub(super) terminal: Terminal,
}

impl AtTerminal {
    fn start(machine: &PersonalMachine, arguments: &[&str], editor: Option<&str>) -> Result<Self> {
        let mut command = machine.planck(arguments)?;
        command
            .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
            .env("USER", "ann")
            .env_remove("VISUAL")
            .env_remove("EDITOR")
            .envs(editor.map(|editor| ("EDITOR", editor)));
        Self::spawn(command)
    }

    pub(super) fn spawn(mut command: Command) -> Result<Self> {
        command
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .env_remove("CI")
            .kill_on_drop(true);
        let terminal = Terminal::attach(&mut command, true)?;
        Ok(Self {
            child: command.spawn()?,
            terminal,
        })
    }

    /// Types a text after the prompt of an approval is drawn, and returns what was drawn before.
    pub(super) async fn answer(&mut self, keys: &str) -> Result<String> {
        let drawn = self.terminal.until(ASKS).await?;
        self.terminal.type_in(keys)?;
        Ok(drawn)
    }

    fn interrupt(&self) -> Result<()> {
        self.signal(Signal::SIGINT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("it has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    pub(super) async fn end(mut self) -> Result<(Option<i32>, String)> {
        let status = timeout(LONG, self.child.wait())
            .await
            .context("it does not end")??;
        Ok((status.code(), self.terminal.screen().await?))
    }
}

fn careful(prompt: &str) -> Vec<&str> {
    [
        "run",
        "--permissions",
        "careful",
        "--session",
        "bold-oak",
        prompt,
    ]
    .into()
}

async fn waits(machine: &PersonalMachine) -> Result<Vec<Value>> {
    let ran = machine.run(&["waits", "-o", "json"]).await?;
    serde_json::from_str(&ran.out).with_context(|| format!("{ran:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn question_is_answered_where_it_appears() -> Result<()> {
    for (keys, said, written) in [
        ("y", "allowed by ann: write: out.txt", true),
        ("a", "allowed by ann: write: out.txt", true),
        (
            "nnot now\r",
            "denied by ann: write: out.txt (not now)",
            false,
        ),
    ] {
        let machine = PersonalMachine::start(script()).await?;
        let mut planck = AtTerminal::start(&machine, &careful("write it"), None)?;
        let asked = planck.answer(&keys[..1]).await?;
        assert!(
            asked.contains("? write out.txt · 1 line") && asked.contains("+ hello"),
            "{asked:?}"
        );
        let (text, question) = asked.split_once("? write").unwrap_or_default();
        assert!(
            text.contains("I write it.") && !question.contains("? write"),
            "the question comes once, after the text before it: {asked:?}"
        );
        assert!(
            !asked.contains("planck answer"),
            "it is asked here: {asked:?}"
        );
        if keys.len() > 1 {
            planck.terminal.until("why not?").await?;
            planck.terminal.type_in(&keys[1..])?;
        }
        planck.terminal.until(said).await?;
        let (code, screen) = planck.end().await?;
        assert_eq!(code, Some(0), "{screen:?}");
        assert_eq!(machine.read("out.txt").is_ok(), written, "{keys:?}");
        machine.check_model()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_is_restored_if_the_command_is_terminated_at_a_question() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut planck = AtTerminal::start(&machine, &careful("write it"), None)?;
    planck.terminal.until(ASKS).await?;
    assert!(!planck.terminal.is_as_a_shell_leaves_it()?);
    planck.signal(Signal::SIGTERM)?;
    let status = timeout(LONG, planck.child.wait()).await;
    let status = status.context("it does not end")??;
    assert_eq!(status.code(), Some(143));
    assert!(planck.terminal.is_as_a_shell_leaves_it()?);
    assert_eq!(waits(&machine).await?.len(), 1, "the question stays open");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_unclear_allows_a_call_and_the_question_outlives_the_command() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut planck = AtTerminal::start(&machine, &careful("write it"), None)?;
    // These keys come before the question and are not meant for it.
    planck.terminal.type_in("y\ry")?;
    for keys in ["\r", "yes", "Y", "\x1b[200~y\x1b[201~", "1"] {
        planck.answer(keys).await?;
        planck.terminal.until("press one of y, a, n, e, ?").await?;
    }
    planck.answer("?").await?;
    planck.terminal.until("y  allow this call").await?;
    planck.answer(CTRL_D).await?;
    let (code, screen) = planck.end().await?;
    assert_eq!(code, Some(5), "{screen:?}");
    assert!(
        screen.contains("session bold-oak waits for 1 answer") && screen.contains("planck answer "),
        "{screen:?}"
    );
    assert!(machine.read("out.txt").is_err());
    assert_eq!(waits(&machine).await?.len(), 1);

    let mut later = AtTerminal::start(&machine, &["chat", "--session", "bold-oak"], None)?;
    later.terminal.until(ASKS).await?;
    later.interrupt()?;
    later.terminal.until("withdrawn: write: out.txt").await?;
    later.terminal.until("tokens in").await?;
    later.terminal.type_in("/quit\r")?;
    let (code, screen) = later.end().await?;
    assert_eq!(code, Some(0), "{screen:?}");
    assert!(machine.read("out.txt").is_err());
    assert!(waits(&machine).await?.is_empty());
    Ok(())
}

/// The node unloads the agent before the prompt of its question is drawn.
#[tokio::test(flavor = "multi_thread")]
async fn interrupt_withdraws_the_question_of_an_unloaded_agent() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut command = machine.planck(&careful("write it"))?;
    command
        .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
        .env("PLANCK_NODE_PARK_AFTER", "50ms")
        .env("USER", "ann");
    let mut running = AtTerminal::spawn(command)?;
    running.terminal.until(ASKS).await?;
    running.interrupt()?;
    running.terminal.until("withdrawn: write: out.txt").await?;
    let (code, screen) = running.end().await?;
    assert_eq!(code, Some(130), "{screen:?}");
    assert!(waits(&machine).await?.is_empty());

    // The wait outlives the command, and no node has its agent.
    let left = machine
        .run(&[
            "run",
            "--model",
            "openai:gpt-5",
            "--permissions",
            "careful",
            "--session",
            "old-elm",
            "write it",
        ])
        .await?;
    assert_eq!(left.code, 5, "{left:?}");
    let aborted = machine.run(&["session", "abort", "old-elm"]).await?;
    assert_eq!(aborted.out, "aborted 1 agent\n", "{aborted:?}");
    assert!(waits(&machine).await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_edited_in_an_editor() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let editor = Some("sed -i s/hello/bye/");
    let mut planck = AtTerminal::start(&machine, &careful("write it"), editor)?;
    planck.answer("e").await?;
    let drawn = planck.terminal.until("with these arguments?").await?;
    assert!(drawn.contains("+ bye"), "{drawn:?}");
    planck.answer("y").await?;
    let (code, screen) = planck.end().await?;
    assert_eq!(code, Some(0), "{screen:?}");
    assert_eq!(machine.read("out.txt")?, "bye\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn model_and_limit_are_answered_with_a_text() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let team = json!([{
        "type": "agent", "tools": ["ask_user"],
        "limits": { "max_requests_per_turn": 1, "on_limit": "ask" },
    }]);
    machine.write("team/TEAM.json", &team.to_string())?;
    let mut planck = AtTerminal::start(&machine, &["run", "--team", "./team", "ask me"], None)?;
    let asked = planck.terminal.until("1–2, or your answer › ").await?;
    assert!(
        asked.contains("? Which colour?") && asked.contains("2  red"),
        "{asked:?}"
    );
    planck.terminal.type_in("2\r")?;
    planck
        .terminal
        .until("max_requests_per_turn is reached")
        .await?;
    planck.terminal.until("new limit, or n › ").await?;
    planck.terminal.type_in("much\r")?;
    planck.terminal.until("is no limit").await?;
    planck.terminal.until("new limit, or n › ").await?;
    planck.terminal.type_in("5\r")?;
    planck.terminal.until("You say red.").await?;
    assert_eq!(planck.end().await?.0, Some(0));
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn text_typed_before_a_question_is_the_next_prompt() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let chat = ["chat", "--permissions", "careful"];
    let mut planck = AtTerminal::start(&machine, &chat, None)?;
    planck.terminal.until("› ").await?;
    planck.terminal.type_in("slowly\r")?;
    planck.terminal.until("Let me").await?;
    planck.terminal.type_in("yes and\rmore")?;
    planck.answer("y").await?;
    planck.terminal.until("tokens in").await?;
    planck.terminal.until("yes and").await?;
    planck.terminal.until("tokens in").await?;
    planck.terminal.until("more").await?;
    planck.terminal.type_in(" of it\r")?;
    planck.terminal.until("tokens in").await?;
    let asked: Vec<String> = machine
        .model
        .requests()
        .iter()
        .map(|request| request.body.to_string())
        .collect();
    assert!(
        asked.iter().any(|body| body.contains("yes and")),
        "{asked:?}"
    );
    assert!(
        asked.last().is_some_and(|body| body.contains("more of it")),
        "{asked:?}"
    );
    assert_eq!(machine.read("out.txt")?, "hello\n");
    planck.terminal.type_in("/quit\r")?;
    assert_eq!(planck.end().await?.0, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_of_another_client_withdraws_the_question() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let mut command = world.planck()?;
    command.args(careful("write it"));
    let mut planck = AtTerminal::spawn(command)?;
    planck.terminal.until(ASKS).await?;
    let mut list = world.planck()?;
    list.args(["waits", "-o", "json"]);
    let listed: Value = serde_json::from_str(&run(list).await?.out)?;
    let id = listed[0]["id"].as_str().context("an id")?;
    let mut other = world.planck()?;
    other
        .args(["answer", id, "deny", "--reason", "no"])
        .env("USER", "bob");
    run(other).await?;
    planck
        .terminal
        .until("denied by bob: write: out.txt (no)")
        .await?;
    let (code, screen) = planck.end().await?;
    assert_eq!(code, Some(0), "{screen:?}");
    assert!(!world.dir().join("out.txt").exists());
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn run_without_a_terminal_ends_with_5_and_the_answer_is_used_later() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let run = [
        "run",
        "--model",
        "openai:gpt-5",
        "--permissions",
        "careful",
        "--session",
        "bold-oak",
        "-o",
        "json",
        "write it",
    ];
    let ran = machine.run(&run).await?;
    assert_eq!(ran.code, 5, "{ran:?}");
    let told: Value = serde_json::from_str(&ran.out).with_context(|| format!("{ran:?}"))?;
    let wait = &told["waits"][0];
    assert_eq!(
        (&told["outcome"], &wait["title"]),
        (&json!("waiting"), &json!("write: out.txt"))
    );
    let id = wait["id"].as_str().context("an id")?;
    assert!(
        ran.err
            .contains(&format!("planck answer {} allow|deny", &id[..8])),
        "{ran:?}"
    );

    let answered = machine.run(&["answer", id, "allow"]).await?;
    assert_eq!(answered.code, 0, "{answered:?}");
    assert!(
        answered.err.contains("the answer is stored"),
        "{answered:?}"
    );
    assert!(
        machine.read("out.txt").is_err(),
        "no agent ran in that process"
    );
    let mut chat = AtTerminal::start(&machine, &["chat", "--session", "bold-oak"], None)?;
    chat.terminal.until("It is written.").await?;
    assert_eq!(machine.read("out.txt")?, "hello\n");
    chat.terminal.until("› ").await?;
    chat.terminal.type_in("/quit\r")?;
    assert_eq!(chat.end().await?.0, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_stays_continues_with_the_answer() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut command = machine.planck(&[
        "run",
        "--model",
        "openai:gpt-5",
        "--permissions",
        "careful",
        "--wait",
        "-q",
        "write it",
    ])?;
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let staying = command.spawn()?;
    let id = within(LONG, "it waits", async || {
        let listed = waits(&machine).await.ok()?;
        Some(listed.first()?["id"].as_str()?.to_owned())
    });
    let id = id.await?;
    let answered = machine.run(&["answer", &id, "allow"]).await?;
    assert_eq!(answered.code, 0, "{answered:?}");
    let done = timeout(LONG, staying.wait_with_output()).await??;
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "It is written.\n");
    assert_eq!(machine.read("out.txt")?, "hello\n");
    Ok(())
}
