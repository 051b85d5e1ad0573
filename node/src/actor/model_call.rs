//! Calls a model: encodes the agent's context, sends the request, and converts the stream of the
//! reply to inputs for the agent.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::StreamExt;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::{Instrument, Span};

use super::{spans::record_answer, work::Answers};
use crate::{
    agent::{Agent, Input, Ticket},
    model::{Chunk, Failure, FailureKind, Finish},
};
use planck_providers::{Clients, Encoder, Provider, ReplyProgress, RequestHead, WireRequest};
use planck_telemetry::content::ReplyContent;

/// How long chunks are held back while further chunks arrive.
const WINDOW: Duration = Duration::from_millis(40);
/// How long chunks are held back at most. This is longer than [`WINDOW`] so that a stream that
/// continues needs no timer.
const LONGEST: Duration = Duration::from_millis(80);
/// The number of bytes at which chunks are no longer held back.
const FULL: usize = 2_048;

/// The encoded conversation of an agent. New messages are appended to it, so that a request does not
/// encode the whole history again.
#[derive(Default)]
pub struct Encoding {
    cached: Option<EncodedRequest>,
}

struct EncodedRequest {
    /// The version of the agent's context that was encoded. If the agent has another version, the
    /// conversation is encoded again.
    version: u64,
    pushed: usize,
    encoder: Box<dyn Encoder>,
}

impl Encoding {
    /// Returns a request with the agent's whole context, for its current model.
    pub fn request(&mut self, agent: &Agent, provider: &Arc<dyn Provider>) -> WireRequest {
        let version = agent.version();
        let mut cached = match self
            .cached
            .take()
            .filter(|cached| cached.version == version)
        {
            Some(cached) => cached,
            None => EncodedRequest {
                version,
                pushed: 0,
                encoder: provider.encoder(head(agent)),
            },
        };
        let context = agent.context();
        for line in context.iter().skip(cached.pushed) {
            cached.encoder.push(&line.body);
        }
        cached.pushed = context.len();
        let request = cached.encoder.request(agent.demanded_tool());
        self.cached = Some(cached);
        request
    }
}

fn head(agent: &Agent) -> RequestHead {
    let spec = agent.spec();
    RequestHead {
        model: spec.model.id.clone(),
        system_prompt: spec.system_prompt.as_str().into(),
        tools: Arc::clone(agent.tools()),
        opts: spec.opts.clone(),
        max_output: agent.card().max_output,
    }
}

/// An encoded request to a model, with the clients and the span for sending it.
pub struct PreparedCall {
    pub ticket: Ticket,
    pub provider: Arc<dyn Provider>,
    pub clients: Clients,
    pub model: String,
    pub request: WireRequest,
    pub span: Span,
}

impl PreparedCall {
    /// Sends the request, and sends the reply to `pieces` in parts while it arrives. Returns the
    /// rest of the reply and how it ended, or the failure, as an [`Input::Answered`].
    pub async fn run(self, pieces: Answers) -> Input {
        let (ticket, span) = (self.ticket, self.span.clone());
        let mut batch = ChunkBatch::new();
        let reading = self.read(pieces, &mut batch).instrument(span.clone());
        let result = reading.await;
        record_answer(&span, &result);
        Input::Answered {
            ticket,
            chunks: batch.take(),
            result,
            jitter: fastrand::f64(),
        }
    }

    async fn read(self, pieces: Answers, batch: &mut ChunkBatch) -> Result<Finish, Failure> {
        let Self {
            ticket,
            provider,
            clients,
            model,
            request,
            span,
        } = self;
        let mut content = ReplyContent::begin();
        let mut stream = provider.stream(&clients, &model, request);
        loop {
            let are_due = tokio::select! {
                biased;
                progress = stream.next() => match progress.transpose()? {
                    Some(ReplyProgress::Chunks(chunks)) => {
                        if let Some(content) = &mut content {
                            content.take(&chunks);
                        }
                        batch.push(chunks, Instant::now())
                    }
                    Some(ReplyProgress::Finished(finish)) => {
                        if let Some(content) = content {
                            content.note(&span);
                        }
                        return Ok(finish);
                    }
                    None => break,
                },
                () = batch.due() => true,
            };
            if are_due {
                let chunks = batch.take();
                let sent = pieces.send(Box::new(Input::Chunks { ticket, chunks }));
                if sent.await.is_err() {
                    break;
                }
            }
        }
        let message = format!("{}: the stream ended without its end", provider.name());
        Err(Failure::new(FailureKind::Transient, message))
    }
}

