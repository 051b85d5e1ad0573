//! A TCP proxy between a node and a server, such as its nats-server or its model. A test can stall or
//! cut this link.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinHandle,
};

/// The state of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Up,
    /// Connections stay open and no byte passes, as with a pulled cable.
    Stalled,
    /// Connections are closed, and new ones are closed at once.
    Cut,
}

/// The proxy. Dropping it closes every connection.
pub struct Proxy {
    port: u16,
    link: Arc<watch::Sender<Link>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for a server on this machine. The link is up at first.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let link = Arc::new(watch::Sender::new(Link::Up));
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&link)));
        Ok(Self {
            port,
            link,
            accepting,
        })
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn nats_url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Link::Cut);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, link: Arc<watch::Sender<Link>>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass(client, server, link.subscribe()));
    }
}

async fn pass(client: TcpStream, server: SocketAddr, link: watch::Receiver<Link>) {
    let mut cut = link.clone();
    let passing = async {
        let server = TcpStream::connect(server).await?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        tokio::select! {
            done = copy(from_client, to_server, link.clone()) => done,
            done = copy(from_server, to_client, link) => done,
        }
    };
    tokio::select! {
        biased;
        _ = cut.wait_for(|link| *link == Link::Cut) => {}
        _ = passing => {}
    }
}

async fn copy(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut link: watch::Receiver<Link>,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 || link.wait_for(|link| *link == Link::Up).await.is_err() {
            return Ok(());
        }
        to.write_all(bytes.get(..read).unwrap_or_default()).await?;
    }
}
