//! What the server saw, for tests to assert on: requests, refusals, connections, streams at once.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use serde_json::Value;

use crate::asked::Asked;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// Numbered from 0 in the order of arrival.
    pub serial: u64,
    pub at: Instant,
    /// Numbered from 1 in the order of accepting.
    pub connection: u64,
    pub method: String,
    pub path: String,
    pub query: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// `null` where it was not JSON.
    pub body: Value,
    /// What it meant, unless it was refused.
    pub asked: Option<Asked>,
}

/// A request that the real provider would have refused, or that a script had no words for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Of the request.
    pub serial: u64,
    pub path: String,
    pub message: String,
}

#[derive(Debug, Default)]
pub struct Recorder {
    requests: Mutex<VecDeque<Request>>,
    violations: Mutex<Vec<Violation>>,
    pub serials: AtomicU64,
    pub connections: AtomicU64,
    streams: AtomicUsize,
    most_streams: AtomicUsize,
}

/// How many violations are kept: the first ones tell the most.
const MOST_VIOLATIONS: usize = 1_000;

impl Recorder {
    pub fn keep(&self, request: Request, most: usize) {
        let mut requests = lock(&self.requests);
        requests.push_back(request);
        let over = requests.len().saturating_sub(most);
        requests.drain(..over);
    }

    pub fn violated(&self, violation: Violation) {
        let mut violations = lock(&self.violations);
        if violations.len() < MOST_VIOLATIONS {
            violations.push(violation);
        }
    }

    pub fn requests(&self) -> Vec<Request> {
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
