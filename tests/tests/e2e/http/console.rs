//! The console in a real browser. The cases are in `tests/judges/console/`. A case that needs a
//! fault, such as a killed front, asks this test for it. All other cases share one front and one
//! browser, because starting these takes longer than most cases.

use std::{env, fs, net::SocketAddr, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use planck_common::command::Started;
use planck_scripted_model::{Script, Server};
use planck_tests::{
    browser::{self, BrowserJudge},
    front::Front,
    node::{Node, planck_in},
    world::{Backend, World},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

/// If this is set, the case about looks writes the pictures of the documentation.
const SCREENSHOTS: &str = "PLANCK_SCREENSHOTS";
const SCRIPT: &str = include_str!("../../../judges/console/script.json");
const TEAM_SCRIPT: &str = include_str!("../../../../examples/scripts/build-a-cli.json");
const TEAM: &str = include_str!("../../../../examples/teams/build-a-cli/TEAM.json");

/// Returns a long text with all kinds of Markdown, which the model streams quickly.
fn book() -> Script {
    let chapter = |number| {
        format!(
            "Paragraph {number} has *some* text, `code` and a [link](https://example.com/{number}).\n\n- one\n- two\n\n"
        )
    };
    let text: String = (1..400).map(chapter).collect();
    let reply = json!({
        "parts": [{ "text": text + "And the text is over." }],
        "pace": { "per_second": 400, "chunk": 24 },
    });
    let rule = json!({ "when": { "user": "Write a book" }, "replies": [reply] });
    serde_json::from_value(json!({ "rules": [rule] })).unwrap_or_default()
}

/// Returns the script of the model: that of the cases, and that of the example's team.
fn script() -> Result<Script> {
    let mut script = Script::parse(SCRIPT)?;
    script.rules.extend(book().rules);
    let team = Script::parse(TEAM_SCRIPT)?;
    script.rules.splice(0..0, team.rules);
    Ok(script)
}

/// Returns the address of a front, and its own key.
fn door(front: &Front) -> (String, String) {
    (front.url(), front.key().to_owned())
}

/// Runs cases in one browser, one after the other, with `answer` for what they ask.
async fn run(
    cases: &[&str],
    (url, key): (String, String),
    answer: &mut impl AsyncFnMut(&str) -> Result<String>,
) -> Result<()> {
    let judge = BrowserJudge {
        program: "console/run.js",
        arguments: vec![url, key],
        only: "PLANCK_CONSOLE_CASE",
    };
    judge.play(cases, answer).await
}

/// One process with everything, as a newcomer starts it.
struct Solo {
    folder: TempDir,
    model: Server,
}

impl Solo {
    async fn new() -> Result<Self> {
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("work"))?;
        fs::write(
            folder.path().join("work/greet.py"),
            "def greet(name):\n    return \"Hello\"\n",
        )?;
        let team = folder.path().join(".planck/teams/build-a-cli");
        fs::create_dir_all(&team)?;
        fs::write(team.join("TEAM.json"), TEAM)?;
        let model = Server::start(script()?).await?;
        Ok(Self { folder, model })
    }

    async fn front(&self, environment: &[(&str, &str)]) -> Result<Front> {
        let mut command = planck_in(self.folder.path())?;
        command
            .current_dir(self.folder.path().join("work"))
            .env("PLANCK_MODELS_DEFAULT", "scripted:test")
            .env(
                "PLANCK_PROVIDERS_SCRIPTED_BASE_URL",
                self.model.openai_url(),
            )
            .envs(environment.iter().copied());
        Front::start(command, self.folder.path(), &[]).await
    }

    /// Runs a `planck` command beside the front.
    async fn planck(&self, arguments: &[&str]) -> Result<String> {
        let output = planck_in(self.folder.path())?
            .args(arguments)
            .output()
            .await?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// A cluster of two nodes, and a front that runs no node.
struct Cluster {
    world: World,
    nodes: Vec<Node>,
}

impl Cluster {
    async fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let world = World::start(Backend::Postgres, script()?).await?;
        let mut nodes = Vec::new();
        for _ in 0..2 {
            nodes.push(world.node_with(environment).await?);
        }
        Ok(Self { world, nodes })
    }

    async fn front(&self) -> Result<Front> {
        let folder = self.world.folder();
        Front::start(self.world.planck()?, folder, &["--front-only"]).await
    }

    async fn start_session(&self, mut request: Value) -> Result<Started> {
        request["dir"] = json!(self.world.dir());
        self.world.caller.start(&request).await
    }

    /// Starts sessions that show everything at once: a team, an approval, a question, a failure.
    async fn team_at_work(&self) -> Result<String> {
        fs::write(
            self.world.dir().join("greet.py"),
            "def greet(name):\n    return \"Hello\"\n",
        )?;
        let agent = json!([{ "type": "agent", "tools": ["read", "edit", "bash", "ask_user"] }]);
        let team: Value = serde_json::from_str(TEAM)?;
        for request in [
            json!({ "name": "say-hello", "members": agent, "prompt": "Say hello" }),
            json!({ "name": "word-counter", "members": team["members"], "prompt": "Build a word counter." }),
            json!({ "name": "fix-greeting", "members": agent, "prompt": "Fix the greeting" }),
            json!({ "name": "button-colour", "members": agent, "prompt": "Which colour should the button have?" }),
            json!({ "name": "deploy-staging", "members": agent, "permissions": "careful", "prompt": "Deploy" }),
        ] {
            self.start_session(request).await?;
        }
        Ok(if env::var_os(SCREENSHOTS).is_some() {
            let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/console");
            docs.display().to_string()
        } else {
            String::new()
        })
    }

    /// Kills the node that hosts the orchestrator of a session.
    async fn kill_host_of(&mut self, session: &str) -> Result<String> {
        let info = self.world.caller.session(session).await?;
        let owner = info.owner.context("no owner")?;
        let host = self.nodes.iter().position(|node| *node.id() == owner);
        let mut node = self.nodes.remove(host.context("no such node")?);
        node.kill().await?;
        Ok(owner.to_string())
    }
}

/// A cluster with its front, whose parts a case may have killed and started.
struct Stage {
    cluster: Cluster,
    address: SocketAddr,
    front: Option<Front>,
}

impl Stage {
    async fn start() -> Result<Self> {
        let cluster = Cluster::start(&[]).await?;
        let front = cluster.front().await?;
        Ok(Self {
            cluster,
            address: front.address(),
            front: Some(front),
        })
    }

    /// Does what a case asks for.
    async fn answer(&mut self, what: &str) -> Result<String> {
        let world = &self.cluster.world;
        match (what, self.front.take()) {
            ("tell the directory", front) => {
                self.front = front;
                return Ok(world.dir().display().to_string());
            }
            ("kill the front", Some(mut front)) => front.kill().await?,
            ("start the front", None) => {
                let options = ["--front-only"];
                let started =
                    Front::start_at(self.address, world.planck()?, world.folder(), &options);
                self.front = Some(started.await?);
            }
            ("start a node", front) => {
                self.front = front;
                self.cluster.nodes.push(world.node().await?);
            }
            ("kill the node of failover", front) => {
                self.front = front;
                return self.cluster.kill_host_of("failover").await;
            }
            _ => bail!("the test cannot {what}"),
        }
        Ok(String::new())
    }
}

/// Runs cases on a front of their own.
async fn solo(cases: &[&str]) -> Result<()> {
    if !browser::is_there("the console") {
        return Ok(());
    }
    let solo = Solo::new().await?;
    let front = solo.front(&[]).await?;
    let work = solo.folder.path().join("work").display().to_string();
    let mut answer = async |_: &str| Ok(work.clone());
    run(cases, door(&front), &mut answer).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn person_starts_sessions_and_answers_waits() -> Result<()> {
    solo(&[
        "session_is_started_and_answered",
        "form_checks_a_name_and_is_closed_by_a_change_of_page",
        "markup_of_models_and_tools_stays_text",
        "two_tabs_answer_one_approval_once",
        "wait_says_who_asks_and_why_and_stays_in_the_history",
        "wait_with_a_long_word_is_read_on_a_phone",
        "keyboard_alone_is_enough",
        "pages_of_other_origins_cannot_use_the_front",
        "approval_shows_the_whole_call",
        "changed_files_are_shown_and_kept",
        "edited_arguments_run_and_wrong_ones_are_refused",
        "allowance_for_the_session_covers_the_next_call",
        "tool_of_a_client_that_is_gone_is_answered",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn person_changes_what_sessions_do() -> Result<()> {
    solo(&[
        "reload_in_mid_stream_continues_the_text",
        "steered_prompt_joins_the_turn_and_queued_one_follows",
        "aborted_turn_keeps_its_text_and_the_next_prompt_runs",
        "rewind_hides_later_messages_in_every_tab",
        "changed_model_answers_the_next_prompt",
        "deleted_session_is_named_in_other_tabs",
        "closed_session_is_resumed",
        "failed_turn_is_tried_again",
        "session_is_exported_and_deleted",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn person_finds_and_reads_what_agents_did() -> Result<()> {
    solo(&[
        "sessions_are_searched_filtered_and_sorted",
        "markdown_of_an_answer_is_shown_and_its_code_is_copied",
        "long_text_that_streams_leaves_the_page_free",
        "agent_shows_what_its_model_gets",
        "answer_in_a_shape_is_a_tree_and_the_demand_is_no_prompt",
        "lanes_are_widened_for_the_tab",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn long_session_opens_and_scrolls_at_once() -> Result<()> {
    solo(&["long_session_opens_and_scrolls_at_once"]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn cluster_that_loses_parts_is_used_by_a_person() -> Result<()> {
    if !browser::is_there("the console") {
        return Ok(());
    }
    let mut stage = Stage::start().await?;
    let door = door(stage.front.as_ref().context("no front")?);
    let cases = [
        "question_is_answered_in_the_conversation",
        "approval_survives_the_death_of_the_front",
        "killed_front_is_reconnected",
        "drained_node_gives_its_agents_away",
        "killed_node_is_replaced_while_watching",
    ];
    run(&cases, door, &mut async |what: &str| {
        stage.answer(what).await
    })
    .await
}

/// A key of a front, and its entry in the configuration.
struct MadeKey {
    key: String,
    entry: Value,
}

impl Solo {
    async fn key(&self, name: &str, role: &str) -> Result<MadeKey> {
        let made = self.planck(&["serve", "key", name, "--role", role]).await?;
        let word = |start: &str| made.split_whitespace().find(|word| word.starts_with(start));
        let keys = word("PLANCK_HTTP_KEYS='").context("no configuration")?;
        let keys = keys
            .trim_start_matches("PLANCK_HTTP_KEYS=")
            .trim_matches('\'');
        let keys: Vec<Value> = serde_json::from_str(keys)?;
        Ok(MadeKey {
            key: word("pk_").context("no key")?.to_owned(),
            entry: keys.into_iter().next().context("no entry")?,
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn key_is_asked_for_and_roles_are_named() -> Result<()> {
    if !browser::is_there("the console") {
        return Ok(());
    }
    let solo = Solo::new().await?;
    let observer = solo.key("olga", "observe").await?;
    let operator = solo.key("otto", "operate").await?;
    let keys = json!([observer.entry, operator.entry]).to_string();
    let front = solo.front(&[("PLANCK_HTTP_KEYS", &keys)]).await?;
    let told = json!({ "observe": observer.key, "operate": operator.key }).to_string();
    let mut answer = async |_: &str| Ok(told.clone());
    let cases = ["key_is_asked_for_and_roles_are_named"];
    run(&cases, door(&front), &mut answer).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn printed_address_brings_the_key() -> Result<()> {
    solo(&["printed_address_brings_the_key"]).await
}

/// Checks every page with axe, and writes the pictures of the documentation if asked to.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn pages_are_accessible_in_light_and_dark() -> Result<()> {
    if !browser::is_there("the console") {
        return Ok(());
    }
    // A server that cannot be used is shown with the reason.
    let cluster = Cluster::start(&[("PLANCK_MCP_BROKEN_COMMAND", "false")]).await?;
    let front = cluster.front().await?;
    let mut answer = async |_: &str| cluster.team_at_work().await;
    let cases = ["pages_are_accessible_in_light_and_dark"];
    run(&cases, door(&front), &mut answer).await
}

/// The parts of the console that need no browser.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn modules_pass_their_own_tests() -> Result<()> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../http/console/tests");
    let output = Command::new("node")
        .arg("--test")
        .arg(&tests)
        .output()
        .await;
    let Ok(output) = output else {
        assert!(env::var_os(browser::NEEDED).is_none(), "there is no `node`");
        eprintln!("SKIPPED: the modules of the console are not tested, because there is no `node`");
        return Ok(());
    };
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");
    Ok(())
}
