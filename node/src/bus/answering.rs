//! Runs a service's answers: each request in a task of its own, within a bound, and every one of them answered.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use planck_common::{
    reply::{Code, Refusal, encode, ok_json},
    subject::Address,
};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use super::Answer;

/// Requests of one service that run at once.
const AT_ONCE: usize = 256;

/// A reply, and why it is a refusal if it is one.
#[derive(Debug)]
pub struct Reply {
    pub body: Bytes,
    pub refusal: Option<Refusal>,
}

impl From<Result<String, Refusal>> for Reply {
    fn from(result: Result<String, Refusal>) -> Self {
        match result {
            Ok(ok) => Self { body: ok_json(&ok).into(), refusal: None },
            Err(refusal) => Self { body: encode(&Err::<(), _>(refusal.clone())).into(), refusal: Some(refusal) },
        }
    }
}

impl Reply {
    /// Itself, or a refusal when it is larger than what can be sent.
    pub fn within(self, limit: usize) -> Self {
        if self.body.len() <= limit {
            return self;
        }
        let message = format!("the reply has {} bytes, over the server's limit of {limit}; ask for less", self.body.len());
        Err(Refusal::new(Code::TooLarge, message)).into()
    }
}

/// One service's answer function and the tasks that run it.
#[derive(Clone)]
pub struct Answering {
    answer: Answer,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Answering {
    pub fn new(answer: Answer) -> Self {
        Self { answer, places: Arc::new(Semaphore::new(AT_ONCE)), tasks: TaskTracker::new() }
    }

    /// Answers a request by calling `reply` once. `subject` is without prefix.
    pub fn take<F>(&self, subject: &str, body: Bytes, span: Span, reply: impl FnOnce(Reply) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (place, address) = (self.places.clone().try_acquire_owned(), Address::parse(subject));
        let answer = match (&place, address) {
            (Ok(_), Some(address)) => Ok(span.in_scope(|| (self.answer)(address, body))),
            (Ok(_), None) => Err(Refusal::bad_request(format!("`{subject}` is no command"))),
            (Err(_), _) => Err(Refusal::unavailable("too many requests at once; try again")),
        };
        let task = async move {
            let _place = place;
            let result = match answer {
                Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| Err(panicked())),
                Err(refusal) => Err(refusal),
            };
            reply(result.into()).await;
        };
        self.tasks.spawn(task.instrument(span));
    }

    /// Runs something small beside the answers.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Waits until what runs has been answered, `grace` at most.
    pub async fn finish(&self, grace: Duration) {
        self.tasks.close();
        let _late = tokio::time::timeout(grace, self.tasks.wait()).await;
    }
}

fn panicked() -> Refusal {
    Refusal::internal("the command failed in a way it should not; the node's log has more")
}
