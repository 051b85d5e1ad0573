//! What `planck run` and `planck chat` draw at a pseudo-terminal: changes to files, the time that a
//! tool has run, lines of prose, models, permissions, and the sessions to choose from.

use std::time::Duration;

use anyhow::{Context as _, Result};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    machine::{PersonalMachine, Ran, run},
    terminal::Terminal,
};
use serde_json::json;
use tokio::{process::Child, time::timeout};

/// Twenty of its words fill a line of the terminal, which has 100 columns.
const PROSE: &str = "word ";
const PROMPT: &str = "› ";
const INTERRUPT: &str = "\x03";

fn script() -> Script {
    let edit = json!({ "path": "a.txt", "old_string": "two\nthree", "new_string": "2\nthree" });
    let prose = format!("{}\n\n```\n{}\n```\n", PROSE.repeat(50), PROSE.repeat(30));
    let slow = json!({ "command": "until [ -e go ]; do sleep 0.05; done; echo seen" });
    Script::new()
        .rule(When::any().result_of("edit"), "It is edited.")
        .rule(When::any().result_of("bash"), "It is seen.")
        .rule(When::any().last("edit it"), Reply::call("edit", edit))
        .rule(When::any().last("be slow"), Reply::call("bash", slow))
        .rule(When::any().last("prose"), Reply::text(prose))
        .always("Well.")
}

struct AtTerminal {
    child: Child,
    terminal: Terminal,
}

impl AtTerminal {
    fn start(machine: &PersonalMachine, arguments: &[&str], colours: bool) -> Result<Self> {
        let mut command = machine.planck(arguments)?;
        command
            .env("TERM", "xterm-256color")
            .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
            .env_remove("NO_COLOR")
            .env_remove("CI")
            .envs((!colours).then_some(("NO_COLOR", "1")))
            .kill_on_drop(true);
        let terminal = Terminal::attach(&mut command, true)?;
        Ok(Self {
            child: command.spawn()?,
            terminal,
        })
    }

    async fn line(&mut self, text: &str) -> Result<()> {
        self.terminal.until(PROMPT).await?;
        self.terminal.type_in(&format!("{text}\r"))
    }

    /// Leaves a chat, and returns everything that was drawn.
    async fn quit(mut self) -> Result<String> {
        self.line("/quit").await?;
        self.end(0).await
    }

    async fn end(mut self, code: i32) -> Result<String> {
        let status = timeout(Duration::from_secs(60), self.child.wait())
            .await
            .context("it does not end")??;
        let screen = self.terminal.screen().await?;
        assert_eq!(status.code(), Some(code), "{screen:?}");
        Ok(screen)
    }
}

