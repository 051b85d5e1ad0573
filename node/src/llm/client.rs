//! The HTTP client of a runtime. A pool's connections live on the runtime that opened them, so each runtime has its own.

mod tls;

use std::time::Duration;

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
