//! The commands `planck serve` and `planck serve key`. A front without configured keys makes a key
//! for the user who runs it. It is in a file of the data folder, which all fronts of the user
//! share.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use clap::{Args, Subcommand, ValueEnum};
use nix::{
    fcntl::OFlag,
    sys::{
        resource::{Resource, getrlimit},
        stat::{FileStat, Mode},
    },
    unistd::geteuid,
};
use planck_bus::SocketServer;
use planck_client::Client;
use planck_common::{allowed_hosts::AllowedHosts, command::MOST_BY};
use planck_host::regular_file::{self, NotOpened};
use planck_http::{
    AllowedNames, Front, FrontOptions, Key, KeyHash, Keys, MetricsText, Role, StartDefaults,
};
use planck_node::{
    config::{Config, KeyChoice, KeyEntry},
    node::{self, RunningNode},
};
use planck_telemetry::{
    metrics::Metrics,
    vitals::{self, Gauges, Vitals},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    args::GlobalArgs,
    connect,
    exit::{Exit, UsageError},
    log::Logs,
    node as node_command,
    output::{say, warn},
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
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        if let Some(ServeCommand::Key(key)) = self.command {
            return key.perform(global);
        }
        let config = global.config_of_node()?;
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
            let own = find_or_make_key(&config.node.data_dir)?;
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
    let bus = Arc::clone(&running.node().services().handles.bus);
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
        (None, Some(running)) => Arc::clone(&running.node().services().handles.bus),
        (None, None) => return Err(usage("a front without a node needs a cluster").into()),
    };
    Ok(Client::over(bus).with_request_timeout(config.nats.request_timeout.0))
}

impl KeyArgs {
    fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        match self.name {
            Some(name) => say(&made_key(&name, self.role.role())?)?,
            None => say(&format!("{}\n", shown_key(&global.config()?)?))?,
        }
        Ok(Exit::Done)
    }
}

/// Returns the front's own key.
fn shown_key(config: &Config) -> anyhow::Result<String> {
    match config.http.keys {
        KeyChoice::Own => find_or_make_key(&config.node.data_dir),
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
    let key = mint_key();
    let (role, hash) = (role.name(), KeyHash::of(&key));
    Ok(format!(
        "the key, which is shown only now:\n\n  {key}\n\n\
         for ~/.planck/config.toml:\n\n  [[http.keys]]\n  name = \"{name}\"\n  hash = \"{hash}\"\n  role = \"{role}\"\n\n\
         or in the environment:\n\n  PLANCK_HTTP_KEYS='[{{\"name\":\"{name}\",\"hash\":\"{hash}\",\"role\":\"{role}\"}}]'\n"
    ))
}

/// The name of the file.
const FILE: &str = "http_key";
/// How each key begins.
const BEGINNING: &str = "pk_";
/// The number of hexadecimal digits of a key.
const DIGITS: usize = 64;

/// Returns a new key of 244 random bits: those of two UUIDs, which come from the system's generator.
pub fn mint_key() -> String {
    let part = || Uuid::new_v4().simple();
    format!("{BEGINNING}{}{}", part(), part())
}

/// Returns the key in a data folder. The first call makes it, and of several first calls at once all
/// return the same one.
fn find_or_make_key(data: &Path) -> anyhow::Result<String> {
    if data.starts_with("~") {
        let why = "HOME is not set, so there is no folder for the front's key; set `node.data_dir` or `http.keys`";
        return Err(UsageError(why.into()).into());
    }
    if let Some(key) = find(data)? {
        return Ok(key);
    }
    make(data).map_err(|why| {
        UsageError(format!(
            "cannot write the front's key to {}: {why}; set `node.data_dir` to a folder of yours, \
             or `http.keys`",
            place(data).display()
        ))
    })?;
    let made = find(data)?.ok_or_else(|| refused(data, "it was removed at once"))?;
    Ok(made)
}

fn place(data: &Path) -> PathBuf {
    data.join(FILE)
}

fn refused(data: &Path, why: impl std::fmt::Display) -> UsageError {
    UsageError(format!(
        "{} should have the front's key, but {why}; remove it, and `planck serve` makes another \
         key, or set `http.keys`",
        place(data).display()
    ))
}

/// Reads the key of a data folder, or returns `None` if there is none.
fn find(data: &Path) -> Result<Option<String>, UsageError> {
    let folder = match File::open(data) {
        Ok(folder) => folder,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(refused(data, why)),
    };
    let opened = regular_file::open(&folder, FILE.as_ref(), OFlag::O_RDONLY, Mode::empty());
    let (file, status) = match opened {
        Ok(opened) => opened,
        Err(NotOpened::Missing) => return Ok(None),
        Err(NotOpened::Kind(kind)) => return Err(refused(data, kind.refused())),
        Err(NotOpened::Io(why)) => return Err(refused(data, why)),
    };
    check(&status).map_err(|why| refused(data, why))?;
    let mut text = String::new();
    let most = (BEGINNING.len() + DIGITS) as u64 + 2;
    let read = file.take(most).read_to_string(&mut text);
    read.map_err(|why| refused(data, why))?;
    let key = text.trim_end();
    let digits = key.strip_prefix(BEGINNING).unwrap_or_default();
    if digits.len() != DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(refused(data, "it has no key"));
    }
    Ok(Some(key.to_owned()))
}

