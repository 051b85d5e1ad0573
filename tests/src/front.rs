//! A real `planck serve` process, and requests to it over plain HTTP/1.0, whose answers end with
//! their connection.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

use crate::{
    eventually::{PATIENCE, within},
    nats::free_port,
};

/// How long a front may take to end.
const LEAVE: Duration = Duration::from_secs(30);

/// A running front. Dropping it kills it.
pub struct Front {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Front {
    /// Starts a front on a free port, and waits until a node answers it. `command` is a `planck`
    /// command without arguments.
    pub async fn start(command: Command, folder: &Path, options: &[&str]) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        Self::start_at(address, command, folder, options).await
    }

    /// Starts a front at a given address, for example that of a front that was killed.
    pub async fn start_at(
        address: SocketAddr,
        mut command: Command,
        folder: &Path,
        options: &[&str],
    ) -> Result<Self> {
        let log = folder.join(format!("front-{}.log", address.port()));
        let file = File::options().create(true).append(true).open(&log)?;
        let mut child = command
            .args(["serve", "--listen", &address.to_string()])
            .args(options)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .context("cannot run `setpriv`")?;
        let ready = within(PATIENCE, "the front is ready", async || {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(Err(status));
            }
            let answer = get(address, "/readyz").await.ok()?;
            (answer.status == 200).then_some(Ok(()))
        });
        let told = || std::fs::read_to_string(&log).unwrap_or_default();
        if let Err(status) = ready.await.with_context(told)? {
            bail!("the front ended with {status}; its log:\n{}", told());
        }
        Ok(Self {
            child,
            address,
            log,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the front with SIGKILL, and waits until it is dead.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Asks the front to end, and returns whether it ended without an error.
    pub async fn leave(mut self) -> Result<bool> {
        let pid = self.child.id().context("it ended already")?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        let ended = timeout(LEAVE, self.child.wait()).await;
        let ended = ended.with_context(|| format!("the front does not end:\n{}", self.log()))?;
        Ok(ended?.success())
    }

    pub async fn get(&self, path: &str) -> Result<HttpAnswer> {
        get(self.address, path).await
    }

    /// Sends a command, and fails unless it succeeds.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.try_post(path, body, &[]).await?;
        if answer.status >= 300 {
            bail!("{path}: {} {}", answer.status, answer.body);
        }
        answer.json()
    }

    pub async fn try_post(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Result<HttpAnswer> {
        request(self.address, "POST", path, headers, &body.to_string()).await
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpAnswer {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {}", self.body))
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Result<HttpAnswer> {
    request(address, "GET", path, &[], "").await
}

/// Sends a request, and reads the whole answer.
pub async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<HttpAnswer> {
    let answered = async {
        let mut stream = open(address, method, path, headers, body).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, anyhow::Error>(answer)
    };
    let answer = timeout(PATIENCE, answered).await;
    let answer = answer.with_context(|| format!("{method} {path}: no answer"))??;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    Ok(HttpAnswer {
        status: status(head)?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// Returns the status in the head of an answer.
pub fn status(head: &str) -> Result<u16> {
    let status = head.split(' ').nth(1).context("no status")?;
    Ok(status.parse()?)
}

/// Sends a request, and returns the connection.
pub async fn open(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let mut text = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        let size = body.len();
        text += &format!("Content-Type: application/json\r\nContent-Length: {size}\r\n");
    }
    text += "\r\n";
    stream.write_all((text + body).as_bytes()).await?;
    Ok(stream)
}
