//! Reads the body of a response under its deadlines.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use reqwest::Response;
use tokio::time::{Instant, Sleep, sleep_until};

use super::refusal;
use crate::{answer_bounds::over, decode::broken, options::Times};
use planck_agent::model::Failure;

/// How long to wait for the end of a body after the reply is complete. If the end does not arrive
/// in time, the connection is closed instead of reused.
const DRAIN: Duration = Duration::from_millis(500);

pub struct BodyReader {
    response: Response,
    /// The only timer for the whole body. It is reset when it fires too early, which is cheaper
    /// than a reset at each read.
    alarm: Pin<Box<Sleep>>,
    deadline: Instant,
    between: Duration,
    /// When the next content must have arrived. Bytes without content, such as pings, comments and
    /// empty pieces, do not extend this deadline.
    due: Instant,
    drained: Option<Instant>,
}

impl BodyReader {
    pub fn new(response: Response, times: Times, sent: Instant) -> Self {
        // Until the first content, the time for the first byte applies too, because servers that
        // queue a request or read a long prompt send keep-alives before they begin to answer.
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

    /// Records that content arrived. The server may then be silent for another `between`.
    pub fn progressed(&mut self) {
        self.due = Instant::now() + self.between;
        // The time for the first byte no longer applies. That time may be longer than `between`, so
        // the timer may have to fire earlier.
        if self.due < self.alarm.deadline() {
            self.alarm.as_mut().reset(self.due.min(self.deadline));
        }
    }

    /// Returns the next bytes, or `None` at the end of the body. If the reply `is_whole`,
    /// returns `None` after [`DRAIN`] at the latest, even if the body has not ended.
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
