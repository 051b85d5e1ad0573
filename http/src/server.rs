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
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The maximum number of concurrent connections to the listener for operators.
pub const ADMIN_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of a request, and how long a connection may be idle
/// between requests.
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
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
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
