//! Reads the body of a response under its deadlines.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use reqwest::Response;
use tokio::time::{Instant, Sleep, sleep_until};

use super::refusal;
use crate::{
    llm::{allowance::over, decode::broken, options::Times},
    model::Failure,
};

/// How long to wait for the end of a body after the reply is complete. If a server holds it back,
/// only its connection is lost.
const DRAIN: Duration = Duration::from_millis(500);

pub struct BodyReader {
    response: Response,
    /// The one timer for the whole body. It is reset when it fires too early rather than at each
    /// read.
    alarm: Pin<Box<Sleep>>,
    deadline: Instant,
    between: Duration,
    /// The time by which content must arrive. Bytes alone, such as pings, comments and empty
    /// pieces, do not extend it.
    due: Instant,
    drained: Option<Instant>,
}

impl BodyReader {
    pub fn new(response: Response, times: Times, sent: Instant) -> Self {
        // Servers that queue a request or read a long prompt keep the connection alive until they
        // begin.
        let due = (Instant::now() + times.between_content).max(sent + times.first_byte);
        let deadline = sent + times.whole;
        let alarm = Box::pin(sleep_until(deadline.min(due)));
        Self {
            response,
            alarm,
            deadline,
            between: times.between_content,
            due,
            drained: None,
        }
    }

    /// Records that content arrived, so that the server may be silent for another `between`.
    pub fn progressed(&mut self) {
        self.due = Instant::now() + self.between;
        // The first content ends the time for the first byte, which may be the longer one.
        if self.due < self.alarm.deadline() {
            self.alarm.as_mut().reset(self.due.min(self.deadline));
        }
    }

    /// Returns the next bytes. If the reply `is_whole`, it only waits for the end of the body.
    pub async fn next(&mut self, is_whole: bool) -> Result<Option<Bytes>, Failure> {
        if is_whole {
            return Ok(self.drain().await);
        }
        loop {
            tokio::select! {
                biased;
                () = self.alarm.as_mut() => self.rung()?,
                read = self.response.chunk() => return read.map_err(refusal::cut),
            }
        }
    }

    fn rung(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(over("took too long as a whole"));
        }
        if now >= self.due {
            return Err(broken(format!(
                "the stream brought nothing for {} s",
                self.between.as_secs_f64()
            )));
        }
        self.alarm.as_mut().reset(self.due.min(self.deadline));
        Ok(())
    }

    async fn drain(&mut self) -> Option<Bytes> {
        let until = *self.drained.get_or_insert_with(|| Instant::now() + DRAIN);
        let read = tokio::time::timeout_at(until, self.response.chunk()).await;
        read.ok()?.ok()?
    }
}
