//! Compactors, which replace the older part of a conversation with a summary.

use std::collections::HashSet;

use async_trait::async_trait;
use planck_common::{
    Seq,
    message::{Message, Part},
    service::ServiceMetadata,
    sidecar::{COMPACTOR_TIMEOUT_MS, CompactMessage, CompactModel, metadata},
};

use crate::Context;

/// The result of a compactor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The summary replaces every message before `keep_from`, which is the id of the first message
    /// that is kept. The summary has to be shorter than those messages. A tool's result has to be
    /// kept or replaced together with its call.
    Compact { summary: String, keep_from: Seq },
    /// The conversation stays as it is.
    Skip,
}

/// The conversation to compact.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub model: CompactModel,
    /// The messages in order. An earlier summary comes first.
    pub messages: Vec<Message>,
    /// The estimated number of tokens in all messages.
    pub tokens: u64,
}

/// A compactor. If it fails, does not answer within its time-out of 2 minutes, or returns an
/// invalid summary, the node uses its own compactor.
#[async_trait]
pub trait Compactor: Send + Sync {
    /// Returns a summary of the older messages, or [`Decision::Skip`].
    ///
    /// # Errors
    /// Returns a text, which the node reports in a `warning` event before it uses its own
    /// compactor.
    async fn compact(
        &self,
        context: Context,
        conversation: Conversation,
    ) -> Result<Decision, String>;

    /// Returns a description for people.
    fn description(&self) -> &'static str {
        ""
    }
}

impl Conversation {
    /// Returns the id of the first message to keep, so that at least the last `keep` messages are
    /// kept and every tool result stays with its call. Returns `None` if no message would be
    /// removed.
    pub fn cut(&self, keep: usize) -> Option<Seq> {
        let most = self.messages.len().checked_sub(keep.max(1))?;
        let at = (1..=most).rev().find(|at| self.is_whole_from(*at))?;
        self.messages.get(at).map(|message| message.id)
    }

    /// Returns whether each tool result in the messages from the index `at` on has its call in
    /// these messages too.
    fn is_whole_from(&self, at: usize) -> bool {
        let parts = || {
            self.messages
                .iter()
                .skip(at)
                .flat_map(|message| &message.content)
        };
        let calls: HashSet<&str> = parts()
            .filter_map(|part| call(part).and_then(Result::ok))
            .collect();
        parts()
            .filter_map(|part| call(part).and_then(Result::err))
            .all(|result| calls.contains(result))
    }
}

/// Returns the id of a call as `Ok` and the id of a result as `Err`, or `None` for any other part.
fn call(part: &Part) -> Option<Result<&str, &str>> {
    match part {
        Part::ToolCall { call_id, .. } => Some(Ok(call_id)),
        Part::ToolResult { call_id, .. } => Some(Err(call_id)),
        Part::Text { .. } | Part::Thinking { .. } | Part::Image { .. } | Part::File { .. } => None,
    }
}

pub(crate) fn said(decision: Result<Decision, String>) -> CompactMessage {
    match decision {
        Ok(Decision::Compact { summary, keep_from }) => {
            CompactMessage::Compact { summary, keep_from }
        }
        Ok(Decision::Skip) => CompactMessage::Skip(true),
        Err(error) => CompactMessage::Error(error),
    }
}

pub(crate) fn metadata(compactor: &dyn Compactor) -> ServiceMetadata {
    let pairs = [
        (metadata::KIND, metadata::COMPACTOR.to_owned()),
        (metadata::DESCRIPTION, compactor.description().to_owned()),
        (metadata::TIMEOUT_MS, COMPACTOR_TIMEOUT_MS.to_string()),
    ];
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
