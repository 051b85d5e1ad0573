//! The builder of a runtime.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use planck_common::id::is_id;
use tempfile::TempDir;

use super::{Runtime, RuntimeError, ScriptedModel, scripted::ScriptedProvider};
use crate::{
    client::Client,
    config::{self, Config, Sources},
    node::{self, Additions},
    sidecar::InProcessTool,
};
use planck_toolbox::Tool;

/// The name of a runtime for which the program sets none.
const NAME: &str = "embedded";

/// A builder that configures and starts a [`Runtime`]. [`Runtime::builder`] returns one.
///
/// Only the settings of this builder have an effect. The runtime reads no configuration files and
/// no environment variables.
#[derive(Default)]
pub struct RuntimeBuilder {
    name: Option<String>,
    /// Keys and values in the order in which they were set. A later value replaces an earlier value
    /// of the same key.
    settings: Vec<(String, String)>,
    models: Vec<ScriptedModel>,
    tools: Vec<planck_sidecar::Tool>,
    folder: Option<PathBuf>,
}

impl RuntimeBuilder {
    /// Sets the name of the runtime and of the workspace of its sessions. Runtimes with the same
    /// name must be instances of the same program: in a cluster, the sessions of a runtime that has
    /// died continue on another runtime with its name. A name has up to 64 of the characters `A-Z
    /// a-z 0-9 _ -`. The default is `embedded`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the model of agents that do not name one, as `PROVIDER:MODEL`. The key of the provider
    /// is a setting:
    /// ```no_run
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = planck_node::Runtime::builder()
    ///     .model("anthropic:claude-sonnet-4-6")
    ///     .set("providers.anthropic.api_key", std::env::var("ANTHROPIC_API_KEY")?)
    ///     .start()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn model(self, model: impl Into<String>) -> Self {
        self.set("models.default", model)
    }

    /// Adds a model that plays a script. The first one is used by agents that do not name a model,
    /// unless [`model`](Self::model) sets another one.
    #[must_use]
    pub fn scripted_model(mut self, model: ScriptedModel) -> Self {
        self.models.push(model);
        self
    }

    /// Adds a tool, which is an async function with typed arguments. The function runs on a thread
    /// that agents share, so it must not block. Use `tokio::task::spawn_blocking` for code that
    /// blocks.
    ///
    /// The same [`Tool`](planck_sidecar::Tool) can be served to other nodes by a sidecar.
    ///
    /// ```
    /// use planck_node::{Runtime, Tool, ToolContext};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Add {
    ///     /// The numbers to add
    ///     numbers: Vec<f64>,
    /// }
    ///
    /// async fn add(_: ToolContext, args: Add) -> Result<String, std::convert::Infallible> {
    ///     Ok(args.numbers.iter().sum::<f64>().to_string())
    /// }
    ///
    /// let builder = Runtime::builder().tool(Tool::new("add", "Adds numbers.", add).pure());
    /// ```
    #[must_use]
    pub fn tool(mut self, tool: planck_sidecar::Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Gives agents a folder to work in, and the tools `read`, `write` and `edit` for its files. By
    /// default agents have an empty folder and no tools for files.
    #[must_use]
    pub fn workspace(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets where sessions are stored: `sqlite:DIR`, or `postgres://…` if several runtimes share
    /// the sessions. By default sessions are in a temporary folder that is removed with the
    /// runtime.
    #[must_use]
    pub fn store(self, url: impl Into<String>) -> Self {
        self.set("store.url", url)
    }

    /// Makes the runtime join the cluster on these NATS servers, which must have JetStream. All
    /// nodes of a cluster must use the same store.
    #[must_use]
    pub fn nats(self, url: impl Into<String>) -> Self {
        self.set("nats.url", url)
    }

    /// Sets any other setting by its key in `docs/configuration.md`.
    ///
    /// ```
    /// let builder = planck_node::Runtime::builder().set("limits.max_requests_per_turn", "20");
    /// ```
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((key.into(), value.into()));
        self
    }

    /// Starts the runtime. The runtime accepts commands when this function returns.
    ///
    /// # Errors
    ///
    /// Returns a [`RuntimeError`] that says which setting or tool is invalid, or what was
    /// unreachable.
    pub async fn start(self) -> Result<Runtime, RuntimeError> {
        let name = self.name.unwrap_or_else(|| NAME.into());
        if !is_id(&name) {
            return Err(RuntimeError::Settings(format!(
                "`{name}` cannot name a runtime: expected 1 to 64 of A-Z a-z 0-9 _ -"
            )));
        }
        let folder = TempDir::with_prefix(format!("planck-{name}-"))
            .map_err(|why| RuntimeError::Start(format!("cannot make a temporary folder: {why}")))?;
        let root = match self.folder.clone() {
            Some(folder) => folder,
            None => made(&folder, "workspace")?,
        };
        let mut settings = vec![
            ("node.name".to_owned(), name.clone()),
            ("node.data_dir".to_owned(), shown(&made(&folder, "data")?)),
            (
                "store.url".to_owned(),
                format!("sqlite:{}", shown(&made(&folder, "sessions")?)),
            ),
        ];
        let folders = ["tools.dirs", "teams.dirs", "skills.dirs"];
        settings.extend(folders.map(|key| (key.to_owned(), String::new())));
        settings.extend(
            self.models
                .first()
                .map(|model| ("models.default".to_owned(), model.model())),
        );
        settings.extend(self.settings);
        let config = config(settings, &name, root)?;
        let tools = self.tools.into_iter().map(|tool| {
            let tool: Arc<dyn Tool> = Arc::new(InProcessTool::new(tool)?);
            Ok::<_, RuntimeError>(tool)
        });
        let additions = Additions {
            tools: tools.collect::<Result<_, _>>()?,
            files: self.folder.is_some(),
            provider: ScriptedProvider::of(self.models),
        };
        let (running, tools) = Box::pin(node::open_embedded(&config, additions)).await?;
        let bus = Arc::clone(&running.node().services().handles.bus);
        Ok(Runtime {
            client: Client::over(bus).with_request_timeout(config.nats.request_timeout.0),
            id: running.node().id().clone(),
            running: Some(running),
            workspace: name,
            tools,
            drain_timeout: config.node.drain_timeout.0,
            folder: Some(folder),
        })
    }
}

fn made(below: &TempDir, name: &str) -> Result<PathBuf, RuntimeError> {
    let folder = below.path().join(name);
    match std::fs::create_dir(&folder) {
        Ok(()) => Ok(folder),
        Err(why) => Err(RuntimeError::Start(format!(
            "cannot make {}: {why}",
            folder.display()
        ))),
    }
}

fn shown(folder: &std::path::Path) -> String {
    folder.display().to_string()
}

/// Returns the configuration of a runtime. It contains no settings of the user who runs the
/// program.
fn config(
    settings: Vec<(String, String)>,
    name: &str,
    folder: PathBuf,
) -> Result<Config, RuntimeError> {
    let sources = Sources {
        folder: std::env::temp_dir(),
        settings,
        ..Sources::default()
    };
    let mut config = config::load(&sources)?.config;
    config.workspaces.0 = BTreeMap::from([(name.to_owned(), folder)]);
    Ok(config)
}
