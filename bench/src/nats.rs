//! A private nats-server whose CPU time is measured in addition to Planck's.

use std::{
    fmt::Write as _,
    net::TcpListener,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt as _, net::TcpStream, process::Command, time::sleep};

use super::part::BenchProcess;

const PATIENCE: Duration = Duration::from_secs(10);

pub struct NatsServer {
    url: String,
    pid: u32,
    _part: BenchProcess,
    _folder: TempDir,
}

impl NatsServer {
    /// Starts the nats-server from the PATH on a free port.
    pub async fn start() -> Result<Self> {
        let (folder, port) = (TempDir::new()?, free_port()?);
        let config = folder.path().join("nats.conf");
        let mut text = String::new();
        writeln!(text, "listen: 127.0.0.1:{port}\nmax_payload: 8MB")?;
        writeln!(
            text,
            "jetstream {{ store_dir: {:?} }}",
            folder.path().join("jetstream")
        )?;
        std::fs::write(&config, text)?;
        let mut command = Command::new(program()?);
        command.arg("-c").arg(&config);
        let mut part = BenchProcess::guarded(&command)?;
        let pid = part
            .line(PATIENCE)
            .await?
            .trim()
            .parse()
            .context("no process id of the nats-server")?;
        wait_until_ready(port).await?;
        Ok(Self {
            url: format!("nats://127.0.0.1:{port}"),
            pid,
            _part: part,
            _folder: folder,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }
}

fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|folder| folder.join("nats-server"));
    found
        .find(|file| file.is_file())
        .context("no nats-server on the PATH; `make bench` brings one")
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn wait_until_ready(port: u16) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if greets(port).await.is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the nats-server does not answer on port {port}")
}

async fn greets(port: u16) -> Result<()> {
    let mut greeting = [0; 4];
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.read_exact(&mut greeting).await?;
    if &greeting == b"INFO" {
        Ok(())
    } else {
        bail!("not a NATS server")
    }
}
