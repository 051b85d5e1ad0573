//! The console in a real browser. The cases are in `tests/judges/console/`; a case asks for faults,
//! which the test makes.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use planck_common::command::Started;
use planck_scripted_model::{Script, Server};
use planck_tests::{
    front::Front,
    node::{Node, planck_in},
    world::{Backend, World},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
    time::timeout,
};

/// If this is set, as in CI, a missing browser fails these tests. Otherwise they are skipped.
const NEEDED: &str = "PLANCK_TESTS_NEED_BROWSER";
/// If this is set, the case about looks writes the pictures of the documentation.
const SCREENSHOTS: &str = "PLANCK_SCREENSHOTS";
const CHROMIUM: &str = "/usr/bin/chromium";
const SCRIPT: &str = include_str!("../../../judges/console/script.json");
const TEAM_SCRIPT: &str = include_str!("../../../../examples/scripts/build-a-cli.json");
const TEAM: &str = include_str!("../../../../examples/teams/build-a-cli/TEAM.json");
/// How long a case may take on a busy machine.
const CASE: Duration = Duration::from_secs(180);

fn judges() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("judges/console")
}

/// Returns whether there is a browser with its driver. If not, says so loudly, or fails in CI.
fn has_browser() -> bool {
    let browser = env::var_os("CHROMIUM").map_or_else(|| CHROMIUM.into(), PathBuf::from);
    let driver = judges().join("node_modules/playwright-core");
    let missing: Vec<_> = [browser, driver]
        .into_iter()
        .filter(|file| !file.exists())
        .collect();
    let what = format!(
        "{missing:?} is not there: as root, run `apt-get install -y chromium` and \
         `npm ci --prefix tests/judges/console`"
    );
    assert!(
        missing.is_empty() || env::var_os(NEEDED).is_none(),
        "{NEEDED} is set, and {what}"
    );
    if !missing.is_empty() {
        eprintln!("SKIPPED: the console is not tested in a browser, because {what}");
    }
    missing.is_empty()
}

/// Returns the script of the model: that of the cases, and that of the example's team.
fn script() -> Result<Script> {
    let mut script = Script::parse(SCRIPT)?;
    let team = Script::parse(TEAM_SCRIPT)?;
    script.rules.splice(0..0, team.rules);
    Ok(script)
}

