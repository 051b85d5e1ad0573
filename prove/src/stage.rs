//! The cluster on which the faults are inflicted: its NATS, its store, its model and its nodes.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use planck_scripted_model::{Script, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    client::{Caller, text, without_secret},
    link::{self, Link},
    processes::{Launch, Process},
    schema::Schema,
    timeline::Timeline,
};

/// How long a server may take to start.
const STARTS: Duration = Duration::from_secs(30);
/// How long a process may take to end when it is asked to.
pub const LEAVES: Duration = Duration::from_secs(30);
/// The file to which tools append a line for each run. A sandbox lets them write only in the workspace.
const LEDGER: &str = "work/ledger";
/// The configuration of the attached clients.
const CLIENT: &str = "client.toml";

/// Where a proof runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// The `planck` program.
    pub program: OsString,
    pub launch: Launch,
    /// The NATS of the user. Without one the proof starts its own.
    pub nats: Option<String>,
    /// The nats-server that is started without a NATS of the user.
    pub nats_server: Option<PathBuf>,
    /// The Postgres of the user. Without one the sessions are files of SQLite.
    pub postgres: Option<String>,
    pub nodes: usize,
}

/// Everything that runs. Dropping it kills the processes and removes the folder.
pub struct Stage {
    place: Place,
    pub folder: TempDir,
    pub prefix: String,
    pub nats: Nats,
    pub schema: Option<Schema>,
    /// The link of all nodes to Postgres.
    pub store: Option<Link>,
    pub caller: Caller,
    pub timeline: Timeline,
    pub model: Server,
    pub nodes: Vec<Node>,
    started: usize,
}

/// The NATS of a proof.
pub struct Nats {
    /// `HOST:PORT`
    address: String,
    /// The user and password of the address, with an `@` after them, or nothing.
    user: String,
    /// The server, if the proof started it.
    pub own: Option<OwnNats>,
}

pub struct OwnNats {
    program: PathBuf,
    launch: Launch,
    folder: PathBuf,
    port: u16,
    process: Option<Process>,
}

/// A node with its own link to NATS.
pub struct Node {
    pub id: String,
    pub process: Process,
    pub link: Link,
}

impl Stage {
    pub async fn set(place: Place, script: impl Fn(&Path) -> Script) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("planck-prove-").tempdir()?;
        fs::create_dir(folder.path().join("work"))?;
        let prefix = folder.path().file_name().unwrap_or_default();
        let prefix = prefix.to_string_lossy().replace('.', "-");
        let nats = Nats::start(&place, folder.path()).await?;
        let caller = Caller::connect(&nats.url(), &prefix).await?;
        let timeline = Timeline::start(&caller).await?;
        let script = script(&folder.path().join(LEDGER)).without_auth();
        let mut stage = Self {
            model: Server::start(script).await?,
            nodes: Vec::new(),
            started: 0,
            place,
            folder,
            prefix,
            nats,
            schema: None,
            store: None,
            caller,
            timeline,
        };
        if let Err(error) = stage.fill().await {
            // What was not made cannot be removed, and why it was not made is what helps.
            let _ = stage.tear_down().await;
            return Err(error);
        }
        Ok(stage)
    }

    /// Makes what has to be removed at the end, and starts the nodes.
    async fn fill(&mut self) -> Result<()> {
        if let Some(url) = &self.place.postgres {
            let schema = Schema::create(url, &self.prefix).await?;
            let schema = self.schema.insert(schema);
            self.store = Some(Link::to(schema.server()).await?);
        }
        let [nats, prefix] = [&self.nats.url(), &self.prefix].map(|text| quoted(text));
        let settings = format!("nats.url = {nats}\nnats.subject_prefix = {prefix}\n");
        fs::write(self.path(CLIENT), settings)?;
        for _ in 0..self.place.nodes {
            self.add().await?;
        }
        Ok(())
    }

    /// Starts one more node, and waits until the cluster lists it.
    pub async fn add(&mut self) -> Result<()> {
        self.started += 1;
        let name = format!("prove-{}", self.started);
        let link = Link::to(link::Server::Tcp(self.nats.address.clone())).await?;
        let config = self.path(&format!("{name}.toml"));
        fs::write(&config, self.settings(&name, &link))?;
        let arguments = ["node", "--no-project", "--config"].map(OsString::from);
        let arguments = [arguments.to_vec(), vec![config.into_os_string()]].concat();
        let mut process = self.start(&name, &arguments)?;
        let until = Instant::now() + STARTS;
        let id = loop {
            process.check()?;
            if let Some(id) = self.listed(&name).await {
                break id;
            }
            if Instant::now() > until {
                bail!("{name} does not answer:\n{}", process.last_lines());
            }
            sleep(Duration::from_millis(50)).await;
        };
        self.nodes.push(Node { id, process, link });
        Ok(())
    }

    /// Returns the id of a node that is in service.
    async fn listed(&self, name: &str) -> Option<String> {
        let listed = self.caller.try_ask("cmd.nodes.list", &json!({})).await;
        let crate::client::Answer::Ok(listed) = listed else {
            return None;
        };
        let nodes = listed.get("nodes")?.as_array()?;
        let node = nodes
            .iter()
            .find(|node| text(node, "name") == name && text(node, "state") == "alive")?;
        Some(text(node, "id").to_owned())
    }

    /// Returns the configuration of a node as TOML.
    fn settings(&self, name: &str, link: &Link) -> String {
        let at = |name: &str| quoted(&self.path(name).to_string_lossy());
        let store = match (&self.schema, &self.store) {
            (Some(schema), Some(link)) => schema.url_over(link.address()),
            (_, _) => format!("sqlite:{}", self.path("sessions").display()),
        };
        let nats = format!("nats://{}{}", self.nats.user, link.address());
        [
            format!("node.name = {}\n", quoted(name)),
            format!("node.data_dir = {}\n", at(&format!("{name}-data"))),
            "node.capacity = 10000\n".to_owned(),
            format!("nats.url = {}\n", quoted(&nats)),
            format!("nats.subject_prefix = {}\n", quoted(&self.prefix)),
            format!("store.url = {}\n", quoted(&store)),
            format!("workspaces.prove = {}\n", at("work")),
            "models.default = \"scripted:prove\"\n".to_owned(),
            format!(
                "providers.scripted.base_url = {}\n",
                quoted(&self.model.url())
            ),
            "providers.scripted.max_concurrent = 10000\n".to_owned(),
        ]
        .concat()
    }

    /// Starts `planck` with these arguments.
    pub fn start(&self, name: &str, arguments: &[OsString]) -> Result<Process> {
        let Place {
            program, launch, ..
        } = &self.place;
        Process::start(name, *launch, program, arguments, self.folder.path())
    }

    /// Returns the arguments with which `planck` is a client of this cluster.
    pub fn as_client(&self, words: &[&str]) -> Vec<OsString> {
        let words = words.iter().chain(&["--no-project", "--config"]);
        let config = self.path(CLIENT).into_os_string();
        words.map(OsString::from).chain([config]).collect()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn ledger(&self) -> PathBuf {
        self.path(LEDGER)
    }

    /// Removes a node from the list and returns it. The caller ends the node.
    pub fn take(&mut self, id: &str) -> Option<Node> {
        let at = self.nodes.iter().position(|node| node.id == id)?;
        Some(self.nodes.swap_remove(at))
    }

    /// Asks the nodes to end, and then NATS. Removes what was made in the servers of the user.
    pub async fn tear_down(&mut self) -> Result<()> {
        let nodes = std::mem::take(&mut self.nodes);
        let leaving = nodes.into_iter().map(|node| async move {
            node.process.leave(LEAVES).await;
            drop(node.link);
        });
        futures_util::future::join_all(leaving).await;
        let schema = match self.schema.take() {
            Some(schema) => schema.remove().await,
            None => Ok(()),
        };
        match &mut self.nats.own {
            Some(own) => own.stop().await,
            None => self.remove_registry().await?,
        }
        schema
    }

    async fn remove_registry(&self) -> Result<()> {
        let jetstream = async_nats::jetstream::new(self.caller.nats.clone());
        let registry = format!("{}_planck_registry", self.prefix);
        let removed = jetstream.delete_key_value(&registry).await;
        removed.with_context(|| format!("cannot remove the bucket {registry}"))?;
        Ok(())
    }
}

