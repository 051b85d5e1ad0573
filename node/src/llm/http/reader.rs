//! Reads a response's body under its deadlines.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use reqwest::Response;
use tokio::time::{Instant, Sleep, sleep_until};

use super::refusal;
use crate::{
    llm::{decode::broken, options::Times},
    model::Failure,
};

/// How long the end of a body is waited for once the reply is whole; a server that holds it back costs only its connection.
const DRAIN: Duration = Duration::from_millis(500);

pub struct Reader {
    response: Response,
    /// One timer for the whole body. It is set anew when it rings too early, not at each read.
    alarm: Pin<Box<Sleep>>,
    deadline: Instant,
    between: Duration,
    last: Instant,
    drained: Option<Instant>,
}

impl Reader {
    pub fn new(response: Response, times: Times, sent: Instant) -> Self {
        let last = Instant::now();
        let deadline = sent + times.whole;
        let alarm = Box::pin(sleep_until(deadline.min(last + times.between_bytes)));
        Self { response, alarm, deadline, between: times.between_bytes, last, drained: None }
    }

    /// The next bytes. Of a reply that `is_whole` only the end of its body is awaited.
    pub async fn next(&mut self, is_whole: bool) -> Result<Option<Bytes>, Failure> {
        if is_whole {
            return Ok(self.drain().await);
        }
        loop {
            tokio::select! {
                biased;
                read = self.response.chunk() => {
                    self.last = Instant::now();
                    return read.map_err(refusal::cut);
                }
                () = self.alarm.as_mut() => self.rung()?,
            }
        }
    }

    fn rung(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(broken("the reply took too long as a whole"));
        }
        let due = self.last + self.between;
        if now >= due {
            return Err(broken(format!("the stream fell silent for {} s", self.between.as_secs_f64())));
        }
        self.alarm.as_mut().reset(due.min(self.deadline));
        Ok(())
    }

    async fn drain(&mut self) -> Option<Bytes> {
        let until = *self.drained.get_or_insert_with(|| Instant::now() + DRAIN);
        let read = tokio::time::timeout_at(until, self.response.chunk()).await;
        read.ok()?.ok()?
    }
}
