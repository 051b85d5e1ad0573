//! The HTTP clients of a runtime. A pooled connection depends on the runtime that opened it, so
//! each runtime has its own clients. This module also sets up their TLS, and detects whether a request
//! opened a connection.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_layer::Layer;
use tower_service::Service;

use crate::secret::Secret;

/// The number of concurrent requests whose connections are kept for the whole idle time. The
/// connections of further requests are closed after [`CROWD_IDLE_FOR`] without use, because each
/// idle connection costs 18 KiB, and more with TLS.
const STEADY: usize = 8;

/// How long a connection beyond the first [`STEADY`] is kept for reuse.
const CROWD_IDLE_FOR: Duration = Duration::from_secs(4);

/// Hosts that are never reached through a proxy.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";

/// The options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub connect: Duration,
    /// The maximum number of idle connections that are kept for each server.
    pub idle: usize,
    pub idle_for: Duration,
    pub route: Route,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle: 256,
            idle_for: Duration::from_secs(45),
            route: Route::default(),
        }
    }
}

/// The proxy and the certificate authorities for a server. This module never reads the environment:
/// `HTTPS_PROXY` and similar variables are read by the code that loads the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Route {
    pub proxy: Option<Proxy>,
    /// A PEM file with certificate authorities that are trusted in addition to the system's.
    pub ca: Option<PathBuf>,
}

/// The proxies for requests to servers other than loopback. Their URLs may contain passwords.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proxy {
    pub https: Option<Secret>,
    pub http: Option<Secret>,
    /// The hosts that are reached without a proxy, in the format of `NO_PROXY`.
    pub except: String,
}

impl Route {
    /// Returns the address of the proxy for requests to `url`, without user name and password, or
    /// `None` if they go to the server directly. The client decides by the same matcher.
    pub fn proxy_for(&self, url: &Url) -> Option<String> {
        let proxy = self.proxy.as_ref()?;
        let address = |url: &Option<Secret>| {
            let text = url.as_ref().map(Secret::reveal);
            text.unwrap_or_default().to_owned()
        };
        let matcher = Matcher::builder()
            .https(address(&proxy.https))
            .http(address(&proxy.http))
            .no(proxy.excepted())
            .build();
        let used = matcher.intercept(&url.as_str().parse().ok()?)?;
        let (scheme, authority) = (used.uri().scheme_str()?, used.uri().authority()?.as_str());
        let host = authority.rsplit('@').next().unwrap_or(authority);
        Some(format!("{scheme}://{host}"))
    }
}

impl Proxy {
    fn excepted(&self) -> String {
        format!("{LOOPBACK},{}", self.except)
    }
}

/// The reason why a client cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot build an HTTP client: {0}")]
    Http(#[from] reqwest::Error),
    #[error("cannot read the authorities in {path}: {what}")]
    Authorities { path: PathBuf, what: String },
}

/// The clients of one runtime. Clones share the same connections.
#[derive(Debug, Clone)]
pub struct Clients {
    options: ClientOptions,
    direct: Pair,
    /// The clients for routes other than the default one. The clients of a route are built at its
    /// first request.
    routed: Arc<Mutex<Vec<(Route, Pair)>>>,
    places: Arc<Semaphore>,
}

#[derive(Debug, Clone)]
struct Pair {
    steady: reqwest::Client,
    crowd: reqwest::Client,
}

/// A client for one request.
pub struct LentClient {
    pub client: reqwest::Client,
    /// The permit for a connection that is kept for the whole idle time, or `None` if [`STEADY`]
    /// other requests hold one. The caller holds the permit until the answer is read.
    pub place: Option<OwnedSemaphorePermit>,
}

impl Clients {
    pub fn new(options: &ClientOptions) -> Result<Self, HttpClientError> {
        let places = Arc::new(Semaphore::new(STEADY));
        Ok(Self {
            options: options.clone(),
            direct: Pair::new(options)?,
            routed: Arc::default(),
            places,
        })
    }

    pub fn lend(&self, route: &Route) -> Result<LentClient, HttpClientError> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let pair = if *route == self.options.route {
            self.direct.clone()
        } else {
            self.routed(route)?
        };
        let client = if place.is_some() {
            pair.steady
        } else {
            pair.crowd
        };
        Ok(LentClient { client, place })
    }

    fn routed(&self, route: &Route) -> Result<Pair, HttpClientError> {
        let mut routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pair)) = routed.iter().find(|(known, _)| known == route) {
            return Ok(pair.clone());
        }
        let pair = Pair::new(&ClientOptions {
            route: route.clone(),
            ..self.options.clone()
        })?;
        routed.push((route.clone(), pair.clone()));
        Ok(pair)
    }
}

/// Checks that a PEM file contains certificate authorities that TLS can use.
pub fn check_authorities(path: &Path) -> Result<(), HttpClientError> {
    config_with(path).map(|_| ())
}

