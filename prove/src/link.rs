//! A TCP proxy between nodes and a server, whose link can be stalled or cut.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinHandle,
};

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
    /// Starts a proxy for the server at `HOST:PORT`.
    pub async fn to(server: String) -> Result<Self> {
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

async fn accept(listener: TcpListener, server: String, state: watch::Receiver<LinkState>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass(client, server.clone(), state.clone()));
    }
}

async fn pass(client: TcpStream, server: String, state: watch::Receiver<LinkState>) {
    let mut cut = state.clone();
    let passing = async {
        let server = TcpStream::connect(server).await?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        tokio::select! {
            done = copy(from_client, to_server, state.clone()) => done,
            done = copy(from_server, to_client, state) => done,
        }
    };
    tokio::select! {
        biased;
        _ = cut.wait_for(|state| *state == LinkState::Cut) => {}
        _ = passing => {}
    }
}

async fn copy(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
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
