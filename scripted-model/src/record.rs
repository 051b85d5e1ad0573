//! Records what the server received, so that tests can check it: requests, refusals, connections
//! and concurrent streams.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use serde_json::Value;

use crate::request::ModelRequest;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The number of the request, from 0 in the order of arrival.
    pub serial: u64,
    pub at: Instant,
    /// The number of its connection, from 1 in the order of acceptance.
    pub connection: u64,
    pub method: String,
    pub path: String,
    pub query: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, or `null` if it was not JSON.
    pub body: Value,
    /// The request in the common form, or `None` if it was refused.
    pub asked: Option<ModelRequest>,
}

/// A request that the real provider would have refused, or for which the script has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The number of the request.
    pub serial: u64,
    pub path: String,
    pub message: String,
}

#[derive(Debug, Default)]
pub struct Recorder {
    requests: Mutex<VecDeque<RecordedRequest>>,
    violations: Mutex<Vec<Violation>>,
    pub serials: AtomicU64,
    /// The number of requests about which everything is recorded. A test that waits for a number of
    /// requests finds all of them.
    pub recorded: AtomicU64,
    pub connections: AtomicU64,
    streams: AtomicUsize,
    most_streams: AtomicUsize,
}

/// The maximum number of violations that are kept. Later ones are dropped, because they often
/// follow from the first ones.
const MOST_VIOLATIONS: usize = 1_000;

impl Recorder {
    pub fn keep(&self, request: RecordedRequest, most: usize) {
        let mut requests = lock(&self.requests);
        requests.push_back(request);
        let over = requests.len().saturating_sub(most);
        requests.drain(..over);
        self.recorded.fetch_add(1, Ordering::Relaxed);
    }

    pub fn violated(&self, violation: Violation) {
        let mut violations = lock(&self.violations);
        if violations.len() < MOST_VIOLATIONS {
            violations.push(violation);
        }
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        lock(&self.requests).iter().cloned().collect()
    }

    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.violations).clone()
    }

    pub fn begin_stream(&self) {
        let now = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_streams.fetch_max(now, Ordering::Relaxed);
    }

    pub fn end_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub fn most_streams(&self) -> usize {
        self.most_streams.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
