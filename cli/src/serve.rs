//! The commands `planck serve` and `planck serve key`.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use nix::sys::resource::{Resource, getrlimit};
use planck_common::{allowed_hosts::AllowedHosts, command::MOST_BY};
use planck_http::{
    AllowedNames, Front, FrontOptions, Key, KeyHash, MetricsText, Role, StartDefaults,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    exit::{Exit, UsageError},
    link,
    log::Logs,
    node as node_command,
    output::say,
    place::ConfigPlace,
};
use planck_client::Client;
use planck_node::config::{Config, KeyEntry};
use planck_node::node::{self, RunningNode};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Without NATS this is all in one process: the front, a node and its sessions in SQLite. With NATS the
node is one of the cluster's, and the front reaches all sessions of the cluster.

Examples:
  planck serve                               # then open http://127.0.0.1:8400
  planck serve --nats nats://127.0.0.1:4222 --front-only
  planck serve key ann --role use            # a key for a front that others reach")]
pub struct ServeArgs {
    #[command(subcommand)]
    command: Option<ServeCommand>,
    /// Run no node in this process; needs NATS
    #[arg(long)]
    front_only: bool,
    /// The address to listen on, in place of `http.listen`
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// Make a key for a caller of the front, and print what to configure
    Key(KeyArgs),
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// The name of the caller, which the records of answers show
    name: String,
    /// What the caller may do
    #[arg(long, value_enum, default_value = "use")]
    role: RoleChoice,
}

/// The values of `--role`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleChoice {
    /// Read
    Observe,
    /// Start sessions, send prompts, answer and abort
    Use,
    /// Everything
    Operate,
}

impl RoleChoice {
    fn role(self) -> Role {
        match self {
            Self::Observe => Role::Observe,
            Self::Use => Role::Use,
            Self::Operate => Role::Operate,
        }
    }
}

impl ServeArgs {
    pub async fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        if let Some(ServeCommand::Key(key)) = self.command {
            return key.perform();
        }
        let config = place.config_of_node()?;
        let listen = self.listen.or_else(|| config.http.listen.address());
        let listen = listen.ok_or_else(|| usage("`http.listen` is turned off; set an address"))?;
        let options = options(&config, listen)?;
        if self.front_only && config.nats.url.is_none() {
            return Err(usage("a front without a node needs a cluster; set NATS_URL").into());
        }
        let logs = Logs::start_of_front(&config)?;
        let metrics = logs.metrics().map(|metrics| {
            let metrics = Arc::clone(metrics);
            MetricsText(Arc::new(move || metrics.text()))
        });
        let options = FrontOptions { metrics, ..options };
        let done = serve(&config, listen, options, self.front_only).await;
        logs.end().await;
        done
    }
}

fn usage(what: impl Into<String>) -> UsageError {
    UsageError(what.into())
}

/// Returns the settings of the front. Refuses to listen beyond this machine without keys.
fn options(config: &Config, listen: SocketAddr) -> anyhow::Result<FrontOptions> {
    let http = &config.http;
    let keys = http.keys.0.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    if keys.is_empty() && !listen.ip().is_loopback() {
        return Err(usage(format!(
            "without `http.keys` the front listens on this machine only, and {listen} is beyond it; \
             `planck serve key NAME` makes a key"
        ))
        .into());
    }
    let here = std::env::current_dir().context("cannot find the working directory")?;
    let start = StartDefaults {
        workspace: None,
        dir: config
            .nats
            .url
            .is_none()
            .then(|| here.display().to_string()),
    };
    Ok(FrontOptions {
        names: AllowedNames {
            hosts: AllowedHosts(http.allowed_hosts.clone()),
            origins: http.allowed_origins.clone(),
        },
        keys,
        connections: connections(http.connections),
        start,
        metrics: None,
    })
}

