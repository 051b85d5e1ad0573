//! The server processes of the demo: NATS, the nodes and the front. The output of a process goes to
//! a file. It is killed when this process ends in any way, and it does not receive interrupts from
//! the terminal.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_client::Client;
use planck_common::NodeId;
use planck_http::{Front, FrontOptions, KeyHash, Keys, StartDefaults};
use planck_toolbox::reap;
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    process::Command,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::cluster::WORKSPACE;
use crate::{output::warn, serve};

/// How long a server may take to stop after it is asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The number of lines at the end of the log that are shown if a server fails.
const LAST_LINES: usize = 12;

#[derive(Debug)]
pub struct Child {
    name: &'static str,
    process: tokio::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts a program in `folder`, with only `PATH`, `LANG`, `TMPDIR` and, as `HOME`, the folder
    /// in its environment. The calling thread must run as long as the demo, because the child is
    /// killed when that thread ends.
    pub fn start<A: AsRef<OsStr>>(
        name: &'static str,
        program: &OsStr,
        args: &[A],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        Self::start_in(name, program, args, folder, &[])
    }

    /// Starts a program with additional environment variables. As for [`Self::start`], the calling
    /// thread must run as long as the demo.
    pub fn start_in<A: AsRef<OsStr>>(
        name: &'static str,
        program: &OsStr,
        args: &[A],
        folder: &Path,
        environment: &[(&str, OsString)],
    ) -> anyhow::Result<Self> {
        let log = folder.join(name).with_extension("log");
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::from(reap::bound_to_this_process(program));
        command
            .args(args)
            .current_dir(folder)
            .env_clear()
            .env("HOME", folder);
        command.envs(
            ["PATH", "LANG", "TMPDIR"]
                .into_iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true);
        let process = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { name, process, log })
    }

    /// Returns an error with the last lines of the log if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!(
                "{} ended with {status}; the end of its log:\n{}",
                self.name,
                self.last_lines()
            );
        }
        Ok(())
    }

    /// Returns the last lines of the log.
    pub fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .iter()
            .skip(lines.len().saturating_sub(LAST_LINES))
            .map(|line| format!("  {line}\n"))
            .collect()
    }

    /// Kills the process.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Asks the process to end, and kills it if it still runs after [`STOP_PATIENCE`].
    pub async fn stop(mut self) {
        let pid = self.process.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if tokio::time::timeout(STOP_PATIENCE, self.process.wait())
            .await
            .is_err()
        {
            warn(&format!(
                "planck: {} does not end when asked and is killed",
                self.name
            ));
            let _ = self.process.kill().await;
        }
    }
}

const NATS_PATIENCE: Duration = Duration::from_secs(15);

/// The extension of the file in which the server reports its ports.
const PORTS: &str = "ports";

#[derive(Debug)]
pub struct Nats {
    pub url: String,
    pub child: Child,
}

#[derive(Deserialize)]
struct Ports {
    nats: Vec<String>,
}

impl Nats {
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        let program = find_nats_server().context(
            "no nats-server (2.12 or later): install it and put it on the PATH, set NATS_SERVER, or run `make tools` in \
             the project's folder",
        )?;
        let config = folder.join("nats.conf");
        fs::write(&config, settings(folder))
            .with_context(|| format!("cannot write {}", config.display()))?;
        let mut child = Child::start(
            "nats-server",
            program.as_os_str(),
            &["-c".as_ref(), config.as_os_str()],
            folder,
        )?;
        let url = listening(&mut child, folder).await?;
        Ok(Self { url, child })
    }
}

/// Returns the server's configuration. It is that of `deploy/nats.conf`, but the operating system
/// chooses the port, and there is no port for monitoring.
fn settings(folder: &Path) -> String {
    let lines = [
        "listen: \"127.0.0.1:-1\"".into(),
        format!("ports_file_dir: {folder:?}"),
        format!("jetstream {{ store_dir: {:?} }}", folder.join("jetstream")),
        "ping_interval: \"2s\"\nping_max: 2\nwrite_deadline: \"3s\"\nno_fast_producer_stall: true\nmax_payload: 8MB".into(),
    ];
    lines.join("\n") + "\n"
}