impl Pair {
    fn new(options: &ClientOptions) -> Result<Self, HttpClientError> {
        let steady = client(&ClientOptions {
            idle: STEADY,
            ..options.clone()
        })?;
        let crowd = client(&ClientOptions {
            idle_for: CROWD_IDLE_FOR,
            ..options.clone()
        })?;
        Ok(Self { steady, crowd })
    }
}

/// Builds a client. The client follows no redirects, so that a key is never sent to an address that
/// a server chose. The client uses only HTTP/1.1: over HTTP/2 all streams to a server share one
/// connection, and streams beyond the server's limit (often 100) would wait without any error or
/// log line.
pub fn client(options: &ClientOptions) -> Result<reqwest::Client, HttpClientError> {
    let Route { proxy, ca } = &options.route;
    let tls = match ca {
        None => config()?,
        Some(path) => config_with(path)?,
    };
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("planck/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect)
        .pool_max_idle_per_host(options.idle)
        .pool_idle_timeout(options.idle_for)
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_nodelay(true)
        .http1_only()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .connector_layer(DialLayer)
        .no_proxy();
    if let Some(proxy) = proxy {
        let except = || reqwest::NoProxy::from_string(&proxy.excepted());
        if let Some(url) = &proxy.https {
            builder = builder.proxy(reqwest::Proxy::https(url.reveal())?.no_proxy(except()));
        }
        if let Some(url) = &proxy.http {
            builder = builder.proxy(reqwest::Proxy::http(url.reveal())?.no_proxy(except()));
        }
    }
    Ok(builder.build()?)
}

// Detects whether a request opened a connection or reused one.
//
// A server may close a kept connection at the moment the next request is written to it. The server
// has not processed such a request, so it is sent again on another connection. A request that
// fails on a connection that was opened for it is not repeated, because the failure has another
// reason.

tokio::task_local! {
    static DIALLED: Cell<bool>;
}

/// Runs a request. Returns its result, and whether it opened a connection.
pub async fn watched<T>(request: impl Future<Output = T>) -> (T, bool) {
    DIALLED
        .scope(Cell::new(false), async {
            (request.await, DIALLED.with(Cell::get))
        })
        .await
}

/// A layer around the connector. The pool calls the connector when it has no idle connection.
#[derive(Debug, Clone, Copy)]
struct DialLayer;

impl<S> Layer<S> for DialLayer {
    type Service = DialService<S>;

    fn layer(&self, connector: S) -> Self::Service {
        DialService(connector)
    }
}

#[derive(Debug, Clone)]
struct DialService<S>(S);

impl<R, S: Service<R>> Service<R> for DialService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The pool also opens connections in tasks of its own, outside of any request. In such a
        // task `DIALLED` has no value, so the error is ignored.
        let _ = DIALLED.try_with(|dialled| dialled.set(true));
        self.0.call(request)
    }
}

// TLS for all clients that call models. The system's root certificates are read only when a server
// presents its certificate for the first time, because reading them takes milliseconds and nodes
// that use only local models never need them.

/// Returns the TLS configuration that trusts the system's roots. The first call builds the
/// configuration for the whole process.
fn config() -> Result<ClientConfig, Error> {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    kept(&CONFIG, || build(Vec::new())).cloned()
}

/// Returns the value of a cell, and makes it if there is none. A failure is not kept, so the next
/// call tries again: the files that it needs may be there by then.
fn kept<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, Error>) -> Result<&T, Error> {
    match cell.get() {
        Some(value) => Ok(value),
        None => make().map(|made| cell.get_or_init(|| made)),
    }
}

/// Returns a TLS configuration that also trusts the authorities of a PEM file.
fn config_with(path: &Path) -> Result<ClientConfig, HttpClientError> {
    let wrong = |what: String| HttpClientError::Authorities {
        path: path.to_owned(),
        what,
    };
    let text = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let authorities = authorities.map_err(|error| wrong(error.to_string()))?;
    if authorities.is_empty() {
        return Err(wrong("it holds no certificate in PEM".to_owned()));
    }
    Ok(build(authorities)?)
}

fn build(authorities: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(SystemRoots {
        provider: Arc::clone(&provider),
        authorities,
        verifier: OnceLock::new(),
    });
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// Verifies certificates against the system's roots and the configured certificate authorities.
#[derive(Debug)]
struct SystemRoots {
    provider: Arc<CryptoProvider>,
    authorities: Vec<CertificateDer<'static>>,
    verifier: OnceLock<Verifier>,
}

impl SystemRoots {
    fn verifier(&self) -> Result<&Verifier, Error> {
        let make =
            || Verifier::new_with_extra_roots(self.authorities.clone(), Arc::clone(&self.provider));
        kept(&self.verifier, make).map_err(|error| {
            Error::General(format!(
                "cannot load the system's root certificates: {error}"
            ))
        })
    }
}

impl ServerCertVerifier for SystemRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verifier()?.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_kept() {
        let cell = OnceLock::new();
        let fails = || Err(Error::General("no file".to_owned()));
        assert!(kept(&cell, fails).is_err());
        assert_eq!(kept(&cell, || Ok(1)), Ok(&1), "it is tried again");
        assert_eq!(kept(&cell, fails), Ok(&1));
    }
}
