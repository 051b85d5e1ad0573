//! The whole environment of one test: nats-server, store, scripted model, workspace, and the nodes
//! that the test starts.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use planck_scripted_model::{Script, Server};
use serde_json::{Value, json};
use sqlx::Executor as _;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    caller::Caller,
    eventually::within,
    nats::{NatsCluster, NatsServer},
    node::{Node, planck_in},
    postgres::{Database, Paused},
    recorder::Recorder,
};

/// How long three servers may take to elect a leader.
const ELECTED: Duration = Duration::from_secs(60);

/// The kind of store that a world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

impl Backend {
    /// Creates a database on the server that tests share. Returns `None` for SQLite.
    pub async fn database(self) -> Result<Option<Database>> {
        match self {
            Self::Sqlite => Ok(None),
            Self::Postgres => Database::create().await.map(Some),
        }
    }
}

/// Returns whether the folders of worlds are kept after the tests, with detailed logs of their
/// nodes, to find out why a test failed.
fn is_kept() -> bool {
    std::env::var_os("PLANCK_TEST_KEEP").is_some()
}

/// The environment of one test. Dropping it ends its servers, drops its database, and removes its
/// folder unless folders are kept. Each [`Node`] ends when it is dropped itself.
pub struct World {
    pub caller: Caller,
    pub model: Server,
    pub nats: NatsServer,
    /// The other servers of the NATS cluster.
    pub mates: Vec<NatsServer>,
    database: Option<Database>,
    folder: TempDir,
    nodes: AtomicU32,
}

impl World {
    pub async fn start(backend: Backend, script: Script) -> Result<Self> {
        Self::start_on(NatsServer::start()?, backend, script).await
    }

    /// Starts a world on a nats-server that the test has configured.
    pub async fn start_on(nats: NatsServer, backend: Backend, script: Script) -> Result<Self> {
        Self::start_with(vec![nats], backend.database().await?, script).await
    }

    /// Starts a world on a cluster of three NATS servers, each of which has a copy of the registry.
    pub async fn start_over(
        cluster: NatsCluster,
        backend: Backend,
        script: Script,
    ) -> Result<Self> {
        Self::start_with(cluster.servers, backend.database().await?, script).await
    }

    /// Starts a world with its own Postgres server, which the test can freeze.
    pub async fn start_alone(script: Script) -> Result<Self> {
        Self::start_with(
            vec![NatsServer::start()?],
            Some(Database::create_alone().await?),
            script,
        )
        .await
    }

    /// Starts a world on these NATS servers, with this database, or else on SQLite.
    pub async fn start_with(
        mut servers: Vec<NatsServer>,
        database: Option<Database>,
        script: Script,
    ) -> Result<Self> {
        let mut folder = TempDir::new()?;
        folder.disable_cleanup(is_kept());
        std::fs::create_dir(folder.path().join("work"))?;
        let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
        Ok(Self {
            caller: Caller::connect(&urls.join(",")).await?,
            model: Server::start(script.without_auth()).await?,
            nats: servers.remove(0),
            mates: servers,
            database,
            folder,
            nodes: AtomicU32::new(0),
        })
    }

    /// Returns the directory in which sessions work.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Returns the folder of the world's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the URL of the store for a configuration.
    pub fn store_url(&self) -> String {
        match &self.database {
            Some(database) => database.url(),
            None => format!("sqlite:{}", self.folder.path().join("sessions").display()),
        }
    }

    /// Returns the URLs of all NATS servers.
    fn nats_url(&self) -> String {
        std::iter::once(&self.nats)
            .chain(&self.mates)
            .map(NatsServer::url)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Waits until a server leads the registry's stream, and returns the server's name.
    pub async fn registry_leader(&self) -> Result<String> {
        let jetstream = async_nats::jetstream::new(self.caller.nats.clone());
        within(ELECTED, "the registry has a leader", async || {
            let stream = jetstream.get_stream("KV_planck_registry").await.ok()?;
            stream.cached_info().cluster.as_ref()?.leader.clone()
        })
        .await
    }

    /// Returns the NATS server with this name.
    pub fn server(&mut self, name: &str) -> Result<&mut NatsServer> {
        let mut servers = std::iter::once(&mut self.nats).chain(&mut self.mates);
        servers
            .find(|server| server.name() == name)
            .with_context(|| format!("no server {name}"))
    }

    /// Returns a `planck` command in this world.
    pub fn planck(&self) -> Result<Command> {
        let mut command = planck_in(self.folder.path())?;
        command
            .env("NATS_URL", self.nats_url())
            .env("PLANCK_STORE_URL", self.store_url());
        if !self.mates.is_empty() {
            command.env("PLANCK_NATS_REPLICAS", "3");
        }
        if is_kept() {
            command.env("RUST_LOG", "planck=debug");
        }
        command.env("PLANCK_MODELS_DEFAULT", "scripted:test");
        command.env(
            "PLANCK_PROVIDERS_SCRIPTED_BASE_URL",
            self.model.openai_url(),
        );
        Ok(command)
    }

    /// Starts a node and waits until it is in service.
    pub async fn node(&self) -> Result<Node> {
        self.node_with(&[]).await
    }

    /// Like [`node`](Self::node), with additional environment variables.
    pub async fn node_with(&self, environment: &[(&str, &str)]) -> Result<Node> {
        let mut command = self.planck()?;
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        command.arg("node").envs(environment.iter().copied());
        Node::start(
            command,
            self.folder.path().join(format!("node-{number}.log")),
        )
        .await
    }

    /// Starts a recorder of everything that is published from now on.
    pub async fn record(&self) -> Result<Recorder> {
        Recorder::start(&self.caller.nats).await
    }

    /// Executes an SQL statement, for example to change rows as a newer version would. Returns the
    /// number of affected rows. Fails on SQLite.
    pub async fn sql(&self, statement: &'static str) -> Result<u64> {
        let database = self.database.as_ref().context("the store is no database")?;
        Ok(database
            .connect()
            .await?
            .execute(statement)
            .await?
            .rows_affected())
    }

    /// Freezes the Postgres server, which must belong to this world alone, until the returned value
    /// is dropped.
    pub fn pause_database(&self) -> Result<Paused> {
        self.database
            .as_ref()
            .context("the store is no database")?
            .pause()
    }

    /// Has Postgres end every connection to the database. Does nothing on SQLite, which has no
    /// connections.
    pub async fn end_connections(&self) -> Result<()> {
        match &self.database {
            Some(database) => database.end_connections().await,
            None => Ok(()),
        }
    }

    /// Returns a request for a session of one agent with the tools `read`, `write` and `bash`, in
    /// the world's directory.
    pub fn solo(&self) -> Value {
        json!({ "dir": self.dir(), "members": [{ "type": "agent", "tools": ["read", "write", "bash"] }] })
    }

    /// Fails if the scripted model received a request that the real provider would refuse.
    pub fn check_model(&self) -> Result<()> {
        match self.model.violations().as_slice() {
            [] => Ok(()),
            violations => bail!("the model was asked wrongly: {violations:#?}"),
        }
    }
}