async fn listening(child: &mut Child, folder: &Path) -> anyhow::Result<String> {
    let until = Instant::now() + NATS_PATIENCE;
    loop {
        if let Some(url) = told_url(folder) {
            return Ok(url);
        }
        child.check()?;
        if Instant::now() > until {
            bail!(
                "nats-server does not listen after {} s; the end of its log:\n{}",
                NATS_PATIENCE.as_secs(),
                child.last_lines()
            );
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn told_url(folder: &Path) -> Option<String> {
    let files = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let file = files
        .into_iter()
        .find(|path| path.extension().is_some_and(|ending| ending == PORTS))?;
    let ports: Ports = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    ports.nats.into_iter().next()
}

/// Finds the server that `NATS_SERVER` names, or else one on the PATH, or else the one that `make
/// tools` unpacked in this directory or a parent.
pub fn find_nats_server() -> Option<PathBuf> {
    let named = env::var_os("NATS_SERVER").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path)
        .map(|folder| folder.join("nats-server"))
        .collect::<Vec<_>>();
    let here = env::current_dir().unwrap_or_default();
    let unpacked = here
        .ancestors()
        .map(|folder| folder.join(".tools/bin/nats-server"))
        .collect::<Vec<_>>();
    let found = named
        .into_iter()
        .chain(on_path)
        .chain(unpacked)
        .find(|file| file.is_file())?;
    std::path::absolute(found).ok()
}

const NODE_PATIENCE: Duration = Duration::from_secs(20);

pub struct DemoNode {
    pub id: NodeId,
    pub name: &'static str,
    child: Child,
}

impl DemoNode {
    /// Starts the process, and waits until the cluster lists the node.
    pub async fn start(
        name: &'static str,
        folder: &Path,
        client: &Client,
        settings: &str,
    ) -> anyhow::Result<Self> {
        let config = folder.join(name).with_extension("toml");
        fs::write(&config, settings)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let args = [
            "node".as_ref(),
            "--no-project".as_ref(),
            "--config".as_ref(),
            config.as_os_str(),
        ];
        let mut child = Child::start(name, reap::THIS_BINARY.as_ref(), &args, folder)?;
        let id = answering(name, client, &mut child).await?;
        Ok(Self { id, name, child })
    }

    pub async fn kill(self) -> anyhow::Result<()> {
        self.child.kill().await
    }

    pub async fn stop(self) {
        self.child.stop().await;
    }
}

/// Waits until the cluster's list of nodes contains the node, and returns its id.
async fn answering(name: &str, client: &Client, child: &mut Child) -> anyhow::Result<NodeId> {
    let until = Instant::now() + NODE_PATIENCE;
    loop {
        child.check()?;
        let listed = tokio::time::timeout(Duration::from_millis(500), client.nodes()).await;
        if let Ok(Ok(nodes)) = listed
            && let Some(node) = nodes.nodes.into_iter().find(|node| node.name == name)
        {
            return Ok(node.id);
        }
        if Instant::now() > until {
            bail!(
                "{name} does not answer after {} s; the end of its log:\n{}",
                NODE_PATIENCE.as_secs(),
                child.last_lines()
            );
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The port that is tried first, which is the default of `planck serve`.
const PORT: u16 = 8400;

pub struct DemoFront {
    address: SocketAddr,
    key: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl DemoFront {
    /// Starts the front on its usual port, or on another one if a program uses that port.
    pub async fn start(client: &Client) -> anyhow::Result<Self> {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listener = match TcpListener::bind(at(PORT)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(at(0)).await.context("cannot listen")?,
        };
        let address = listener.local_addr().context("cannot listen")?;
        let stop = CancellationToken::new();
        let start = StartDefaults {
            workspace: Some(WORKSPACE.into()),
            dir: None,
        };
        let key = serve::mint_key();
        let options = FrontOptions {
            keys: Keys::Own(KeyHash::of(&key)),
            start,
            ..FrontOptions::default()
        };
        let front: Arc<Front> = Front::new(client.clone(), options);
        let serving = tokio::spawn(front.serve(listener, stop.clone()));
        Ok(Self {
            address,
            key,
            stop,
            serving,
        })
    }

    /// Returns the address of the console with the key. A page of the console may follow.
    pub fn url(&self) -> String {
        format!("http://{}/#key={}", self.address, self.key)
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let _ended = self.serving.await;
    }
}