/// Returns a text as TOML writes it, which is as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Nats {
    async fn start(place: &Place, folder: &Path) -> Result<Self> {
        let Some(url) = &place.nats else {
            let own = OwnNats::start(place, folder).await?;
            return Ok(Self {
                address: format!("127.0.0.1:{}", own.port),
                user: String::new(),
                own: Some(own),
            });
        };
        // A link leads to one server.
        let first = url.split(',').next().unwrap_or_default();
        let rest = first.strip_prefix("nats://").with_context(|| {
            format!("`planck prove` reaches NATS over links of its own, which need an address like nats://HOST:PORT, not {}", without_secret(first))
        })?;
        let (user, host) = rest.rsplit_once('@').unwrap_or(("", rest));
        let host = host.trim_end_matches('/');
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Ok(Self {
            address: if has_port {
                host.to_owned()
            } else {
                format!("{host}:4222")
            },
            user: if user.is_empty() {
                String::new()
            } else {
                format!("{user}@")
            },
            own: None,
        })
    }

    pub fn url(&self) -> String {
        format!("nats://{}{}", self.user, self.address)
    }
}

impl OwnNats {
    async fn start(place: &Place, folder: &Path) -> Result<Self> {
        let program = place.nats_server.clone().context(
            "no nats-server (2.12 or later): install it and put it on the PATH, set NATS_SERVER, or name your own NATS with --nats",
        )?;
        // The same port is needed again after the server has ended.
        let free = std::net::TcpListener::bind("127.0.0.1:0")?;
        let mut own = Self {
            program,
            launch: place.launch,
            folder: folder.to_owned(),
            port: free.local_addr()?.port(),
            process: None,
        };
        drop(free);
        own.restart().await?;
        Ok(own)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("jetstream")
    }

    /// Starts the server, and waits until it accepts connections.
    pub async fn restart(&mut self) -> Result<()> {
        let config = self.folder.join("nats.conf");
        let data = self.data();
        let settings = format!(
            "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: {data:?} }}\nping_interval: \"2s\"\nping_max: 2\n\
             write_deadline: \"3s\"\nno_fast_producer_stall: true\nmax_payload: 8MB\n",
            self.port
        );
        fs::write(&config, settings)?;
        let arguments = ["-c".into(), config.into_os_string()];
        let program = self.program.as_os_str();
        let mut process = Process::start(
            "nats-server",
            self.launch,
            program,
            &arguments,
            &self.folder,
        )?;
        let until = Instant::now() + STARTS;
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .is_err()
        {
            process.check()?;
            if Instant::now() > until {
                bail!("nats-server does not listen:\n{}", process.last_lines());
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.process = Some(process);
        Ok(())
    }

    pub async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.leave(LEAVES).await;
        }
    }

    /// Removes what the server has stored. The server must have ended.
    pub fn wipe(&self) -> Result<()> {
        let data = self.data();
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))
    }
}
