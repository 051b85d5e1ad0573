//! Detects whether a request opened a connection or reused one.
//!
//! A server may close a kept connection at the moment the next request is written to it. The server
//! has not processed such a request, so it is sent again on another connection. A request that
//! fails on a connection that was opened for it is not repeated, because the failure has another
//! reason.

use std::{
    cell::Cell,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

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
pub struct DialLayer;

impl<S> Layer<S> for DialLayer {
    type Service = DialService<S>;

    fn layer(&self, connector: S) -> Self::Service {
        DialService(connector)
    }
}

#[derive(Debug, Clone)]
pub struct DialService<S>(S);

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
