//! The cluster on which the faults are inflicted: its NATS, its store, its model and its nodes.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use async_nats::{ConnectOptions, jetstream::stream};
use planck_scripted_model::{Script, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    client::{Caller, text, without_secret},
    link::{Link, LinkState, Server as Behind},
    nats_server::NatsServer,
    processes::{Launch, Process},
    schema::Schema,
    timeline::Timeline,
};

/// How long the nodes and the servers of NATS may take to be there.
const STARTS: Duration = Duration::from_secs(30);
/// The file to which tools append a line for each run. A sandbox lets them write only in the workspace.
const LEDGER: &str = "work/ledger";
/// The configuration of the attached clients.
const CLIENT: &str = "client.toml";
/// The seed of the user of NATS, which only this user can read, because of the folder it is in.
const NKEY: &str = "nkey";

/// Where a proof runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// The `planck` program.
    pub program: OsString,
    pub launch: Launch,
    /// The NATS of the user. Without one the proof starts its own.
    pub nats: Option<String>,
    /// The credentials file of its user.
    pub creds: Option<PathBuf>,
    /// The seed of its user.
    pub nkey: Option<String>,
    /// The Postgres of the user. Without one the sessions are files of SQLite.
    pub postgres: Option<String>,
    pub nodes: usize,
    /// How many servers the NATS of the proof has: one, or three.
    pub servers: usize,
    /// How many workers a team has that has to end with its orchestrator's node.
    pub workers: usize,
}

impl Place {
    /// Returns how the proof itself logs in to NATS, if its address has no user.
    async fn login(&self) -> Result<ConnectOptions> {
        let options = ConnectOptions::new();
        match (&self.creds, &self.nkey) {
            (Some(creds), _) => {
                let read = options.credentials_file(creds).await;
                read.with_context(|| format!("cannot read NATS credentials {}", creds.display()))
            }
            (None, Some(nkey)) => Ok(options.nkey(nkey.clone())),
            (None, None) => Ok(options),
        }
    }
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
    /// `HOST:PORT` of each server.
    addresses: Vec<String>,
    /// The user and password of the address, with an `@` after them, or nothing.
    user: String,
    /// The servers that the proof started.
    pub own: Vec<NatsServer>,
}

/// A node with its own link to each server of NATS.
pub struct Node {
    pub id: String,
    pub process: Process,
    pub links: Vec<Link>,
}

impl Node {
    pub fn set_links(&self, state: LinkState) {
        self.links.iter().for_each(|link| link.set(state));
    }
}

