//! Everything the demo runs on, in a folder of its own: set up in order, struck in reverse.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use planck_scripted_model::{Script, Server};
use tempfile::TempDir;

use super::{nats::Nats, node::Node};
use crate::client::Client;

pub const TEAM: &str = "build-a-cli";
pub const WORKSPACE: &str = "demo";

const TEMPLATE: &str = include_str!("../../../../examples/teams/build-a-cli/TEAM.json");
const SCRIPT: &str = include_str!("../../../../examples/scripts/build-a-cli.json");

/// How long the model's last streams may take to end.
const LAST_STREAMS: Duration = Duration::from_secs(2);

pub struct Stage {
    folder: TempDir,
    model: Option<Server>,
    nats: Option<Nats>,
    node: Option<Node>,
}

impl Stage {
    /// An empty folder, which stays where it is to be looked at.
    pub fn folder(keep: bool) -> anyhow::Result<Self> {
        let mut folder = tempfile::Builder::new().prefix("planck-demo-").tempdir().context("cannot make a folder")?;
        folder.disable_cleanup(keep);
        Ok(Self { folder, model: None, nats: None, node: None })
    }

    /// Starts the model, NATS and the node.
    pub async fn set(&mut self) -> anyhow::Result<()> {
        let folder = self.path().to_path_buf();
        let template = folder.join("teams").join(TEAM);
        for dir in [&template, &self.workspace()] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        fs::write(template.join("TEAM.json"), TEMPLATE)?;
        let model = Server::start(Script::parse(SCRIPT)?).await.context("cannot start the scripted model")?;
        let model = self.model.insert(model);
        let nats = self.nats.insert(Nats::start(&folder).await?);
        let settings = settings(&folder, &nats.url, &model.openai_url());
        self.node = Some(Node::start(&folder, &nats.url, &settings).await?);
        Ok(())
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn workspace(&self) -> PathBuf {
        self.path().join("workspace")
    }

    pub fn client(&self) -> anyhow::Result<&Client> {
        self.node.as_ref().map(|node| &node.client).context("the node is not up")
    }

    pub fn nats_url(&self) -> anyhow::Result<&str> {
        self.nats.as_ref().map(|nats| nats.url.as_str()).context("nats-server is not up")
    }

    pub fn model(&self) -> anyhow::Result<&Server> {
        self.model.as_ref().context("the model is not up")
    }

    pub fn describe(&self) -> String {
        let model = self.model.as_ref().map(|model| format!("  model      {}\n", model.url()));
        let nats = self.nats.as_ref().map(|nats| format!("  nats       {}\n", nats.url));
        let node = self.node.as_ref().map(|node| format!("  node       {}, on SQLite\n", node.id));
        let workspace = format!("  workspace  {}\n\n", self.workspace().display());
        [model, nats, node, Some(workspace)].into_iter().flatten().collect()
    }

    /// Stops what runs: the node first, while what it stands on is there.
    pub async fn strike(self) {
        if let Some(node) = self.node {
            node.child.stop().await;
        }
        if let Some(nats) = self.nats {
            nats.child.stop().await;
        }
        if let Some(model) = self.model {
            let _ = tokio::time::timeout(LAST_STREAMS, model.stop()).await;
        }
    }
}

/// The node's configuration; JSON strings are TOML strings too.
fn settings(folder: &Path, nats: &str, model: &str) -> String {
    let text = |value: &dyn std::fmt::Display| serde_json::Value::from(value.to_string()).to_string();
    let at = |name: &str| text(&folder.join(name).display());
    [
        format!("node.name = \"demo\"\nnode.data_dir = {}\n", at("data")),
        format!("nats.url = {}\n", text(&nats)),
        format!("store.url = {}\n", text(&format!("sqlite:{}", folder.join("sessions").display()))),
        format!("workspaces.{WORKSPACE} = {}\n", at("workspace")),
        format!("teams.dirs = [{}]\n", at("teams")),
        format!("models.default = \"scripted:{TEAM}\"\n"),
        format!("providers.scripted.base_url = {}\n", text(&model)),
    ]
    .concat()
}