async fn ran(machine: &PersonalMachine, arguments: &[&str]) -> Result<Ran> {
    let mut command = machine.planck(arguments)?;
    command.env("PLANCK_MODELS_DEFAULT", "openai:gpt-5");
    run(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_shown_as_a_change_with_colours_only_at_a_terminal() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let before = format!("one\ntwo\nthree\n{}\n", "wide ".repeat(40));
    machine.write("a.txt", &before)?;
    let at_terminal = AtTerminal::start(&machine, &["run", "edit it"], true)?;
    let screen = at_terminal.end(0).await?;
    for line in [
        "edit a.txt",
        "\x1b[31m- two\x1b[0m",
        "\x1b[32m+ 2\x1b[0m",
        "  three",
    ] {
        assert!(screen.contains(line), "{line:?}: {screen:?}");
    }
    machine.write("a.txt", &before)?;
    let piped = ran(&machine, &["run", "edit it"]).await?;
    assert!(
        piped.err.contains("  │ - two\n  │ + 2\n  │   three\n") && !piped.err.contains('\x1b'),
        "{piped:?}"
    );
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_tool_shows_its_time_which_its_result_replaces() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut at_terminal = AtTerminal::start(&machine, &["run", "be slow"], true)?;
    at_terminal.terminal.until("▸ bash until").await?;
    at_terminal.terminal.until("  1 s").await?;
    machine.write("go", "")?;
    let rest = at_terminal.terminal.until("✓").await?;
    assert!(
        rest.ends_with("\r\x1b[2K  \x1b[32m✓"),
        "the result is drawn over the time: {rest:?}"
    );
    at_terminal.end(0).await?;
    let piped = ran(&machine, &["run", "be slow"]).await?;
    assert!(!piped.err.contains('▸'), "{piped:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn prose_is_broken_between_words_at_a_terminal_only() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let line = PROSE.repeat(20).trim_end().to_owned();
    for colours in [true, false] {
        let at_terminal = AtTerminal::start(&machine, &["run", "prose"], colours)?;
        let screen = at_terminal.end(0).await?;
        assert!(
            screen.contains(&format!("{line}\r\n{line}\r\nword ")),
            "prose: {screen:?}"
        );
        assert!(screen.contains(&PROSE.repeat(30)), "code: {screen:?}");
    }
    let piped = ran(&machine, &["run", "prose"]).await?;
    assert!(piped.out.starts_with(&PROSE.repeat(50)), "{piped:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_lists_models_and_refuses_one_that_is_not_known() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = AtTerminal::start(&machine, &["chat", "--session", "bold-oak"], true)?;
    for (line, drawn) in [
        ("/model", "the model is openai:gpt-5"),
        ("/model openai:gtp-5", "did you mean `openai:gpt-5`?"),
        ("/model bogus", "no model `bogus` is known"),
    ] {
        chat.line(line).await?;
        chat.terminal.until(drawn).await?;
    }
    chat.terminal.until(PROMPT).await?;
    chat.terminal.type_in("/model anthropic:c\t")?;
    chat.terminal.until("/model anthropic:claude-").await?;
    chat.terminal.type_in(INTERRUPT)?;
    chat.line("hello").await?;
    chat.terminal.until("Well.").await?;
    chat.quit().await?;
    let asked = machine.model.requests();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].body["model"], "gpt-5", "nothing was changed");

    // The flag changes the model of an existing session, whether it is in the list or not.
    for (flags, model) in [
        (&["--session", "bold-oak"][..], "my-own"),
        (&["--continue"], "gpt-5-mini"),
    ] {
        let name = format!("openai:{model}");
        let ran = ran(
            &machine,
            &[&["run"], flags, &["--model", &name, "more"]].concat(),
        )
        .await?;
        assert!(ran.code == 0 && ran.err.contains(&name), "{ran:?}");
        let asked = machine.model.requests();
        assert_eq!(
            asked.last().map(|asked| &asked.body["model"]),
            Some(&json!(model))
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_key_is_found_before_there_is_a_session() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    for command in ["run", "chat"] {
        let prompt = (command == "run").then_some("go");
        let arguments: Vec<&str> = [command, "--model", "mistral:m"]
            .into_iter()
            .chain(prompt)
            .collect();
        let ran = ran(&machine, &arguments).await?;
        assert!(
            ran.code == 2
                && ran
                    .err
                    .contains("`mistral` has no key; set MISTRAL_API_KEY"),
            "{ran:?}"
        );
    }
    let mistyped = ran(&machine, &["run", "--model", "antropic:x", "go"]).await?;
    assert!(
        mistyped.code == 2 && mistyped.err.contains("did you mean `anthropic`?"),
        "{mistyped:?}"
    );
    let listed = ran(&machine, &["session", "ls", "-o", "json"]).await?;
    assert_eq!(listed.out.trim(), "[]");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_says_what_is_permitted_and_what_answers_allowed() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    machine.write("a.txt", "one\ntwo\nthree\n")?;
    let careful = ["chat", "--permissions", "careful"];
    let mut chat = AtTerminal::start(&machine, &careful, true)?;
    chat.line("edit it").await?;
    let asked = chat.terminal.until("? help › ").await?;
    assert!(asked.contains("- two"), "{asked:?}");
    chat.terminal.type_in("a")?;
    let done = chat.terminal.until("It is edited.").await?;
    assert!(
        !done.contains("- two"),
        "a change that a person allowed is not shown again: {done:?}"
    );
    chat.line("/permissions").await?;
    let shown = chat
        .terminal
        .until("answers allow, for this session")
        .await?;
    assert!(shown.contains("mode careful"), "{shown:?}");
    chat.terminal.until("edit").await?;
    chat.line("/permissions auto").await?;
    chat.terminal
        .until("planck chat --permissions MODE")
        .await?;
    chat.quit().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_chooses_among_the_sessions_of_a_folder() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    for (name, prompt) in [("bold-oak", "count the words"), ("grey-fern", "sort them")] {
        assert_eq!(
            ran(&machine, &["run", "--session", name, prompt])
                .await?
                .code,
            0
        );
    }
    let listed = ran(&machine, &["session", "ls"]).await?;
    assert!(
        listed.out.contains("count the words → Well.") && !listed.out.contains("WORKSPACE"),
        "{listed:?}"
    );
    let mut chat = AtTerminal::start(&machine, &["chat", "--continue"], true)?;
    let offered = chat.terminal.until("session [1] › ").await?;
    let at = |text: &str| {
        offered
            .find(text)
            .with_context(|| format!("{text}: {offered:?}"))
    };
    assert!(at("sort them → Well.")? < at("count the words → Well.")?);
    chat.terminal.type_in("7\r")?;
    chat.terminal.until("the number or the name").await?;
    chat.terminal.until("session [1] › ").await?;
    chat.terminal.type_in("2\r")?;
    chat.terminal.until("session bold-oak · model").await?;
    chat.quit().await?;

    let mut chat = AtTerminal::start(&machine, &["chat", "--continue"], true)?;
    chat.terminal.until("session [1] › ").await?;
    chat.terminal.type_in("\x04")?;
    chat.end(0).await?;
    // A command that is not a conversation does not ask.
    let mut on = AtTerminal::start(&machine, &["run", "--continue", "more"], true)?;
    on.terminal.until("session grey-fern · model").await?;
    on.end(0).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_left_by_the_second_interrupt_and_names_missing_files() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut chat = AtTerminal::start(&machine, &["chat"], true)?;
    chat.line("look at @gone.txt").await?;
    chat.terminal.until("there is no file gone.txt").await?;
    chat.terminal.until("tokens in").await?;
    chat.terminal.until(PROMPT).await?;
    chat.terminal.type_in(INTERRUPT)?;
    chat.terminal.until("Ctrl-C again to leave").await?;
    chat.terminal.until(PROMPT).await?;
    chat.terminal.type_in(INTERRUPT)?;
    chat.end(0).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_without_a_terminal_says_that_a_question_is_open() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    machine.write("a.txt", "one\ntwo\nthree\n")?;
    let asks = [
        "run",
        "--permissions",
        "careful",
        "--session",
        "bold-oak",
        "edit it",
    ];
    let first = ran(&machine, &asks).await?;
    assert_eq!(first.code, 5, "{first:?}");
    let waits = ran(&machine, &["waits"]).await?;
    assert!(
        waits.out.contains("bold-oak"),
        "sessions have names: {waits:?}"
    );
    let mut chat = machine.planck(&["chat", "--session", "bold-oak"])?;
    chat.stdin(std::process::Stdio::null());
    let left = run(chat).await?;
    assert!(
        left.code == 5 && left.err.contains("planck answer "),
        "{left:?}"
    );
    Ok(())
}