/// Refuses a file that another user may have written or read.
fn check(status: &FileStat) -> Result<(), String> {
    let (owner, own, mode) = (status.st_uid, geteuid(), status.st_mode & 0o777);
    if owner != own.as_raw() {
        return Err(format!("it belongs to the user {owner} instead of {own}"));
    }
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(format!("other users may use it (mode {mode:o})")),
    }
}

/// Writes a new key, unless another process has written one. The file gets its name when it is
/// complete, so no process reads a part of it.
fn make(data: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)?;
    let mut file = tempfile::Builder::new().prefix(FILE).tempfile_in(data)?;
    writeln!(file, "{}", mint_key())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(place(data)) {
        Ok(_) => Ok(()),
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(failed) => Err(failed.error),
    }
}

/// A front without a node. It is ready if a node answers it.
struct FrontOnly(pub Client);

#[async_trait]
impl Vitals for FrontOnly {
    fn gauges(&self) -> Gauges {
        Gauges::default()
    }

    async fn unready(&self, patience: Duration) -> Vec<String> {
        match tokio::time::timeout(patience, self.0.nodes()).await {
            Ok(Ok(_)) => Vec::new(),
            Ok(Err(error)) => vec![error.to_string()],
            Err(_) => vec!["no node answers in time".to_owned()],
        }
    }

    async fn turns(&self, _within: Duration) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        os::unix::fs::{PermissionsExt, symlink},
        sync::Barrier,
        thread,
    };

    use tempfile::TempDir;

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

    fn told(data: &Path) -> String {
        find_or_make_key(data).unwrap_err().to_string()
    }

    #[test]
    fn key_is_made_once_and_only_its_user_reads_it() {
        let folder = TempDir::new().unwrap();
        let data = folder.path().join("deep/data");
        let key = find_or_make_key(&data).unwrap();
        assert_eq!(find_or_make_key(&data).unwrap(), key);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place(&data)), mode(&data)), (0o600, 0o700));
        // Without the file there is a new key.
        fs::remove_file(place(&data)).unwrap();
        assert_ne!(find_or_make_key(&data).unwrap(), key);
        assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
    }

    #[test]
    fn first_starts_at_once_agree() {
        for _ in 0..20 {
            let (folder, start) = (TempDir::new().unwrap(), Barrier::new(8));
            let keys: BTreeSet<String> = thread::scope(|scope| {
                let make = || {
                    start.wait();
                    find_or_make_key(folder.path()).unwrap()
                };
                let making: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
                making.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(keys.len(), 1);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn wrong_file_is_named_with_the_way_out() {
        let folder = TempDir::new().unwrap();
        let (data, file) = (folder.path(), place(folder.path()));
        let key = find_or_make_key(data).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let open = told(data);
        assert!(
            open.contains("mode 640") && open.contains("remove it"),
            "{open}"
        );
        assert!(open.contains(file.to_str().unwrap()), "{open}");
        for wrong in [
            "",
            "pk_",
            "secret\n",
            &format!("{key}0"),
            &"\u{e9}".repeat(67),
        ] {
            fs::remove_file(&file).unwrap();
            fs::write(&file, wrong).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
            assert!(find_or_make_key(data).is_err(), "{wrong}");
        }
        fs::rename(&file, data.join("other")).unwrap();
        symlink("other", &file).unwrap();
        assert!(told(data).contains("a link"), "{}", told(data));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(told(data).contains("a folder"), "{}", told(data));
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let folder = TempDir::new().unwrap();
        find_or_make_key(folder.path()).unwrap();
        let mut status = nix::sys::stat::stat(&place(folder.path())).unwrap();
        assert_eq!(check(&status), Ok(()));
        status.st_uid += 1;
        assert!(check(&status).unwrap_err().contains("belongs to"));
    }

    #[test]
    fn folder_that_cannot_be_written_is_named() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for data in [&file, Path::new("/proc/planck")] {
            let told = told(data);
            assert!(told.contains("http.keys"), "{told}");
            assert!(told.contains(data.to_str().unwrap()), "{told}");
        }
        // Without a home, the folder would be one of the working directory.
        assert!(told(Path::new("~/.planck")).contains("HOME"));
    }
}
