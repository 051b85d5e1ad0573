//! Serves `/livez`, `/readyz` and `/metrics` over HTTP. The server has its own thread and runtime,
//! so that it answers requests even if the node is busy.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{self, Handle},
    sync::{Semaphore, oneshot},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use planck_common::allowed_hosts::{AllowedHosts, name_of};

use crate::{
    metrics::Metrics,
    vitals::{self, Vitals},
};

/// The maximum number of concurrent connections. Further clients wait until a connection is closed.
const CONNECTIONS: usize = 64;
/// How long a connection may be idle between requests, and how long a client may take to send the
/// head of a request.
const SILENCE: Duration = Duration::from_secs(30);
/// The maximum duration of a connection.
const LONGEST: Duration = Duration::from_secs(600);
/// The maximum size of a request's head in bytes.
const HEAD: usize = 16 << 10;

const PLAIN: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A running listener. Dropping it stops the listener.
#[derive(Debug)]
pub struct Listener {
    _stop: oneshot::Sender<()>,
}

impl Listener {
    /// Starts a listener. `main` is the runtime whose progress the probes check.
    pub fn start(
        address: SocketAddr,
        metrics: Arc<Metrics>,
        main: Handle,
        hosts: AllowedHosts,
    ) -> io::Result<Self> {
        let socket = std::net::TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        thread::Builder::new().name("telemetry".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    Err(error) = serve(socket, metrics, main, hosts) => tracing::error!(%error, "the telemetry listener has ended"),
                    _ = stopped => {}
                }
            });
        })?;
        tracing::info!(%address, "/livez, /readyz and /metrics are served");
        Ok(Self { _stop: stop })
    }
}

async fn serve(
    socket: std::net::TcpListener,
    metrics: Arc<Metrics>,
    main: Handle,
    hosts: AllowedHosts,
) -> io::Result<()> {
    let socket = TcpListener::from_std(socket)?;
    let pulse = Arc::new(Pulse::new());
    tokio::spawn(Arc::clone(&pulse).keep_checking(main));
    let hosts = Arc::new(hosts);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return Ok(());
        };
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection to the telemetry listener was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (metrics, pulse, hosts) =
            (Arc::clone(&metrics), Arc::clone(&pulse), Arc::clone(&hosts));
        tokio::spawn(async move {
            let _place = place;
            let _too_long = timeout(LONGEST, converse(stream, metrics, pulse, hosts)).await;
        });
    }
}

async fn converse(
    stream: TcpStream,
    metrics: Arc<Metrics>,
    pulse: Arc<Pulse>,
    hosts: Arc<AllowedHosts>,
) {
    let answering = service_fn(|request| {
        let answer =
            wrong_host(&request, &hosts).unwrap_or_else(|| answer(&request, &metrics, &pulse));
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(HEAD);
    if let Err(error) = builder
        .serve_connection(TokioIo::new(stream), answering)
        .await
    {
        tracing::debug!(%error, "a connection to the telemetry listener broke");
    }
}

/// Returns the refusal of a request under a name that the listener does not have. Every `Host` counts,
/// because a proxy before the listener could check another one.
fn wrong_host<B>(request: &Request<B>, hosts: &AllowedHosts) -> Option<Response<String>> {
    let named = request.headers().get_all(HOST).into_iter();
    let mut named = named.map(|host| host.to_str().unwrap_or("."));
    let wrong = named.find(|host| !hosts.allow_probe(host))?;
    let name: String = name_of(wrong).chars().take(80).collect();
    let why = format!("the host `{name}` is not served; add it to `http.allowed_hosts`\n");
    Some(plain(StatusCode::FORBIDDEN, why))
}

fn answer<B>(request: &Request<B>, metrics: &Metrics, pulse: &Pulse) -> Response<String> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".into());
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/livez" => probe(
            pulse
                .is_alive()
                .then(Vec::new)
                .unwrap_or_else(|| vec!["a runtime does not turn".into()]),
        ),
        "/readyz" => probe(pulse.unready()),
        "/metrics" => text_response(StatusCode::OK, PROMETHEUS, metrics.text()),
        _ => plain(
            StatusCode::NOT_FOUND,
            "there are /livez, /readyz and /metrics\n".into(),
        ),
    }
}

/// Returns status 200 if there are no causes, and otherwise 503 with one line for each cause.
fn probe(causes: Vec<String>) -> Response<String> {
    match causes.is_empty() {
        true => plain(StatusCode::OK, "ok\n".into()),
        false => plain(StatusCode::SERVICE_UNAVAILABLE, causes.join("\n") + "\n"),
    }
}

