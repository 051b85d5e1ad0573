//! A real Prometheus and its `promtool`: the machine's own, or the ones that `tools/install`
//! unpacked.

use std::{env, fs, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

use crate::{eventually::within, nats::free_port};

/// If this is set, tests of Prometheus fail instead of being skipped when there is no Prometheus.
const NEEDED: &str = "PLANCK_TESTS_NEED_PROMETHEUS";

/// How long Prometheus may take to start. [`ANSWER`] is the limit for each answer of Prometheus and
/// each run of `promtool`.
const START: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(5);

/// The folder with `prometheus` and `promtool`.
pub struct Programs(PathBuf);

impl Programs {
    pub fn find() -> Option<Self> {
        let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../.tools/prometheus/usr/bin");
        let there = |folder: &PathBuf| {
            ["prometheus", "promtool"]
                .iter()
                .all(|name| folder.join(name).is_file())
        };
        let found = ["/usr/bin", unpacked]
            .into_iter()
            .map(PathBuf::from)
            .find(there);
        assert!(
            found.is_some() || env::var_os(NEEDED).is_none(),
            "{NEEDED} is set, and there is no Prometheus: run tools/install"
        );
        if found.is_none() {
            eprintln!(
                "skipped: there is no Prometheus here, so nothing reads the metrics; tools/install says why"
            );
        }
        found.map(Self)
    }

    /// Runs `promtool` on a text. Fails if `promtool` finds a fault.
    pub async fn check(&self, words: &[&str], text: &str) -> Result<()> {
        let mut tool = Command::new(self.0.join("promtool"));
        tool.args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = tool.spawn()?;
        child
            .stdin
            .take()
            .context("no input")?
            .write_all(text.as_bytes())
            .await?;
        let output = timeout(ANSWER, child.wait_with_output()).await??;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(
            output.status.success() && said.trim().is_empty() || said.contains("SUCCESS"),
            "promtool {words:?}: {said}"
        );
        Ok(())
    }
}

/// A Prometheus that scrapes a target every half second. Dropping it ends it.
pub struct Prometheus {
    _child: Child,
    address: String,
    _folder: TempDir,
}

impl Prometheus {
    pub async fn start(programs: &Programs, target: &str) -> Result<Self> {
        let folder = TempDir::new()?;
        let config = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms }}\nscrape_configs: [{{ job_name: planck, static_configs: [{{ targets: [\"{target}\"] }}] }}]\n"
        );
        fs::write(folder.path().join("prometheus.yml"), config)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--"])
            .arg(programs.0.join("prometheus"))
            .args([
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                "--log.level=error",
            ])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let started = Self {
            _child: child,
            address,
            _folder: folder,
        };
        within(START, "Prometheus is ready", async || {
            started
                .get("/-/ready")
                .await
                .ok()
                .filter(|(status, _)| *status == 200)
        })
        .await?;
        Ok(started)
    }

    /// Returns the result of a query for the present moment.
    pub async fn query(&self, expression: &str) -> Result<Value> {
        let escaped: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let (status, body) = self.get(&format!("/api/v1/query?query={escaped}")).await?;
        ensure!(status == 200, "{expression}: {status} {body}");
        let mut answer: Value = serde_json::from_str(&body)?;
        answer
            .pointer_mut("/data/result")
            .map(Value::take)
            .with_context(|| format!("{expression}: {body}"))
    }

    async fn get(&self, path: &str) -> Result<(u16, String)> {
        timeout(ANSWER, get(&self.address, path)).await?
    }
}

/// Requests a page over HTTP, and returns its status and body.
pub async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes())
        .await?;
    let mut told = String::new();
    stream.read_to_string(&mut told).await?;
    let (head, body) = told.split_once("\r\n\r\n").context("no head")?;
    Ok((
        head.split(' ').nth(1).context("no status")?.parse()?,
        body.to_owned(),
    ))
}
