//! Calls a model and converts its stream to inputs for the agent.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::{chunk_batch::ChunkBatch, spans::record_answer, work::Answers};
use crate::{
    agent::{Input, Ticket},
    model::{Failure, FailureKind, Finish},
};
use planck_providers::{Clients, Provider, ReplyProgress, WireRequest};
use planck_telemetry::content::ReplyContent;

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
