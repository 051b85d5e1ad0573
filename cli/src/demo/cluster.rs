//! All processes and files of the demo. The files are in one temporary folder. The processes are
//! stopped in the reverse of the order in which they were started.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use futures_util::future::join_all;
use planck_common::NodeId;
use planck_prove::{NatsServer, Process};
use planck_scripted_model::{Script, Server};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    processes::{DemoFront, DemoNode, LAUNCH},
    sidecar::{self, Python},
};
use planck_bus::{Bus, NatsBus, NatsOptions};
use planck_client::Client;

pub const TEAM: &str = "build-a-cli";
pub const WORKSPACE: &str = "demo";

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

const TEMPLATE: &str = include_str!("../../../examples/teams/build-a-cli/TEAM.json");
const SCRIPT: &str = include_str!("../../../examples/scripts/build-a-cli.json");

/// How long the model's open streams may take to end.
const LAST_STREAMS: Duration = Duration::from_secs(2);

pub struct DemoCluster {
    folder: TempDir,
    model: Option<Server>,
    nats: Vec<NatsServer>,
    client: Option<Client>,
    front: Option<DemoFront>,
    /// The process of the sidecar, or why the demo runs without it.
    sidecar: Result<Process, String>,
    nodes: Vec<DemoNode>,
}

impl DemoCluster {
    /// Creates the demo's folder. If `keep` is true, the folder is not removed at the end.
    pub fn folder(keep: bool) -> anyhow::Result<Self> {
        let mut folder = tempfile::Builder::new()
            .prefix("planck-demo-")
            .tempdir()
            .context("cannot make a folder")?;
        folder.disable_cleanup(keep);
        Ok(Self {
            folder,
            model: None,
            nats: Vec::new(),
            client: None,
            front: None,
            sidecar: Err("not yet".into()),
            nodes: Vec::new(),
        })
    }

    /// Starts the model, NATS, the sidecar and the nodes, in this order.
    pub async fn set(&mut self) -> anyhow::Result<()> {
        let folder = self.path().to_path_buf();
        let template = folder.join("teams").join(TEAM);
        for dir in [&template, &self.workspace()] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let python = Python::prepare(&folder).await?;
        fs::write(template.join("TEAM.json"), team(python.is_ok())?)?;
        let model = Server::start_chat_completions(Script::parse(SCRIPT)?)
            .await
            .context("cannot start the scripted model")?;
        let model = self.model.insert(model);
        let model = model.openai_url();
        self.nats = NatsServer::start(LAUNCH, 1, &folder).await?;
        let url = self.nats_url()?;
        let options = NatsOptions {
            name: "planck demo".into(),
            ..NatsOptions::new(&url)
        };
        let bus: Arc<dyn Bus> = Arc::new(NatsBus::connect(options).await?);
        let client = self.client.insert(Client::over(Arc::clone(&bus))).clone();
        self.sidecar = match python {
            Ok(python) => Ok(python.start(&folder, &url, &*bus).await?),
            Err(why) => Err(why),
        };
        self.front = Some(DemoFront::start(&client).await?);
        for name in NODES {
            self.nodes.push(
                DemoNode::start(
                    name,
                    &folder,
                    &client,
                    &settings(name, &folder, &url, &model),
                )
                .await?,
            );
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn workspace(&self) -> PathBuf {
        self.path().join("workspace")
    }

    pub fn client(&self) -> anyhow::Result<&Client> {
        self.client.as_ref().context("NATS is not up")
    }

    /// Removes a node from the list and returns it, or returns `None` if the list has no such node.
    /// The caller has to stop the node.
    pub fn take(&mut self, id: &NodeId) -> Option<DemoNode> {
        let at = self.nodes.iter().position(|node| node.id == *id)?;
        Some(self.nodes.remove(at))
    }

    pub fn nats_url(&self) -> anyhow::Result<String> {
        let nats = self.nats.first().context("nats-server is not up")?;
        Ok(format!("nats://{}", nats.address()))
    }

    /// Returns the address of the console.
    pub fn console(&self) -> anyhow::Result<String> {
        let front = self.front.as_ref().map(DemoFront::url);
        front.context("the front is not up")
    }

    pub fn model(&self) -> anyhow::Result<&Server> {
        self.model.as_ref().context("the model is not up")
    }

    pub fn has_sidecar(&self) -> bool {
        self.sidecar.is_ok()
    }

    pub fn describe(&self) -> String {
        let model = self
            .model
            .as_ref()
            .map(|model| format!("  model      {}\n", model.url()));
        let nats = self.nats_url().ok();
        let nats = nats.map(|url| format!("  nats       {url}\n"));
        let nodes = self
            .nodes
            .iter()
            .map(|node| format!("  {:<10} {}\n", node.name, node.id))
            .collect();
        let sidecar = match &self.sidecar {
            Ok(_) => format!(
                "  sidecar    in Python, with the tool {} for the {}\n",
                sidecar::TOOL,
                sidecar::USER
            ),
            Err(why) => format!("  sidecar    NONE: {why}\n"),
        };
        let console = self.front.as_ref().map(DemoFront::url);
        let console = console.map(|url| format!("  console    {url}\n"));
        let workspace = format!("  workspace  {}\n\n", self.workspace().display());
        [
            model,
            nats,
            Some(nodes),
            Some(sidecar),
            console,
            Some(workspace),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Stops all processes. The nodes stop first, because they need the other servers until then.
    pub async fn tear_down(self) {
        if let Some(front) = self.front {
            front.stop().await;
        }
        join_all(self.nodes.into_iter().map(DemoNode::stop)).await;
        if let Ok(sidecar) = self.sidecar {
            sidecar.leave().await;
        }
        for mut nats in self.nats {
            nats.stop().await;
        }
        if let Some(model) = self.model {
            let _ = tokio::time::timeout(LAST_STREAMS, model.stop()).await;
        }
    }
}

/// Returns the JSON of the demo's team. If the sidecar runs, one member may use its tool.
fn team(has_sidecar: bool) -> anyhow::Result<String> {
    let mut team: Value = serde_json::from_str(TEMPLATE).context("the example is no team")?;
    let members = team
        .get_mut("members")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for member in members.filter(|member| {
        has_sidecar && member.get("type").is_some_and(|kind| kind == sidecar::USER)
    }) {
        let tools = member
            .get_mut("tools")
            .and_then(Value::as_array_mut)
            .context("a member without tools")?;
        tools.push(sidecar::TOOL.into());
    }
    Ok(team.to_string())
}

/// Returns the configuration of a node as TOML. Strings are quoted as JSON, which is valid in TOML
/// too.
fn settings(name: &str, folder: &Path, nats: &str, model: &str) -> String {
    let text =
        |value: &dyn std::fmt::Display| serde_json::Value::from(value.to_string()).to_string();
    let at = |name: &str| text(&folder.join(name).display());
    [
        format!(
            "node.name = {}\nnode.data_dir = {}\n",
            text(&name),
            at(&format!("{name}-data"))
        ),
        format!("nats.url = {}\n", text(&nats)),
        format!(
            "store.url = {}\n",
            text(&format!("sqlite:{}", folder.join("sessions").display()))
        ),
        format!("workspaces.{WORKSPACE} = {}\n", at("workspace")),
        format!("teams.dirs = [{}]\n", at("teams")),
        format!("models.default = \"scripted:{TEAM}\"\n"),
        format!("providers.scripted.base_url = {}\n", text(&model)),
    ]
    .concat()
}
