//! The HTTP server: a listener, a script that can be replaced while the server runs, and a record
//! of the requests.

mod handle;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock, atomic::Ordering},
};

use axum::{
    Router,
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    answer::Playbook,
    record::{RecordedRequest, Recorder, Violation},
    script::Script,
    wire::{self, Wire},
};

/// A running server. Dropping it ends its streams and closes its listener.
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerState>,
    task: JoinHandle<io::Result<()>>,
    stop: DropGuard,
}

struct ServerState {
    wires: &'static [&'static Wire],
    playbook: RwLock<Arc<Playbook>>,
    recorder: Recorder,
    stop: CancellationToken,
}

impl Server {
    /// Serves a script on a free port of 127.0.0.1, on the current runtime.
    pub async fn start(script: Script) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, script)
    }

    /// Serves a script on a free port of 127.0.0.1, and only in the format of chat completions. A
    /// program that starts no other server does not contain the code of the other formats.
    pub async fn start_chat_completions(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        Self::serve_wires(listener, script, wire::CHAT_COMPLETIONS)
    }

    /// Serves a script on a bound listener, in all formats.
    pub fn serve(listener: TcpListener, script: Script) -> io::Result<Self> {
        Self::serve_wires(listener, script, wire::ALL)
    }

    fn serve_wires(
        listener: TcpListener,
        script: Script,
        wires: &'static [&'static Wire],
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let playbook = RwLock::new(Arc::new(Playbook::new(script)));
        let shared = Arc::new(ServerState {
            wires,
            playbook,
            recorder: Recorder::default(),
            stop: stop.clone(),
        });
        let router = Router::new()
            .fallback(handle::handle)
            .with_state(shared.clone());
        let numbered = Numbered {
            listener,
            shared: shared.clone(),
        };
        let service = router.into_make_service_with_connect_info::<ConnectionId>();
        let serving =
            axum::serve(numbered, service).with_graceful_shutdown(stop.clone().cancelled_owned());
        let task = tokio::spawn(serving.into_future());
        Ok(Self {
            address,
            shared,
            task,
            stop: stop.drop_guard(),
        })
    }

    /// Returns `http://ADDRESS:PORT`, the base of Anthropic's, Google's and Ollama's paths.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the base URL for OpenAI's clients, with `/v1`.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// Returns the base URL under which the server behaves like llama.cpp's.
    pub fn llama_cpp_url(&self) -> String {
        format!("{}/llama_cpp", self.url())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the script from the next request on. The recorded requests are kept.
    pub fn set_script(&self, script: Script) {
        *self
            .shared
            .playbook
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(Playbook::new(script));
    }

    /// Returns the latest requests that are kept, oldest first.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.recorder.requests()
    }

    /// Returns the number of requests that arrived, whether they are kept or not.
    pub fn request_count(&self) -> u64 {
        self.shared.recorder.recorded.load(Ordering::Relaxed)
    }

    /// Returns the requests that a real provider would have refused, or for which the script had no
    /// reply. Only the first 1,000 are kept.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.recorder.violations()
    }

    /// Returns the number of TCP connections that were accepted.
    pub fn connections(&self) -> u64 {
        self.shared.recorder.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of streams that are open now.
    pub fn streams(&self) -> usize {
        self.shared.recorder.streams()
    }

    /// Returns the maximum number of streams that were open at the same time.
    pub fn most_streams(&self) -> usize {
        self.shared.recorder.most_streams()
    }

    /// Ends every stream and waits until the last connection is closed.
    pub async fn stop(self) -> io::Result<()> {
        drop(self.stop);
        self.task.await.map_err(io::Error::other)?
    }
}

impl ServerState {
    fn playbook(&self) -> Arc<Playbook> {
        self.playbook
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A listener that numbers the connections it accepts.
struct Numbered {
    listener: TcpListener,
    shared: Arc<ServerState>,
}

/// The number of a connection, from 1.
#[derive(Debug, Clone, Copy)]
struct ConnectionId(u64);

impl Listener for Numbered {
    type Io = TcpStream;
    type Addr = ConnectionId;

    async fn accept(&mut self) -> (TcpStream, ConnectionId) {
        let (stream, _) = Listener::accept(&mut self.listener).await;
        let _ = stream.set_nodelay(true); // without it only latency suffers
        (
            stream,
            ConnectionId(
                self.shared
                    .recorder
                    .connections
                    .fetch_add(1, Ordering::Relaxed)
                    + 1,
            ),
        )
    }

    fn local_addr(&self) -> io::Result<ConnectionId> {
        Ok(ConnectionId(0))
    }
}

impl Connected<IncomingStream<'_, Numbered>> for ConnectionId {
    fn connect_info(stream: IncomingStream<'_, Numbered>) -> Self {
        *stream.remote_addr()
    }
}
