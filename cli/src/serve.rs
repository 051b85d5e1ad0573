//! The commands `planck serve` and `planck serve key`.

pub mod generated_key;
mod probes;

use std::{io, net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use nix::sys::resource::{Resource, getrlimit};
use planck_common::{allowed_hosts::AllowedHosts, command::MOST_BY};
use planck_http::{
    AllowedNames, Front, FrontOptions, Key, KeyHash, Keys, MetricsText, Role, StartDefaults,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use probes::FrontOnly;

use super::{
    connect,
    exit::{Exit, UsageError},
    log::Logs,
    node as node_command,
    output::{say, warn},
    place::ConfigPlace,
};
use planck_bus::SocketServer;
use planck_client::Client;
use planck_node::config::{Config, KeyChoice, KeyEntry};
use planck_node::node::{self, RunningNode};
use planck_telemetry::{
    metrics::Metrics,
    vitals::{self, Vitals},
};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Without NATS this is all in one process: the front, a node and its sessions in SQLite. With NATS the
node is one of the cluster's, and the front reaches all sessions of the cluster.

Examples:
  planck serve                               # then open the address that it prints
  planck serve --nats nats://127.0.0.1:4222 --front-only
  planck serve key                           # the front's own key, for curl and SDKs
  planck serve key ann --role use            # a key for a front that others reach")]
pub struct ServeArgs {
    #[command(subcommand)]
    command: Option<ServeCommand>,
    /// Run no node in this process; needs NATS
    #[arg(long)]
    front_only: bool,
    /// The address to listen on, in place of `http.listen`
    #[arg(long, value_name = "ADDRESS", value_parser = to_address)]
    listen: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// Print the front's own key, or make one for a caller and print what to configure
    Key(KeyArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  planck serve key\n  planck serve key ci              # a key of its own for a caller"
)]
struct KeyArgs {
    /// The name of the caller, which the log shows. Without it, prints the front's own key
    name: Option<String>,
    /// What the caller may do
    #[arg(long, value_enum, default_value = "use", requires = "name")]
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
            return key.perform(place);
        }
        let config = place.config_of_node()?;
        let listen = self.listen.or_else(|| config.http.listen.address());
        let listen = listen.ok_or_else(|| usage("`http.listen` is turned off; set an address"))?;
        let (keys, own_key) = keys(&config, listen)?;
        let options = options(&config, keys)?;
        if self.front_only && config.nats.url.is_none() {
            return Err(usage("a front without a node needs a cluster; set NATS_URL").into());
        }
        let logs = Logs::start_of_front(&config)?;
        let path = own_key.map_or_else(String::new, |key| format!("/#key={key}"));
        let shown = |address: SocketAddr| format!("the console is at http://{address}{path}\n");
        let done = serve(
            &config,
            listen,
            options,
            self.front_only,
            logs.metrics(),
            shown,
        )
        .await;
        logs.end().await;
        done
    }
}

fn usage(what: impl Into<String>) -> UsageError {
    UsageError(what.into())
}

/// Returns the keys of the front, and its own key if it makes one. Refuses to listen beyond this
/// machine without a key for each caller.
fn keys(config: &Config, listen: SocketAddr) -> anyhow::Result<(Keys, Option<String>)> {
    match &config.http.keys {
        KeyChoice::Listed(keys) => {
            let keys = keys.iter().map(key).collect::<Result<_, _>>()?;
            Ok((Keys::Listed(keys), None))
        }
        KeyChoice::Own | KeyChoice::Off if !listen.ip().is_loopback() => Err(usage(format!(
            "without a list of keys in `http.keys` the front listens on this machine only, and \
             {listen} is beyond it; `planck serve key NAME` makes a key"
        ))
        .into()),
        KeyChoice::Own => {
            let own = generated_key::find_or_make(&config.node.data_dir)?;
            Ok((Keys::Own(KeyHash::of(&own)), Some(own)))
        }
        KeyChoice::Off => Ok((Keys::Off, None)),
    }
}

/// Returns the settings of the front.
fn options(config: &Config, keys: Keys) -> anyhow::Result<FrontOptions> {
    let http = &config.http;
    let here = std::env::current_dir().context("cannot find the working directory")?;
    let (is_alone, data) = (config.nats.url.is_none(), &config.node.data_dir);
    if is_alone && matches!(keys, Keys::Own(_)) && here.join(data).starts_with(&here) {
        warn(&format!(
            "planck: tools of sessions in {} can read the front's key, because {} is below it",
            here.display(),
            data.display()
        ));
    }
    let start = StartDefaults {
        workspace: None,
        dir: is_alone.then(|| here.display().to_string()),
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
    metrics: Option<&Arc<Metrics>>,
    shown: impl FnOnce(SocketAddr) -> String,
) -> anyhow::Result<Exit> {
    let mut signals = node_command::Signals::listen()?;
    let bound = bind(listen, "http.listen").await?;
    let running = match front_only {
        true => None,
        false => Some(Box::pin(node::open(config)).await?),
    };
    if running.is_some() && node::default_model(config).is_none() {
        tracing::warn!(
            "there is no default model: only a team whose members name their models can start; `planck doctor` says what is missing"
        );
    }
    let commands = running
        .as_ref()
        .and_then(|running| for_commands(config, running));
    let client = client(config, running.as_ref()).await?;
    let alone: Arc<dyn Vitals> = Arc::new(FrontOnly(client.clone()));
    if running.is_none() {
        vitals::register(Arc::downgrade(&alone));
    }
    let front = front(client, options, metrics);
    let stop = CancellationToken::new();
    let address = bound.local_addr().unwrap_or(listen);
    let serving = tokio::spawn(front.serve(bound, stop.clone()));
    say(&shown(address))?;
    let done = match running {
        Some(running) => node_command::until_left(running, &mut signals, config).await,
        None => {
            signals.next().await;
            Ok(Exit::Done)
        }
    };
    drop(commands);
    stop.cancel();
    if let Err(error) = serving.await {
        tracing::error!(%error, "the front failed");
    }
    done
}

/// Creates the front. The metrics of the process have what it counts.
fn front(client: Client, options: FrontOptions, metrics: Option<&Arc<Metrics>>) -> Arc<Front> {
    let text = metrics.map(|metrics| {
        let metrics = Arc::clone(metrics);
        MetricsText(Arc::new(move || metrics.text()))
    });
    let front = Front::new(
        client,
        FrontOptions {
            metrics: text,
            ..options
        },
    );
    if let Some(metrics) = metrics {
        let front = Arc::downgrade(&front);
        metrics.add(move || {
            front
                .upgrade()
                .map_or_else(String::new, |front| front.counted())
        });
    }
    front
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        let way_out = match is_taken {
            true => "; end the program that listens there, maybe another `planck serve`, or name another address",
            false => "",
        };
        anyhow::anyhow!("cannot listen on {address} ({key}): {error}{way_out}")
    })
}

