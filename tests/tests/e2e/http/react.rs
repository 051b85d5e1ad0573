//! React pages in a real browser, which use the front from another origin: the component of the
//! guide, and a thread of assistant-ui. The cases are in `tests/judges/react/`.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use planck_common::command::AgentState;
use planck_scripted_model::{Script, Server};
use planck_tests::{
    browser::{self, BrowserJudge},
    eventually::eventually,
    front::Front,
    nats::free_port,
    node::{Node, planck_in},
    proxy::{Link, Proxy},
    world::{Backend, World},
};
use tempfile::TempDir;
use tokio::process::Command;

const SCRIPT: &str = include_str!("../../../judges/react/script.json");
/// The number of bytes of a streamed answer after which the model is stalled.
const BEGINNING: usize = 4_000;
/// If this is set, as in CI, missing packages fail these tests. Otherwise they are skipped.
const NEEDED: &str = "PLANCK_TESTS_NEED_JUDGES";

/// Returns whether there are a browser and the packages of the pages. If not, says so loudly, or
/// fails in CI.
fn is_there() -> bool {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/react/node_modules");
    let are_there = packages.is_dir();
    assert!(
        are_there || env::var_os(NEEDED).is_none(),
        "{NEEDED} is set, and `tools/install` has not fetched the packages of the pages"
    );
    if !are_there {
        eprintln!("SKIPPED: React is not there; `tools/install` fetches it");
    }
    are_there && browser::is_there("a React page")
}

/// Returns the base URL of the model.
fn url(model: &Proxy) -> String {
    format!("http://{}/v1", model.address())
}

/// A front whose pages a person uses. A case may have it killed and started.
struct Stage<'a> {
    address: SocketAddr,
    /// The port of the pages.
    pages: u16,
    folder: PathBuf,
    /// Returns a `planck` command without arguments.
    command: Box<dyn Fn() -> Result<Command> + 'a>,
    /// The link of the node to the model.
    model: &'a Proxy,
    /// The cluster of a front that runs no node.
    world: Option<&'a World>,
    /// The nodes that the test may kill.
    nodes: Vec<Node>,
    front: Option<Front>,
}

impl<'a> Stage<'a> {
    /// Starts a front in one process with its node.
    async fn solo(folder: &Path, model: &'a Proxy) -> Result<Self> {
        fs::create_dir(folder.join("work"))?;
        let (home, url) = (folder.to_owned(), url(model));
        let command = move || {
            let mut command = planck_in(&home)?;
            command
                .current_dir(home.join("work"))
                .env("PLANCK_MODELS_DEFAULT", "scripted:test")
                .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", &url);
            Ok(command)
        };
        let mut stage = Self::new(folder, Box::new(command), model, None)?;
        stage.start_front().await?;
        Ok(stage)
    }

    /// Starts nodes, and a front that runs no node.
    async fn of(world: &'a World, model: &'a Proxy, nodes: usize) -> Result<Self> {
        let command = Box::new(|| world.planck());
        let mut stage = Self::new(world.folder(), command, model, Some(world))?;
        for _ in 0..nodes {
            stage.start_node().await?;
        }
        stage.start_front().await?;
        Ok(stage)
    }

    fn new(
        folder: &Path,
        command: Box<dyn Fn() -> Result<Command> + 'a>,
        model: &'a Proxy,
        world: Option<&'a World>,
    ) -> Result<Self> {
        Ok(Self {
            address: SocketAddr::from(([127, 0, 0, 1], free_port()?)),
            pages: free_port()?,
            folder: folder.to_owned(),
            command,
            model,
            world,
            nodes: Vec::new(),
            front: None,
        })
    }

    async fn start_front(&mut self) -> Result<()> {
        let mut command = (self.command)()?;
        let pages = format!("http://127.0.0.1:{}", self.pages);
        command.env("PLANCK_HTTP_ALLOWED_ORIGINS", pages);
        let options: &[&str] = match self.world {
            Some(_) => &["--front-only"],
            None => &[],
        };
        self.front = Some(Front::start_at(self.address, command, &self.folder, options).await?);
        Ok(())
    }

    /// Plays cases, and does what they ask for.
    async fn play(&mut self, cases: &[&str]) -> Result<()> {
        let front = self.front.as_ref().context("no front")?;
        let judge = BrowserJudge {
            program: "react/run.js",
            arguments: vec![front.url(), self.pages.to_string(), front.key().to_owned()],
            only: "PLANCK_REACT_CASE",
        };
        judge
            .play(cases, &mut async |what: &str| self.answer(what).await)
            .await
    }

