//! `planck chat` at a pseudo-terminal: the keys that are typed, and the output that is drawn.

use std::{os::unix::fs::MetadataExt as _, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    machine::{PersonalMachine, run},
    terminal::Terminal,
    world::{Backend, World},
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const INTERRUPT: &str = "\x03";
const PROMPT: &str = "› ";

fn script() -> Script {
    let slow = Reply::text("word ".repeat(400)).pace(Pace::per_second(40.0).chunk(10));
    let short = Reply::text("Counting to ten.").pace(Pace::per_second(4.0).chunk(1));
    Script::new()
        .rule(When::any().last("slow"), slow)
        .rule(When::any().last("short"), short)
        .always("All **right**.")
}

struct Chat {
    child: Child,
    terminal: Terminal,
}

impl Chat {
    fn start(machine: &PersonalMachine, term: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = machine.planck(arguments)?;
        command
            .env("TERM", term)
            .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
            .env_remove("NO_COLOR")
            .env_remove("CI")
            .kill_on_drop(true);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let terminal = Terminal::attach(&mut command, true)?;
        Ok(Self {
            child: command.spawn()?,
            terminal,
        })
    }

    /// Types a line when the prompt is shown.
    async fn line(&mut self, text: &str) -> Result<()> {
        self.terminal.until(PROMPT).await?;
        self.terminal.type_in(&format!("{text}\r"))
    }

    /// Types a prompt, waits until its turn has ended, and returns what was drawn until then.
    async fn prompt(&mut self, text: &str) -> Result<String> {
        self.line(text).await?;
        self.terminal.until("tokens in").await
    }

    /// Leaves the chat at its prompt with two interrupts, of which the first one warns.
    async fn leave_by_interrupts(&mut self) -> Result<()> {
        self.terminal.until(PROMPT).await?;
        self.terminal.type_in(INTERRUPT)?;
        self.terminal.until("again to leave").await?;
        self.terminal.until(PROMPT).await?;
        self.terminal.type_in(INTERRUPT)
    }

    fn interrupt(&self) -> Result<()> {
        let pid = self.child.id().context("it has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGINT)?)
    }

    /// Waits until the chat has ended, and returns its exit code and everything that was drawn.
    async fn end(mut self) -> Result<(Option<i32>, String)> {
        let status = timeout(Duration::from_secs(30), self.child.wait())
            .await
            .context("it does not end")??;
        Ok((status.code(), self.terminal.screen().await?))
    }
}

/// Returns the model's last request, as JSON.
fn asked(machine: &PersonalMachine) -> String {
    machine
        .model
        .requests()
        .last()
        .map(|request| request.body.to_string())
        .unwrap_or_default()
}

async fn requests(machine: &PersonalMachine, count: u64) -> Result<()> {
    eventually(&format!("the model was asked {count} times"), async || {
        (machine.model.request_count() == count).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_edited_recalled_pasted_and_completed() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    machine.write("notes.txt", "the content of the notes")?;
    let mut chat = Chat::start(
        &machine,
        "xterm-256color",
        &["chat", "--session", "bold-oak"],
    )?;
    let start = chat.terminal.until("/help").await?;
    assert!(
        start.contains("session bold-oak · model openai:gpt-5"),
        "{start:?}"
    );

    chat.prompt(&format!("heo{LEFT}ll")).await?;
    assert!(
        asked(&machine).contains("\"hello\""),
        "the line is edited: {}",
        asked(&machine)
    );
    chat.prompt(&format!("{UP} again")).await?;
    assert!(
        asked(&machine).contains("\"hello again\""),
        "it is brought back: {}",
        asked(&machine)
    );
    chat.prompt("\x1b[200~one\ntwo\nthree\x1b[201~").await?;
    assert_eq!(machine.model.request_count(), 3);
    assert!(
        asked(&machine).contains(r"one\ntwo\nthree"),
        "pasted lines are one prompt: {}",
        asked(&machine)
    );

    for (line, drawn) in [
        ("/help", "/rewind [MESSAGE]"),
        ("/mod\t", "openai:gpt-5"),
        ("/rewind", "hello again"),
        ("/nope", "there is no /nope"),
        ("/permission", "did you mean /permissions?"),
    ] {
        chat.line(line).await?;
        chat.terminal.until(drawn).await?;
    }
    assert_eq!(machine.model.request_count(), 3, "commands cost no request");

    chat.prompt("look at @no\t please").await?;
    assert!(
        asked(&machine).contains("@notes.txt")
            && asked(&machine).contains("the content of the notes"),
        "{}",
        asked(&machine)
    );
    chat.leave_by_interrupts().await?;
    let (code, screen) = chat.end().await?;
    assert_eq!(code, Some(0), "{screen:?}");
    assert!(
        screen.contains("go on with `planck chat --session bold-oak`"),
        "{screen:?}"
    );
    assert!(
        screen.contains("All \x1b[1mright\x1b[0m."),
        "Markdown is drawn: {screen:?}"
    );

    let history = machine.sessions()?.with_file_name("history");
    assert_eq!(std::fs::metadata(&history)?.mode() & 0o777, 0o600);
    let mut later = Chat::start(&machine, "xterm-256color", &["chat", "--continue"])?;
    later.prompt(&UP.repeat(7)).await?;
    assert!(
        asked(&machine).contains(r"one\ntwo\nthree"),
        "history outlives a chat: {}",
        asked(&machine)
    );
    later.line("/quit").await?;
    assert_eq!(later.end().await?.0, Some(0));
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_ends_a_turn_and_not_the_chat() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &["chat"])?;
    chat.line("slow").await?;
    chat.terminal.until("word").await?;
    chat.interrupt()?;
    let drawn = chat.terminal.until("interrupt again to leave").await?;
    assert!(
        drawn.contains("\naborting the turn"),
        "the notice has a line of its own: {drawn:?}"
    );
    chat.terminal.until("■ aborted").await?;
    chat.line("/quit").await?;
    let (code, screen) = chat.end().await?;
    assert_eq!(code, Some(0), "{screen:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn second_interrupt_leaves_although_the_node_does_not_answer() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let mut command = world.planck()?;
    command.arg("chat").env("TERM", "xterm-256color");
    let mut chat = Chat::spawn(command)?;
    chat.line("slow").await?;
    chat.terminal.until("word").await?;
    node.pause()?;
    chat.interrupt()?;
    chat.terminal.until("interrupt again to leave").await?;
    chat.interrupt()?;
    let (code, screen) = chat.end().await?;
    assert_eq!(code, Some(130), "{screen:?}");
    node.resume()?;
    node.leave_despite(&[""]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_at_the_prompt_clears_the_line_before_it_leaves() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &["chat"])?;
    chat.terminal.until(PROMPT).await?;
    chat.terminal.type_in("not this")?;
    chat.terminal.until("not this").await?;
    chat.terminal.type_in(INTERRUPT)?;
    chat.prompt("but this").await?;
    assert!(
        asked(&machine).contains("\"but this\""),
        "the line begins empty: {}",
        asked(&machine)
    );
    chat.leave_by_interrupts().await?;
    let (code, screen) = chat.end().await?;
    assert_eq!(code, Some(0), "{screen:?}");
    assert_eq!(machine.model.request_count(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pasted_controls_are_not_drawn_even_without_colours() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut command = machine.planck(&["chat"])?;
    command
        .env("TERM", "xterm-256color")
        .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
        .env("NO_COLOR", "1")
        .kill_on_drop(true);
    let mut chat = Chat::spawn(command)?;
    chat.terminal.until(PROMPT).await?;
    chat.terminal
        .type_in("\x1b[200~a\u{9b}2J\u{202e}owned\x1b[201~")?;
    let drawn = chat.terminal.until("owned").await?;
    assert!(!drawn.contains(['\u{9b}', '\u{202e}']), "{drawn:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn input_during_a_turn_is_the_next_prompt_and_is_not_drawn() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &["chat"])?;
    chat.line("short").await?;
    chat.terminal.until("Counting").await?;
    chat.terminal.type_in("and then\r")?;
    let meanwhile = chat.terminal.until("tokens in").await?;
    assert!(!meanwhile.contains("and then"), "{meanwhile:?}");
    requests(&machine, 2).await?;
    assert!(asked(&machine).contains("and then"), "{}", asked(&machine));
    chat.terminal.until("tokens in").await?;
    chat.line("/quit").await?;
    assert_eq!(chat.end().await?.0, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_of_a_turn_keeps_the_line_that_was_typed_before_it() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &["chat"])?;
    chat.line("slow").await?;
    chat.terminal.until("word").await?;
    chat.terminal.type_in("short\r")?;
    chat.interrupt()?;
    chat.terminal.until("■ aborted").await?;
    chat.terminal.until("Counting").await?;
    chat.terminal.until("tokens in").await?;
    assert!(asked(&machine).contains("short"), "{}", asked(&machine));
    chat.line("/quit").await?;
    assert_eq!(chat.end().await?.0, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_that_is_typed_during_a_turn_ends_it_at_once() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &["chat"])?;
    chat.line("slow").await?;
    chat.terminal.until("word").await?;
    chat.terminal.type_in("short\r/abort\r")?;
    chat.terminal.until("■ aborted").await?;
    chat.terminal.until("Counting").await?;
    chat.terminal.until("tokens in").await?;
    chat.line("/abort").await?;
    chat.terminal.until("nothing runs").await?;
    chat.line("/quit").await?;
    assert_eq!(chat.end().await?.0, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_input_that_is_typed_during_a_turn_leaves_after_it() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &["chat"])?;
    chat.line("short").await?;
    chat.terminal.until("Counting").await?;
    chat.terminal.type_in("\x04")?;
    chat.terminal.until("tokens in").await?;
    assert_eq!(chat.end().await?.0, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dumb_terminal_gets_no_escape_sequence() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "dumb", &["chat"])?;
    chat.line("hello").await?;
    chat.terminal.until("All **right**.").await?;
    chat.line("/quit").await?;
    let (code, screen) = chat.end().await?;
    assert!(code == Some(0) && !screen.contains('\x1b'), "{screen:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_planck_opens_a_chat_at_a_terminal_only() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = Chat::start(&machine, "xterm-256color", &[])?;
    chat.line("/quit").await?;
    assert_eq!(chat.end().await?.0, Some(0));
    let listed = machine.run(&["session", "ls", "-o", "json"]).await?;
    assert_eq!(
        listed.out.trim(),
        "[]",
        "a chat in which nothing was said leaves no session"
    );
    let elsewhere = run(machine.planck(&[])?).await?;
    assert!(
        elsewhere.code == 2 && elsewhere.out.is_empty() && elsewhere.err.contains("Usage: planck"),
        "{elsewhere:?}"
    );
    Ok(())
}
