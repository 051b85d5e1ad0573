//! Answers requests for tools and compactions.

use std::pin::pin;

use async_nats::{Message, Subject};
use planck_common::{
    PROTOCOL_VERSION,
    event::json,
    sidecar::{CompactMessage, CompactReply, IN_PROGRESS, ToolMessage, ToolReply},
};
use tokio::{sync::mpsc, time::Instant};

use super::{RunningSidecar, ServedEndpoint};
use crate::{context::REPORTS, trace};

impl RunningSidecar {
    /// Answers a request. Ignores a request without a reply subject, or with one that is not an
    /// inbox.
    pub(super) async fn answer(&self, endpoint: usize, offer: &ServedEndpoint, message: Message) {
        let Some(reply) = message
            .reply
            .filter(|reply| self.replies.admits(&message.subject, reply))
        else {
            return;
        };
        let began = Instant::now();
        let traceparent = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get(trace::HEADER))
            .map(ToString::to_string);
        let (text, error) = match offer {
            ServedEndpoint::Tool(name) => {
                self.answer_tool(name, &message.payload, traceparent, &reply)
                    .await
            }
            ServedEndpoint::Compactor(name) => {
                self.answer_compaction(name, &message.payload, traceparent)
                    .await
            }
        };
        self.publish(reply, text).await;
        self.service().count(endpoint, began.elapsed(), error);
    }

    /// Runs a tool and publishes its progress reports. Returns the reply, and the error in it if
    /// there is one.
    async fn answer_tool(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
        reply: &Subject,
    ) -> (String, Option<String>) {
        let (reports, mut heard) = mpsc::channel(REPORTS);
        let tell = async |said| {
            self.publish(
                reply.clone(),
                json(&ToolReply {
                    v: PROTOCOL_VERSION,
                    message: said,
                }),
            )
            .await
        };
        let mut call = pin!(self.handler.tool(name, body, traceparent, reports));
        let answer = loop {
            tokio::select! {
                biased;
                Some(said) = heard.recv() => tell(said).await,
                answer = &mut call => break answer,
            }
        };
        while let Ok(said) = heard.try_recv() {
            tell(said).await;
        }
        let text = json(&answer);
        match (self.too_large(&text), answer.message) {
            (Some(why), _) => (
                json(&ToolReply {
                    v: PROTOCOL_VERSION,
                    message: ToolMessage::Error(why.clone()),
                }),
                Some(why),
            ),
            (None, ToolMessage::Error(error)) => (text, Some(error)),
            (None, ToolMessage::InProgress) => (text, Some(IN_PROGRESS.into())),
            (None, ToolMessage::Ok(_) | ToolMessage::Progress { .. }) => (text, None),
        }
    }

    async fn answer_compaction(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
    ) -> (String, Option<String>) {
        let answer = self.handler.compact(name, body, traceparent).await;
        let text = json(&answer);
        match (self.too_large(&text), answer.message) {
            (Some(why), _) => (
                json(&CompactReply {
                    v: PROTOCOL_VERSION,
                    message: CompactMessage::Error(why.clone()),
                }),
                Some(why),
            ),
            (None, CompactMessage::Error(error)) => (text, Some(error)),
            (None, CompactMessage::Compact { .. } | CompactMessage::Skip(_)) => (text, None),
        }
    }

    fn too_large(&self, text: &str) -> Option<String> {
        let most = self.client.server_info().max_payload;
        (text.len() > most).then(|| {
            format!(
                "the answer has {} bytes, and NATS carries at most {most}",
                text.len()
            )
        })
    }
}
