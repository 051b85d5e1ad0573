//! Records what the server received, so that tests can check it: requests, refusals, connections
//! and concurrent streams.

use std::{
    collections::VecDeque,
    fs::File,
    io::Write as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::request::{ModelRequest, RequestMessage};

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
    /// The file to which each request, each end of a stream and each refusal is written at once, so
    /// that another process can follow them.
    log: Option<Mutex<File>>,
}

/// The number of characters of a message that are written to the log.
const LOGGED: usize = 200;

/// The maximum number of violations that are kept. Later ones are dropped, because they often
/// follow from the first ones.
const MOST_VIOLATIONS: usize = 1_000;

impl Recorder {
    pub fn with_log(log: Option<File>) -> Self {
        Self {
            log: log.map(Mutex::new),
            ..Self::default()
        }
    }

    pub fn keep(&self, request: RecordedRequest, most: usize) {
        self.log(|at| {
            let asked = request.asked.as_ref();
            let messages = asked.map(|asked| asked.messages.iter().map(logged).collect::<Vec<_>>());
            json!({ "at": at, "request": request.serial, "path": request.path, "messages": messages })
        });
        let mut requests = lock(&self.requests);
        requests.push_back(request);
        let over = requests.len().saturating_sub(most);
        requests.drain(..over);
        self.recorded.fetch_add(1, Ordering::Relaxed);
    }

    pub fn violated(&self, violation: Violation) {
        self.log(
            |at| json!({ "at": at, "refused": violation.serial, "message": violation.message }),
        );
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

    /// Records that the stream of a request has ended, or that its client has gone.
    pub fn end_stream(&self, serial: u64) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.log(|at| json!({ "at": at, "end": serial }));
    }

    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub fn most_streams(&self) -> usize {
        self.most_streams.load(Ordering::Relaxed)
    }

    /// Writes a line to the log, if there is one, with the time in seconds since 1970.
    fn log(&self, line: impl FnOnce(f64) -> Value) {
        let Some(file) = &self.log else {
            return;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = line(now.unwrap_or_default().as_secs_f64());
        // The reader of an incomplete log finds out by itself, and the client must get its reply.
        let _ = lock(file).write_all(format!("{line}\n").as_bytes());
    }
}

/// Returns the beginning of a message for the log.
fn logged(message: &RequestMessage) -> Value {
    let cut = |text: &str| text.chars().take(LOGGED).collect::<String>();
    match message {
        RequestMessage::User(text) => json!({ "user": cut(text) }),
        RequestMessage::Model { text, calls } => {
            let calls: Vec<_> = calls.iter().map(|call| call.name.as_str()).collect();
            json!({ "model": cut(text), "calls": calls })
        }
        RequestMessage::Results(results) => {
            let results: Vec<_> = results.iter().map(|result| cut(&result.text)).collect();
            json!({ "results": results })
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