impl Stage {
    pub async fn set(place: Place, script: impl Fn(&Path) -> Script) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("planck-prove-").tempdir()?;
        fs::create_dir(folder.path().join("work"))?;
        let prefix = folder.path().file_name().unwrap_or_default();
        let prefix = prefix.to_string_lossy().replace('.', "-");
        let nats = Nats::start(&place, folder.path()).await?;
        if let Some(nkey) = &place.nkey {
            fs::write(folder.path().join(NKEY), nkey)?;
        }
        let caller = Caller::connect(place.login().await?, &nats.url(), &prefix).await?;
        if place.servers > 1 {
            until_copies_fit(&caller, &prefix, place.servers).await?;
        }
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
        let login = self.login();
        let settings = format!("nats.url = {nats}\nnats.subject_prefix = {prefix}\n{login}");
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
        let mut links = Vec::new();
        for address in &self.nats.addresses {
            links.push(Link::to(Behind::Tcp(address.clone())).await?);
        }
        let config = self.path(&format!("{name}.toml"));
        fs::write(&config, self.settings(&name, &links))?;
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
        self.nodes.push(Node { id, process, links });
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
    fn settings(&self, name: &str, links: &[Link]) -> String {
        let at = |name: &str| quoted(&self.path(name).to_string_lossy());
        let store = match (&self.schema, &self.store) {
            (Some(schema), Some(link)) => schema.url_over(link.address()),
            (_, _) => format!("sqlite:{}", self.path("sessions").display()),
        };
        let user = &self.nats.user;
        let nats = links
            .iter()
            .map(|link| format!("nats://{user}{}", link.address()));
        let nats = nats.collect::<Vec<_>>().join(",");
        [
            format!("node.name = {}\n", quoted(name)),
            format!("node.data_dir = {}\n", at(&format!("{name}-data"))),
            "node.capacity = 10000\nlimits.session.max_agents = 10000\n".to_owned(),
            format!("nats.url = {}\n", quoted(&nats)),
            self.login(),
            format!("nats.replicas = {}\n", self.place.servers),
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

    /// Returns the settings with which a node logs in to NATS, if its address has no user.
    fn login(&self) -> String {
        let Place { creds, nkey, .. } = &self.place;
        match (creds, nkey) {
            (Some(creds), _) => format!("nats.creds = {}\n", quoted(&creds.to_string_lossy())),
            (None, Some(_)) => {
                let file = format!("file:{}", self.path(NKEY).display());
                format!("nats.nkey = {}\n", quoted(&file))
            }
            (None, None) => String::new(),
        }
    }

    /// Starts `planck` with these arguments.
    pub fn start(&self, name: &str, arguments: &[OsString]) -> Result<Process> {
        let Place {
            program, launch, ..
        } = &self.place;
        let folder = self.folder.path();
        Process::start(name, *launch, program, arguments, &[], folder)
    }

    /// Returns the arguments with which `planck` is a client of this cluster.
    pub fn as_client(&self, words: &[&str]) -> Vec<OsString> {
        let words = words.iter().chain(&["--no-project", "--config"]);
        let config = self.path(CLIENT).into_os_string();
        words.map(OsString::from).chain([config]).collect()
    }

    /// Returns how many workers a team has that has to end.
    pub fn workers(&self) -> usize {
        self.place.workers
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
            node.process.leave().await;
            drop(node.links);
        });
        futures_util::future::join_all(leaving).await;
        let schema = match self.schema.take() {
            Some(schema) => schema.remove().await,
            None => Ok(()),
        };
        if self.nats.own.is_empty() {
            self.remove_registry().await?;
        }
        for server in &mut self.nats.own {
            server.stop().await;
        }
        schema
    }

    /// Returns what the servers say of the stream of the registry.
    pub async fn registry(&self) -> Result<stream::Info> {
        let jetstream = async_nats::jetstream::new(self.caller.nats.clone());
        let name = format!("KV_{}_planck_registry", self.prefix);
        Ok(jetstream.get_stream(&name).await?.cached_info().clone())
    }

    async fn remove_registry(&self) -> Result<()> {
        let jetstream = async_nats::jetstream::new(self.caller.nats.clone());
        let registry = format!("{}_planck_registry", self.prefix);
        let removed = jetstream.delete_key_value(&registry).await;
        removed.with_context(|| format!("cannot remove the bucket {registry}"))?;
        Ok(())
    }
}

/// Waits until the servers can keep so many copies of a stream, which nodes require of them.
async fn until_copies_fit(caller: &Caller, prefix: &str, copies: usize) -> Result<()> {
    let jetstream = async_nats::jetstream::new(caller.nats.clone());
    let config = stream::Config {
        name: format!("{prefix}-ready"),
        num_replicas: copies,
        ..stream::Config::default()
    };
    let until = Instant::now() + STARTS;
    while let Err(error) = jetstream.create_stream(config.clone()).await {
        if Instant::now() > until {
            return Err(error).with_context(|| format!("{copies} servers of NATS do not join"));
        }
        sleep(Duration::from_millis(100)).await;
    }
    jetstream.delete_stream(&config.name).await?;
    Ok(())
}

/// Returns a text as TOML writes it, which is as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Nats {
    async fn start(place: &Place, folder: &Path) -> Result<Self> {
        let Some(url) = &place.nats else {
            let own = NatsServer::start(place.launch, place.servers, folder).await;
            let own = own.context("`planck prove` starts a NATS of its own without --nats")?;
            return Ok(Self {
                addresses: own.iter().map(NatsServer::address).collect(),
                user: String::new(),
                own,
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
            addresses: vec![if has_port {
                host.to_owned()
            } else {
                format!("{host}:4222")
            }],
            user: if user.is_empty() {
                String::new()
            } else {
                format!("{user}@")
            },
            own: Vec::new(),
        })
    }

    pub fn url(&self) -> String {
        let url = |address: &String| format!("nats://{}{address}", self.user);
        self.addresses.iter().map(url).collect::<Vec<_>>().join(",")
    }
}
