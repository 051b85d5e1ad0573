//! A TCP proxy between a node and a server, such as its nats-server or its model. A test can stall or
//! cut this link.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

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

struct LinkState {
    link: watch::Sender<Link>,
    /// The number of bytes that the server may still send before the link is stalled.
    room: AtomicUsize,
}

/// The proxy. Dropping it closes every connection.
pub struct Proxy {
    port: u16,
    link: Arc<LinkState>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for a server on this machine. The link is up at first.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let link = Arc::new(LinkState {
            link: watch::Sender::new(Link::Up),
            room: AtomicUsize::new(usize::MAX),
        });
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
        self.link.room.store(usize::MAX, Ordering::Relaxed);
        self.link.link.send_replace(link);
    }

    /// Stalls the link as soon as the server has sent so many bytes from now on.
    pub fn stall_after(&self, bytes: usize) {
        self.link.room.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Link::Cut);
    }
}

impl LinkState {
    /// Counts bytes of the server, and stalls the link if there is no room for more.
    fn count(&self, bytes: usize) {
        let counted =
            self.room
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| match room {
                    usize::MAX => None,
                    _ => Some(room.saturating_sub(bytes)),
                });
        if counted.is_ok_and(|room| room <= bytes) {
            self.link.send_replace(Link::Stalled);
        }
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, link: Arc<LinkState>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass(client, server, Arc::clone(&link)));
    }
}

async fn pass(client: TcpStream, server: SocketAddr, state: Arc<LinkState>) {
    let link = state.link.subscribe();
    let mut cut = link.clone();
    let passing = async {
        let server = TcpStream::connect(server).await?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        tokio::select! {
            done = copy(from_client, to_server, link.clone(), |_| ()) => done,
            done = copy(from_server, to_client, link, |bytes| state.count(bytes)) => done,
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
    passed: impl Fn(usize),
) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 || link.wait_for(|link| *link == Link::Up).await.is_err() {
            return Ok(());
        }
        to.write_all(bytes.get(..read).unwrap_or_default()).await?;
        passed(read);
    }
}