/// Reads the value of `--listen`.
fn to_address(text: &str) -> Result<SocketAddr, String> {
    let by_name = text.strip_prefix("localhost:");
    let address = by_name.map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    address.parse().map_err(|_| match text.parse::<u16>() {
        Ok(port) => format!("an IP address is missing; write 127.0.0.1:{port}"),
        Err(_) => "write an IP address with a port, like 127.0.0.1:8400".into(),
    })
}

/// Without NATS, lets commands that use the same store use the node in this process.
fn for_commands(config: &Config, running: &RunningNode) -> Option<SocketServer> {
    let folder = config
        .store
        .folder()
        .filter(|_| config.nats.url.is_none())?;
    let bus = Arc::clone(&running.node().services().bus);
    match SocketServer::listen(&folder, bus) {
        Ok(Some(listening)) => Some(listening),
        Ok(None) => {
            tracing::warn!("commands use another `planck serve` of the same store");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "commands cannot use the sessions that are at work here");
            None
        }
    }
}

/// Returns the client of the front: of the cluster, or of the node in this process.
async fn client(config: &Config, running: Option<&RunningNode>) -> anyhow::Result<Client> {
    let bus = match (connect::to_nats(config, "planck front").await?, running) {
        (Some(bus), _) => bus,
        (None, Some(running)) => Arc::clone(&running.node().services().bus),
        (None, None) => return Err(usage("a front without a node needs a cluster").into()),
    };
    Ok(Client::over(bus).with_request_timeout(config.nats.request_timeout.0))
}

impl KeyArgs {
    fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        match self.name {
            Some(name) => say(&made_key(&name, self.role.role())?)?,
            None => say(&format!("{}\n", shown_key(&place.config()?)?))?,
        }
        Ok(Exit::Done)
    }
}

/// Returns the front's own key.
fn shown_key(config: &Config) -> anyhow::Result<String> {
    match config.http.keys {
        KeyChoice::Own => generated_key::find_or_make(&config.node.data_dir),
        KeyChoice::Off => Err(usage("`http.keys` is `none`, so the front needs no key").into()),
        KeyChoice::Listed(_) => Err(usage(
            "the front has the keys of `http.keys`, and of these only the hashes are known; \
             `planck serve key NAME` makes another key",
        )
        .into()),
    }
}

/// Makes a key for a caller. Only its hash is configured, so the key itself is shown just once.
fn made_key(name: &str, role: Role) -> Result<String, UsageError> {
    if !planck_common::id::is_id(name) {
        return Err(usage(format!(
            "`{name}` is no name for a key: expected 1 to 64 characters of A-Z a-z 0-9 _ -"
        )));
    }
    let key = generated_key::mint();
    let (role, hash) = (role.name(), KeyHash::of(&key));
    Ok(format!(
        "the key, which is shown only now:\n\n  {key}\n\n\
         for ~/.planck/config.toml:\n\n  [[http.keys]]\n  name = \"{name}\"\n  hash = \"{hash}\"\n  role = \"{role}\"\n\n\
         or in the environment:\n\n  PLANCK_HTTP_KEYS='[{{\"name\":\"{name}\",\"hash\":\"{hash}\",\"role\":\"{role}\"}}]'\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_listen_without_an_ip_address_gets_one_as_advice() {
        let local = "127.0.0.1:8401".parse();
        assert_eq!(to_address("127.0.0.1:8401").ok(), local.clone().ok());
        assert_eq!(to_address("localhost:8401").ok(), local.ok());
        for (wrong, advice) in [
            ("8401", "write 127.0.0.1:8401"),
            ("host:8401", "like 127.0.0.1:8400"),
        ] {
            let error = to_address(wrong).unwrap_err();
            assert!(error.contains(advice), "{error}");
        }
    }

    #[tokio::test]
    async fn taken_address_is_named_with_the_way_out() {
        let taken = bind(([127, 0, 0, 1], 0).into(), "http.listen").await;
        let address = taken.as_ref().unwrap().local_addr().unwrap();
        let error = bind(address, "http.listen").await.unwrap_err().to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("another `planck serve`"),
            "{error}"
        );
    }
}
