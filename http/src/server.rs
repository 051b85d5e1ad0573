//! Accepts connections, and serves each until it ends or the front stops.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a client may take to send the head of a request, how long a connection may be idle between
/// requests, and how long a client may read nothing of an answer.
const SILENCE: Duration = Duration::from_secs(60);
/// The maximum size of a request's head in bytes.
const HEAD: usize = 64 << 10;
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// How long running requests may take after the front was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// How many connections a listener accepts at once.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Of all clients together. Further clients wait until a connection is closed.
    pub all: usize,
    /// Of one address, as long as no request on them had a valid key. Further ones are closed.
    pub keyless: usize,
}

/// A connection, as an extension of its requests.
#[derive(Debug, Clone)]
pub struct ClientConnection(Arc<Mutex<Option<KeylessPlace>>>);

impl ClientConnection {
    /// Records that a request on the connection had a valid key.
    pub fn has_key(&self) {
        *lock(&self.0) = None;
    }
}

/// The number of connections without a key, by address.
type Keyless = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The place of a connection without a key. Dropping it frees the place.
#[derive(Debug)]
struct KeylessPlace {
    address: IpAddr,
    taken: Keyless,
}

impl KeylessPlace {
    fn take(taken: &Keyless, address: IpAddr, most: usize) -> Option<Self> {
        let mut all = lock(taken);
        let of_address = all.entry(address).or_default();
        if *of_address >= most {
            return None;
        }
        *of_address += 1;
        Some(Self {
            address,
            taken: Arc::clone(taken),
        })
    }
}

impl Drop for KeylessPlace {
    fn drop(&mut self) {
        let mut all = lock(&self.taken);
        if let Some(of_address) = all.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                all.remove(&self.address);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `routes` on a listener until `stop` is cancelled.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    let (places, keyless) = (Arc::new(Semaphore::new(limits.all)), Keyless::default());
    let tasks = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &places)).await {
        let Some((stream, address, place)) = accepted else {
            continue;
        };
        let Some(own) = KeylessPlace::take(&keyless, address, limits.keyless) else {
            tracing::debug!(%address, "too many connections without a key");
            continue;
        };
        let connection = ClientConnection(Arc::new(Mutex::new(Some(own))));
        let (routes, stop) = (routes.clone(), stop.clone());
        tasks.spawn(async move {
            let _place = place;
            converse(stream, routes, connection, stop).await;
        });
    }
    tasks.close();
    if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
        tracing::warn!("some requests did not end in time; they end with the process");
    }
}

/// Waits for a place and then for a client.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, IpAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, from)) => Some((stream, from.ip(), place)),
        Err(error) => {
            tracing::debug!(%error, "the front did not accept a connection");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

async fn converse(
    stream: TcpStream,
    routes: Router,
    connection: ClientConnection,
    stop: CancellationToken,
) {
    // Deltas are small, and each should reach the client at once.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(HEAD);
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        routes.call(request)
    });
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(SILENCE));
    let stream = TokioIo::new(Box::pin(stream));
    let mut served = std::pin::pin!(builder.serve_connection(stream, service));
    let done = tokio::select! {
        done = served.as_mut() => done,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection to the front broke");
    }
}

#[cfg(test)]
mod tests {
    use axum::{Extension, routing::get};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The clock jumps ahead whenever nothing happens.
    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_gives_its_place_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/", get(|| async { "x".repeat(64 << 20) }));
        let stop = CancellationToken::new();
        let limits = ConnectionLimits { all: 1, keyless: 1 };
        let serving = tokio::spawn(serve(listener, routes, limits, stop.clone()));
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(request).await.unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(request).await.unwrap();
        let mut begun = [0; 15];
        other.read_exact(&mut begun).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200 OK");
        drop((silent, other));
        stop.cancel();
        serving.await.unwrap();
    }

    /// Sends a request, and returns whether it was answered.
    async fn is_answered(stream: &mut TcpStream, path: &str) -> bool {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let sent = stream.write_all(request.as_bytes()).await;
        sent.is_ok() && stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0)
    }

    #[tokio::test]
    async fn address_without_a_key_takes_its_share_of_the_places() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let keyed =
            get(async |Extension(connection): Extension<ClientConnection>| connection.has_key());
        let routes = Router::new()
            .route("/", get(|| async {}))
            .route("/keyed", keyed);
        let (limits, stop) = (
            ConnectionLimits {
                all: 16,
                keyless: 2,
            },
            CancellationToken::new(),
        );
        let serving = tokio::spawn(serve(listener, routes, limits, stop.clone()));
        let mut open = Vec::new();
        for path in ["/", "/keyed", "/keyed", "/"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert!(
                is_answered(&mut stream, path).await,
                "{path} {}",
                open.len()
            );
            open.push(stream);
        }
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert!(!is_answered(&mut refused, "/keyed").await);
        // A connection on which a key is sent gives its place back.
        assert!(is_answered(&mut open[0], "/keyed").await);
        let mut last = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut last, "/").await);
        drop((open, last));
        stop.cancel();
        serving.await.unwrap();
    }
}
