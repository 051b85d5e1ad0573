//! A person's machine without NATS: a working folder, a scripted model behind every provider's
//! name, and `planck` commands that are run to their end.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use planck_common::{envelope::Envelope, event::EventKind};
use planck_scripted_model::{Script, Server};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::node::planck_in;

/// How long a command may take.
const LONG: Duration = Duration::from_secs(90);

pub struct PersonalMachine {
    pub model: Server,
    folder: TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl PersonalMachine {
    pub async fn start(script: Script) -> Result<Self> {
        let folder = TempDir::new()?;
        for name in ["home", "work"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self {
            model: Server::start(script).await?,
            folder,
        })
    }

    /// Returns the folder in which commands run.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Returns the parent of the working folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder in which Planck keeps the working folder's sessions by default.
    pub fn sessions(&self) -> Result<PathBuf> {
        let projects = self.folder.path().join("home/.local/share/planck/projects");
        let mut places = std::fs::read_dir(&projects)
            .with_context(|| format!("no {}", projects.display()))?
            .flatten();
        let place = places.find(|place| place.file_name().to_string_lossy().starts_with("work-"));
        Ok(place
            .context("no place of the working folder")?
            .path()
            .join("sessions"))
    }

    /// Writes a file in the working folder, and creates its parent folders.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.work().join(path);
        std::fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        Ok(std::fs::write(path, text)?)
    }

    /// Writes the user's own configuration.
    pub fn configure(&self, text: &str) -> Result<()> {
        self.write("../home/.planck/config.toml", text)
    }

    pub fn read(&self, path: &str) -> Result<String> {
        std::fs::read_to_string(self.work().join(path)).with_context(|| format!("no {path}"))
    }

    /// Returns a command in whose environment every provider's address is that of the scripted
    /// model.
    pub fn planck(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = planck_in(&self.work())?;
        command
            .args(arguments)
            .env("HOME", self.folder.path().join("home"));
        for name in ["ANTHROPIC", "OPENAI", "GOOGLE"] {
            command.env(format!("{name}_API_KEY"), "key-0123456789");
        }
        for name in ["ANTHROPIC", "GOOGLE", "OLLAMA"] {
            command.env(
                format!("PLANCK_PROVIDERS_{name}_BASE_URL"),
                self.model.url(),
            );
        }
        command.env("OPENAI_BASE_URL", self.model.openai_url());
        command.env(
            "PLANCK_PROVIDERS_SCRIPTED_BASE_URL",
            self.model.openai_url(),
        );
        command.env(
            "PLANCK_PROVIDERS_LLAMA_CPP_BASE_URL",
            self.model.llama_cpp_url(),
        );
        Ok(command)
    }

    pub async fn run(&self, arguments: &[&str]) -> Result<Ran> {
        run(self.planck(arguments)?).await
    }

    /// Runs `planck run` with a prompt for one agent. Returns the command's result and the events
    /// that it printed.
    pub async fn prompt(&self, model: &str, prompt: &str) -> Result<(Ran, Vec<Envelope>)> {
        let ran = self
            .run(&["run", "-o", "jsonl", "--model", model, prompt])
            .await?;
        let events = ran.events()?;
        Ok((ran, events))
    }

    /// Fails if the scripted model received a request that the real provider would refuse.
    pub fn check_model(&self) -> Result<()> {
        match self.model.violations().as_slice() {
            [] => Ok(()),
            violations => bail!("the model was asked wrongly: {violations:#?}"),
        }
    }
}

/// Runs a command to its end, and returns its result. Fails if the command takes too long or a
/// signal kills it.
pub async fn run(mut command: Command) -> Result<Ran> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = timeout(LONG, command.output())
        .await
        .with_context(|| format!("it does not end: {command:?}"))??;
    Ok(Ran {
        code: done.status.code().context("it was killed")?,
        out: String::from_utf8(done.stdout)?,
        err: String::from_utf8(done.stderr)?,
    })
}

impl Ran {
    /// Returns the events in the output of `-o jsonl`.
    pub fn events(&self) -> Result<Vec<Envelope>> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("no event: {line}")))
            .collect()
    }
}

/// Returns the data of the events of a kind, in order.
pub fn of_kind(events: &[Envelope], kind: EventKind) -> Vec<Value> {
    let found = events.iter().filter(|event| event.kind == kind.name());
    found
        .filter_map(|event| serde_json::from_str(event.data.get()).ok())
        .collect()
}
