//! The HTTP server: a listener of its own, a script that can be changed while it runs, and what it
//! has seen.

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
    record::{Recorder, Request, Violation},
    script::Script,
};

/// A running server. Dropping it ends its streams and closes its listener.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<io::Result<()>>,
    stop: DropGuard,
}

struct Shared {
    playbook: RwLock<Arc<Playbook>>,
    recorder: Recorder,
    stop: CancellationToken,
}

impl Server {
    /// Serves a script on a free port of 127.0.0.1, on the runtime this is called on.
    pub async fn start(script: Script) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, script)
    }

    /// Serves a script on a bound listener.
    pub fn serve(listener: TcpListener, script: Script) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let playbook = RwLock::new(Arc::new(Playbook::new(script)));
        let shared = Arc::new(Shared {
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
        let service = router.into_make_service_with_connect_info::<Connection>();
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

    /// `http://127.0.0.1:PORT`: the base of Anthropic's, Google's and Ollama's paths.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base as OpenAI's clients want it, with `/v1`.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// The base under which it is llama.cpp's server.
    pub fn llama_cpp_url(&self) -> String {
        format!("{}/llama_cpp", self.url())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Plays another script from the next request on; what was seen is kept.
    pub fn set_script(&self, script: Script) {
        *self
            .shared
            .playbook
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(Playbook::new(script));
    }

    /// The latest requests, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.recorder.requests()
    }

    /// How many requests came, kept or not.
    pub fn request_count(&self) -> u64 {
        self.shared.recorder.serials.load(Ordering::Relaxed)
    }

    /// What a real provider would not have put up with.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.recorder.violations()
    }

    /// How many TCP connections were accepted.
    pub fn connections(&self) -> u64 {
        self.shared.recorder.connections.load(Ordering::Relaxed)
    }

    /// How many streams are open now.
    pub fn streams(&self) -> usize {
        self.shared.recorder.streams()
    }

    /// The most streams that were ever open at once.
    pub fn most_streams(&self) -> usize {
        self.shared.recorder.most_streams()
    }

    /// Ends every stream and waits until the last connection is closed.
    pub async fn stop(self) -> io::Result<()> {
        drop(self.stop);
        self.task.await.map_err(io::Error::other)?
    }
}

impl Shared {
    fn playbook(&self) -> Arc<Playbook> {
        self.playbook
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A listener that numbers what it accepts.
struct Numbered {
    listener: TcpListener,
    shared: Arc<Shared>,
}

/// The number of a connection, from 1.
#[derive(Debug, Clone, Copy)]
struct Connection(u64);

impl Listener for Numbered {
    type Io = TcpStream;
    type Addr = Connection;

    async fn accept(&mut self) -> (TcpStream, Connection) {
        let (stream, _) = Listener::accept(&mut self.listener).await;
        let _ = stream.set_nodelay(true); // only costs latency
        (
            stream,
            Connection(
                self.shared
                    .recorder
                    .connections
                    .fetch_add(1, Ordering::Relaxed)
                    + 1,
            ),
        )
    }

    fn local_addr(&self) -> io::Result<Connection> {
        Ok(Connection(0))
    }
}

impl Connected<IncomingStream<'_, Numbered>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Numbered>) -> Self {
        *stream.remote_addr()
    }
}
