//! A TCP proxy between nodes and a server, whose link can be stalled or cut.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Result;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
    task::JoinHandle,
};

/// Where a link leads.
#[derive(Debug, Clone)]
pub enum Server {
    /// `HOST:PORT`
    Tcp(String),
    Unix(PathBuf),
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    Up,
    /// Connections stay open and no byte passes, as with a pulled cable.
    Stalled,
    /// Connections are closed, and new ones are closed at once.
    Cut,
}

/// The proxy. Dropping it closes every connection.
pub struct Link {
    port: u16,
    state: watch::Sender<LinkState>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// Starts a proxy for a server.
    pub async fn to(server: Server) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (state, seen) = watch::channel(LinkState::Up);
        let accepting = tokio::spawn(accept(listener, server, seen));
        Ok(Self {
            port,
            state,
            accepting,
        })
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(LinkState::Cut);
    }
}

async fn accept(listener: TcpListener, server: Server, state: watch::Receiver<LinkState>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass(client, server.clone(), state.clone()));
    }
}

async fn pass(client: TcpStream, server: Server, state: watch::Receiver<LinkState>) {
    let mut cut = state.clone();
    let passing = async {
        client.set_nodelay(true)?;
        match server {
            Server::Tcp(address) => {
                let server = TcpStream::connect(address).await?;
                server.set_nodelay(true)?;
                both_ways(client, server, state).await
            }
            Server::Unix(path) => both_ways(client, UnixStream::connect(path).await?, state).await,
        }
    };
    tokio::select! {
        biased;
        _ = cut.wait_for(|state| *state == LinkState::Cut) => {}
        _ = passing => {}
    }
}

async fn both_ways(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    state: watch::Receiver<LinkState>,
) -> std::io::Result<()> {
    let ((from_client, to_client), (from_server, to_server)) = (split(client), split(server));
    tokio::select! {
        done = copy(from_client, to_server, state.clone()) => done,
        done = copy(from_server, to_client, state) => done,
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<LinkState>,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await?;
        let is_up = state
            .wait_for(|state| *state == LinkState::Up)
            .await
            .is_ok();
        if read == 0 || !is_up {
            return Ok(());
        }
        to.write_all(bytes.get(..read).unwrap_or_default()).await?;
    }
}
