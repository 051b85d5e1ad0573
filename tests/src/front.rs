//! A real `planck serve` process, and requests to it over plain HTTP/1.0, whose answers end with
//! their connection. A test uses a front with the key in the address that the front prints.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
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

/// The header with a caller's key.
pub const AUTHORIZATION: &str = "Authorization";
/// How long a front may take to end.
const LEAVE: Duration = Duration::from_secs(30);

/// A running front. Dropping it kills it.
pub struct Front {
    child: Child,
    address: SocketAddr,
    key: Option<String>,
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
        let printed = log.with_extension("out");
        let mut child = command
            .args(["serve", "--listen", &address.to_string()])
            .args(options)
            .stdout(File::create(&printed)?)
            .stderr(file)
            .spawn()
            .context("cannot run `setpriv`")?;
        let ready = within(PATIENCE, "the front is ready", async || {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(Err(status));
            }
            let answer = get(address, "/readyz").await.ok()?;
            let printed = std::fs::read_to_string(&printed).ok()?;
            (answer.status == 200 && printed.ends_with('\n')).then_some(Ok(printed))
        });
        let told = || std::fs::read_to_string(&log).unwrap_or_default();
        let printed = match ready.await.with_context(told)? {
            Ok(printed) => printed,
            Err(status) => bail!("the front ended with {status}; its log:\n{}", told()),
        };
        let key = printed.trim().split_once("/#key=");
        Ok(Self {
            child,
            address,
            key: key.map(|(_, key)| key.to_owned()),
            log,
        })
    }

    /// Returns the front's own key, or an empty text if it has made none.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or_default()
    }

    /// Returns the address for clients that have the key otherwise.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
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
        self.request("GET", path, &[], "").await
    }

    /// Sends a request with the front's own key, unless the headers have another one.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<HttpAnswer> {
        let bearer = format!("Bearer {}", self.key());
        let mut headers = headers.to_vec();
        if self.key.is_some() && !headers.iter().any(|(name, _)| *name == AUTHORIZATION) {
            headers.push((AUTHORIZATION, &bearer));
        }
        request(self.address, method, path, &headers, body).await
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
        self.request("POST", path, headers, &body.to_string()).await
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