fn plain(status: StatusCode, text: String) -> Response<String> {
    text_response(status, PLAIN, text)
}

fn text_response(status: StatusCode, kind: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

// Checks the node about once a second and stores the result, so that a probe is answered
// immediately even if the node hangs.

const EVERY: Duration = Duration::from_secs(1);
/// How long each step of a check may take, so that a problem is detected within a few seconds.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// How long a runtime may make no progress before the liveness probe fails. After that time, only a
/// restart helps: a busy runtime responds within a few milliseconds.
const STUCK: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Pulse(Mutex<PulseState>);

#[derive(Debug)]
struct PulseState {
    /// When all runtimes were last seen to make progress.
    turned: Instant,
    unready: Vec<String>,
}

impl Pulse {
    fn new() -> Self {
        Self(Mutex::new(PulseState {
            turned: Instant::now(),
            unready: vec!["the node is starting".into()],
        }))
    }

    fn is_alive(&self) -> bool {
        self.state().turned.elapsed() < STUCK
    }

    fn unready(&self) -> Vec<String> {
        self.state().unready.clone()
    }

    async fn keep_checking(self: Arc<Self>, main: Handle) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let node = vitals::node();
            let (turned, unready) = tokio::join!(turns(&main, node.clone()), unready(&main, node));
            let mut state = self.state();
            state.unready = unready;
            if turned {
                state.turned = Instant::now();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PulseState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn turns(main: &Handle, node: Option<Arc<dyn Vitals>>) -> bool {
    let turned = timeout(PATIENCE, main.spawn(async {})).await.is_ok();
    match node {
        Some(node) => turned && node.turns(PATIENCE).await,
        None => turned,
    }
}

/// Returns the reasons why the node is not ready. The check runs on the main runtime, because the
/// connections of the store belong to that runtime.
async fn unready(main: &Handle, node: Option<Arc<dyn Vitals>>) -> Vec<String> {
    let Some(node) = node else {
        return vec!["the node is starting".into()];
    };
    let request = main.spawn(async move { node.unready(PATIENCE).await });
    match timeout(PATIENCE + EVERY / 2, request).await {
        Ok(Ok(unready)) => unready,
        Ok(Err(_)) | Err(_) => vec!["the node does not answer".into()],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime;

    use super::*;

    fn refused(hosts: &[&str]) -> Option<Response<String>> {
        let names = AllowedHosts(vec!["node.example.com".into()]);
        let request = hosts
            .iter()
            .fold(Request::get("/metrics"), |request, host| {
                request.header(HOST, *host)
            });
        wrong_host(&request.body(()).unwrap(), &names)
    }

    /// The stranger's page has its own name resolve to this machine.
    #[test]
    fn page_of_a_stranger_reads_no_metrics() {
        for stranger in [&["evil.com"][..], &["127.0.0.1:9464", "evil.com:9464"]] {
            let refused = refused(stranger).unwrap();
            assert_eq!(refused.status(), StatusCode::FORBIDDEN);
            let told = refused.body();
            assert!(
                told.contains("`evil.com`") && told.contains("http.allowed_hosts"),
                "{told}"
            );
        }
        for known in ["10.0.0.7:9464", "node:9464", "node.example.com:9464"] {
            assert!(refused(&[known]).is_none(), "{known}");
        }
        assert!(refused(&[]).is_none(), "a probe without a host");
    }

    /// Returns a runtime with one thread, which is blocked by a task until the returned sender is
    /// dropped.
    fn held() -> (runtime::Runtime, mpsc::Sender<()>) {
        let main = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (free, held) = mpsc::channel();
        let (holds, is_held) = mpsc::channel();
        main.spawn(async move {
            holds.send(()).unwrap();
            let _freed = held.recv();
        });
        is_held.recv().unwrap();
        (main, free)
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_with_a_stuck_runtime_is_not_alive_until_it_makes_progress() {
        let (main, free) = held();
        let pulse = Arc::new(Pulse::new());
        let feeling = tokio::spawn(Arc::clone(&pulse).keep_checking(main.handle().clone()));
        tokio::time::sleep(STUCK - EVERY).await;
        assert!(pulse.is_alive(), "it may only be busy");
        tokio::time::sleep(2 * EVERY).await;
        assert!(!pulse.is_alive());
        assert!(!pulse.unready().is_empty());
        tokio::time::resume();
        drop(free);
        while !pulse.is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        feeling.abort();
        main.shutdown_background();
    }
}
