//! A nats-server for the demo, on a free port of this machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::child::Child;

const PATIENCE: Duration = Duration::from_secs(15);

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
        let program = find().context(
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
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(url) = told_url(folder) {
            return Ok(url);
        }
        child.check()?;
        if Instant::now() > until {
            bail!(
                "nats-server does not listen after {} s; the end of its log:\n{}",
                PATIENCE.as_secs(),
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
fn find() -> Option<PathBuf> {
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