/// The chunks of one reply that the agent has not received yet. They are held back briefly, so that
/// the agent handles many small chunks in one step and publishes them as one event.
pub struct ChunkBatch {
    chunks: Vec<Chunk>,
    bytes: usize,
    /// When the first of `chunks` arrived.
    since: Instant,
    /// Whether the agent has received chunks of this reply. The first ones are not held back.
    is_begun: bool,
    /// The only timer of the reply. It is reset when it fires too early, which is cheaper than a
    /// reset for each event.
    alarm: Pin<Box<Sleep>>,
}

impl ChunkBatch {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            chunks: Vec::new(),
            bytes: 0,
            since: now,
            is_begun: false,
            alarm: Box::pin(sleep_until(now + LONGEST)),
        }
    }

    /// Adds chunks. Returns whether the held chunks are due now.
    pub fn push(&mut self, chunks: Vec<Chunk>, now: Instant) -> bool {
        self.bytes += chunks.iter().map(Chunk::bytes).sum::<usize>();
        if self.chunks.is_empty() {
            self.since = now;
            self.chunks = chunks;
        } else {
            self.chunks.extend(chunks);
        }
        self.bytes >= FULL || (self.is_begun && now >= self.since + WINDOW)
    }

    /// Waits until the held chunks are due although no further chunk arrives. Never returns if no
    /// chunks are held.
    pub async fn due(&mut self) {
        if self.chunks.is_empty() {
            return std::future::pending().await;
        }
        if !self.is_begun {
            return;
        }
        let until = self.since + LONGEST;
        while Instant::now() < until {
            if self.alarm.is_elapsed() {
                self.alarm.as_mut().reset(until);
            }
            self.alarm.as_mut().await;
        }
    }

    /// Removes the held chunks and returns them for the agent. Later chunks of the reply are held
    /// back.
    pub fn take(&mut self) -> Vec<Chunk> {
        self.is_begun = true;
        self.bytes = 0;
        std::mem::take(&mut self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn text(text: &str) -> Vec<Chunk> {
        vec![Chunk::Text {
            part: 0,
            text: text.into(),
        }]
    }

    /// Returns a batch of a reply of which the agent has received something.
    fn begun() -> ChunkBatch {
        let mut batch = ChunkBatch::new();
        batch.push(text("a"), Instant::now());
        batch.take();
        batch
    }

    #[tokio::test(start_paused = true)]
    async fn first_chunks_are_due_when_no_others_are_ready() {
        let mut batch = ChunkBatch::new();
        assert!(batch.due().now_or_never().is_none());
        assert!(!batch.push(text("a"), Instant::now()));
        assert!(batch.due().now_or_never().is_some());
        assert_eq!(batch.take(), text("a"));
        assert!(batch.due().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_are_held_until_the_window_has_passed() {
        let mut batch = begun();
        assert!(!batch.push(text("b"), Instant::now()));
        tokio::time::advance(Duration::from_millis(39)).await;
        assert!(!batch.push(text("c"), Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(batch.push(text("d"), Instant::now()));
        assert_eq!(batch.take().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_of_a_stream_that_pauses_are_due_in_time() {
        let mut batch = begun();
        for _ in 0..3 {
            let began = Instant::now();
            batch.push(text("b"), began);
            batch.due().await;
            assert_eq!(began.elapsed(), LONGEST);
            batch.take();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_bytes_are_due_at_once() {
        let mut batch = begun();
        assert!(!batch.push(text(&"x".repeat(FULL - 1)), Instant::now()));
        assert!(batch.push(text("y"), Instant::now()));
        assert_eq!(batch.take().len(), 2);
        assert!(!batch.push(text("z"), Instant::now()));
    }
}