    async fn answer(&mut self, what: &str) -> Result<String> {
        match what {
            "tell the directory" => return Ok(self.folder.join("work").display().to_string()),
            "stall the next answer" => self.model.stall_after(BEGINNING),
            "let the model go on" => self.model.set(Link::Up),
            "kill the front" => self.front.take().context("no front")?.kill().await?,
            "start the front" => self.start_front().await?,
            "open the door" => fs::write(self.folder.join("work/open"), "")?,
            _ => {
                if let Some(session) = what.strip_prefix("wait for the end of the turn of ") {
                    self.turn_ends(session).await?;
                } else if let Some(agent) = what.strip_prefix("kill the node of ") {
                    self.kill_node_of(agent).await?;
                } else {
                    bail!("the test cannot {what}");
                }
            }
        }
        Ok(String::new())
    }

    /// Kills the node of an agent, which is named as `AGENT in SESSION`, and starts another one.
    async fn kill_node_of(&mut self, agent: &str) -> Result<()> {
        let world = self.world.context("no node works without the front")?;
        let (agent, session) = agent.split_once(" in ").context("no session is named")?;
        let info = world.caller.session(session).await?;
        let found = info.agents.iter().find(|found| found.name == agent);
        let host = found.and_then(|found| found.node_id.as_ref());
        let at = self.nodes.iter().position(|node| Some(node.id()) == host);
        let mut node = self.nodes.remove(at.context("no node hosts the agent")?);
        node.kill().await?;
        self.start_node().await
    }

    /// Starts a node that the test may kill.
    async fn start_node(&mut self) -> Result<()> {
        let world = self.world.context("the front is its own node")?;
        let environment = [("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", &*url(self.model))];
        self.nodes.push(world.node_with(&environment).await?);
        Ok(())
    }

    /// Waits until no agent of a session works, without the front.
    async fn turn_ends(&self, session: &str) -> Result<()> {
        let Some(world) = self.world else {
            bail!("no node works without the front");
        };
        eventually("the turn ends", async || {
            let info = world.caller.session(session).await.ok()?;
            let mut agents = info.agents.iter();
            agents
                .all(|agent| agent.state == AgentState::Idle)
                .then_some(())
        })
        .await
    }
}

/// Plays cases on a front with its node in one process.
async fn solo(cases: &[&str]) -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let server = Server::start(Script::parse(SCRIPT)?).await?;
    let model = Proxy::start(server.address()).await?;
    let mut stage = Stage::solo(folder.path(), &model).await?;
    stage.play(cases).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn person_uses_the_page_of_the_guide() -> Result<()> {
    solo(&[
        "chat/text_grows_to_what_is_saved",
        "chat/tool_runs_when_allowed_and_not_when_denied",
        "chat/stopped_answer_keeps_its_text_and_the_next_one_comes",
        "chat/reload_in_mid_stream_continues_the_text",
        "chat/error_before_the_stream_is_shown",
        "chat/failed_answer_is_shown_and_the_next_one_comes",
        "chat/pages_of_other_origins_are_refused",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn chat_is_used_twice_at_a_time() -> Result<()> {
    solo(&[
        "chat/two_tabs_share_a_chat",
        "chat/message_in_mid_stream_is_answered_next",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn person_uses_a_thread_of_assistant_ui() -> Result<()> {
    solo(&[
        "assistant/text_grows_to_what_is_saved",
        "assistant/tool_runs_when_allowed_and_not_when_denied",
        "assistant/stopped_answer_keeps_its_text_and_the_next_one_comes",
        "assistant/reload_in_mid_stream_continues_the_text",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn page_reconnects_to_a_front_that_was_killed() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let world = World::start(Backend::Sqlite, Script::parse(SCRIPT)?).await?;
    let model = Proxy::start(world.model.address()).await?;
    let mut stage = Stage::of(&world, &model, 1).await?;
    stage
        .play(&[
            "chat/killed_front_is_reconnected",
            "chat/answer_that_ended_meanwhile_is_whole",
        ])
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn page_reconnects_to_a_process_that_was_killed() -> Result<()> {
    solo(&["chat/killed_front_is_reconnected"]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn person_waits_for_a_team() -> Result<()> {
    solo(&[
        "chat/answer_of_a_team_ends_with_its_result",
        "chat/stopped_team_rests_and_the_next_answer_comes",
        "chat/message_to_a_team_at_work_is_answered_at_once",
        "assistant/answer_of_a_team_ends_with_its_result",
        "assistant/stopped_team_rests_and_the_next_answer_comes",
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and packages of npm: make test-all"]
async fn answer_of_a_team_goes_on_when_nodes_are_killed() -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let world = World::start(Backend::Postgres, Script::parse(SCRIPT)?).await?;
    let model = Proxy::start(world.model.address()).await?;
    let mut stage = Stage::of(&world, &model, 2).await?;
    stage
        .play(&[
            "chat/answer_goes_on_when_the_node_of_the_lead_is_killed",
            "chat/answer_goes_on_when_the_node_of_the_worker_is_killed",
        ])
        .await
}