/// Returns how many connections the front accepts. They take at most half of the files that the
/// process may open, because the node needs the others.
fn connections(wanted: u32) -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(u64::from(wanted).min(files / 2)).unwrap_or(usize::MAX)
}

fn key(entry: &KeyEntry) -> Result<Key, UsageError> {
    let wrong = |what: &str| usage(format!("the key `{}` of `http.keys`: {what}", entry.name));
    if entry.name.len() > MOST_BY {
        return Err(wrong(&format!("its name is longer than {MOST_BY} bytes")));
    }
    let roles = RoleChoice::value_variants().iter().map(|role| role.role());
    let role = roles.into_iter().find(|role| role.name() == entry.role);
    Ok(Key {
        name: entry.name.clone(),
        hash: KeyHash::try_from(entry.hash.clone()).map_err(|error| wrong(&error.to_string()))?,
        role: role.ok_or_else(|| wrong("the role is `observe`, `use` or `operate`"))?,
    })
}

async fn serve(
    config: &Config,
    listen: SocketAddr,
    options: FrontOptions,
    front_only: bool,
) -> anyhow::Result<Exit> {
    let mut signals = node_command::Signals::listen()?;
    let bound = bind(listen, "http.listen").await?;
    let admin = match config.http.admin_listen.address() {
        Some(address) => Some(bind(address, "http.admin_listen").await?),
        None => None,
    };
    let running = match front_only {
        true => None,
        false => Some(Box::pin(node::open(config)).await?),
    };
    let front = Front::new(client(config, running.as_ref()).await?, options);
    let stop = CancellationToken::new();
    let address = bound.local_addr().unwrap_or(listen);
    let mut listeners = vec![tokio::spawn(Arc::clone(&front).serve(bound, stop.clone()))];
    listeners.extend(admin.map(|admin| tokio::spawn(front.serve_admin(admin, stop.clone()))));
    say(&format!("the console is at http://{address}\n"))?;
    let done = match running {
        Some(running) => node_command::until_left(running, &mut signals, config).await,
        None => {
            signals.next().await;
            Ok(Exit::Done)
        }
    };
    stop.cancel();
    for listener in listeners {
        ended(listener).await;
    }
    done
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({key})"))
}

async fn ended(listener: JoinHandle<()>) {
    if let Err(error) = listener.await {
        tracing::error!(%error, "a listener of the front failed");
    }
}

/// Returns the client of the front: of the cluster, or of the node in this process.
async fn client(config: &Config, running: Option<&RunningNode>) -> anyhow::Result<Client> {
    let bus = match (link::to_nats(config, "planck front").await?, running) {
        (Some(bus), _) => bus,
        (None, Some(running)) => Arc::clone(&running.node().services().bus),
        (None, None) => return Err(usage("a front without a node needs a cluster").into()),
    };
    Ok(Client::over(bus).with_request_timeout(config.nats.request_timeout.0))
}

impl KeyArgs {
    /// Prints a new key. Only its hash is configured, so the key itself is shown just once.
    fn perform(self) -> anyhow::Result<Exit> {
        if !planck_common::id::is_id(&self.name) {
            let name = &self.name;
            return Err(usage(format!(
                "`{name}` is no name for a key: expected 1 to 64 characters of A-Z a-z 0-9 _ -"
            ))
            .into());
        }
        // 244 random bits of two UUIDs, which come from the system's generator.
        let key = format!("pk_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let (name, role, hash) = (self.name, self.role.role().name(), KeyHash::of(&key));
        say(&format!(
            "the key, which is shown only now:\n\n  {key}\n\n\
             for ~/.planck/config.toml:\n\n  [[http.keys]]\n  name = \"{name}\"\n  hash = \"{hash}\"\n  role = \"{role}\"\n\n\
             or in the environment:\n\n  PLANCK_HTTP_KEYS='[{{\"name\":\"{name}\",\"hash\":\"{hash}\",\"role\":\"{role}\"}}]'\n"
        ))?;
        Ok(Exit::Done)
    }
}
