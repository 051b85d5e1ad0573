//! Runs the answer function of a service. Each request runs in a task of its own, the number of
//! running requests is limited, and every request gets a reply.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use planck_common::{
    reply::{Code, Refusal, encode, ok_json},
    subject::Address,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use super::CommandHandler;

/// The maximum number of requests of one group of endpoints that run at once.
const AT_ONCE: usize = 256;

/// The maximum total size, in bytes, of the bodies of one group's requests that run at once. Each
/// body is in memory several times while it is read, checked and saved.
const BYTES_AT_ONCE: usize = 64 << 20;

/// The unit, in bytes, in which the sizes of bodies are counted. A request without a body counts as
/// one unit.
const UNIT: usize = 1 << 10;

/// A serialised reply, with the refusal if the reply is one.
#[derive(Debug)]
pub struct EncodedReply {
    pub body: Bytes,
    pub refusal: Option<Refusal>,
}

impl From<Result<String, Refusal>> for EncodedReply {
    fn from(result: Result<String, Refusal>) -> Self {
        match result {
            Ok(ok) => Self {
                body: ok_json(&ok).into(),
                refusal: None,
            },
            Err(refusal) => Self {
                body: encode(&Err::<(), _>(refusal.clone())).into(),
                refusal: Some(refusal),
            },
        }
    }
}

impl EncodedReply {
    /// Returns the reply itself, or a refusal if the reply is larger than `limit` bytes.
    pub fn within(self, limit: usize) -> Self {
        if self.body.len() <= limit {
            return self;
        }
        let message = format!(
            "the reply has {} bytes, over the server's limit of {limit}; ask for less",
            self.body.len()
        );
        Err(Refusal::new(Code::TooLarge, message)).into()
    }
}

/// The answer function of one group of endpoints, and the tasks that run it.
#[derive(Clone)]
pub struct Answering {
    answer: CommandHandler,
    places: Arc<Semaphore>,
    /// The free space for bodies, in units of [`UNIT`] bytes.
    bytes: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Answering {
    pub fn new(answer: CommandHandler) -> Self {
        let (places, bytes) = (
            Arc::new(Semaphore::new(AT_ONCE)),
            Arc::new(Semaphore::new(BYTES_AT_ONCE / UNIT)),
        );
        Self {
            answer,
            places,
            bytes,
            tasks: TaskTracker::new(),
        }
    }

    /// Answers a request in a new task, which passes the reply to `reply`. The reply is the result
    /// of the answer function, or a refusal if the request is over the limits, `subject` is no
    /// command, or the function panics. `subject` has no prefix.
    pub fn take<F>(
        &self,
        subject: &str,
        body: Bytes,
        span: Span,
        reply: impl FnOnce(EncodedReply) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (place, address) = (self.admit(body.len()), Address::parse(subject));
        let answer = match (&place, address) {
            (Ok(_), Some(address)) => Ok(span.in_scope(|| (self.answer)(address, body))),
            (Ok(_), None) => Err(Refusal::bad_request(format!(
                "`{subject}` is not a command"
            ))),
            (Err(refusal), _) => Err(refusal.clone()),
        };
        let task = async move {
            let _place = place;
            let result = match answer {
                Ok(answer) => AssertUnwindSafe(answer)
                    .catch_unwind()
                    .await
                    .unwrap_or_else(|_| Err(panicked())),
                Err(refusal) => Err(refusal),
            };
            reply(result.into()).await;
        };
        self.tasks.spawn(task.instrument(span));
    }

    /// Reserves a place for a request, and space for its body of `bytes` bytes. Fails at once if
    /// either is used up, because a request that waits would use memory as well.
    fn admit(&self, bytes: usize) -> Result<[OwnedSemaphorePermit; 2], Refusal> {
        let units = u32::try_from(bytes.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX);
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Refusal::unavailable(format!(
                "this node is answering {AT_ONCE} requests, its maximum; try again in a second"
            ))
        })?;
        let room = self.bytes.clone().try_acquire_many_owned(units).map_err(|_| {
            let most = BYTES_AT_ONCE >> 20;
            Refusal::unavailable(format!(
                "this node holds at most {most} MiB of requests and has no room for {bytes} bytes more; try again in a second"
            ))
        })?;
        Ok([place, room])
    }

    /// Runs a small task, for which [`Self::finish`] waits as well.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Waits until the running requests are answered, but at most for `grace`.
    pub async fn finish(&self, grace: Duration) {
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                requests = self.tasks.len(),
                "stopped before all requests were answered; their callers should send them again"
            );
        }
    }
}

fn panicked() -> Refusal {
    Refusal::internal("the command failed because of a bug; the node's log has the details")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_by_number_and_by_bytes() {
        let answering = Answering::new(Arc::new(|_, _| Box::pin(async { Ok(String::new()) })));
        let half = answering.admit(BYTES_AT_ONCE / 2).unwrap();
        let other = answering.admit(BYTES_AT_ONCE / 2 - UNIT).unwrap();
        let refused = answering.admit(UNIT + 1).unwrap_err();
        assert!(
            refused.code == Code::Unavailable && refused.message.contains("64 MiB"),
            "{refused}"
        );
        let last = answering.admit(0).unwrap();
        assert!(
            answering.admit(0).is_err(),
            "a request without a body takes room as well"
        );
        drop((half, other, last));
        let all: Vec<_> = (0..AT_ONCE).map(|_| answering.admit(0).unwrap()).collect();
        assert!(
            answering
                .admit(0)
                .unwrap_err()
                .message
                .contains("256 requests")
        );
        drop(all);
        assert!(
            answering.admit(BYTES_AT_ONCE + 1).is_err(),
            "no single request is larger than the budget"
        );
    }
}
