//! Calls a model and converts its stream to inputs for the agent.

use std::sync::Arc;

use futures_util::StreamExt;
use tracing::{Instrument, Span};

use super::{spans::record_answer, work::Answers};
use crate::{
    agent::{Input, Ticket},
    llm::{Clients, Provider, ReplyProgress, WireRequest},
    model::{Failure, FailureKind, Finish},
    telemetry::content::ReplyContent,
};

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
    /// Sends the request, and passes each part of the reply to `pieces` as it arrives. Returns how
    /// the reply ended, or the failure, as an [`Input::Answered`].
    pub async fn run(self, pieces: Answers) -> Input {
        let (ticket, span) = (self.ticket, self.span.clone());
        let result = self.read(pieces).instrument(span.clone()).await;
        record_answer(&span, &result);
        Input::Answered {
            ticket,
            result,
            jitter: fastrand::f64(),
        }
    }

    async fn read(self, pieces: Answers) -> Result<Finish, Failure> {
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
        while let Some(progress) = stream.next().await {
            match progress? {
                ReplyProgress::Chunks(chunks) => {
                    if let Some(content) = &mut content {
                        content.take(&chunks);
                    }
                    if pieces
                        .send(Box::new(Input::Chunks { ticket, chunks }))
                        .await
                        .is_err()
                    {
                        break;
                    }
                }
                ReplyProgress::Finished(finish) => {
                    if let Some(content) = content {
                        content.note(&span);
                    }
                    return Ok(finish);
                }
            }
        }
        let message = format!("{}: the stream ended without its end", provider.name());
        Err(Failure::new(FailureKind::Transient, message))
    }
}
