//! The scripted model server of a benchmark. It runs in its own process, so that its work is not
//! measured.

use std::{io::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use planck_scripted_model::{Script, Server};
use tempfile::NamedTempFile;

use super::part::{BenchProcess, orphaned};
use crate::{say, warn};

const PATIENCE: Duration = Duration::from_secs(30);

/// A running model server.
pub struct ModelServer {
    url: String,
    _part: BenchProcess,
    _script: NamedTempFile,
}

impl ModelServer {
    pub async fn start(script: &Script) -> Result<Self> {
        let mut file = NamedTempFile::new()?;
        file.write_all(&serde_json::to_vec(script)?)?;
        let mut part = BenchProcess::of_this_program(["model".as_ref(), file.path().as_os_str()])?;
        let url = part.line(PATIENCE).await?;
        Ok(Self {
            url,
            _part: part,
            _script: file,
        })
    }

    /// Returns the base URL for OpenAI clients.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The process that serves the model.
#[derive(Debug, Args)]
pub struct Serve {
    script: PathBuf,
}

impl Serve {
    pub async fn perform(self) -> Result<()> {
        let text = std::fs::read_to_string(&self.script).context("cannot read the script")?;
        let server = Server::start(Script::parse(&text)?).await?;
        say(&format!("{}\n", server.openai_url()))?;
        orphaned().await;
        for violation in server.violations() {
            warn(&format!(
                "refused request {}: {}",
                violation.serial, violation.message
            ));
        }
        server.stop().await.context("the model server did not stop")
    }
}
