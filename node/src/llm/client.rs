//! The HTTP clients of a runtime. A pool's connections live on the runtime that opened them, so each runtime has its own.

mod tls;

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests at once whose connections are kept for the whole idle time. Those beyond are many agents at once, who use a
/// connection again soon or not at all: each that is kept is 18 KiB, and more with TLS.
const STEADY: usize = 8;

/// How long connections beyond those are kept for reuse.
const CROWD_IDLE_FOR: Duration = Duration::from_secs(4);

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub connect: Duration,
    /// Connections kept for reuse, for each server.
    pub idle: usize,
    pub idle_for: Duration,
    /// A proxy for all but loopback addresses. `HTTPS_PROXY` and its like are never read here: whoever builds the options
    /// decides that, and a local model is never reached by way of a proxy.
    pub proxy: Option<String>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), idle: 256, idle_for: Duration::from_secs(45), proxy: None }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot build an HTTP client: {0}")]
    Http(#[from] reqwest::Error),
}

/// The clients of one runtime; clones share them.
#[derive(Debug, Clone)]
pub struct Clients {
    steady: reqwest::Client,
    crowd: reqwest::Client,
    places: Arc<Semaphore>,
}

/// A client for one request.
pub struct Lent {
    pub client: reqwest::Client,
    /// Held until the answer is read, if its connection is one that is kept for long.
    pub place: Option<OwnedSemaphorePermit>,
}

impl Clients {
    pub fn new(options: &ClientOptions) -> Result<Self, ClientError> {
        let steady = client(&ClientOptions { idle: STEADY, ..options.clone() })?;
        let crowd = client(&ClientOptions { idle_for: CROWD_IDLE_FOR, ..options.clone() })?;
        Ok(Self { steady, crowd, places: Arc::new(Semaphore::new(STEADY)) })
    }

    pub fn lend(&self) -> Lent {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let client = if place.is_some() { &self.steady } else { &self.crowd };
        Lent { client: client.clone(), place }
    }
}

/// Builds a client. It follows no redirects: a key must not travel to where somebody points. It speaks HTTP/1.1 only: over
/// HTTP/2 all streams to a server share one connection, and those beyond the server's limit (often 100) would wait unseen.
pub fn client(options: &ClientOptions) -> Result<reqwest::Client, ClientError> {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("planck/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect)
        .pool_max_idle_per_host(options.idle)
        .pool_idle_timeout(options.idle_for)
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_nodelay(true)
        .http1_only()
        .tls_backend_preconfigured(tls::config()?)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    Ok(match &options.proxy {
        None => builder.build()?,
        Some(proxy) => {
            let loopback = reqwest::NoProxy::from_string("localhost,127.0.0.0/8,::1");
            builder.proxy(reqwest::Proxy::all(proxy)?.no_proxy(loopback)).build()?
        }
    })
}
