//! Tests of the socket. Its clients pass the suite of every bus, except that the server's process
//! serves the requests.

use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream::BoxStream};
use planck_common::{
    AgentId, NodeId, SessionId,
    subject::{Address, Target},
};
use tempfile::TempDir;
use tokio::{net::UnixStream, time::timeout};

use super::*;
use crate::{
    Bus, CommandHandler, Delivery, MemoryBus, MemoryHub, Published, ServiceGuard,
    conformance::{World, answer, node, suite},
};

const SOON: Duration = Duration::from_secs(5);

/// A client at a socket. Its services are in the server's process.
struct Joined {
    near: MemoryBus,
    far: SocketBus,
}

#[async_trait]
impl Bus for Joined {
    fn publish(&self, subject: String, payload: Bytes) {
        self.far.publish(subject, payload);
    }

    fn publish_event(&self, event: Published) {
        self.far.publish_event(event);
    }

    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        self.far.turn_open(session, agent, open);
    }

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError> {
        self.far.request(to, body, timeout).await
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        self.far.subscribe(subject).await
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        self.near.serve(node, answer).await
    }

    fn is_connected(&self) -> bool {
        self.far.is_connected()
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.far.flush(timeout).await
    }
}

struct Socket {
    hub: Arc<MemoryHub>,
    folder: TempDir,
    server: Option<SocketServer>,
}

impl Socket {
    fn new() -> Self {
        let (hub, folder) = (MemoryHub::new(), TempDir::new().unwrap());
        let bus = Arc::new(MemoryBus::new(Arc::clone(&hub)));
        let server = SocketServer::listen(folder.path(), bus).unwrap();
        assert!(server.is_some());
        Self {
            hub,
            folder,
            server,
        }
    }

    fn near(&self) -> MemoryBus {
        MemoryBus::new(Arc::clone(&self.hub))
    }

    async fn far(&self) -> Option<SocketBus> {
        SocketBus::connect(self.folder.path()).await.unwrap()
    }
}

#[async_trait]
impl World for Socket {
    async fn end(&self) -> Arc<dyn Bus> {
        Arc::new(Joined {
            near: self.near(),
            far: self.far().await.unwrap(),
        })
    }
}

suite!(Socket::new());

fn list() -> Address {
    Address::new(Target::Sessions, "list")
}

#[tokio::test]
async fn end_of_the_server_ends_requests_and_subscriptions() {
    let mut socket = Socket::new();
    let far = socket.far().await.unwrap();
    let never = answer(|_, _| std::future::pending());
    let _serving = socket.near().serve(&node("n"), never).await.unwrap();
    let mut messages = far.subscribe("session.>").await.unwrap();
    let to = list();
    let asked = far.request(&to, Bytes::new(), SOON * 12);
    let end = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        socket.server = None;
    };
    let (done, ()) = timeout(SOON, async { tokio::join!(asked, end) })
        .await
        .unwrap();
    assert_eq!(done, Err(BusError::Ended));
    assert!(timeout(SOON, messages.next()).await.unwrap().is_none());
    assert!(!far.is_connected());
    let later = timeout(SOON, far.request(&to, Bytes::new(), SOON * 12));
    assert_eq!(later.await.unwrap(), Err(BusError::Ended));
    assert!(socket.far().await.is_none(), "its socket is gone");
}

#[tokio::test]
async fn one_process_listens_and_replaces_what_a_dead_one_left() {
    let mut socket = Socket::new();
    let again = || SocketServer::listen(socket.folder.path(), Arc::new(socket.near()));
    assert!(again().unwrap().is_none());
    // A killed process leaves its socket.
    let path = socket.folder.path().join(NAME);
    socket.server = None;
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && socket.far().await.is_none());
    let again = || SocketServer::listen(socket.folder.path(), Arc::new(socket.near()));
    let server = again().unwrap();
    assert!(server.is_some() && socket.far().await.is_some());
    drop(server);
    // Another file in its place is not removed.
    std::fs::write(&path, "kept").unwrap();
    again().unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[tokio::test]
async fn folder_may_have_a_long_path() {
    let folder = TempDir::new().unwrap();
    let deep = folder.path().join("d".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    let bus = Arc::new(MemoryBus::new(MemoryHub::new()));
    let _server = SocketServer::listen(&deep, bus).unwrap().unwrap();
    assert!(SocketBus::connect(&deep).await.unwrap().is_some());
    let none = SocketBus::connect(&folder.path().join("none")).await;
    assert!(none.unwrap().is_none());
    let mode = std::fs::metadata(deep.join(NAME))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o170_000, 0o140_000, "a socket");
}

#[tokio::test]
async fn garbage_ends_one_connection_and_no_other() {
    let socket = Socket::new();
    let far = socket.far().await.unwrap();
    let path = socket.folder.path().join(NAME);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0, 0, 0, 2, 0, 0, 0, 0, b'{', b'}'],
        &[0, 0, 0, 1, 255, 255, 255, 255, b'x'],
    ] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut rest = Vec::new();
        let read = timeout(SOON, stream.read_to_end(&mut rest)).await.unwrap();
        assert!(read.is_err() || rest.is_empty(), "{rest:?}");
    }
    let wrong = far.request(&list(), Bytes::new(), SOON).await;
    assert_eq!(
        wrong,
        Err(BusError::NoResponders("cmd.sessions.list".into()))
    );
}