/// Runs a case in a browser, with `answer` for what it asks.
async fn run(
    case: &str,
    address: SocketAddr,
    answer: &mut impl AsyncFnMut(&str) -> Result<String>,
) -> Result<()> {
    let mut child = Command::new("node")
        .arg(judges().join("run.js"))
        .args([case, &format!("http://{address}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run `node`")?;
    let mut input = child.stdin.take().context("no input")?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut has_passed = false;
    let conversation = async {
        while let Some(line) = lines.next_line().await? {
            match line.strip_prefix("ASK ") {
                Some(what) => {
                    let reply = answer(what).await.with_context(|| what.to_owned())?;
                    input.write_all(format!("{reply}\n").as_bytes()).await?;
                }
                None if line == "PASSED" => has_passed = true,
                None => println!("{case}: {line}"),
            }
        }
        anyhow::Ok(())
    };
    timeout(CASE, conversation)
        .await
        .with_context(|| format!("{case} does not end"))??;
    child.kill().await.ok();
    ensure!(has_passed, "{case} failed, see above");
    Ok(())
}

async fn nothing(what: &str) -> Result<String> {
    bail!("the test cannot {what}")
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

async fn solo(case: &str) -> Result<()> {
    if !has_browser() {
        return Ok(());
    }
    let solo = Solo::new().await?;
    let front = solo.front(&[]).await?;
    run(case, front.address(), &mut nothing).await
}

macro_rules! solo_cases {
    ($($case:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $case() -> Result<()> {
            solo(stringify!($case)).await
        })+
    };
}

solo_cases! {
    session_is_started_and_answered
    markup_of_models_and_tools_stays_text
    reload_in_mid_stream_continues_the_text
    two_tabs_answer_one_approval_once
    keyboard_alone_is_enough
    pages_of_other_origins_cannot_use_the_front
    long_session_opens_and_scrolls_at_once
}

/// A question is asked by an agent with the tool `ask_user`, which the form does not offer.
#[tokio::test(flavor = "multi_thread")]
async fn question_is_answered_in_the_conversation() -> Result<()> {
    if !has_browser() {
        return Ok(());
    }
    let cluster = Cluster::start(&[]).await?;
    let front = cluster.front().await?;
    let mut answer = async |_: &str| {
        let members = json!([{ "type": "agent", "tools": ["ask_user"] }]);
        let started = cluster
            .start_session(json!({ "members": members, "prompt": "Which colour?" }))
            .await?;
        Ok(started.name.to_string())
    };
    run(
        "question_is_answered_in_the_conversation",
        front.address(),
        &mut answer,
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_front_is_reconnected() -> Result<()> {
    if !has_browser() {
        return Ok(());
    }
    let cluster = Cluster::start(&[]).await?;
    let first = cluster.front().await?;
    let address = first.address();
    let mut front = Some(first);
    let mut answer = async |what: &str| {
        match (what, front.take()) {
            ("tell the directory", running) => {
                front = running;
                return Ok(cluster.world.dir().display().to_string());
            }
            ("kill the front", Some(mut running)) => running.kill().await?,
            ("start the front", None) => {
                let (command, folder) = (cluster.world.planck()?, cluster.world.folder());
                let options = ["--front-only"];
                front = Some(Front::start_at(address, command, folder, &options).await?);
            }
            _ => bail!("the test cannot {what}"),
        }
        Ok(String::new())
    };
    run("killed_front_is_reconnected", address, &mut answer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_node_is_replaced_while_watching() -> Result<()> {
    if !has_browser() {
        return Ok(());
    }
    let mut cluster = Cluster::start(&[]).await?;
    let front = cluster.front().await?;
    let case = "killed_node_is_replaced_while_watching";
    let mut answer = async |what: &str| match what {
        "tell the directory" => Ok(cluster.world.dir().display().to_string()),
        _ => cluster.kill_host_of("failover").await,
    };
    run(case, front.address(), &mut answer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn key_is_asked_for_and_roles_are_named() -> Result<()> {
    if !has_browser() {
        return Ok(());
    }
    let solo = Solo::new().await?;
    let made = solo
        .planck(&["serve", "key", "olga", "--role", "observe"])
        .await?;
    let word = |start: &str| made.split_whitespace().find(|word| word.starts_with(start));
    let key = word("pk_").context("no key")?.to_owned();
    let keys = word("PLANCK_HTTP_KEYS='").context("no configuration")?;
    let keys = keys
        .trim_start_matches("PLANCK_HTTP_KEYS=")
        .trim_matches('\'');
    let front = solo.front(&[("PLANCK_HTTP_KEYS", keys)]).await?;
    let mut answer = async |_: &str| Ok(key.clone());
    run(
        "key_is_asked_for_and_roles_are_named",
        front.address(),
        &mut answer,
    )
    .await
}

/// Checks every page with axe, and writes the pictures of the documentation if asked to.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_accessible_in_light_and_dark() -> Result<()> {
    if !has_browser() {
        return Ok(());
    }
    let cluster = Cluster::start(&[]).await?;
    let front = cluster.front().await?;
    let mut answer = async |_: &str| cluster.team_at_work().await;
    run(
        "pages_are_accessible_in_light_and_dark",
        front.address(),
        &mut answer,
    )
    .await
}

/// The parts of the console that need no browser.
#[tokio::test(flavor = "multi_thread")]
async fn modules_pass_their_own_tests() -> Result<()> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../http/console/tests");
    let output = Command::new("node")
        .arg("--test")
        .arg(&tests)
        .output()
        .await;
    let Ok(output) = output else {
        assert!(env::var_os(NEEDED).is_none(), "there is no `node`");
        eprintln!("SKIPPED: the modules of the console are not tested, because there is no `node`");
        return Ok(());
    };
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");
    Ok(())
}
