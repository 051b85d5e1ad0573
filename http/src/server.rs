//! Accepts connections, and serves each until it ends or the front stops.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The maximum number of concurrent connections to the listener for operators.
pub const ADMIN_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of a request, how long a connection may be idle between
/// requests, and how long a client may read nothing of an answer.
const SILENCE: Duration = Duration::from_secs(60);
/// The maximum size of a request's head in bytes.
const HEAD: usize = 64 << 10;
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// How long running requests may take after the front was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Serves `routes` on a listener until `stop` is cancelled.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    connections: usize,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(connections));
    let tasks = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &places)).await {
        let Some((stream, place)) = accepted else {
            continue;
        };
        let (routes, stop) = (routes.clone(), stop.clone());
        tasks.spawn(async move {
            let _place = place;
            converse(stream, routes, stop).await;
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
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::debug!(%error, "the front did not accept a connection");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

async fn converse(stream: TcpStream, routes: Router, stop: CancellationToken) {
    // Deltas are small, and each should reach the client at once.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(HEAD);
    let service = TowerToHyperService::new(routes);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(SILENCE));
    let stream = TokioIo::new(Box::pin(stream));
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection to the front broke");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The clock jumps ahead whenever nothing happens.
    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_gives_its_place_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/", get(|| async { "x".repeat(64 << 20) }));
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, routes, 1, stop.clone()));
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
}
